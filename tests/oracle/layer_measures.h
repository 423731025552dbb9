// Measures of all layers' weights, by which their budgets are found.
#ifndef KVEVICT_TESTS_ORACLE_LAYER_MEASURES_H_
#define KVEVICT_TESTS_ORACLE_LAYER_MEASURES_H_

#include <stdint.h>

#include "tests/oracle/scores.h"

#ifdef __cplusplus
extern "C" {
#endif

// Measures of the weights of all rows and query heads in the slots before the window.
typedef struct oracle_measure {
  double entropy;   // -sum a ln(a + 1e-10)
  double variance;  // over rows, summed over slots and heads
  double ends;      // sum over the first n_first slots and the last n_last
} oracle_measure;

void oracle_measure_attention(const oracle_attention* in, uint32_t n_first,
                              uint32_t n_last, oracle_measure* measure);

// CAKE: splits `total` past tokens over the layers by preference, none more than
// n_past. Returns how far the share nearest to a whole number is from it, relative
// to the total: if rounding reached it, the next number would be right, too.
double oracle_split_cake(const double* preferences, uint32_t n_layers,
                         uint64_t total, uint32_t n_past, uint64_t* budgets);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_LAYER_MEASURES_H_
