// Parts of moving rows for which no test's cache is large enough.
#include "core/kernels/copy_row-inl.h"

#include <criterion/criterion.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

TestSuite(copy_row);

// Counting bytes must not wrap if a row ends near 2^32. Nothing is read.
Test(copy_row, prefetching_the_longest_rows_ends) {
  static const uint8_t row = 0;
  for (uint32_t bytes = UINT32_MAX - 200; bytes != 0; ++bytes) {
    PrefetchRow(&row, bytes);
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
