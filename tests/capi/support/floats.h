/* Element types as the tests write and read them. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_FLOATS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_FLOATS_H_

#include <stdint.h>

#include "kvevict/experimental.h"
#include "tests/oracle/compact.h"

/* The library's row of a dtype, and the last dtype that it has. */
kvevict_dtype_info test_dtype_info(kvevict_dtype dtype);
kvevict_dtype test_last_dtype(void);

/* Writes the nearest value towards zero that the dtype has. */
void test_store(kvevict_dtype dtype, float value, void* element);

float test_load(kvevict_dtype dtype, const void* element);

/* The most that rounding to a dtype changes. */
double test_stored_bound(kvevict_dtype dtype, double v);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_FLOATS_H_ */
