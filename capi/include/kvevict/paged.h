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
 * refer to blocks by tables, as in PagedAttention, arXiv:2309.06180.
 *
 * Every layer with a full cache has K and V in blocks of block_size tokens.
 * Layers of equal geometry share a pool, so that a policy may give more tokens
 * to some of them. A sequence has a block table per layer;
 * kvevict_paged_sequence_view() gives a kvevict_view of it for attention,
 * scoring and all other calls.
 *
 * With group_tokens or recent_tokens it is a cache like KIVI's,
 * arXiv:2402.02750: keys may have their scales and minima per channel and group
 * of tokens, and the last rows of a sequence are not quantized. A sequence
 * holds these in its own memory: recent_tokens rows of each layer, and fewer
 * than block_size more. An append that exceeds this quantizes whole blocks of
 * the oldest ones. Quantized rows stay quantized.
 *
 * A fork shares its blocks by reference count; a call that writes to a shared
 * block copies it first. Recent rows are copied. A call that needs more blocks
 * than are free fails with KVEVICT_ERROR_OUT_OF_MEMORY, whose message has both
 * numbers, and changes nothing.
 *
 * Threads: a cache has a lock of its own; each sequence takes one call at a
 * time. Only calls whose name ends in _create or _fork allocate. On CUDA calls
 * that change tables wait for the stream and cannot be captured. Another
 * sequence may get a block as soon as the call that frees it returns, so
 * sequences of one cache use one stream or are ordered by the caller.
 */
typedef struct kvevict_paged_cache kvevict_paged_cache;

/** The rows of one request, in blocks of a cache. Opaque. */
typedef struct kvevict_paged_sequence kvevict_paged_sequence;

/** The order of rows in a block. */
KVEVICT_INT32_TYPE(kvevict_block_layout)
enum kvevict_block_layout KVEVICT_INT32 {
  /** [n_kv_heads, block_size, head_dim], "HND". */
  KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR = 0,
  /** [block_size, n_kv_heads, head_dim], "NHD". */
  KVEVICT_BLOCK_LAYOUT_TOKEN_MAJOR = 1
};

/** How to create a paged cache. */
typedef struct kvevict_paged_cache_options {
  uint32_t struct_size;
  /** Blocks per layer; layers of equal geometry together have 1 .. 2^31 - 1. */
  uint32_t n_blocks;
  /** Tokens per block, 1 .. 65536; 0: group_tokens, or 16 if that is 0. */
  uint32_t block_size;
  kvevict_block_layout layout; /**< How rows lie in a block. */
  /** Device memory, kvevict_paged_cache_bytes() or more, aligned to 256,
   *  borrowed until the cache is destroyed; NULL: the context allocates. */
  void* memory;
  size_t memory_bytes; /**< 0 with NULL. */
  /** Dtype of the scales and minima of u8, i8, u4 and u4_halves rows: f32, f16
   *  or bf16. 0: f32. Rows of fp8 have a scale if this is not 0. */
  kvevict_dtype number_dtype;
  /** How many tokens share the scales and minima of keys, one per element (see
   *  kvevict_plane), 1 .. 256; it divides block_size. Values have theirs per
   *  token. Keys are then u8, i8, u4 or u4_halves, and values are quantized. 0:
   *  keys have theirs per token too. */
  uint32_t group_tokens;
  /** The least number of last rows that are not quantized, up to max_tokens;
   *  keys and values must have quantized dtypes. 0: all rows are quantized;
   *  with group_tokens all but those that do not fill a block yet. */
  uint32_t recent_tokens;
  /** Dtype of these rows: f32, f16 or bf16. 0: f32. */
  kvevict_dtype recent_dtype;
} kvevict_paged_cache_options;

