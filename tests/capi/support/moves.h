/* Random slots and lists of a move. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_MOVES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_MOVES_H_

#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/random.h"

/* Draws the slots held by each head, at most `most`. Sets move->n_tokens, and
 * token_counts if heads differ. */
void test_draw_held(test_random* random, uint32_t n_heads, uint32_t most,
                    uint32_t* held, kvevict_move* move);

/* Draws a list for all heads or one for each, of held slots from `first` on. `out`
 * points to counts [n_heads] and slots [n_heads, stride]. */
void test_draw_lists(test_random* random, uint32_t n_heads, uint32_t first,
                     const uint32_t* held, uint32_t stride, uint32_t* counts,
                     int32_t* slots, kvevict_keep_lists* out);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MOVES_H_ */
