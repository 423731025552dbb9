// Bytes that are saved and loaded again: little-endian, behind a header of
//
//   u8 magic[8]   u32 version   u32 CRC-32 of all that follows   u64 bytes in all
#ifndef KVEVICT_CORE_SAVED_BYTES_H_
#define KVEVICT_CORE_SAVED_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"

namespace kvevict {

struct SavedKind {
  uint8_t magic[8];
  uint32_t version;
  const char* what;  // "saved sequence"
};

inline constexpr size_t kSavedHeaderBytes = 24;

// Writes the header, once all that follows it is there.
void WriteSavedHeader(const SavedKind& kind, std::span<uint8_t> all);

// Checks the header and the bytes behind it; least_bytes is the least that such
// data can have.
Status CheckSavedHeader(const SavedKind& kind, std::span<const uint8_t> all,
                        size_t least_bytes);

class SavedWriter {
 public:
  explicit SavedWriter(uint8_t* out) : out_(out) {}

  void U32(uint32_t value) {
    for (int i = 0; i < 4; ++i) *out_++ = static_cast<uint8_t>(value >> 8 * i);
  }
  void U64(uint64_t value) {
    U32(static_cast<uint32_t>(value));
    U32(static_cast<uint32_t>(value >> 32));
  }
  void F64(double value) { U64(std::bit_cast<uint64_t>(value)); }

 private:
  uint8_t* out_;
};

// Reads 0 and is no longer ok() once no bytes are left.
class SavedReader {
 public:
  explicit SavedReader(std::span<const uint8_t> data) : data_(data) {}

  uint32_t U32() {
    uint32_t value = 0;
    ok_ = ok_ && data_.size() >= 4;
    if (!ok_) return 0;
    for (int i = 0; i < 4; ++i) value |= uint32_t{data_[i]} << 8 * i;
    data_ = data_.subspan(4);
    return value;
  }
  uint64_t U64() {
    const uint64_t low = U32();
    return low | uint64_t{U32()} << 32;
  }
  double F64() { return std::bit_cast<double>(U64()); }
  // At most n_left().
  void Skip(size_t n_bytes) { data_ = data_.subspan(n_bytes); }
  bool ok() const { return ok_; }
  size_t n_left() const { return data_.size(); }

 private:
  std::span<const uint8_t> data_;
  bool ok_ = true;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SAVED_BYTES_H_