#define KVEVICT_PAGED_CACHE_OPTIONS_INIT                                   \
  {                                                                        \
    (uint32_t)sizeof(kvevict_paged_cache_options), 0, 0,                   \
        KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR, 0, 0, KVEVICT_DTYPE_OPAQUE, 0, 0, \
        KVEVICT_DTYPE_OPAQUE                                               \
  }

/**
 * Tells how many bytes the blocks of all layers take. Recent rows do not count:
 * each sequence allocates its own, min(recent_tokens + block_size - 1,
 * max_tokens) * n_kv_heads rows of K and V per layer.
 * @param[in]  plan       Non-NULL. Its geometry counts, and whether its policy
 *                        has fit=bias-values, which adds an f32 per row and
 *                        KV head.
 * @param[in]  options    Non-NULL.
 * @param[out] out_bytes  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also if the size does not
 *         fit in size_t; KVEVICT_ERROR_UNSUPPORTED (opaque rows: a geometry
 *         does not have their size).
 */
KVEVICT_API kvevict_status kvevict_paged_cache_bytes(
    const kvevict_plan* plan, const kvevict_paged_cache_options* options,
    size_t* out_bytes) KVEVICT_NOEXCEPT;

/**
 * Creates a cache whose blocks are all free.
 * @param[in]  plan       Non-NULL. Its context, geometry and max_tokens (the
 *                        most that a sequence may hold) count. Of its policy
 *                        only fit=bias-values does: rows then have biases.
 * @param[in]  options    Non-NULL.
 * @param[out] out_cache  Non-NULL. Destroy with kvevict_paged_cache_destroy().
 * @return As kvevict_paged_cache_bytes(); KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_paged_cache_create(
    const kvevict_plan* plan, const kvevict_paged_cache_options* options,
    kvevict_paged_cache** out_cache) KVEVICT_NOEXCEPT;

/**
 * Destroys a cache; NULL is ignored. Its sequences stay usable; the last of
 * them releases it.
 * @param[in] cache  NULL or a cache.
 */
KVEVICT_API void kvevict_paged_cache_destroy(kvevict_paged_cache* cache)
    KVEVICT_NOEXCEPT;

/** How much of a cache is in use at one moment. */
typedef struct kvevict_paged_cache_usage {
  uint32_t struct_size;
  uint32_t n_sequences;
  uint64_t n_blocks; /**< In all layers. */
  uint64_t n_free;   /**< Blocks that no sequence holds. */
  uint64_t n_shared; /**< Blocks that several sequences hold. */
  /** Slots held, summed over sequences and layers; shared ones count for each
   *  sequence. */
  uint64_t n_slots;
  /** All blocks, and the sequences' memory for recent rows. */
  uint64_t bytes;
  uint64_t bytes_in_use; /**< `bytes` without free blocks. */
  /** `bytes` if all rows were f32. f32_bytes / bytes is what quantization
   *  saves, scales and minima included. */
  uint64_t f32_bytes;
} kvevict_paged_cache_usage;

/**
 * Tells how much of a cache is in use.
 * @param[in]  cache  Non-NULL.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_paged_cache_get_usage(const kvevict_paged_cache* cache,
                              kvevict_paged_cache_usage* out) KVEVICT_NOEXCEPT;

/**
 * Creates an empty sequence.
 * @param[in]  cache         Non-NULL.
 * @param[out] out_sequence  Non-NULL. Destroy with
 *                           kvevict_paged_sequence_destroy().
 * @return KVEVICT_OK, KVEVICT_ERROR_INVALID_ARGUMENT,
 *         KVEVICT_ERROR_OUT_OF_MEMORY (for its tables or recent rows).
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_create(
    kvevict_paged_cache* cache,
    kvevict_paged_sequence** out_sequence) KVEVICT_NOEXCEPT;

/**
 * Creates a sequence that holds the same tokens as another, in the same blocks.
 * Use it to share a prefix, to split beams, or to keep the rows that an
 * eviction of the other sequence drops.
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
 * Destroys a sequence and frees the blocks that no other one holds. NULL is
 * ignored.
 * @param[in] sequence  NULL or a sequence.
 */
