/*
 * kvevict/edit.h: calls other than evictions that change a cache. They reorder
 * rows, rotate keys to other positions, undo the last eviction, and edit the
 * middle of a text.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_EDIT_H_
#define KVEVICT_EDIT_H_

#include "kvevict/kvevict.h"
#include "kvevict/paged.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rows in another order ----------------------------------------------- */

/**
 * Moves row keep[i] of every head to slot i, in place, for several layers. The
 * result is as if all rows were read before the first is written.
 *
 * Slots may come in any order and more than once, so a row can be copied to
 * several slots. The call straightens a ring that has wrapped (list its
 * survivors in order of position) and serves keep lists that do not ascend;
 * kvevict_compact() is faster for lists that ascend. K, V and companions move
 * alike, byte for byte. Other rows are not touched. Cost: the CPU reads and
 * writes each row that changes place once, and one more row per cycle. On CUDA
 * a row whose slot is below the list's count passes through the workspace, so
 * it is read and written twice.
 *
 * @param[in] context    Non-NULL; device and parallel runner.
 * @param[in] moves      [moves_len], one layer each, counts at most n_tokens,
 *                       without merge, first_slot and destination. Slots are in
 *                       [0, n_tokens); on CUDA only a context with `debug`
 *                       checks that.
 * @param[in] moves_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] workspace  See kvevict_reorder_workspace().
 * @param[in] workspace_bytes  Its size.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Threads: safe for
 *         distinct caches and workspaces.
 */
KVEVICT_API kvevict_status
kvevict_reorder(const kvevict_context* context, const kvevict_move* moves,
                size_t moves_len, void* workspace, size_t workspace_bytes,
                kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Tells the size of the workspace of kvevict_reorder(). The CPU needs 8 bytes
 * per listed slot and a row per worker. CUDA needs the listed rows of all
 * planes; if that exceeds 32 MiB, it needs one plane's rows but at least 32
 * MiB. Layers use it in turn.
 * @param[in]  context    Non-NULL.
 * @param[in]  moves      [moves_len] as for the call. Only n_lists and count of
 *                        the lists are read; n_tokens is not.
 * @param[in]  moves_len  At most KVEVICT_MAX_JOBS.
 * @param[out] out        Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also when a size would
 *         not fit in size_t).
 */
