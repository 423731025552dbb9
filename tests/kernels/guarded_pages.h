// Memory whose neighbours cannot be touched: reading or writing outside is a crash.
#ifndef KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_
#define KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace kvevict {

// n_bytes that end where an inaccessible page begins, or begin where one ends.
class GuardedPages {
 public:
  enum class Against { kEnd, kBegin };

  explicit GuardedPages(size_t n_bytes, Against against = Against::kEnd) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (n_bytes + page - 1) / page * page;
    mapped_bytes_ = inside + 2 * page;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) std::abort();
    mapped_ = static_cast<uint8_t*>(mapped);
    if (inside > 0 &&
        mprotect(mapped_ + page, inside, PROT_READ | PROT_WRITE) != 0) {
      std::abort();
    }
    data_ = mapped_ + page + (against == Against::kEnd ? inside - n_bytes : 0);
  }
  ~GuardedPages() { munmap(mapped_, mapped_bytes_); }

  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  uint8_t* data() const { return data_; }

 private:
  uint8_t* mapped_;
  size_t mapped_bytes_;
  uint8_t* data_;
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_
