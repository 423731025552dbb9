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

/* Follows an eviction: `now` has the lists that it left of `was`. is_saved: it may be
 * taken back. */
void test_tallies_evicted(test_living* life, const test_state* was,
                          bool is_saved);

/* Follows an undo: `now` has again what the lists were before the eviction, and the tokens
 * that have come since. `then` is from right before the undo. */
void test_tallies_undone(test_living* life, const test_state* then);

/* Follows a trim to the length of `now`. */
void test_tallies_trimmed(test_living* life);

/* The scores of slots by which an eviction chooses. */
void test_tallies_give(const test_living* life, test_given* given);

/* Fails unless the sequence has the numbers of the naive model. */
void test_tallies_check(const test_living* life);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_TALLIES_H_ */
