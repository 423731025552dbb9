// Rows of numbers on the GPU and what they stand for, to be compared with an oracle.
#ifndef KVEVICT_TESTS_GPU_NUMBERS_H_
#define KVEVICT_TESTS_GPU_NUMBERS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/gpu/random_layer.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {

// Rows of plain numbers in any strides on the GPU, with a copy on the host.
class StridedRows {
 public:
  StridedRows(const Gpu& gpu, const RandomPlane& drawn)
      : plane_(drawn.plane),
        host_(drawn.n_bytes, kGuard),
        device_(gpu, drawn.n_bytes) {
    Upload();
  }

  uint8_t* At(uint32_t head, uint32_t row, uint32_t e = 0) {
    const int64_t step = plane_.element_stride_bytes != 0
                             ? plane_.element_stride_bytes
                             : int64_t{ElementBytesOf(plane_.dtype)};
    return &host_[static_cast<size_t>(
        static_cast<int64_t>(plane_.data) + head * plane_.head_stride_bytes +
        row * plane_.token_stride_bytes + e * step)];
  }
  // The number of an element, whose bytes are guards from then on.
  double Take(uint32_t head, uint32_t row, uint32_t e = 0) {
    uint8_t* const at = At(head, row, e);
    const double number = ValueAt(plane_.dtype, at, 0);
    std::fill_n(at, ElementBytesOf(plane_.dtype), kGuard);
    return number;
  }
  bool AllIsGuarded() const {
    return std::ranges::all_of(host_, [](uint8_t b) { return b == kGuard; });
  }
  kvevict_dtype dtype() const { return plane_.dtype; }
  void Upload() const { device_.Write(host_.data(), host_.size()); }
  // Returns whether the bytes are those of the last time.
  bool Fetch() {
    const std::vector<uint8_t> got = device_.ReadAll<uint8_t>();
    return std::exchange(host_, got) == got;
  }
  const kvevict_plane* OnDevice() {
    on_device_ = plane_;
    on_device_.data += device_.address();
    return &on_device_;
  }

 private:
  static constexpr uint8_t kGuard = 0xEE;

  kvevict_plane plane_;
  kvevict_plane on_device_{};
  std::vector<uint8_t> host_;
  Buffer device_;
};

// Any dtype that can be read, in rows of n elements.
kvevict_dtype AnyDType(Random* random, uint32_t n);

// The elements of a layer's keys or values, [head, slot, element]; the CPU decodes codes.
std::vector<float> Decode(const kvevict_context* host, RandomLayer& layer,
                          bool of_values, uint32_t n_tokens);

// Draws a number for every element of rows of queries, and returns them.
std::vector<float> FillQueries(Random* random, StridedRows* rows,
                               uint32_t n_heads, uint32_t n_rows,
                               uint32_t head_dim);

// The rounding of a number that is stored.
double StoredError(kvevict_dtype dtype, double number);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_NUMBERS_H_
