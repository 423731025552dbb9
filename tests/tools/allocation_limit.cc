#include "tests/tools/allocation_limit.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

size_t g_limit_bytes = SIZE_MAX;
std::atomic<size_t> g_allocated_bytes{0};

}  // namespace

void* operator new(size_t n) {
  void* memory = n > g_limit_bytes ? nullptr : std::malloc(n == 0 ? 1 : n);
  if (memory == nullptr) throw std::bad_alloc();
  g_allocated_bytes += n;
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kvevict::tools {

void LimitAllocations(size_t n_bytes) { g_limit_bytes = n_bytes; }

size_t AllocatedBytes() { return g_allocated_bytes; }

}  // namespace kvevict::tools
