// The parts of moving rows that no cache of a test is large enough for.
#include "core/kernels/copy_row-inl.h"

#include <criterion/criterion.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

TestSuite(copy_row);

// Counting bytes must not wrap where a row ends near 2^32; nothing is read.
Test(copy_row, prefetching_the_longest_rows_ends) {
  static const uint8_t row = 0;
  for (uint32_t bytes = UINT32_MAX - 200; bytes != 0; ++bytes) {
    PrefetchRow(&row, bytes);
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
