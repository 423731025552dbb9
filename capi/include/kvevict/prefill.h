/*
 * kvevict/prefill.h: reads a prompt in chunks and evicts after each.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_PREFILL_H_
#define KVEVICT_PREFILL_H_

#include "kvevict/paged.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Chunked prefill ----------------------------------------------------- */

/**
 * Runs the model over tokens [first_token, first_token + n_tokens) of a prompt:
 * in each layer it writes their rows behind those that are stored, attends to
 * all of them, causal within the chunk, and shows what the policy needs by
 * kvevict_sequence_observe(). It appends nothing: the driver does. Never
 * throws.
 * @param[in] first_token  The logical length of the sequence.
 * @param[in] n_tokens     At most the driver's chunk.
 * @param[in] user_data    The options'.
 * @return KVEVICT_OK, or what ends the prefill.
 */
typedef kvevict_status (*kvevict_prefill_fn)(uint32_t first_token,
                                             uint32_t n_tokens,
                                             void* user_data);

/** How a prompt is read. */
typedef struct kvevict_prefill_options {
  uint32_t struct_size;
  uint32_t n_tokens; /**< Tokens of the prompt. */
  uint32_t chunk;    /**< Tokens at a time, >= 1. */
  /** 1: an eviction after every chunk, so that no layer ever holds more than
   *  what the policy leaves it and a chunk; 0: one, when all has been read. */
  uint32_t evict_each_chunk;
  kvevict_prefill_fn forward; /**< Non-NULL. */
  void* user_data;            /**< Passed to it. */
  /** [n_layers], of the tokens held from the start; read again by each
   *  eviction, so `forward` may change what they say. Contiguous ones lie apart
   *  with the rows of the first eviction from the start. NULL with `cached`. */
  const kvevict_view* views;
  size_t views_len; /**< = n_layers, or 0. */
  /** The cache that has the rows: it gets room before each chunk, and gives
   *  back what evictions leave empty. NULL with `views`. */
  kvevict_paged_sequence* cached;
  /** Read again by each eviction, without destinations; NULL for none. An
   *  eviction ignores protected positions that are yet to come. */
  const kvevict_evict_options* evict;
  void* workspace; /**< KVEVICT_OPERATION_EVICT, for the longest cache. */
  size_t workspace_bytes; /**< Its size. */
} kvevict_prefill_options;

#define KVEVICT_PREFILL_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_prefill_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What reading a prompt took. */
typedef struct kvevict_prefill_report {
  uint32_t struct_size;
  uint32_t n_chunks;    /**< That `forward` has run over. */
  uint32_t n_evictions; /**< That lost tokens. */
  uint32_t peak_tokens; /**< The most that any layer held, a chunk included. */
  uint64_t peak_bytes;  /**< The most that rows of all layers took at a time. */
  uint64_t end_bytes;   /**< What they take at the end. */
} kvevict_prefill_report;

/**
 * Reads a prompt in chunks: of each `forward`, kvevict_sequence_append() and,
 * where it is due, kvevict_sequence_evict(); at the end
 * kvevict_sequence_end_prompt(). Attention over chunk x cache at a time is all
 * that the model needs memory for.
 * @param[in]  sequence    Non-NULL, whose prompt has not ended. It may hold
 *                         tokens already, whose rows `cached` has too.
 * @param[in]  options     Non-NULL.
 * @param[out] out_report  NULL, or struct_size set; also filled, as far as it
 *                         went, where a chunk fails.
 * @param[in]  stream      See kvevict_stream.
 * @return KVEVICT_OK; what `forward` returned; what the calls named above fail
 *         with. The chunks before stay appended, the prompt has not ended, and
 *         the call may be made again for the rest, which is 0 tokens where the
 *         last eviction failed. Before the first chunk the call checks
 *         n_tokens, the workspace's size, `evict` but for its inputs, and views
 *         for the tokens held by then. It also checks that rows of different
 *         layers, and the workspace, lie apart: rows held, contiguous ones of
 *         the first eviction, and all blocks of `cached`.
 */
KVEVICT_API kvevict_status kvevict_sequence_prefill(
    kvevict_sequence* sequence, const kvevict_prefill_options* options,
    kvevict_prefill_report* out_report, kvevict_stream stream) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_PREFILL_H_ */
