/*
 * kvevict/prefill.h: chunked prefill with an eviction after each chunk.
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
 * Runs the model over tokens [first_token, first_token + n_tokens) of a prompt.
 * In each layer it writes their rows behind the stored ones, attends to all
 * rows (causally within the chunk), and calls kvevict_sequence_observe() as the
 * policy needs. It must not call kvevict_sequence_append():
 * kvevict_sequence_prefill() does. It never throws.
 * @param[in] first_token  The logical length of the sequence.
 * @param[in] n_tokens     At most the options' chunk.
 * @param[in] user_data    The options'.
 * @return KVEVICT_OK; any other status ends the prefill.
 */
typedef kvevict_status (*kvevict_prefill_fn)(uint32_t first_token,
                                             uint32_t n_tokens,
                                             void* user_data);

/** How to read a prompt. */
typedef struct kvevict_prefill_options {
  uint32_t struct_size;
  uint32_t n_tokens; /**< Tokens of the prompt. */
  uint32_t chunk;    /**< Tokens per chunk, >= 1. */
  /** 1: evict after every chunk, so that no layer ever holds more than its
   *  budget and a chunk; 0: evict once, at the end. */
  uint32_t evict_each_chunk;
  kvevict_prefill_fn forward; /**< Non-NULL. */
  void* user_data;            /**< Passed to `forward`. */
  /** [n_layers], valid for the tokens held at the start. Each eviction reads
   *  them again, so `forward` may change them. Contiguous views of different
   *  layers must not overlap, the rows of the first eviction included. NULL
   *  with `cached`. */
  const kvevict_view* views;
  size_t views_len; /**< = n_layers, or 0. */
  /** The cache of the rows: the call appends to it before each chunk and frees
   *  the blocks that evictions empty. NULL with `views`. */
  kvevict_paged_sequence* cached;
  /** Read again by each eviction; NULL for none. Destinations are refused. An
   *  eviction ignores protected positions that are still to come. */
  const kvevict_evict_options* evict;
  void* workspace; /**< KVEVICT_OPERATION_EVICT, for the longest cache. */
  size_t workspace_bytes; /**< Its size. */
} kvevict_prefill_options;

#define KVEVICT_PREFILL_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_prefill_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** What a prefill took. */
typedef struct kvevict_prefill_report {
  uint32_t struct_size;
  uint32_t n_chunks;    /**< Chunks that `forward` has run over. */
  uint32_t n_evictions; /**< Evictions that dropped tokens. */
  uint32_t peak_tokens; /**< The most that any layer held, a chunk included. */
  uint64_t peak_bytes;  /**< The most that the rows of all layers took. */
  uint64_t end_bytes;   /**< What they take at the end. */
} kvevict_prefill_report;

/**
 * Reads a prompt in chunks. For each chunk it calls `forward`,
 * kvevict_sequence_append() and, if due, kvevict_sequence_evict(); at the end
 * it calls kvevict_sequence_end_prompt(). So the model needs memory only for
 * the attention of one chunk over the cache.
 * @param[in]  sequence    Non-NULL; its prompt has not ended. It may already
 *                         hold tokens; `cached` then has their rows.
 * @param[in]  options     Non-NULL.
 * @param[out] out_report  NULL, or struct_size set. If a chunk fails, it covers
 *                         the chunks before.
 * @param[in]  stream      See kvevict_stream.
 * @return KVEVICT_OK; the status of `forward`; the errors of the calls named
 *         above. After an error the chunks before stay appended, the prompt has
 *         not ended, and the call may be repeated for the rest (0 tokens if the
 *         last eviction failed). Before the first chunk the call checks
 *         n_tokens, the workspace's size, `evict` except its inputs, and views
 *         for the tokens held at the start. It also checks that the workspace
 *         and the rows of different layers do not overlap: rows held,
 *         contiguous rows of the first eviction, and all blocks of `cached`.
 */
KVEVICT_API kvevict_status kvevict_sequence_prefill(
    kvevict_sequence* sequence, const kvevict_prefill_options* options,
    kvevict_prefill_report* out_report, kvevict_stream stream) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_PREFILL_H_ */
