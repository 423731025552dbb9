// One layer's cache on the host and on the GPU, lying in some random way that
// views can tell.
#ifndef KVEVICT_TESTS_GPU_RANDOM_LAYER_H_
#define KVEVICT_TESTS_GPU_RANDOM_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/random_case.h"

namespace kvevict::gpu {

class RandomLayer {
 public:
  RandomLayer(const Gpu& gpu, Random* random, const kvevict_geometry& geometry);

  const kvevict_view& host_view() const { return host_view_; }
  const kvevict_view& device_view() const { return device_view_; }

  // New rows for `slot` in every plane on the host; Upload() makes both alike.
  void WriteToken(Random* random, uint32_t slot, bool special);
  void Upload() const;
  // "" or what differs between the sides, but for the rows of slots from
  // n_tokens on: bytes between the rows count.
  std::string Compare(uint32_t n_tokens) const;

 private:
  uint64_t Offset(const kvevict_plane& plane, uint32_t slot, uint32_t head,
                  uint32_t element) const;
  // Calls visit(offset, n_bytes) for the pieces of a slot's rows.
  template <typename Visit>
  void ForEachPiece(uint32_t slot, const Visit& visit) const;
  void View(uint64_t base, kvevict_view* view,
            std::vector<kvevict_plane>* companions) const;

  kvevict_geometry geometry_;
  uint32_t n_slots_;
  uint32_t block_size_ = 0;
  std::vector<int32_t> block_table_;
  std::vector<kvevict_plane> planes_;  // K, V, companions; offsets
  std::vector<uint8_t> host_;
  std::unique_ptr<Buffer> device_;
  uint64_t device_base_ = 0;  // not always aligned
  std::unique_ptr<Buffer> device_table_;
  kvevict_view host_view_ = KVEVICT_VIEW_INIT;
  kvevict_view device_view_ = KVEVICT_VIEW_INIT;
  std::vector<kvevict_plane> host_companions_;
  std::vector<kvevict_plane> device_companions_;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_LAYER_H_
