// Memory whose neighbours cannot be touched: reading or writing outside is a crash.
#ifndef KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_
#define KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "tests/capi/support/pages.h"

namespace kvevict {

// n_bytes that end where an inaccessible page begins, or begin where one ends.
class GuardedPages {
 public:
  enum class Against { kEnd, kBegin };

  explicit GuardedPages(size_t n_bytes, Against against = Against::kEnd)
      : pages_(test_guarded_open(n_bytes, against == Against::kEnd)) {}
  ~GuardedPages() { test_guarded_close(pages_); }

  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  uint8_t* data() const { return pages_.data; }

 private:
  test_guarded pages_;
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_GUARDED_PAGES_H_
