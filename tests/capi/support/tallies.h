/* What a sequence observes of slots in a life: scores that are given once, or sums of
 * attention. They move with the slots. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_TALLIES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_TALLIES_H_

#include "tests/capi/support/sequence_state.h"

/* Draws whether the life observes either. H2O's sums and scores that decay are always
 * observed. */
void test_tallies_begin(test_living* life);

/* Appends n tokens and observes theirs before or after, in one of many ways that are
 * alike. The naive model's lists have not grown. */
void test_tallies_append(test_living* life, uint32_t n);

/* Gives the tokens of `now` the numbers that they have in `from`, if they are there. */
void test_tallies_carry(test_living* life, const test_state* from);

/* The scores of slots by which an eviction chooses. */
void test_tallies_give(const test_living* life, test_given* given);

/* Fails unless the sequence has the numbers of the naive model. */
void test_tallies_check(const test_living* life);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_TALLIES_H_ */
