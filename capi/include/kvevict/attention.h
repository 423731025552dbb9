/*
 * kvevict/attention.h: attention over caches in any layout, for engines without
 * an attention kernel.
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
  uint32_t n_tokens; /**< Slots held by the longest head, 0 .. 2^31 - 1. */
  /** u32 [n_kv_heads], device memory, if heads hold different numbers: each at
   *  most n_tokens. NULL: all hold n_tokens. A head's block table is read only
   *  up to its own count. CUDA does not check them. */
  const uint32_t* token_counts;
  /** The cache: K, and V if values have rows of their own, of dtypes that can
   *  be scored, and a bias if a companion has KVEVICT_ROLE_BIAS. It already
   *  holds the keys and values of the queries' own tokens. */
  const kvevict_view* view;
  /** [n_q_heads, n_queries, k_head_dim] in any strides, after RoPE, f32, f16 or
   *  bf16. Query i belongs to slot n_tokens - n_queries + i; with token_counts
   *  the head's own count replaces n_tokens. */
  const kvevict_plane* queries;
  /** Out: [n_q_heads, n_queries, v_head_dim], f32, f16 or bf16, in any strides
   *  in which no two rows overlap. */
  const kvevict_plane* out;
  /** Query heads, a multiple of n_kv_heads; query heads h * group to (h + 1) *
   *  group - 1 read KV head h. */
  uint32_t n_q_heads;
  uint32_t n_queries; /**< Queries of each head; 0 does nothing. */
  /** Elements of a value. With V: its head_dim, or 0 for that. Without V (MLA):
   *  values are the first v_head_dim elements of the keys' rows, 0: all of
   *  them. */
  uint32_t v_head_dim;
  /** Sliding window: a query sees no slot that is `window` or more before its
   *  own; 0: no window. */
  uint32_t window;
  uint32_t non_causal; /**< 1: queries also see slots after their own. */
  float softmax_scale; /**< Multiplies q.k; 0 means 1/sqrt(k_head_dim). */
  /** c: scaled logits x become c * tanh(x / c); 0: no cap. */
  float logit_softcap;
  uint32_t n_sum_heads; /**< Rows of attention_sums: n_q_heads, or n_kv_heads,
                         *   whose query heads are added up; 0: n_q_heads. */
  /** NULL, or f32 [n_q_heads], device memory: a logit per query head that takes
   *  part in its softmax and has no value. It is neither scaled nor capped. */
  const float* sink_logits;
  size_t sink_logits_len; /**< = n_q_heads, or 0 with NULL. */
  /** Out, or NULL: f32 [n_q_heads, n_queries], head_dim 1, elements at
   *  multiples of 4 bytes: the natural log-sum-exp of each query's logits, sink
   *  included; -infinity if it sees nothing. It can be given as
   *  kvevict_signal_inputs.row_lse. */
  const kvevict_plane* row_lse;
  /** Out, or NULL: f32 [n_sum_heads, n_tokens], head_dim 1, elements at
   *  multiples of 4 bytes: the attention weight that each slot received, summed
   *  over the queries; 0 beyond a head's own count. It can be given as
   *  kvevict_signal_inputs.attention_sums of a step or chunk. */
  const kvevict_plane* attention_sums;
} kvevict_attention_job;

#define KVEVICT_ATTENTION_JOB_INIT                                            \
  {                                                                           \
    (uint32_t)sizeof(kvevict_attention_job), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0                                                      \
  }

/**
 * Computes the attention of queries over caches: the softmax of the logits of
 * the slots that a query sees, and their values' mean with these weights.
 *
 * It serves decoding (a few queries; each row of the cache is read once for all
 * query heads of its KV head) and prefill (any number of queries, in blocks).
 * Quantized rows are decoded as they are read. The softmax is online and
 * accumulates in f32 for all dtypes; no matrix of queries times slots is
 * stored.
 *
 * A query that sees nothing (n_tokens 0, or a token before the first slot) gets
 * zeros. NaN and infinity follow the formula: a query that sees a logit of NaN
 * or +infinity, or has such a sink logit, gets NaN in all elements. A logit of
 * -infinity has weight 0; a query whose logits all are gets zeros. Logits more
 * than 126 (base 2) below the highest have weight 0 too. NaN or infinity in a
 * value that is seen, whatever its weight, makes that element NaN or infinite.
 * Slots that a query does not see never affect it, and nothing beyond the slots
 * held is read.
 *
 * The CPU gives the same bits for any number of threads and any workspace; SIMD
 * targets differ by rounding. CUDA gives the same bits on every run. Cost: K
 * and V are read once per 16 queries or fewer, at prefill once per block of
 * queries; n_q_heads * n_queries * slots seen * (k_head_dim + v_head_dim)
 * multiply-adds. attention_sums read K once more and compute the logits again.
 *
 * @param[in] context    Non-NULL; device and parallel runner.
 * @param[in] jobs       [jobs_len], one layer of one sequence each, of any
 *                       shapes. Jobs may share caches; an output must not
 *                       overlap anything that the call's jobs read or write.
 * @param[in] jobs_len   0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] workspace  See kvevict_attend_workspace().
 * @param[in] workspace_bytes  Its size, at least least_bytes.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         (rows that cannot be read; on CUDA elements, scales, minima and
 *         biases that are not aligned to their size, q8_0 and q4_0 to 2 bytes).
 *         Threads: safe for distinct outputs and workspaces.
 */
KVEVICT_API kvevict_status kvevict_attend(
    const kvevict_context* context, const kvevict_attention_job* jobs,
    size_t jobs_len, void* workspace, size_t workspace_bytes,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Tells the size of the workspace of kvevict_attend(). With up to 16 queries
 * per head the slots are split among threads, on CUDA among thread blocks.
 * best_bytes holds v_head_dim + 2 floats for every query, query head and split;
 * with less, fewer run at once.
 * @param[in]  context    Non-NULL.
 * @param[in]  jobs       [jobs_len] as for the call. Only shapes and strides of
 *                        the planes are read.
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
