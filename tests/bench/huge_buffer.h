// Large arrays like an engine's.
#ifndef KVEVICT_TESTS_BENCH_HUGE_BUFFER_H_
#define KVEVICT_TESTS_BENCH_HUGE_BUFFER_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace kvevict::bench {

// Aligned to 2 MiB, huge pages advised, touched.
template <class T>
class HugeBuffer {
 public:
  explicit HugeBuffer(size_t n) : n_(n) {
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t bytes = (n * sizeof(T) + kHugePage) & ~(kHugePage - 1);
    memory_.reset(static_cast<T*>(std::aligned_alloc(kHugePage, bytes)));
    if (memory_ == nullptr) throw std::bad_alloc();
    madvise(memory_.get(), bytes, MADV_HUGEPAGE);
    std::memset(static_cast<void*>(memory_.get()), 0, bytes);
  }

  T* data() const { return memory_.get(); }
  size_t size() const { return n_; }
  uint8_t* bytes() const { return reinterpret_cast<uint8_t*>(data()); }
  T& operator[](size_t i) const { return data()[i]; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  size_t n_;
  std::unique_ptr<T, Free> memory_;
};

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_HUGE_BUFFER_H_
