#undef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1 /* anonymous mappings */
#include "tests/capi/support/pages.h"

#include <stdlib.h>

#if defined(_WIN32)
#include <windows.h>
#elif !defined(__wasm__)
#include <sys/mman.h>
#include <unistd.h>
#endif

test_guarded test_guarded_open(size_t n_bytes, int at_end) {
  size_t page = 4096;
  test_guarded p = {NULL, NULL, 0};
#if defined(__wasm__)
  (void)at_end, (void)page;
  p.data = p.mapped = (uint8_t*)calloc(n_bytes + 1, 1);
#else
#if !defined(_WIN32)
  page = (size_t)sysconf(_SC_PAGESIZE);
#endif
  const size_t inside = (n_bytes + page - 1) / page * page;
  const size_t guard = 16 * page; /* other memory is far */
  p.mapped_bytes = inside + 2 * guard;
#if defined(_WIN32)
  p.mapped =
      (uint8_t*)VirtualAlloc(NULL, p.mapped_bytes, MEM_RESERVE, PAGE_NOACCESS);
  if (p.mapped == NULL) abort();
  if (inside > 0 && VirtualAlloc(p.mapped + guard, inside, MEM_COMMIT,
                                 PAGE_READWRITE) == NULL) {
    abort();
  }
#else
  void* const memory =
      mmap(NULL, p.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  p.mapped = (uint8_t*)memory;
  if (mprotect(p.mapped + guard, inside, PROT_READ | PROT_WRITE) != 0) abort();
  madvise(p.mapped + guard, inside, MADV_POPULATE_WRITE); /* all at once */
#endif
  p.data = p.mapped + guard + (at_end ? inside - n_bytes : 0);
#endif
  return p;
}

void test_guarded_close(test_guarded p) {
#if defined(__wasm__)
  free(p.mapped);
#elif defined(_WIN32)
  VirtualFree(p.mapped, 0, MEM_RELEASE);
#else
  munmap(p.mapped, p.mapped_bytes);
#endif
}