KVEVICT_API kvevict_status kvevict_reorder_workspace(
    const kvevict_context* context, const kvevict_move* moves, size_t moves_len,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/* ---- Keys at other positions --------------------------------------------- */

/** One layer's part of kvevict_rotate(). */
typedef struct kvevict_rotation {
  uint32_t struct_size;
  uint32_t layer;    /**< Below n_layers, with a full cache. */
  uint32_t n_tokens; /**< Slots held, 1 .. max_tokens. */
  uint32_t n_lists;  /**< Rows of offsets: 1 for all heads, or n_kv_heads. */
  /** u32 [n_kv_heads], device memory, if heads hold different numbers: each at
   *  most n_tokens. NULL: all hold n_tokens. CUDA does not check them. */
  const uint32_t* token_counts;
  const kvevict_view* view; /**< The layer's cache; only k is used. */
  /** i32 [n_lists, n_tokens], device memory: new minus old position of the key
   *  in each slot. 0 leaves its bytes alone. */
  const int32_t* offsets;
  size_t offsets_len; /**< = n_lists * n_tokens. */
} kvevict_rotation;

#define KVEVICT_ROTATION_INIT \
  { (uint32_t)sizeof(kvevict_rotation), 0, 0, 1, 0, 0, 0, 0 }

/**
 * Rotates cached keys in place to what RoPE gives them at other positions.
 *
 * It serves engines that use slots as positions, as in StreamingLLM
 * (arXiv:2309.17453) and FINCH. After an eviction the key in slot i with
 * position p rotates by i - p, and the next token gets position n_kept. Pair f
 * of a key is rotated by offset * rope_inv_freq[f] radians in the geometry's
 * rope_layout; factors that RoPE applied to keys (YaRN's attention scale) stay.
 * Angles are 64-bit fractions of a turn, so cosines and sines are exact to 2e-7
 * at any offset. Rotating by a and then by b equals rotating by a + b, but
 * rounds to k_dtype twice. NaN and infinity spread over their pair. The CPU and
 * CUDA give the same bits if the CPU has a fused multiply-add.
 *
 * Sequences do not notice: their positions and logical length remain those of
 * the text. The engine has to remember the new positions. A second rotation and
 * the n_seen of policy triattention start from them. Keys in blocks that other
 * sequences share are rotated for them too. All checks come before the first
 * byte changes. Cost: keys that move are read and written once; on CUDA in one
 * launch for layers that lie alike.
 *
 * @param[in] plan       Non-NULL; its geometry has rope_inv_freq. See
 *                       kvevict_plan_capabilities().
 * @param[in] rotations  [rotations_len], one layer each. Caches must not
 *                       overlap.
 * @param[in] rotations_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         for keys that cannot be rotated, with the reason, and on CUDA for
 *         elements that are not aligned to their size. Threads: safe for
 *         distinct caches.
 */
KVEVICT_API kvevict_status
kvevict_rotate(const kvevict_plan* plan, const kvevict_rotation* rotations,
               size_t rotations_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/* ---- Undoing an eviction ------------------------------------------------- */

/**
 * Tells how many bytes kvevict_evict_options.undo needs if the sequence is
 * evicted now. The bytes hold K, V, companions and sums (with sum_last the
 * calls) or scores of the evicted slots in all layers and heads, their lists of
 * slots, and up to 64 bytes per plane and layer.
 *
 * It is 0 if every layer would be left alone. If scores decide how many tokens
 * a layer or head keeps, the call counts the fewest that each may keep, so that
 * no eviction needs more. Nothing is scored, and CUDA does not wait.
 *
 * @param[in]  sequence   Non-NULL.
 * @param[in]  views      As for kvevict_sequence_evict().
 * @param[in]  views_len  = n_layers.
 * @param[out] out_bytes  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a bad view, a budget
 *         too small for what must stay); KVEVICT_ERROR_UNSUPPORTED if the policy
 *         merges, fits or rotates, which changes rows that stay.
 */
KVEVICT_API kvevict_status kvevict_sequence_undo_bytes(
    kvevict_sequence* sequence, const kvevict_view* views, size_t views_len,
    size_t* out_bytes) KVEVICT_NOEXCEPT;

/**
 * Undoes the last eviction, whose rows kvevict_evict_options.undo received. All
 * rows are again where they were, byte for byte. Positions, lengths and the
 * counts for `every` and `prompt` are as before the eviction.
 *
 * Tokens appended since the eviction stay, behind the rows that come back.
 * Observed queries, additions to sums and the prompt's end stay too. Trim
 * unwanted tokens first. With sum_last the latest sum_last calls remain, from
 * before or after the eviction. Calls after it count 0 for the tokens that were
 * away. If they do not follow on the calls before it, those are dropped. Layers
 * that get tokens back lose the log-sum-exps of observed queries. The report is
 * empty.
 *
 * Only the last eviction can be undone, and only once. A reset, a load, or a
 * trim to fewer tokens than there were at the eviction ends that. Calls of
 * kvevict_sequence_evict() that leave every layer alone do not count. A fork
 * has nothing to undo.
 *
 * Between the two calls the bytes may be moved to other memory. Cost: rows from
 * a head's first evicted slot on are read and written once. Policies that
 * merge, fit or rotate change surviving rows, so their evictions refuse `undo`.
 * CUDA does not wait, and the call can be captured.
 *
 * @param[in] sequence   Non-NULL.
 * @param[in] views      [n_layers] views as at the eviction: the same planes
 *                       and heads, the same caches shared, with room for all
 *                       slots. In a paged cache other blocks may replace those
 *                       given back; they come behind those in use.
 * @param[in] views_len  = n_layers.
 * @param[in] undo       Non-NULL: the bytes that the eviction wrote. Not
 *                       modified.
 * @param[in] undo_bytes At least the bytes written, at most options.undo_bytes.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (nothing to undo, a bad
 *         view or one that differs from the eviction's, more slots than
 *         max_tokens).
 */
KVEVICT_API kvevict_status
kvevict_sequence_undo(kvevict_sequence* sequence, const kvevict_view* views,
                      size_t views_len, const void* undo, size_t undo_bytes,
                      kvevict_stream stream) KVEVICT_NOEXCEPT;

/* ---- Editing a cache in the middle --------------------------------------- */

/** What an edit does. */
KVEVICT_INT32_TYPE(kvevict_edit_kind)
enum kvevict_edit_kind KVEVICT_INT32 {
  /** n_new tokens replace tokens [first, end). With n_new 0 the edit removes;
   *  with first = end it inserts. */
  KVEVICT_EDIT_REPLACE = 0,
  /** Tokens [first, end) move, so that the first of them gets position `to`. */
  KVEVICT_EDIT_MOVE = 1
};

/** How tokens that stay are numbered. */
KVEVICT_INT32_TYPE(kvevict_edit_positions)
enum kvevict_edit_positions KVEVICT_INT32 {
  /** Positions have no gaps, as before, and keys rotate to the new ones. The
   *  geometry has rope_inv_freq. */
  KVEVICT_EDIT_ROTATE = 0,
  /** The same, but keys stay as they are: for models without RoPE, and for
   *  engines that rotate keys themselves. */
  KVEVICT_EDIT_RENUMBER = 1,
  /** Tokens keep their positions, so that a replacement may leave a gap. */
  KVEVICT_EDIT_KEEP = 2
};

/** One edit. Positions are those before it, except `to`. */
typedef struct kvevict_edit {
  uint32_t struct_size;
  kvevict_edit_kind kind; /**< What it does. */
  uint32_t first;         /**< First position of the span. */
  uint32_t end;   /**< One past the last; first .. the logical length. */
  uint32_t n_new; /**< New tokens; 0 for a move. */
  /** The first position of the span after a move; 0 for a replacement. */
  uint32_t to;
  kvevict_edit_positions positions; /**< See there. */
  uint32_t reserved;                /**< 0. */
} kvevict_edit;

#define KVEVICT_EDIT_INIT                                             \
  {                                                                   \
    (uint32_t)sizeof(kvevict_edit), KVEVICT_EDIT_REPLACE, 0, 0, 0, 0, \
        KVEVICT_EDIT_ROTATE, 0                                        \
  }

/**
 * Removes, replaces, inserts or moves tokens in the middle of a sequence. Rows
 * of K, V, companions and observed sums move to their new slots in every layer
 * with a full cache, in order of positions, and keys rotate by as many
 * positions as their tokens move. Evicted tokens stay evicted. docs/editing.md
 * shows each kind.
 *
 * The model computed keys and values of tokens behind the edit from the old
 * text, and they still depend on it. Only the first
 * kvevict_sequence_exact_prefix() tokens are as if the text had always been the
 * new one. To make all of them so, compute the tokens behind that prefix again.
 *
 * Biases of slots move with their rows. Those of new rows are 0 after
 * kvevict_paged_edit(); in planes of the caller, the caller writes the 0.
 *
 * New tokens have positions first .. first + n_new - 1. In every layer and head
 * they have n_new consecutive slots, and kvevict_sequence_slot_of_position()
 * tells the first. Make room in the views, call, then write the new rows, with
 * keys rotated to their positions. Until then their content is unspecified.
 * Their sums are 0.
 *
 * A rotated key is rounded once to its dtype. KVEVICT_EDIT_KEEP rotates no key
 * and excludes moves and n_new > end - first. If the policy has rotate=yes,
 * keys are rotated to their slots. A key then rotates by as many slots as it
 * moves, also with KVEVICT_EDIT_KEEP.
 *
 * Queries observed from `first` on, or from `to` if that is less, are dropped;
 * with KVEVICT_EDIT_KEEP those of tokens behind the span stay, unless the
 * policy rotates. Log-sum-exps and single calls of sum_last are dropped. Other
 * sums stay with their tokens, and keep what removed queries added. Sums that
 * stop before the last token are dropped. A prompt that has ended becomes
 * longer or shorter by what is inserted or removed before its end; moves and
 * KVEVICT_EDIT_KEEP do not change its length. The last eviction cannot be
 * undone any more; its report stays. Forks are not edited.
 *
 * Each list must keep a token, and lists of a layer must stay equally long
 * unless the plan has head_budgets or `heads` other than equal. So with scope
 * KV_HEAD the edit fails if heads have evicted different numbers of the span's
 * tokens.
 *
 * The call allocates and waits for the stream, which must not be captured.
 * Cost: rows behind the edit are read and written once; on CUDA moves and
 * insertions also stage them. All checks come before the first change; after
 * KVEVICT_ERROR_DEVICE rows are unspecified.
 *
 * @param[in] sequence   Non-NULL.
 * @param[in] views      [n_layers], with room for all slots held before and
 *                       after. No block that is written may be shared.
 * @param[in] views_len  = n_layers.
 * @param[in] edit       Non-NULL.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a span or view that does
 *         not fit, more than max_tokens slots, lists of different lengths);
 *         KVEVICT_ERROR_UNSUPPORTED (keys cannot rotate, with the reason; rows
 *         that share scales by groups of tokens, recent planes);
 *         KVEVICT_ERROR_OUT_OF_MEMORY. Nothing has changed then.
 */
KVEVICT_API kvevict_status kvevict_sequence_edit(
    kvevict_sequence* sequence, const kvevict_view* views, size_t views_len,
    const kvevict_edit* edit, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Edits a paged sequence as kvevict_sequence_edit() does. Shared blocks are
 * copied before their rows change. The call takes blocks for new tokens and
 * frees empty ones.
 * @param[in] cached    Non-NULL: holds the rows. No groups of tokens share
 *                      scales, and there are no recent rows.
 * @param[in] sequence  Non-NULL: knows their positions. Each layer of `cached`
 *                      has the rows that it stores.
 * @param[in] edit      Non-NULL.
 * @param[in] stream    See kvevict_stream.
 * @return As kvevict_sequence_edit(); KVEVICT_ERROR_OUT_OF_MEMORY also if too
 *         few blocks are free.
 */
KVEVICT_API kvevict_status kvevict_paged_edit(
    kvevict_paged_sequence* cached, kvevict_sequence* sequence,
    const kvevict_edit* edit, kvevict_stream stream) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_EDIT_H_ */
