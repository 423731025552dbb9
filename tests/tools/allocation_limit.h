// Catches allocations that a test does not expect.
#ifndef KVEVICT_TESTS_TOOLS_ALLOCATION_LIMIT_H_
#define KVEVICT_TESTS_TOOLS_ALLOCATION_LIMIT_H_

#include <cstddef>

namespace kvevict::tools {

// Makes every operator new of this program that asks for more throw
// std::bad_alloc from now on.
void LimitAllocations(size_t n_bytes);

// The bytes that all of them have asked for so far.
size_t AllocatedBytes();

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_ALLOCATION_LIMIT_H_
