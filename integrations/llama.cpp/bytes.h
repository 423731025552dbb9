// Memory for a state or a workspace: megabytes, used once, so not filled.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_BYTES_H_
#define KVEVICT_INTEGRATIONS_LLAMA_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvevict::llama {

class Bytes {
 public:
  explicit Bytes(size_t n) : data_(new uint8_t[n]), size_(n) {}

  std::span<uint8_t> span() const { return {data_.get(), size_}; }

  // All but what it takes to begin at a multiple of `alignment`.
  void* Aligned(size_t alignment) const {
    void* p = data_.get();
    size_t space = size_;
    return std::align(alignment, 1, p, space);
  }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_;
};

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_BYTES_H_
