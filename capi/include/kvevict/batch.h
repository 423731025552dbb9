/*
 * kvevict/batch.h: forks, sequences that begin from filled or saved caches, and
 * calls that serve many sequences.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_BATCH_H_
#define KVEVICT_BATCH_H_

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Sequences that begin elsewhere -------------------------------------- */

/**
 * Tells how many tokens are still in their first slots: the largest p such that
 * every list of every layer holds tokens [0, p) in slots [0, p). Another
 * request with these p tokens can reuse the rows.
 *
 * After an eviction that merged or fitted, which may change any row, it is 0
 * until the next reset. Tokens behind a kvevict_sequence_edit() do not count.
 * CUDA waits as kvevict_sequence_position_of_slot() does.
 *
 * @param[in]  sequence    Non-NULL.
 * @param[out] out_length  Tokens; the logical length if nothing was evicted.
 */
KVEVICT_API kvevict_status kvevict_sequence_exact_prefix(
    const kvevict_sequence* sequence, uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Which tokens a layer's slots hold: one list of positions for all keep lists
 * of the layer, or one per keep list, as kvevict_sequence_keep_positions()
 * writes them. Host memory; nothing is owned.
 */
typedef struct kvevict_position_lists {
  uint32_t struct_size;
  uint32_t n_lists; /**< 1 or the layer's, see kvevict_plan_layer(). */
  /** [n_lists, list_stride], strictly ascending in each list: slot i holds the
   *  token of positions[i]. NULL if count is 0. */
  const int32_t* positions;
  size_t positions_len; /**< Elements of positions. */
  uint64_t list_stride; /**< Elements from list to list, >= count; 0: count. */
  uint32_t count;    /**< Slots in every list; with counts, in the longest. */
  uint32_t reserved; /**< 0. */
  /** [n_lists], each at most count; NULL: all are count. Lists differ in length
   *  only in a plan with head_budgets or a `heads` other than equal. */
  const uint32_t* counts;
} kvevict_position_lists;

#define KVEVICT_POSITION_LISTS_INIT \
  { (uint32_t)sizeof(kvevict_position_lists), 0, 0, 0, 0, 0, 0, 0 }

/**
 * Starts an empty sequence on caches that already hold rows: a restored
 * session, a beam, a prefix that requests share.
 *
 * The lists say which token each slot holds, and the next token gets position
 * n_tokens. A list need not reach n_tokens. A trim is exact if every list has
 * all positions from the new length on, or if the new length is within the
 * exact prefix. Query memory and observed queries stay, sums and scores are
 * dropped. A layer's positions take 8 bytes for each position up to its last
 * missing one.
 *
 * @param[in] sequence    Non-NULL, of logical length 0: newly created or reset.
 * @param[in] layers      [n_layers] structs of one struct_size; those of layers
 *                        without a full cache are not read. Under scope MODEL
 *                        all hold the same positions. NULL with length 0: every
 *                        list holds all of [0, n_tokens).
 * @param[in] layers_len  = n_layers, or 0 with NULL.
 * @param[in] n_tokens    The logical length, above every position, at most 2^31
 *                        - 1.
 * @param[in] stream      See kvevict_stream. CUDA waits for it if positions are
 *                        listed.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a sequence that is not
 *         empty, a layer without lists, positions that do not ascend or reach
 *         n_tokens, more slots than max_tokens);
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_sequence_start(
    kvevict_sequence* sequence, const kvevict_position_lists* layers,
    size_t layers_len, uint32_t n_tokens,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/** Options of kvevict_sequence_fork(). */
typedef struct kvevict_fork_options {
  uint32_t struct_size;
  uint32_t reserved; /**< 0. */
  /** The new sequence's plan, kept alive by it; NULL: the source's. */
  const kvevict_plan* plan;
  /** The new sequence observes in it, as kvevict_sequence_begin_observing()
   *  says. Not used if it does not observe. */
  void* memory;
  size_t memory_bytes; /**< 0 with NULL. */
} kvevict_fork_options;

#define KVEVICT_FORK_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_fork_options), 0, 0, 0, 0 }

/**
 * Creates a sequence that continues from the state of another, the source: a
 * beam, a sample of the same prompt, or, with another plan, the same request
 * under another policy. It gets the source's prompt, positions and lengths, on
 * host and device, and its observed queries, sums or scores if the source
 * observes. Its report is empty. The caller copies or shares the cache.
 *
 * Another plan must have the same context, and its geometry the same layers.
 * max_tokens may differ if all tokens fit, and so may the dtypes of K and V,
 * for a cache whose rows were requantized. If KV heads shared a keep list and
 * get one each, all get the positions of the shared one. Heads or layers that
 * come to share a list must hold the same positions. Lists that must be equally
 * long must hold the same number of tokens. Otherwise the error names the
 * layer, the heads and a scope that works. Both plans rotate or neither does,
 * unless no token was evicted. Under the other plan the prompt of a layer has
 * as many tokens as its longest list still holds. `every` counts on from the
 * last eviction that dropped tokens, as exactly as the source's plan counted.
 * Observed queries are copied if both plans score by queries with the same
 * window and draft_tokens. Sums are copied if both plans have the same rows of
 * sums, computed alike, and the same max_tokens; scores if both policies are
 * custom, with the same max_tokens. Otherwise the new sequence does not observe
 * until kvevict_sequence_begin_observing().
 *
 * @param[in]  sequence      Non-NULL. Not modified.
 * @param[in]  options       NULL for none. `memory` is not used if the new
 *                           sequence does not observe.
 * @param[out] out_sequence  Non-NULL. Destroy with kvevict_sequence_destroy().
 * @param[in]  stream        See kvevict_stream; ordered after the source's
 *                           work. CUDA copies device memory on it without
 *                           waiting; with another plan the call waits for the
 *                           source's evictions and for the stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_sequence_fork(
    const kvevict_sequence* sequence, const kvevict_fork_options* options,
    kvevict_sequence** out_sequence, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Writes a sequence's positions, lengths and end of prompt as bytes that
 * kvevict_sequence_load() reads, in any process on any machine.
 *
 * The caller saves the cache. Scores of policy custom are saved too; observed
 * queries, sums and the report are not. The bytes have a magic, a version,
 * their own length and a CRC-32. CUDA waits as
 * kvevict_sequence_position_of_slot() does, and for scores also until they are
 * copied.
 *
 * @param[in]  sequence  Non-NULL.
 * @param[out] data      NULL if data_capacity is 0.
 * @param[in]  data_capacity  Bytes of data; 0 asks for the length alone, which
 *                            does not wait.
 * @param[out] out_data_len   NULL, or receives the length: 40 bytes, 20 per
 *                            layer, 4 per list and at most 4 per slot; with
 *                            scores 8 per layer and 4 per slot of each KV head
 *                            more.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if
 *         0 < data_capacity < length.
 */
KVEVICT_API kvevict_status kvevict_sequence_save(
    const kvevict_sequence* sequence, void* data, size_t data_capacity,
    size_t* out_data_len) KVEVICT_NOEXCEPT;

/**
 * Gives a sequence the state that kvevict_sequence_save() saved: positions,
 * lengths, the end of the prompt, and how far back a trim is exact.
 *
 * The sequence drops what it held and observed, and its report; query memory
 * stays. Saved scores return if the plan's policy is custom and the sequence
 * observes. The saved sequence's plan may have had another policy, max_tokens
 * or device, but must have had the same layers with full caches and keep lists,
 * and as many KV heads if scores were saved. Lists of different lengths need a
 * plan whose lists may differ, and scope MODEL needs layers that hold the same
 * tokens. Positions take memory as for kvevict_sequence_start().
 *
 * @param[in] sequence  Non-NULL.
 * @param[in] data      Non-NULL, of any alignment.
 * @param[in] data_len  As kvevict_sequence_save() said.
 * @param[in] stream    See kvevict_stream. CUDA waits for it if positions are
 *                      listed.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; the message says what is
 *         wrong with the data (no saved sequence, another version, cut off,
 *         damaged) or does not fit the plan; KVEVICT_ERROR_OUT_OF_MEMORY. On an
 *         error the sequence is as before.
 */
KVEVICT_API kvevict_status
kvevict_sequence_load(kvevict_sequence* sequence, const void* data,
                      size_t data_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/* ---- Batches ------------------------------------------------------------- */

/*
 * A batch call serves many sequences of different lengths. It does for each
 * item, in order, what the call for one sequence does, to the same bytes. All
 * items are checked before the first sequence changes: after an error of an
 * argument or of a sequence's state, every sequence and cache is as before, and
 * the message begins with the item, as in "items[3]: views[0]: ...". After a
 * failure of the device the items before the one that the message names are
 * done, and those behind it are untouched.
 *
 * Plans may differ but share one context. A sequence occurs at most once. For
 * the thread rule the call uses every one of its sequences. On CUDA all work
 * goes to one stream; waiting and capture are as for the single calls. Items
 * are structs of one struct_size.
 */

/** How many tokens a sequence of a batch appends. */
typedef struct kvevict_sequence_tokens {
  uint32_t struct_size;
  uint32_t n_tokens;          /**< Tokens to append. */
  kvevict_sequence* sequence; /**< Non-NULL. */
} kvevict_sequence_tokens;

#define KVEVICT_SEQUENCE_TOKENS_INIT \
  { (uint32_t)sizeof(kvevict_sequence_tokens), 0, 0 }

/**
 * Calls kvevict_sequence_append() for each item.
 * @param[in] items      [items_len].
 * @param[in] items_len  0 does nothing.
 * @param[in] stream     See kvevict_stream.
 * @return As kvevict_sequence_append().
 */
KVEVICT_API kvevict_status
kvevict_sequences_append(const kvevict_sequence_tokens* items, size_t items_len,
                         kvevict_stream stream) KVEVICT_NOEXCEPT;

/** The logical length that a sequence of a batch returns to. */
typedef struct kvevict_sequence_length {
  uint32_t struct_size;
  uint32_t new_length;        /**< The length to return to. */
  kvevict_sequence* sequence; /**< Non-NULL. */
} kvevict_sequence_length;

#define KVEVICT_SEQUENCE_LENGTH_INIT \
  { (uint32_t)sizeof(kvevict_sequence_length), 0, 0 }

/**
 * Calls kvevict_sequence_trim_to() for each item, e.g. for a batch of drafts
 * that were accepted up to different tokens.
 * @param[in] items      [items_len].
 * @param[in] items_len  0 does nothing.
 * @param[in] stream     See kvevict_stream.
 * @return As kvevict_sequence_trim_to().
 */
KVEVICT_API kvevict_status kvevict_sequences_trim_to(
    const kvevict_sequence_length* items, size_t items_len,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What a sequence of a batch observes. */
typedef struct kvevict_sequence_observations {
  uint32_t struct_size;
  uint32_t n_rows;                         /**< Rows of each layer. */
  kvevict_sequence* sequence;              /**< Non-NULL. */
  const kvevict_observation* observations; /**< [observations_len]. */
  size_t observations_len;
  uint32_t first_position; /**< Position of row 0, or KVEVICT_POSITION_NEXT. */
  uint32_t reserved;       /**< 0. */
} kvevict_sequence_observations;

#define KVEVICT_SEQUENCE_OBSERVATIONS_INIT                       \
  {                                                              \
    (uint32_t)sizeof(kvevict_sequence_observations), 0, 0, 0, 0, \
        KVEVICT_POSITION_NEXT, 0                                 \
  }

/**
 * Calls kvevict_sequence_observe() for each item.
 * @param[in] items      [items_len].
 * @param[in] items_len  0 does nothing.
 * @param[in] stream     See kvevict_stream.
 * @return As kvevict_sequence_observe().
 */
KVEVICT_API kvevict_status kvevict_sequences_observe(
    const kvevict_sequence_observations* items, size_t items_len,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/** The eviction of one sequence of a batch. */
typedef struct kvevict_sequence_eviction {
  uint32_t struct_size;
  uint32_t reserved;                    /**< 0. */
  kvevict_sequence* sequence;           /**< Non-NULL. */
  const kvevict_view* views;            /**< [n_layers] of its plan. */
  size_t views_len;                     /**< = n_layers. */
  const kvevict_evict_options* options; /**< NULL for none. */
} kvevict_sequence_eviction;

#define KVEVICT_SEQUENCE_EVICTION_INIT \
  { (uint32_t)sizeof(kvevict_sequence_eviction), 0, 0, 0, 0, 0 }

/**
 * Tells the size of the workspace of kvevict_sequences_evict() for the
 * sequences' current lengths. Sequences are evicted one after the other, so it
 * is the largest that any of them needs. The largest kvevict_plan_workspace()
 * of the plans at max_tokens serves any length.
 * @param[in]  items      [items_len]; only their sequences are read.
 * @param[in]  items_len  0: no bytes.
 * @param[out] out        Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status kvevict_sequences_workspace(
    const kvevict_sequence_eviction* items, size_t items_len,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/**
 * Calls kvevict_sequence_evict() for each item. Each sequence has its own
 * report, and each item its own `undo` memory, which must not overlap another
 * item's memory or cache.
 *
 * Caches of two sequences that overlap are an error if one of them has to move
 * rows. For contiguous caches K and V of the first layer are compared, which
 * finds a cache that is given twice. Paged caches may share blocks, as in
 * single calls: first copy shared blocks whose rows will move. Destinations are
 * compared in the same way with other items' destinations and views. Two items
 * may have one view if both only read it.
 *
 * @param[in] items      [items_len].
 * @param[in] items_len  0 does nothing.
 * @param[in] workspace  See kvevict_sequences_workspace().
 * @param[in] workspace_bytes  Its size, at least least_bytes.
 * @param[in] stream     See kvevict_stream.
 * @return As kvevict_sequence_evict().
 */
KVEVICT_API kvevict_status kvevict_sequences_evict(
    const kvevict_sequence_eviction* items, size_t items_len, void* workspace,
    size_t workspace_bytes, kvevict_stream stream) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_BATCH_H_ */
