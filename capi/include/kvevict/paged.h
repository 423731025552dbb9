/*
 * kvevict/paged.h: a paged cache for engines without one.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_PAGED_H_
#define KVEVICT_PAGED_H_

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Paged cache --------------------------------------------------------- */

/**
 * A cache for engines without one: a fixed pool of blocks, and sequences that
 * hold blocks by tables, as in PagedAttention, arXiv:2309.06180.
 *
 * Every layer with a full cache has K and V in blocks of block_size tokens.
 * Layers that are alike share their blocks, so that a policy may give more
 * tokens to some of them. A sequence has a table per layer and is a
 * kvevict_view of it: for attention, for scoring, for any other call.
 *
 * With group_tokens or recent_tokens it is a cache as KIVI has it,
 * arXiv:2402.02750: keys may have their numbers per channel and group of
 * tokens, and the last rows of a sequence are not quantized. A sequence holds
 * them in memory of its own: of each layer recent_tokens, and fewer than
 * block_size more. An append that makes them more quantizes whole blocks of the
 * oldest ones. What is quantized stays so.
 *
 * A fork shares its blocks, which are counted; who writes to a shared one gets
 * a copy of its own first. Recent rows are copied. A call that needs more
 * blocks than are free fails with KVEVICT_ERROR_OUT_OF_MEMORY, names need and
 * free, and has changed nothing.
 *
 * Threads: a cache is locked within; of each sequence one call at a time.
 * Calls allocate nothing but where a name ends in _create or _fork. On CUDA
 * those that change tables wait for the stream and cannot be captured; blocks
 * pass from one sequence to another when the call that frees them returns, so
 * sequences of one cache use one stream or are ordered by the caller.
 */
typedef struct kvevict_paged_cache kvevict_paged_cache;

/** The blocks of one request. Opaque. */
typedef struct kvevict_paged_sequence kvevict_paged_sequence;

/** How rows lie in a block. */
KVEVICT_INT32_TYPE(kvevict_block_layout)
enum kvevict_block_layout KVEVICT_INT32 {
  /** [n_kv_heads, block_size, head_dim], "HND". */
  KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR = 0,
  /** [block_size, n_kv_heads, head_dim], "NHD". */
  KVEVICT_BLOCK_LAYOUT_TOKEN_MAJOR = 1
};

/** How to make a paged cache. */
typedef struct kvevict_paged_cache_options {
  uint32_t struct_size;
  /** For each layer; together with those that are alike 1 .. 2^31 - 1. */
  uint32_t n_blocks;
  /** Tokens, 1 .. 65536; 0: group_tokens, or 16 without. */
  uint32_t block_size;
  kvevict_block_layout layout;
  /** Memory of the device, kvevict_paged_cache_bytes() or more, aligned to
   *  256, borrowed until the cache is gone; NULL: the context allocates. */
  void* memory;
  size_t memory_bytes; /**< 0 with NULL. */
  /** What the scales and minima are that blocks have for rows of u8, i8, u4 and
   *  u4_halves: f32, f16 or bf16. 0: f32. Rows of fp8 have a scale if this is
   *  not 0. */
  kvevict_dtype number_dtype;
  /** How many tokens share the scales and minima of keys, one per element (see
   *  kvevict_plane), 1 .. 256; values have theirs per token. Divides
   *  block_size. Keys are u8, i8, u4 or u4_halves, values are quantized. 0:
   *  keys have theirs per token too. */
  uint32_t group_tokens;
  /** How many last rows are not quantized, at least, up to max_tokens. Keys and
   *  values are quantized. 0: all rows are in codes; with group_tokens all but
   *  those that do not fill a block yet. */
  uint32_t recent_tokens;
  /** What these rows are: f32, f16 or bf16. 0: f32. */
  kvevict_dtype recent_dtype;
} kvevict_paged_cache_options;

