#include "tests/cross/msvcrt.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Before an aligned block there are its memory's begin and, so that free() knows
 * it, this mark and its own address. Other memory has bytes of its heap there. */
static const uintptr_t kMark = 0x6B766576696374; /* "kvevict" */

void* aligned_alloc(size_t alignment, size_t n) {
  if (alignment < 64) alignment = 64;
  const size_t more = alignment + 2 * sizeof(uintptr_t);
  void* const memory = n > SIZE_MAX - more ? NULL : malloc(n + more);
  if (memory == NULL) return NULL;
  uintptr_t at = (uintptr_t)memory + more - 1;
  at -= at % alignment;
  uintptr_t* const block = (uintptr_t*)at;
  block[-1] = (uintptr_t)memory;
  block[-2] = kMark ^ at;
  return block;
}

int posix_memalign(void** out, size_t alignment, size_t n) {
  *out = aligned_alloc(alignment, n);
  return *out == NULL;
}

/* The linker's --wrap=free provides this. */
void __real_free(void* memory);
void __wrap_free(void* memory) {
  const uintptr_t at = (uintptr_t)memory;
  uintptr_t* const block = memory;
  if (at != 0 && at % 64 == 0 && block[-2] == (kMark ^ at)) {
    block[-2] = 0;
    memory = (void*)block[-1];
  }
  __real_free(memory);
}

/* mingw's is off by one in a tenth of all cases. An inexact sum that becomes a
 * float is made odd in its last place, so that it rounds once. */
float fmaf(float a, float b, float c) {
  const double product = (double)a * b; /* exact */
  double sum = product + c;
  const double back = sum - product;
  const double lost = (product - (sum - back)) + (c - back);
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  if (isfinite(sum) && lost != 0.0 && bits % 2 == 0) {
    sum = nextafter(sum, lost > 0.0 ? INFINITY : -INFINITY);
  }
  return (float)sum;
}