KVEVICT_API void kvevict_paged_sequence_destroy(
    kvevict_paged_sequence* sequence) KVEVICT_NOEXCEPT;

/**
 * Makes room for tokens behind the last one, in every layer. Their K and V have
 * unspecified content until the engine writes them through
 * kvevict_paged_sequence_view() or kvevict_paged_sequence_write(). The biases of
 * new rows are 0. A head's new rows begin behind those that the last eviction,
 * edit or kvevict_paged_sequence_fit() left it. Shared blocks that hold new
 * biases are copied first.
 *
 * The call quantizes recent rows that are no longer among the last ones. New
 * rows before first_recent of the view are quantized when they are written.
 *
 * @param[in] sequence  Non-NULL.
 * @param[in] n_tokens  0 does nothing. No layer may then hold more than the
 *                      plan's max_tokens.
 * @param[in] stream    See kvevict_stream.
 * @return KVEVICT_OK, KVEVICT_ERROR_INVALID_ARGUMENT,
 *         KVEVICT_ERROR_OUT_OF_MEMORY (too few blocks are free).
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_append(
    kvevict_paged_sequence* sequence, uint32_t n_tokens,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Drops the last tokens of layers that hold more than new_length, recent rows
 * first, and frees the blocks that become empty. If heads hold different
 * numbers, call kvevict_paged_sequence_fit() instead.
 * @param[in] sequence    Non-NULL.
 * @param[in] new_length  The most tokens that a layer holds afterwards.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_truncate(
    kvevict_paged_sequence* sequence, uint32_t new_length) KVEVICT_NOEXCEPT;

/**
 * Drops the last rows of each layer that `stored` no longer has, after a
 * kvevict_sequence_trim_to(), kvevict_sequence_reset() or an eviction by views.
 * A cache with recent rows must be evicted by kvevict_paged_evict(), because
 * this call drops recent rows first.
 * @param[in] sequence  Non-NULL.
 * @param[in] stored    Non-NULL, of a plan with the cache's geometry. If its
 *                      heads hold different numbers, the largest counts.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also if `stored` has more
 *         slots than there are rows.
 */
KVEVICT_API kvevict_status
kvevict_paged_sequence_fit(kvevict_paged_sequence* sequence,
                           const kvevict_sequence* stored) KVEVICT_NOEXCEPT;

/**
 * Tells how many rows a layer holds.
 * @param[in]  sequence   Non-NULL.
 * @param[in]  layer      < n_layers, with a full cache.
 * @param[out] out_slots  Non-NULL.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_length(
    const kvevict_paged_sequence* sequence, uint32_t layer,
    uint32_t* out_slots) KVEVICT_NOEXCEPT;

/**
 * Describes a layer's rows as a view, valid until a call changes the sequence.
 * n_shared_blocks counts the blocks up to the last one that others share. The
 * engine must not write to them; kvevict_paged_sequence_own() replaces them by
 * copies. Scales, minima, recent rows and biases are the view's companions; the
 * cache or the sequence owns their array. Rows have a bias, f32 with
 * KVEVICT_ROLE_BIAS, if the plan's policy has fit=bias-values and K and V are
 * not quantized. It is 0 for rows that are appended, or whose keys are written;
 * kvevict_paged_sequence_read() does not copy it.
 * @param[in]  sequence  Non-NULL.
 * @param[in]  layer     < n_layers, with a full cache.
 * @param[out] out       Non-NULL, out->struct_size set. Its block table lies in
 *                       memory of the device.
 */
KVEVICT_API kvevict_status
kvevict_paged_sequence_view(const kvevict_paged_sequence* sequence,
                            uint32_t layer, kvevict_view* out) KVEVICT_NOEXCEPT;