#define KVEVICT_PAGED_CACHE_OPTIONS_INIT                                   \
  {                                                                        \
    (uint32_t)sizeof(kvevict_paged_cache_options), 0, 0,                   \
        KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR, 0, 0, KVEVICT_DTYPE_OPAQUE, 0, 0, \
        KVEVICT_DTYPE_OPAQUE                                               \
  }

/**
 * What the blocks of all layers take. Recent rows are not in it: each sequence
 * allocates its own, (recent_tokens + block_size - 1, or max_tokens if that is
 * less) * n_kv_heads rows of K and V per layer.
 * @param[in]  plan       Non-NULL; of it the geometry counts.
 * @param[in]  options    Non-NULL.
 * @param[out] out_bytes  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also for more bytes than
 *         size_t holds; KVEVICT_ERROR_UNSUPPORTED (opaque rows, whose size a
 *         geometry does not say).
 */
KVEVICT_API kvevict_status kvevict_paged_cache_bytes(
    const kvevict_plan* plan, const kvevict_paged_cache_options* options,
    size_t* out_bytes) KVEVICT_NOEXCEPT;

/**
 * Creates a cache of which all blocks are free.
 * @param[in]  plan       Non-NULL: context, geometry and max_tokens, the most
 *                        that a sequence may hold. Its policy plays no part.
 * @param[in]  options    Non-NULL.
 * @param[out] out_cache  Non-NULL. Destroy with kvevict_paged_cache_destroy().
 * @return As kvevict_paged_cache_bytes(); KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_paged_cache_create(
    const kvevict_plan* plan, const kvevict_paged_cache_options* options,
    kvevict_paged_cache** out_cache) KVEVICT_NOEXCEPT;

/**
 * Destroys a cache; NULL is ignored. Its sequences stay usable and release it
 * with the last of them.
 * @param[in] cache  NULL or a cache.
 */
KVEVICT_API void kvevict_paged_cache_destroy(kvevict_paged_cache* cache)
    KVEVICT_NOEXCEPT;

/** What is in use of a cache, at one moment. */
typedef struct kvevict_paged_cache_usage {
  uint32_t struct_size;
  uint32_t n_sequences;
  uint64_t n_blocks; /**< In all layers. */
  uint64_t n_free;   /**< Blocks that nobody holds. */
  uint64_t n_shared; /**< That several sequences hold. */
  /** Rows of all layers that sequences hold, each for itself. */
  uint64_t n_slots;
  /** All blocks, and what sequences have for recent rows. */
  uint64_t bytes;
  uint64_t bytes_in_use; /**< Without the blocks that are free. */
  /** As `bytes` if all rows were f32: this by `bytes` is what quantized rows
   *  save, scales and minima included. */
  uint64_t f32_bytes;
} kvevict_paged_cache_usage;

/**
 * Counts blocks.
 * @param[in]  cache  Non-NULL.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_paged_cache_get_usage(const kvevict_paged_cache* cache,
                              kvevict_paged_cache_usage* out) KVEVICT_NOEXCEPT;

/**
 * Adds a sequence, which holds no tokens.
 * @param[in]  cache         Non-NULL.
 * @param[out] out_sequence  Non-NULL. Give its blocks back with
 *                           kvevict_paged_sequence_destroy().
 * @return KVEVICT_OK, KVEVICT_ERROR_INVALID_ARGUMENT,
 *         KVEVICT_ERROR_OUT_OF_MEMORY (its tables, its recent rows).
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_create(
    kvevict_paged_cache* cache,
    kvevict_paged_sequence** out_sequence) KVEVICT_NOEXCEPT;

/**
 * Adds a sequence that holds what another one does, in the same blocks. It is
 * how a prefix is shared, how beams part, and how an eviction can be taken
 * back: evict one of the two.
 * @param[in]  sequence      Non-NULL.
 * @param[out] out_sequence  Non-NULL.
 * @param[in]  stream        See kvevict_stream.
 * @return As kvevict_paged_sequence_create().
 */
