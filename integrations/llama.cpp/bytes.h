// Memory for a state or a workspace. It is megabytes large, so it is not
// filled.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_BYTES_H_
#define KVEVICT_INTEGRATIONS_LLAMA_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace kvevict::llama {

class Bytes {
 public:
  // Aligned for any workspace of the CPU. The address changes when it grows.
  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

  // Makes room for at least n bytes, with any content.
  void Reserve(size_t n) {
    if (n <= size_) return;
    data_.reset();
    size_ = 0;
    data_.reset(new (std::align_val_t(kAlignment)) uint8_t[n]);
    size_ = n;
  }

  // The same, and touches the pages: the first touch of a page costs more than
  // its copy.
  void ReserveTouched(size_t n) {
    if (n <= size_) return;
    Reserve(n);
    volatile uint8_t* const data = data_.get();
    for (size_t i = 0; i < n; i += kPageBytes) data[i] = 0;
  }

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kPageBytes = 4096;

  struct Free {
    void operator()(uint8_t* p) const {
      ::operator delete[](p, std::align_val_t(kAlignment));
    }
  };
  std::unique_ptr<uint8_t[], Free> data_;
  size_t size_ = 0;
};

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_BYTES_H_
