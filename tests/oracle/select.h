// The slots that survive, found by sorting everything.
#ifndef KVEVICT_TESTS_ORACLE_SELECT_H_
#define KVEVICT_TESTS_ORACLE_SELECT_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

// out[n_tokens] = rows[n_rows, n_tokens] reduced over the rows.
void oracle_combine(const float* rows, uint32_t n_rows, uint32_t n_tokens,
                    kvevict_reduce reduce, float* out);

// keep[n_keep], ascending: the forced slots and the best of the others, by
// descending score, NaN last, ties by the rule. forced[n_tokens] is 0 or 1.
void oracle_select(const float* scores, uint32_t n_tokens, uint32_t n_keep,
                   const uint8_t* forced, kvevict_tie tie, int32_t* keep);

// The same in whole blocks of neighbouring slots. A block's score is the mean of
// its slots'. A forced slot forces its block, and a last block that is not full is
// forced. Returns how many slots the best blocks that fit n_keep have.
uint32_t oracle_select_blocks(const float* scores, uint32_t n_tokens,
                              uint32_t n_keep, const uint8_t* forced,
                              uint32_t block, kvevict_tie tie, int32_t* keep);

// The same for n_keep slots in whole blocks, by ranks[n_tokens] before scores. A
// block has the highest rank of its slots. Without scores (NULL) only ties decide.
void oracle_select_ranked(const float* scores, const int32_t* ranks,
                          uint32_t n_tokens, uint32_t n_keep,
                          const uint8_t* forced, uint32_t block,
                          kvevict_tie tie, int32_t* keep);

// Whether keep[n_keep] is ascending, holds every forced slot, and leaves out no
// slot that beats a kept one by more than `tolerance`.
bool oracle_selection_is_right(const double* scores, uint32_t n_tokens,
                               const int32_t* keep, uint32_t n_keep,
                               const uint8_t* forced, double tolerance);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_SELECT_H_
