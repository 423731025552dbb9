// Quantized rows by the header's definition, element by element.
#ifndef KVEVICT_TESTS_ORACLE_QUANTIZED_H_
#define KVEVICT_TESTS_ORACLE_QUANTIZED_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of n packed elements of a dtype that is not opaque.
uint32_t oracle_packed_bytes(kvevict_dtype dtype, uint32_t n);

// The bits of a float of 8: a sign, then these.
typedef struct oracle_small_float {
  int n_exponent, n_fraction;  // n_fraction 0: codes are no floats
  // The highest exponent is one like any other, and only all ones are NaN.
  bool finite;
} oracle_small_float;
oracle_small_float oracle_small_float_of(kvevict_dtype dtype);

// The value of element e of a packed row of n, before scale and minimum.
double oracle_code(kvevict_dtype dtype, const uint8_t* row, uint32_t n,
                   uint32_t e);

// An element of K or V of a view: code * scale + minimum.
double oracle_element(const kvevict_view* view, const kvevict_plane* plane,
                      uint32_t token, uint32_t head, uint32_t e);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_QUANTIZED_H_
