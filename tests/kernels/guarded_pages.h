// Memory whose neighbours cannot be touched: reading or writing outside is a crash.
#ifndef KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_
#define KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_

#ifdef _WIN32
#include <windows.h>
#undef far
#undef near
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace kvevict {

// n_bytes that end where an inaccessible page begins, or begin where one ends.
class GuardedPages {
 public:
  enum class Against { kEnd, kBegin };

  explicit GuardedPages(size_t n_bytes, Against against = Against::kEnd) {
    const size_t page = PageBytes();
    const size_t inside = (n_bytes + page - 1) / page * page;
    mapped_bytes_ = inside + 2 * page;
    mapped_ = static_cast<uint8_t*>(Map(mapped_bytes_));
    if (mapped_ == nullptr) std::abort();
    if (inside > 0 && !Open(mapped_ + page, inside)) std::abort();
    data_ = mapped_ + page + (against == Against::kEnd ? inside - n_bytes : 0);
  }
  ~GuardedPages() { Unmap(mapped_, mapped_bytes_); }

  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  uint8_t* data() const { return data_; }

 private:
#ifdef _WIN32
  static size_t PageBytes() { return 4096; }
  static void* Map(size_t n) {
    return VirtualAlloc(nullptr, n, MEM_RESERVE, PAGE_NOACCESS);
  }
  static bool Open(void* memory, size_t n) {
    return VirtualAlloc(memory, n, MEM_COMMIT, PAGE_READWRITE) != nullptr;
  }
  static void Unmap(void* memory, size_t) {
    VirtualFree(memory, 0, MEM_RELEASE);
  }
#else
  static size_t PageBytes() {
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
  }
  static void* Map(size_t n) {
    void* memory =
        mmap(nullptr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
  }
  static bool Open(void* memory, size_t n) {
    return mprotect(memory, n, PROT_READ | PROT_WRITE) == 0;
  }
  static void Unmap(void* memory, size_t n) { munmap(memory, n); }
#endif

  uint8_t* mapped_;
  size_t mapped_bytes_;
  uint8_t* data_;
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_