KVEVICT_API kvevict_status
kvevict_paged_sequence_fork(const kvevict_paged_sequence* sequence,
                            kvevict_paged_sequence** out_sequence,
                            kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Finishes a sequence: blocks that nobody else holds are free. NULL is ignored.
 * @param[in] sequence  NULL or a sequence.
 */
KVEVICT_API void kvevict_paged_sequence_destroy(
    kvevict_paged_sequence* sequence) KVEVICT_NOEXCEPT;

/**
 * Makes room for tokens behind the last one, in every layer. Their rows have
 * any content: the engine writes them through kvevict_paged_sequence_view(), or
 * kvevict_paged_sequence_write() does.
 *
 * Recent rows that no longer are, since the new ones are behind them, are
 * quantized by this call; of the new ones those before first_recent of the
 * view, when they are written.
 *
 * @param[in] sequence  Non-NULL.
 * @param[in] n_tokens  No layer may come to hold more than the plan's
 *                      max_tokens; 0 does nothing.
 * @param[in] stream    See kvevict_stream.
 * @return KVEVICT_OK, KVEVICT_ERROR_INVALID_ARGUMENT,
 *         KVEVICT_ERROR_OUT_OF_MEMORY (too few blocks are free).
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_append(
    kvevict_paged_sequence* sequence, uint32_t n_tokens,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Drops the last tokens of layers that hold more than so many; blocks that this
 * leaves empty are given back. Recent rows go first.
 * @param[in] sequence    Non-NULL.
 * @param[in] new_length  What each layer holds at most from now on.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_truncate(
    kvevict_paged_sequence* sequence, uint32_t new_length) KVEVICT_NOEXCEPT;

/**
 * Drops the last rows of each layer that a sequence of positions stores no
 * longer: behind kvevict_sequence_trim_to() or kvevict_sequence_reset(), or an
 * eviction by views. With recent rows kvevict_paged_evict() alone evicts: here
 * they would go first.
 * @param[in] sequence  Non-NULL.
 * @param[in] stored    Non-NULL, of a plan of the cache's geometry. If its
 *                      heads hold different numbers the most counts.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also where it stores more
 *         than there are rows.
 */
KVEVICT_API kvevict_status
kvevict_paged_sequence_fit(kvevict_paged_sequence* sequence,
                           const kvevict_sequence* stored) KVEVICT_NOEXCEPT;

/**
 * How many rows a layer holds.
 * @param[in]  sequence   Non-NULL.
 * @param[in]  layer      One with a full cache.
 * @param[out] out_slots  Non-NULL.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_length(
    const kvevict_paged_sequence* sequence, uint32_t layer,
    uint32_t* out_slots) KVEVICT_NOEXCEPT;

/**
 * A layer's rows as a view, valid until a call changes the sequence. Blocks up
 * to the last one that others share are its n_shared_blocks: an engine does not
 * write to them either. kvevict_paged_sequence_own() makes them this one's. The
 * scales and minima of quantized rows are its companions, and recent rows: an
 * array of the cache's or the sequence's.
 * @param[in]  sequence  Non-NULL.
 * @param[in]  layer     One with a full cache.
 * @param[out] out       Non-NULL, out->struct_size set. Its block table lies in
 *                       memory of the device.
 */
KVEVICT_API kvevict_status
kvevict_paged_sequence_view(const kvevict_paged_sequence* sequence,
                            uint32_t layer, kvevict_view* out) KVEVICT_NOEXCEPT;

/**
 * Copies those blocks of all layers that others share and that hold slots from
 * `first_slot` on, so that they may be written through views.
 * @param[in] sequence    Non-NULL.
 * @param[in] first_slot  0: all.
 * @param[in] stream      See kvevict_stream.
 * @return As kvevict_paged_sequence_append().
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_own(
    kvevict_paged_sequence* sequence, uint32_t first_slot,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/** Rows of one layer, outside the cache. */
typedef struct kvevict_paged_rows {
  uint32_t struct_size;
  uint32_t layer;      /**< One with a full cache. */
  uint32_t first_slot; /**< Where row 0 goes. */
  uint32_t n_tokens;   /**< 0 is valid. */
  /** [n_kv_heads, n_tokens, head_dim] in any layout, apart from the cache's
   *  memory; absent: is left alone, not both. A write may take K and V from
   *  the same rows. Rows of the geometry's dtype are moved byte for byte if
   *  blocks have no scales. Rows of f32, f16 or bf16 are otherwise stored anew:
   *  see kvevict_compact(). */
  kvevict_plane k;
  kvevict_plane v;
} kvevict_paged_rows;

#define KVEVICT_PAGED_ROWS_INIT                                        \
  {                                                                    \
    (uint32_t)sizeof(kvevict_paged_rows), 0, 0, 0, KVEVICT_PLANE_INIT, \
        KVEVICT_PLANE_INIT                                             \
  }

/**
 * Copies rows into slots that layers hold. Keys that share numbers by groups of
 * tokens are written in order: with those before them in their first group,
 * which are stored anew, up to the end of a group or of all that have such
 * numbers, or to recent rows.
 * @param[in] sequence  Non-NULL.
 * @param[in] rows      [rows_len], structs of one struct_size; a layer may come
 *                      up more than once.
 * @param[in] rows_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] stream    See kvevict_stream.
 * @return As kvevict_paged_sequence_append(); all is checked before the first
 *         row is written.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_write(
    kvevict_paged_sequence* sequence, const kvevict_paged_rows* rows,
    size_t rows_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Copies rows out of the slots of layers, which need not be neighbours in
 * memory: gathers them.
 * @param[in] sequence  Non-NULL.
 * @param[in] rows      [rows_len]; the planes are written to.
 * @param[in] rows_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] stream    See kvevict_stream.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_read(
    const kvevict_paged_sequence* sequence, const kvevict_paged_rows* rows,
    size_t rows_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What an eviction of a paged sequence is given. */
typedef struct kvevict_paged_eviction {
  uint32_t struct_size;
  uint32_t reserved;              /**< 0. */
  kvevict_paged_sequence* cached; /**< Non-NULL: where the rows are. */
  kvevict_sequence* sequence;     /**< Non-NULL: which tokens they are of. */
  /** NULL for none. No undo: a fork made before keeps what goes. No
   *  destinations: kvevict_sequence_evict() takes them, with the views. */
  const kvevict_evict_options* options;
} kvevict_paged_eviction;

#define KVEVICT_PAGED_EVICTION_INIT \
  { (uint32_t)sizeof(kvevict_paged_eviction), 0, 0, 0, 0 }

/**
 * kvevict_sequences_evict() of paged sequences, whose emptied blocks are given
 * back. If whole blocks stay or go, it is by_table: select_block is a
 * multiple of the cache's block size, a layer's heads share a list, and nothing
 * is merged or turned. Then no row moves, and no block is copied or needed;
 * shared ones stay or are given up. Otherwise of blocks that others share only
 * those that survivors move to are copied, or all where rows are merged; the
 * others hold theirs unchanged. Recent rows stay, groups are stored anew, and
 * with either nothing goes by_table: see kvevict_sequence_evict().
 * @param[in] items      [items_len], structs of one struct_size. Each layer of
 *                       `cached` has the rows that `sequence` stores; all are
 *                       of one cache.
 * @param[in] items_len  0 does nothing.
 * @param[in] workspace  The largest of kvevict_plan_workspace() of the plans,
 *                       for sequences as long as they are.
 * @param[in] workspace_bytes  Its size, at least the least.
 * @param[in] stream     See kvevict_stream.
 * @return As kvevict_sequence_evict(); KVEVICT_ERROR_OUT_OF_MEMORY (too few
 *         blocks are free for copies).
 */
KVEVICT_API kvevict_status kvevict_paged_evict(
    const kvevict_paged_eviction* items, size_t items_len, void* workspace,
    size_t workspace_bytes, kvevict_stream stream) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_PAGED_H_ */