/**
 * Copies the blocks of all layers that others share and that hold slots from
 * `first_slot` on, so that the engine may write to them through views.
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
  uint32_t layer;      /**< Below n_layers, with a full cache. */
  uint32_t first_slot; /**< Where row 0 goes. */
  uint32_t n_tokens;   /**< Rows of each KV head; 0 is valid. */
  /** [n_kv_heads, n_tokens, head_dim] in any layout, outside the cache's
   *  memory. Either plane may be absent: then K or V is not copied. A write may
   *  take K and V from the same rows. Rows of the geometry's dtype are copied
   *  byte for byte if blocks have no scales; otherwise rows are f32, f16 or
   *  bf16 and are requantized: see kvevict_compact(). */
  kvevict_plane k;
  kvevict_plane v;
} kvevict_paged_rows;

#define KVEVICT_PAGED_ROWS_INIT                                        \
  {                                                                    \
    (uint32_t)sizeof(kvevict_paged_rows), 0, 0, 0, KVEVICT_PLANE_INIT, \
        KVEVICT_PLANE_INIT                                             \
  }

/**
 * Copies rows into slots that layers hold. Keys that share scales by groups of
 * tokens are written in order. The first row's group is requantized together
 * with its earlier rows. The rows must end at the end of a group, at the end of
 * all quantized rows, or among recent rows.
 * @param[in] sequence  Non-NULL.
 * @param[in] rows      [rows_len], structs of one struct_size; a layer may
 *                      occur more than once.
 * @param[in] rows_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] stream    See kvevict_stream.
 * @return As kvevict_paged_sequence_append(). All checks come before the first
 *         row is written.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_write(
    kvevict_paged_sequence* sequence, const kvevict_paged_rows* rows,
    size_t rows_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Gathers rows of consecutive slots from a layer's blocks into other memory.
 * @param[in] sequence  Non-NULL.
 * @param[in] rows      [rows_len]; the call writes to their planes.
 * @param[in] rows_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] stream    See kvevict_stream.
 */
KVEVICT_API kvevict_status kvevict_paged_sequence_read(
    const kvevict_paged_sequence* sequence, const kvevict_paged_rows* rows,
    size_t rows_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/** One paged sequence's part of kvevict_paged_evict(). */
typedef struct kvevict_paged_eviction {
  uint32_t struct_size;
  uint32_t reserved;              /**< 0. */
  kvevict_paged_sequence* cached; /**< Non-NULL: holds the rows. */
  kvevict_sequence* sequence;     /**< Non-NULL: knows their positions. */
  /** NULL for none. `undo` is refused: a fork made before keeps the evicted
   *  rows. Destinations are refused too: give them with the views to
   *  kvevict_sequence_evict(). */
  const kvevict_evict_options* options;
} kvevict_paged_eviction;

#define KVEVICT_PAGED_EVICTION_INIT \
  { (uint32_t)sizeof(kvevict_paged_eviction), 0, 0, 0, 0 }

/**
 * Evicts paged sequences as kvevict_sequences_evict() does, and frees the
 * emptied blocks. The eviction is by_table if select_block is a multiple of the
 * cache's block size, a layer's heads share a list, and the policy neither
 * merges, fits nor rotates. Then no row moves, and no block is copied or needed;
 * shared blocks stay or are released. Otherwise a shared block is copied before
 * a survivor moves into it; with merge or fit all shared blocks are. Other
 * sequences keep their rows unchanged. Recent rows stay and groups of tokens are
 * requantized, so a cache with either is never evicted by_table: see
 * kvevict_sequence_evict().
 * @param[in] items      [items_len], structs of one struct_size. Each layer of
 *                       `cached` has the rows that `sequence` stores; all
 *                       belong to one cache.
 * @param[in] items_len  0 does nothing.
 * @param[in] workspace  The largest kvevict_plan_workspace() of the plans for
 *                       the sequences' lengths.
 * @param[in] workspace_bytes  Its size, at least least_bytes.
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
