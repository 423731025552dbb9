/* The calls without a sequence for one layer, with lists of one length end to end. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_DOORS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_DOORS_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/plan.h"

/* n_lists lists of n slots. Only kvevict_select() writes them. */
kvevict_keep_lists test_lists(const int32_t* slots, uint32_t n,
                              uint32_t n_lists);

/* A job of layer 0 for scores [n_heads, n_tokens]. */
kvevict_score_job test_score_job(uint32_t n_tokens, const kvevict_view* view,
                                 const kvevict_signal_inputs* inputs,
                                 float* scores, uint32_t n_heads);

/* kvevict_score() by a plan made to score, in its workspace. */
kvevict_status test_score_jobs(const test_plan* plan,
                               const kvevict_score_job* jobs, size_t jobs_len);

/* kvevict_score() of layer 0 by queries. */
kvevict_status test_score(const test_plan* plan, const kvevict_plane* queries,
                          const kvevict_view* view, uint32_t n_tokens,
                          float* scores, size_t scores_len);

/* kvevict_select() as the policy of a plan made to select wants it. */
kvevict_status test_select(const test_plan* plan, uint32_t layer,
                           const float* scores, size_t scores_len,
                           uint32_t n_tokens, const int32_t* protect,
                           size_t n_protect, int32_t* keep, size_t keep_len,
                           uint32_t* n_keep);

/* kvevict_compact() without a workspace. */
kvevict_status test_compact(const kvevict_context* context,
                            const kvevict_view* view, uint32_t n_tokens,
                            const int32_t* keep, uint32_t n, uint32_t n_lists);

/* The least workspace of kvevict_reorder(). */
kvevict_status test_reorder_bytes(const kvevict_context* context,
                                  const kvevict_view* view, uint32_t n,
                                  uint32_t n_lists, size_t* out_bytes);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_DOORS_H_ */
