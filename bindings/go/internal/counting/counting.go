// Package counting has memory hooks for tests, which may not use cgo themselves.
package counting

/*
#include <stdint.h>
#include <stdlib.h>

static void* take(size_t n_bytes, size_t alignment, void* counts) {
  ++((int64_t*)counts)[0];
  return aligned_alloc(alignment, n_bytes);
}

static void give_back(void* memory, size_t n_bytes, size_t alignment,
                      void* counts) {
  (void)n_bytes;
  (void)alignment;
  ++((int64_t*)counts)[1];
  free(memory);
}

static uintptr_t address_of_take(void) { return (uintptr_t)take; }
static uintptr_t address_of_give_back(void) { return (uintptr_t)give_back; }
*/
import "C"

// Alloc and Free are addresses of hooks whose user data is that of an [2]int64: how often memory was
// taken, and given back.
func Alloc() uintptr { return uintptr(C.address_of_take()) }
func Free() uintptr  { return uintptr(C.address_of_give_back()) }
