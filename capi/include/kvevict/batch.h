/*
 * kvevict/batch.h: more than one sequence. Forks, sequences that begin from
 * filled or saved caches, and calls that serve many sequences.
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
 * How many tokens are still where they were stored: the most p such that every
 * list of every layer holds tokens [0, p) in slots [0, p). Another request with
 * these p tokens can use the rows.
 *
 * An eviction that merged may have changed any row: until the next reset it is
 * then 0. CUDA waits as kvevict_sequence_position_of_slot() does.
 *
 * @param[in]  sequence    Non-NULL.
 * @param[out] out_length  Tokens; the logical length if nothing was evicted.
 */
KVEVICT_API kvevict_status kvevict_sequence_exact_prefix(
    const kvevict_sequence* sequence, uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Which tokens a layer's slots hold: a list of positions that all of its keep
 * lists have, or one for each, as kvevict_sequence_keep_positions() writes it.
 * Host memory; nothing is owned.
 */
typedef struct kvevict_position_lists {
  uint32_t struct_size;
  uint32_t n_lists; /**< 1 or the layer's, see kvevict_plan_layer(). */
  /** [n_lists, list_stride], strictly ascending in each list: slot i holds the
   *  token of positions[i]. NULL where count is 0. */
  const int32_t* positions;
  size_t positions_len; /**< Elements of positions. */
  uint64_t list_stride; /**< Elements from list to list, >= count; 0: count. */
  uint32_t count;    /**< Slots of every list; with counts, the most of any. */
  uint32_t reserved; /**< 0. */
  /** [n_lists], each at most count; NULL: all are count. Only a plan with
   *  head_budgets or heads that are not equal has lists that differ. */
  const uint32_t* counts;
} kvevict_position_lists;

#define KVEVICT_POSITION_LISTS_INIT \
  { (uint32_t)sizeof(kvevict_position_lists), 0, 0, 0, 0, 0, 0, 0 }

/**
 * Begins an empty sequence from caches that are filled already: a restored
 * session, a beam, a prefix that requests share.
 *
 * Rows lie in the slots as listed, and the next token gets position n_tokens.
 * A list need not reach n_tokens. Trims are exact to lengths from which on
 * every list has all positions, and within the prefix. Query memory and queries
 * that were observed stay, sums do not. A layer's positions take memory up to
 * the last one that is missing, twice 4 bytes each.
 *
 * @param[in] sequence    Non-NULL, of logical length 0, as when newly created
 *                        or reset.
 * @param[in] layers      [n_layers] in structs of one struct_size; those of
 *                        layers without a full cache are not read. Under scope
 *                        MODEL all hold the same positions. NULL with length 0:
 *                        every list holds all of [0, n_tokens).
 * @param[in] layers_len  = n_layers, or 0 with NULL.
 * @param[in] n_tokens    The logical length; above every position. At most
 *                        2^31 - 1.
 * @param[in] stream      See kvevict_stream. On CUDA listed positions wait for
 *                        it; without them nothing does.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a sequence that is not
 *         empty, a layer without lists, positions that do not ascend or reach
 *         n_tokens, more slots than max_tokens);
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_sequence_start(
    kvevict_sequence* sequence, const kvevict_position_lists* layers,
    size_t layers_len, uint32_t n_tokens,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What a fork may be told. */
typedef struct kvevict_fork_options {
  uint32_t struct_size;
  uint32_t reserved; /**< 0. */
  /** The new sequence's plan, which it keeps alive; NULL: the other one's. */
  const kvevict_plan* plan;
  /** As for kvevict_sequence_begin_observing(), where the new one observes. */
  void* memory;
  size_t memory_bytes; /**< 0 with NULL. */
} kvevict_fork_options;

#define KVEVICT_FORK_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_fork_options), 0, 0, 0, 0 }

/**
 * Creates a sequence that goes on from where another one is: a beam, a sample
 * of the same prompt, or, with another plan, the same request under another
 * policy. It has the other one's prompt, positions and lengths, on host and
 * device, and its observed queries or sums if that observes. Its report is
 * empty. The cache is the caller's to copy or to share.
 *
 * Another plan is of the same context, and its geometry has the same layers;
 * max_tokens may differ as long as all fits, and so may the dtypes of K and V,
 * for a cache whose rows were stored anew. Where KV heads shared a keep list
 * and have one each then, all get what the one held. Heads or layers that are
 * to share one must hold the same positions, and those of a plan whose lists
 * have one length the same number: an error names the layer, the heads, and the
 * scope that would do. Both plans rotate or neither does, unless no token was
 * evicted. The prompt of a layer then has as many tokens as its longest list
 * still holds; every goes on from the last eviction that worked, as exactly as
 * the other plan's every counted it. Observed queries go along where both plans
 * score by queries of one window and have the same draft_tokens, and sums where
 * both have them of the same rows, made alike, for as many max_tokens;
 * otherwise the new sequence does not observe until
 * kvevict_sequence_begin_observing().
 *
 * @param[in]  sequence      Non-NULL. Not modified.
 * @param[in]  options       NULL for none. Its memory is not used if the new
 *                           sequence does not observe.
 * @param[out] out_sequence  Non-NULL. Destroy with kvevict_sequence_destroy().
 * @param[in]  stream        See kvevict_stream; comes after the sequence's
 *                           work. On CUDA device memory is copied there, and
 *                           nothing waits; with another plan the call waits for
 *                           what the sequence has evicted, and for the stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_sequence_fork(
    const kvevict_sequence* sequence, const kvevict_fork_options* options,
    kvevict_sequence** out_sequence, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Writes the positions and lengths of a sequence, and where its prompt ended,
 * as bytes that kvevict_sequence_load() reads, in this process or any other, on
 * any machine.
 *
 * The cache is the caller's to save; what was observed and the report are not
 * saved. The bytes have a magic, a version, their own length and a CRC-32.
 * On CUDA this waits as kvevict_sequence_position_of_slot() does.
 *
 * @param[in]  sequence  Non-NULL.
 * @param[out] data      NULL if data_capacity is 0.
 * @param[in]  data_capacity  Bytes of data; 0 asks for the length alone, which
 *                            does not wait.
 * @param[out] out_data_len   NULL, or receives the bytes written, or to be
 *                            written: 40, 20 per layer, 4 per list and at
 *                            most 4 per slot.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if
 *         0 < data_capacity < length.
 */
KVEVICT_API kvevict_status kvevict_sequence_save(
    const kvevict_sequence* sequence, void* data, size_t data_capacity,
    size_t* out_data_len) KVEVICT_NOEXCEPT;

/**
 * Makes a sequence as one was that kvevict_sequence_save() saved: positions,
 * lengths, where its prompt ended, and how far back a trim is exact.
 *
 * What the sequence held, what it observed and its report are forgotten; query
 * memory stays. The saved one's plan may have had another policy,
 * max_tokens or device, but the same layers with full caches and keep lists;
 * lists of different lengths need a plan that has such, and scope MODEL layers
 * that hold the same. Memory as for kvevict_sequence_start().
 *
 * @param[in] sequence  Non-NULL.
 * @param[in] data      Non-NULL, of any alignment.
 * @param[in] data_len  As kvevict_sequence_save() said.
 * @param[in] stream    See kvevict_stream. CUDA waits for it where positions
 *                      are listed.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, which names what is wrong
 *         with the data (no saved sequence, another version, cut off, damaged)
 *         or does not fit the plan; KVEVICT_ERROR_OUT_OF_MEMORY. The sequence
 *         is then as before.
 */
KVEVICT_API kvevict_status
kvevict_sequence_load(kvevict_sequence* sequence, const void* data,
                      size_t data_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/* ---- Batches ------------------------------------------------------------- */

/*
 * One call for many sequences of different lengths: it does to each what the
 * call for one does, in the order of the items, to the same bytes. All of them
 * are checked before the first one changes, so that after an error of
 * an argument, or of a sequence's state, every sequence and cache is as before;
 * the message begins with the item, as in "items[3]: views[0]: ...". After a
 * failure of the device the items before the one it names are done, and those
 * behind it untouched.
 *
 * Plans may differ, but share one context. A sequence comes up once. The call
 * is one of each sequence, by one thread. On CUDA all goes to the one stream,
 * and waits and is captured as the single calls are. No items do nothing. Items
 * are structs of one struct_size.
 */

/** How many tokens a sequence of a batch appends. */
typedef struct kvevict_sequence_tokens {
  uint32_t struct_size;
  uint32_t n_tokens;
  kvevict_sequence* sequence; /**< Non-NULL. */
} kvevict_sequence_tokens;

#define KVEVICT_SEQUENCE_TOKENS_INIT \
  { (uint32_t)sizeof(kvevict_sequence_tokens), 0, 0 }

/**
 * kvevict_sequence_append() for each item.
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
  uint32_t new_length;
  kvevict_sequence* sequence; /**< Non-NULL. */
} kvevict_sequence_length;

#define KVEVICT_SEQUENCE_LENGTH_INIT \
  { (uint32_t)sizeof(kvevict_sequence_length), 0, 0 }

/**
 * kvevict_sequence_trim_to() for each item: a batch of speculations, of which
 * each was accepted up to another token.
 * @param[in] items      [items_len].
 * @param[in] items_len  0 does nothing.
 * @param[in] stream     See kvevict_stream.
 * @return As kvevict_sequence_trim_to().
 */
KVEVICT_API kvevict_status kvevict_sequences_trim_to(
    const kvevict_sequence_length* items, size_t items_len,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What the layers of a sequence of a batch show. */
typedef struct kvevict_sequence_observations {
  uint32_t struct_size;
  uint32_t n_rows;                         /**< Rows of each layer. */
  kvevict_sequence* sequence;              /**< Non-NULL. */
  const kvevict_observation* observations; /**< [observations_len]. */
  size_t observations_len;
  uint32_t first_position; /**< Row 0's, or KVEVICT_POSITION_NEXT. */
  uint32_t reserved;       /**< 0. */
} kvevict_sequence_observations;

#define KVEVICT_SEQUENCE_OBSERVATIONS_INIT                       \
  {                                                              \
    (uint32_t)sizeof(kvevict_sequence_observations), 0, 0, 0, 0, \
        KVEVICT_POSITION_NEXT, 0                                 \
  }

/**
 * kvevict_sequence_observe() for each item.
 * @param[in] items      [items_len].
 * @param[in] items_len  0 does nothing.
 * @param[in] stream     See kvevict_stream.
 * @return As kvevict_sequence_observe().
 */
KVEVICT_API kvevict_status kvevict_sequences_observe(
    const kvevict_sequence_observations* items, size_t items_len,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What an eviction of a sequence of a batch is given. */
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
 * The workspace of kvevict_sequences_evict() for sequences as long as they are
 * now. They work one after the other, so it is the largest that any of them
 * needs; the same of the plans' max_tokens, by kvevict_plan_workspace(), serves
 * at any length.
 * @param[in]  items      [items_len]; only their sequences are read.
 * @param[in]  items_len  0: no bytes.
 * @param[out] out        Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status kvevict_sequences_workspace(
    const kvevict_sequence_eviction* items, size_t items_len,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/**
 * kvevict_sequence_evict() for each item. Each sequence has its own report, and
 * each item its own memory to undo with: memory of two items that meets is an
 * error, and so is memory within another item's cache.
 *
 * Caches of two sequences that overlap are an error if one of them is to move
 * rows; of contiguous ones K and V of the first layer are compared, so that one
 * cache given twice is noticed. Paged caches may have blocks in common, as in
 * single calls: take a copy of those whose rows are to move before.
 * Destinations are compared likewise, with other items' destinations and views.
 * Two items may have one view if both only read it.
 *
 * @param[in] items      [items_len].
 * @param[in] items_len  0 does nothing.
 * @param[in] workspace  See kvevict_sequences_workspace().
 * @param[in] workspace_bytes  Its size, at least the least.
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
