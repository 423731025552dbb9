/* The parts of C11 and POSIX that the tests use and msvcrt lacks, part of every source. */
#ifndef KVEVICT_TESTS_CROSS_MSVCRT_H_
#define KVEVICT_TESTS_CROSS_MSVCRT_H_

#include <stddef.h>

#ifdef __cplusplus
#include <cstdlib>
extern "C" {
#endif

/* free() accepts it, see msvcrt.c. */
void* aligned_alloc(size_t alignment, size_t n);
int posix_memalign(void** out, size_t alignment, size_t n);

#ifdef __cplusplus
}
namespace std {
using ::aligned_alloc;
}
#endif

#endif /* KVEVICT_TESTS_CROSS_MSVCRT_H_ */
