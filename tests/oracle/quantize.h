/* Rows of numbers as quantized dtypes store them, element by element. */
#ifndef KVEVICT_TESTS_ORACLE_QUANTIZE_H_
#define KVEVICT_TESTS_ORACLE_QUANTIZE_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of a row's dtype beside the codes. */
typedef struct oracle_numbers {
  bool has_scale, has_minimum;
  bool stays; /* given and not written */
  kvevict_dtype scale_dtype, minimum_dtype;
  float scale, minimum;
} oracle_numbers;

/* Stores a row of n numbers in out[oracle_packed_bytes()], and the scales unless
 * they stay, with or without a fused multiply-add. */
void oracle_quantize(kvevict_dtype dtype, const float* row, uint32_t n,
                     bool fused, oracle_numbers* numbers, uint8_t* out);

/* The same into a row of K or V of a view with its companions. */
void oracle_store_row(const kvevict_view* view, const kvevict_plane* plane,
                      uint32_t token, uint32_t head, bool fused,
                      const float* row);

/* The most by which an element of a stored row may differ from `value`: half a
 * step, and the rounding of the element itself. */
double oracle_most_error(kvevict_dtype dtype, const oracle_numbers* numbers,
                         const float* row, uint32_t n, uint32_t e);

#ifdef __cplusplus
}
#endif

#endif /* KVEVICT_TESTS_ORACLE_QUANTIZE_H_ */
