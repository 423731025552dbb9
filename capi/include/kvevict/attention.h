/*
 * kvevict/attention.h: attention over caches as they lie, for engines without a
 * kernel of their own.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_ATTENTION_H_
#define KVEVICT_ATTENTION_H_

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Attention ----------------------------------------------------------- */

/** One layer of one sequence in kvevict_attend(). */
typedef struct kvevict_attention_job {
  uint32_t struct_size;
  uint32_t n_tokens; /**< Slots held, 0 .. 2^31 - 1, the most of any head. */
  /** u32 [n_kv_heads], if heads hold different numbers: each at most
   *  n_tokens, device memory; NULL: all hold n_tokens. A head's block table is
   *  read only as far as its own count reaches. On CUDA they are the caller's
   *  word. */
  const uint32_t* token_counts;
  /** The cache: K, and V where values have rows of their own, of dtypes that
   *  are scored. The keys and values of the queries' own tokens are in it. */
  const kvevict_view* view;
  /** [n_q_heads, n_queries, k_head_dim] in any strides, after RoPE, f32, f16 or
   *  bf16. Query i belongs to slot n_tokens - n_queries + i, with
   *  token_counts to the slot that far from the head's own end. */
  const kvevict_plane* queries;
  /** Out: [n_q_heads, n_queries, v_head_dim], f32, f16 or bf16, in any strides
   *  in which no two rows overlap. */
  const kvevict_plane* out;
  uint32_t n_q_heads; /**< A multiple of n_kv_heads; query heads h * group to
                       *   (h + 1) * group - 1 read KV head h. */
  uint32_t n_queries; /**< 0 does nothing. */
  /** Elements of a value: with V its head_dim or 0; without V (MLA) values are
   *  the first v_head_dim elements of the keys' rows, 0: all of them. */
  uint32_t v_head_dim;
  /** Sliding window: a query sees no slot that lies `window` or more before its
   *  own; 0: none. */
  uint32_t window;
  uint32_t non_causal; /**< 1: queries see slots behind their own too. */
  float softmax_scale; /**< Multiplies q.k; 0 means 1/sqrt(k_head_dim). */
  /** Scaled logits x become c * tanh(x / c), c being this; 0: they stay. */
  float logit_softcap;
  uint32_t n_sum_heads; /**< Rows of attention_sums: n_q_heads, or n_kv_heads,
                         *   whose query heads are added up; 0: n_q_heads. */
  /** NULL, or f32 [n_q_heads], device memory: a logit per query head that takes
   *  part in its softmax and has no value; as it is, without scale and cap. */
  const float* sink_logits;
  size_t sink_logits_len; /**< = n_q_heads, or 0 with NULL. */
  /** Out, or NULL: f32 [n_q_heads, n_queries], head_dim 1, elements at
   *  multiples of 4 bytes: the natural log-sum-exp of each query's logits, sink
   *  included; -infinity where it sees nothing. What
   *  kvevict_signal_inputs.row_lse takes. */
  const kvevict_plane* row_lse;
  /** Out, or NULL: f32 [n_sum_heads, n_tokens], head_dim 1, elements at
   *  multiples of 4 bytes: the attention weight that each slot got, summed over
   *  the queries; 0 beyond a head's own count. What
   *  kvevict_signal_inputs.attention_sums takes of a step or a chunk. */
  const kvevict_plane* attention_sums;
} kvevict_attention_job;

#define KVEVICT_ATTENTION_JOB_INIT                                            \
  {                                                                           \
    (uint32_t)sizeof(kvevict_attention_job), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0                                                      \
  }

/**
 * Attention of queries over caches as they lie: softmax of the logits of the
 * slots that a query sees, and the mean of their values by it.
 *
 * For engines without a kernel of their own, at decode (a few queries, of which
 * each row of the cache is read once for all query heads of a KV head) and at
 * prefill (any number, in blocks). Rows are decoded where they are read.
 * Online softmax, accumulated in f32 whatever the dtypes; never a matrix of
 * queries times slots.
 *
 * A query that sees nothing (n_tokens 0, or a query of a token before the first
 * slot) gets zeros. NaN and infinity do what the formula says: a query that
 * sees a logit of NaN or +infinity, or has such a sink logit, gets NaN
 * throughout; a logit of -infinity weighs 0, and where all do the query gets
 * zeros. Logits more than 126 (base 2) below the highest weigh 0 as well. NaN
 * and infinity in a value that is seen, whatever it weighs, make NaN or
 * infinity of that element. Slots that a query does not see never matter to it,
 * and nothing beyond the slots held is read.
 *
 * On the CPU results are the same bits for any number of threads and in any
 * workspace; SIMD targets differ by rounding. On CUDA they are the same from
 * run to run. Cost: reads K and V once per 16 queries or fewer, at prefill once
 * per block of queries; n_q_heads * n_queries * slots seen * (k_head_dim +
 * v_head_dim) multiply-adds; attention_sums read K once more and take as many
 * multiply-adds again as the logits.
 *
 * @param[in] context    Non-NULL; device and parallel runner.
 * @param[in] jobs       [jobs_len], a layer of a sequence each, of any shapes.
 *                       They may share caches; what is written must not overlap
 *                       what any job of the call reads or writes.
 * @param[in] jobs_len   0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] workspace  See kvevict_attend_workspace().
 * @param[in] workspace_bytes  Its size, at least the least.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNSUPPORTED (rows that cannot be read; on CUDA
 *         elements, scales and minima that are not aligned to their size, or
 *         q8_0 and q4_0 to 2 bytes). Threads: safe for distinct outputs and
 *         workspaces.
 */
KVEVICT_API kvevict_status kvevict_attend(
    const kvevict_context* context, const kvevict_attention_job* jobs,
    size_t jobs_len, void* workspace, size_t workspace_bytes,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * The workspace of kvevict_attend(). With up to 16 queries per head slots are
 * split among threads, on CUDA among blocks, and the best holds a row of
 * v_head_dim + 2 floats for every query, query head and split; with less, fewer
 * go at once.
 * @param[in]  context    Non-NULL.
 * @param[in]  jobs       [jobs_len] as for the call; of the planes only shapes
 *                        and strides are read.
 * @param[in]  jobs_len   At most KVEVICT_MAX_JOBS.
 * @param[out] out        Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also when a size would
 *         not fit in size_t).
 */
KVEVICT_API kvevict_status kvevict_attend_workspace(
    const kvevict_context* context, const kvevict_attention_job* jobs,
    size_t jobs_len, kvevict_workspace* out) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_ATTENTION_H_ */
