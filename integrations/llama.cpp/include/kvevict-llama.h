/*
 * kvevict inside an unmodified llama.cpp: evicts the KV cache of a
 * llama_context through the public headers of llama.cpp alone.
 *
 *     kvevict_llama* kv;
 *     kvevict_llama_create("snapkv:budget=2048", NULL, &kv);
 *     struct llama_context_params params = llama_context_default_params();
 *     params.n_ctx = 8192;
 *     kvevict_llama_install(kv, &params);
 *     struct llama_context* ctx = llama_init_from_model(model, params);
 *     kvevict_llama_attach(kv, ctx);
 *     ... llama_decode() the prompt ...
 *     kvevict_llama_evict(kv, 0, NULL, NULL);
 *     ... llama_decode() goes on, with the positions it would have had ...
 *
 * Rules that hold for every function below
 *
 * - Failure: functions that can fail return kvevict_status. On any status other
 *   than KVEVICT_OK kvevict_llama_last_error_message() says why, and neither
 *   the cache nor any sequence has changed. The exception is a message that
 *   begins with "sequence lost: ": llama.cpp then failed to take a state after
 *   rows had moved, and the sequence is empty in both llama.cpp and the
 *   adapter.
 * - Ownership: the adapter owns no object of llama.cpp. Pointers are borrowed
 *   until the call returns, except the context, which must live until the
 *   adapter is destroyed or attached to another context.
 * - Threads: an adapter works inside llama_decode(), so only the thread that
 *   uses its context may call it. Different adapters are independent.
 * - Positions: tokens are counted as if nothing had been evicted, and keys keep
 *   their rotation. llama.cpp has one position per cell, that of the first
 *   layer's first KV head. Other heads may hold another token there; that is
 *   harmless, because all of them precede every later token.
 * - Layers: only layers whose cache keeps every token are evicted; sliding
 *   windows and recurrent state are left as they are. kvevict numbers the
 *   evicted layers from 0, see kvevict_llama_layer().
 * - Memory: an adapter holds the queries that score (for expected-attention
 *   their products, about 4 * n_q_heads * k_head_dim^2 bytes for each layer and
 *   sequence, or once with a calibration, beside its bytes), the workspace of
 *   an eviction, and for an eviction in place a copy of the rows that stay. It
 *   keeps all of this for the next eviction.
 * - Removed and shifted cells: the application may remove the tail of a
 *   sequence or all of it. The next llama_decode() notices other removed cells
 *   and shifted positions (llama_memory_seq_add(), _seq_div(), context shift).
 *   The sequence is then unfit for eviction until it has been removed. The same
 *   holds for a removed tail that begins before the last eviction, since heads
 *   have kept other tokens there, and for a state with as many tokens that
 *   llama_state_seq_set_data() set. Calls between such a change and
 *   llama_decode() are refused. Tell any other change by
 *   kvevict_llama_invalidate().
 * - Several adapters of a context: once one adapter has evicted a sequence, the
 *   others refuse to read, copy, trim or evict it.
 * - Copies: copy sequences by kvevict_llama_copy(). A copy that
 *   llama_memory_seq_cp() made is unfit for eviction until it has been removed;
 *   evictions of other sequences do not touch its rows. With a stream for each
 *   sequence (kv_unified off) the adapter notices only at the next
 *   llama_decode() that llama_memory_seq_cp() replaced a sequence by one of as
 *   many tokens: call kvevict_llama_invalidate() at once.
 */
#ifndef KVEVICT_LLAMA_H_
#define KVEVICT_LLAMA_H_

#include <kvevict/calibration.h>
#include <kvevict/kvevict.h>
#include <llama.h>

#if defined(_WIN32)
#define KVEVICT_LLAMA_API
#else
#define KVEVICT_LLAMA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Evicts the sequences of one llama_context. Opaque. */
typedef struct kvevict_llama kvevict_llama;

/** How an adapter works. */
typedef struct kvevict_llama_options {
  uint32_t struct_size;
  /** How many last queries of each layer and sequence are kept if the policy
   *  scores by queries, at most 2^31 - 17. A number below the policy's window,
   *  also 0, means the window. h2o scores by this many queries, or by all since
   *  the last eviction if these are fewer, however tokens were batched.
   *  Non-causal needs the queries of all cells. 16 more are kept, so that
   *  enough remain after some rejected tokens. Memory for each layer and
   *  sequence: 2 * (max(query_rows, window) + 16) * n_q_heads * k_head_dim * 4
   *  bytes (f32); none if the policy reads no queries. */
  uint32_t query_rows;
  /** A context on the CPU with the application's threads; kept alive by the
   *  adapter. NULL: the adapter creates one that works in the calling
   *  thread. */
  const kvevict_context* context;
  /** NULL, or what kvevict_calibration_save() wrote of a calibration by
   *  kvevict_llama_calibrate() or `kvevict-llama-cli calibrate`; copied.
   *  triattention needs it. expected-attention takes its means and, if it has
   *  them, its covariances in place of those of the sequence's own queries.
   *  Other policies ignore it. The first eviction that needs it compares it
   *  with the model. */
  const void* calibration;
  size_t calibration_len; /**< Its bytes; 0 with NULL. */
} kvevict_llama_options;

#define KVEVICT_LLAMA_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_llama_options), 0, 0, 0, 0 }

/** @return The sentence that explains the calling thread's last failed call of
 *  this library; thread-local, never NULL. */
KVEVICT_LLAMA_API const char* kvevict_llama_last_error_message(void)
    KVEVICT_NOEXCEPT;

#if !defined(_WIN32)
/**
 * Names the llama.cpp library that adapters call. By default they call the
 * functions that are visible in the program. A program that loaded libllama
 * with RTLD_LOCAL, as ctypes and llama-cpp-python do, has to name it here
 * before the first adapter is attached.
 *
 * @param[in] path    The libllama.so that the program has loaded, as for
 *                    dlopen(). The call keeps it loaded. NULL with handle.
 * @param[in] handle  The result of dlopen() for it; NULL with path. Keep it
 *                    open as long as this library is used.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT for none or both, and if
 *         functions of another library have been called;
 *         KVEVICT_ERROR_UNAVAILABLE if the path cannot be loaded;
 *         KVEVICT_ERROR_UNSUPPORTED if the library lacks a function, which the
 *         message names.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_use(const char* path, void* handle) KVEVICT_NOEXCEPT;
#endif

/**
 * Creates an adapter for a policy.
 *
 * @param[in]  policy   Text form, see kvevict_policy_create(). llama.cpp has
 *                      one list of cells for all layers and heads, so all must
 *                      keep equally many tokens.
 * @param[in]  options  NULL for the defaults.
 * @param[out] out      Non-NULL. Destroy with kvevict_llama_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT for a bad policy;
 *         KVEVICT_ERROR_UNSUPPORTED for a policy whose layers or heads keep
 *         different numbers of tokens (split other than uniform, heads other
 *         than equal), that rotates keys (rotate) or that needs
 *         options.calibration, if there is none (triattention);
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_create(const char* policy, const kvevict_llama_options* options,
                     kvevict_llama** out) KVEVICT_NOEXCEPT;

/**
 * Destroys an adapter; NULL is ignored. The context must not compute
 * afterwards, because its graphs call the adapter.
 */
KVEVICT_LLAMA_API void kvevict_llama_destroy(kvevict_llama* kv)
    KVEVICT_NOEXCEPT;

/** The callback that kvevict_llama_install() sets. Do not call it. */
KVEVICT_LLAMA_API bool kvevict_llama_eval(struct ggml_tensor* tensor, bool ask,
                                          void* kv) KVEVICT_NOEXCEPT;

/** Sets the application's own callback, which is still called for every node.
 *  NULL: none. */
KVEVICT_LLAMA_API void kvevict_llama_chain(
    kvevict_llama* kv, ggml_backend_sched_eval_callback callback,
    void* user_data) KVEVICT_NOEXCEPT;

/**
 * Installs the adapter in the parameters of its future context. A cb_eval that
 * they already have is still called.
 */
static inline void kvevict_llama_install(kvevict_llama* kv,
                                         struct llama_context_params* params) {
  kvevict_llama_chain(kv, params->cb_eval, params->cb_eval_user_data);
  params->cb_eval = &kvevict_llama_eval;
  params->cb_eval_user_data = kv;
}

/**
 * Attaches the adapter to its context. Call it before the first llama_decode(),
 * and again for a new context: the adapter then drops all it knew of the old
 * cache and its sequences.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         for a model without a cache, and if the loaded ggml differs in its
 *         numbers of operations or its tensors from the headers that the
 *         adapter was compiled with.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_attach(
    kvevict_llama* kv, struct llama_context* ctx) KVEVICT_NOEXCEPT;

/**
 * Tells the adapter which batch the next llama_decode() gets; the batch is
 * copied. Call it for a unified cache of several sequences (kv_unified,
 * n_seq_max above 1), whose graphs do not tell whose tokens they compute;
 * otherwise it does nothing. Hybrid models reorder the tokens of such a cache,
 * so their sequences can be evicted only with a stream for each sequence
 * (kv_unified off) or with a single sequence.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNSUPPORTED for tokens that belong to several
 *         sequences: kvevict_llama_copy() serves these.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_batch(
    kvevict_llama* kv, const struct llama_batch* batch) KVEVICT_NOEXCEPT;

/**
 * Does the same for batches of another kind that do not show their tokens, such
 * as the llama_batch_ext of newer versions for llama_process(). List the tokens
 * in the order in which they were added; each belongs to one sequence.
 *
 * @param[in] seqs       [n_tokens]; NULL with 0.
 * @param[in] positions  [n_tokens], compared with the graph's positions; NULL:
 *                       not compared.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_tokens(
    kvevict_llama* kv, const llama_seq_id* seqs, const llama_pos* positions,
    size_t n_tokens) KVEVICT_NOEXCEPT;

/** How an eviction changes the cache. */
enum kvevict_llama_way
#ifdef __cplusplus
    : int32_t
#endif
{
  /** In place if possible, else by state. */
  KVEVICT_LLAMA_WAY_AUTO = 0,
  /** It works on the cache's own tensors. It needs a sequence with a stream of
   *  its own (or the only sequence with tokens), cells in order, host memory,
   *  and a model without windows and recurrence. Only the rows that stay are
   *  copied, since llama.cpp takes positions only that way; the memory for this
   *  is prepared while tokens are decoded beyond the budget. */
  KVEVICT_LLAMA_WAY_IN_PLACE = 1,
  /** It works in a copy of the sequence's state, which llama.cpp then loads. */
  KVEVICT_LLAMA_WAY_STATE = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_llama_way;
#endif

/** Options of kvevict_llama_evict(). */
typedef struct kvevict_llama_evict_options {
  uint32_t struct_size;
  kvevict_llama_way way;
  /** NULL: evict in this context. Otherwise the adapter of another context with
   *  the same model, cache types and flash attention, usually with a smaller
   *  n_ctx. It receives the tokens that stay; the sequence here does not
   *  change, and destroying this context frees its memory. The target's
   *  llama_n_ctx_seq() has room for the cells that stay: n_ctx / n_seq_max with
   *  a stream for each sequence, or n_ctx less the cells of other sequences in
   *  a unified cache. A model with sliding windows needs n_swa + n_ubatch or
   *  more. The target's policy must be able to hold the keep lists: lists of a
   *  layer fit heads, lists of heads fit a layer only if they are equal. */
  kvevict_llama* target;
  llama_seq_id target_seq; /**< Replaced in the target; 0 without target. */
  uint32_t reserved;       /**< Must be 0. */
  /** Protected positions, ranges and inputs, by layers of kvevict; NULL: none.
   *  Inputs replace the adapter's own: kept queries, for weight=given the L1
   *  norms of values times the output projection, for expected-attention the
   *  moments of all queries seen, and statistics of
   *  kvevict_llama_options.calibration. undo and by_table are refused. The last
   *  token is always protected, because llama_decode() expects the next one to
   *  follow it. */
  const kvevict_evict_options* evict;
} kvevict_llama_evict_options;

#define KVEVICT_LLAMA_EVICT_OPTIONS_INIT                                      \
  {                                                                           \
    (uint32_t)sizeof(kvevict_llama_evict_options), KVEVICT_LLAMA_WAY_AUTO, 0, \
        0, 0, 0                                                               \
  }

/** What an eviction did. */
typedef struct kvevict_llama_report {
  uint32_t struct_size;
  uint32_t evicted;      /**< 1 if tokens were evicted. */
  uint32_t in_place;     /**< 1 if it worked on the cache's own tensors. */
  uint32_t cells_before; /**< The sequence's, in evicted layers. */
  uint32_t cells_after;
  /** The share of the mass of its scores that a keep list kept, the mean over
   *  all lists; NaN if the policy's scores are no mass, and 1 if nothing was
   *  evicted; see kvevict_list_report. */
  float mass_kept;
  uint64_t bytes_before; /**< K and V of these cells. */
  uint64_t bytes_after;
  double total_ms; /**< The time of the whole call. */
  double evict_ms; /**< What kvevict_sequence_evict() took of it: scoring,
                      selecting and moving. */
} kvevict_llama_report;

#define KVEVICT_LLAMA_REPORT_INIT \
  { (uint32_t)sizeof(kvevict_llama_report), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Evicts a sequence: scores its tokens, keeps those that the policy selects,
 * and frees the other cells for later tokens and other sequences. The cache's
 * tensors keep their size; to give memory back, evict into a context with a
 * smaller n_ctx (`target`). A sequence within its budget is left alone, so a
 * decoding loop may call this after every token.
 *
 * @param[in]  kv       Attached, after a llama_decode() of its context.
 * @param[in]  seq      0 .. n_seq_max - 1.
 * @param[in]  options  NULL for none.
 * @param[out] report   NULL, or report->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also if the policy needs
 *         more queries than those of tokens decoded since the last removal or
 *         load, and for options.calibration of kvevict_llama_create() that is
 *         damaged, cut off or of another model); KVEVICT_ERROR_UNSUPPORTED with
 *         the reason (shifted or removed cells; ALiBi with lists that differ or
 *         a policy that scores by attention; weight=given with a repacked
 *         output projection, or if no product follows attention directly, as
 *         with MLA; a target whose cache has another number of streams or
 *         rotates keys by other LongRoPE factors; caches of another form);
 *         KVEVICT_ERROR_OUT_OF_MEMORY; KVEVICT_ERROR_INTERNAL if llama.cpp
 *         fails, with "sequence lost: " if the sequence (with target: the
 *         target's) is lost.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_evict(kvevict_llama* kv, llama_seq_id seq,
                    const kvevict_llama_evict_options* options,
                    kvevict_llama_report* report) KVEVICT_NOEXCEPT;

/**
 * Copies a sequence to another one, whose tokens are removed first. It replaces
 * and calls llama_memory_seq_cp(). The copy is evicted by itself from then on,
 * whether the source was evicted or not. If several sequences share a prompt,
 * decode it for one of them and copy it to the others. The source must not be
 * empty; to empty `to`, call llama_memory_seq_rm().
 *
 * In a unified cache the sequences share cells. An eviction of one then copies
 * it through its state into other cells, so that the others keep theirs. It is
 * refused if the cache has no room for that. With a stream for each sequence
 * (kv_unified off) llama.cpp copies the rows at the next llama_decode() of any
 * sequence. Until then the copy cannot be saved, evicted or copied on, and its
 * source cannot be evicted or replaced; the source can be copied to further
 * sequences. A copy that is removed before then cannot take a state either,
 * because the rows still arrive.
 *
 * @param[in] from  A sequence with tokens, decoded, loaded or copied by this
 *                  adapter.
 * @param[in] to    Another sequence.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNSUPPORTED as for kvevict_llama_evict();
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_copy(
    kvevict_llama* kv, llama_seq_id from, llama_seq_id to) KVEVICT_NOEXCEPT;

/** Declares the tokens decoded so far to be the prompt of a sequence; see
 *  kvevict_sequence_end_prompt(). */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_end_prompt(kvevict_llama* kv, llama_seq_id seq) KVEVICT_NOEXCEPT;

/**
 * Takes back the last tokens of a sequence, in the adapter and in the cache. It
 * accepts the lengths that kvevict_sequence_trim_to() accepts.
 *
 * Layers with a sliding window drop tokens by themselves. Then only lengths
 * whose window is still held are accepted: llama_memory_seq_pos_min() must be
 * at most max(0, new_length - n_swa + 1). A context with swa_full holds all
 * tokens until its first eviction. That eviction works through the state, which
 * holds only the last window.
 *
 * If the application or another adapter of the context has taken tokens back by
 * llama_memory_seq_rm(), make the same call with the remaining length: every
 * adapter of a context must be told of every trim. Positions that were shifted
 * to that length are refused.
 *
 * @param[in] new_length  The logical length to return to.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, which names the nearest
 *         exact lengths; KVEVICT_ERROR_UNSUPPORTED if llama.cpp cannot take
 *         tokens back (recurrent state, windows that have lost tokens), and for
 *         a sequence that is unfit for eviction.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_trim_to(
    kvevict_llama* kv, llama_seq_id seq, uint32_t new_length) KVEVICT_NOEXCEPT;

/**
 * Tells the logical length that a sequence had at its last eviction, 0 without
 * one. kvevict_llama_trim_to() can take it back to any length from there on.
 * Copies and loaded sequences have the number of their source. A sequence that
 * llama.cpp has emptied keeps its old number until its next token.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_evicted_at(const kvevict_llama* kv, llama_seq_id seq,
                         uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Tells the adapter that the application has changed a sequence through
 * llama.cpp in another way than by decoding, removing all of it or taking back
 * its tail, e.g. by setting a state. The sequence is then unfit for eviction
 * until it has been removed, loaded or replaced by a copy.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_invalidate(kvevict_llama* kv, llama_seq_id seq) KVEVICT_NOEXCEPT;

/**
 * Gives the kvevict_sequence of a sequence, for the functions of kvevict.h that
 * only read: lengths, positions of all slots, the report of the last eviction.
 * The call first compares it with llama.cpp's cells. That costs a walk over the
 * cells; between a load or an eviction by state and the next token it costs a
 * copy of the sequence's state.
 *
 * @param[out] out  Borrowed until the adapter's next call or llama_decode().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT before the context's first
 *         llama_decode() or load; KVEVICT_ERROR_UNSUPPORTED if the sequence is
 *         unfit for eviction.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_sequence(kvevict_llama* kv, llama_seq_id seq,
                       const kvevict_sequence** out) KVEVICT_NOEXCEPT;

/**
 * Tells llama.cpp's number of the index-th evicted layer, as in the names of
 * its tensors.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end, and before
 *         the context's first llama_decode() or load.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_layer(const kvevict_llama* kv, uint32_t index,
                    uint32_t* out_layer) KVEVICT_NOEXCEPT;

/**
 * Begins a calibration: from now on the adapter adds up the queries of all
 * tokens that the context computes, in all evicted layers, whatever the policy
 * is. Read it by the functions of kvevict/calibration.h, and save it by
 * kvevict_calibration_save() for kvevict_llama_options.calibration. Its layers
 * are numbered as in kvevict_llama_layer(). It takes n_q_heads * k_head_dim *
 * 12 bytes for each layer, and with covariances n_q_heads * k_head_dim^2 * 4
 * more.
 *
 * The layers are known after the first llama_decode(), whose queries do not
 * count: decode a token of sequence 0, call this, and remove the token. A batch
 * of a sequence whose queries hold NaN or infinity does not count either, which
 * kvevict_calibration_rows() shows.
 *
 * @param[in]  has_covariances  1: for expected-attention with covariances; 0:
 *                              without.
 * @param[out] out              Non-NULL. Borrowed: the next call of this
 *                              function replaces it, kvevict_llama_attach() and
 *                              kvevict_llama_destroy() end it.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also before the context's
 *         first llama_decode(); KVEVICT_ERROR_UNSUPPORTED if attention has no
 *         RoPE directly before it (MLA, quantized keys that llama.cpp rotates)
 *         or layers have different ones; KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_calibrate(kvevict_llama* kv, uint32_t has_covariances,
                        const kvevict_calibration** out) KVEVICT_NOEXCEPT;

/**
 * Writes a sequence to a file: llama.cpp's state of it, the positions of all
 * slots, and `tokens`, which the application gets back on loading. The file has
 * the bytes of kept cells only.
 *
 * @param[in] path      Non-NULL. The call writes a file with ".part" appended
 *                      to the name and then replaces the file at `path`, or the
 *                      file that a link there leads to. A device or pipe is
 *                      written to directly.
 * @param[in] tokens    [n_tokens]; NULL with 0.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNAVAILABLE with the system's reason;
 *         KVEVICT_ERROR_OUT_OF_MEMORY; KVEVICT_ERROR_INTERNAL.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_save(kvevict_llama* kv, llama_seq_id seq, const char* path,
                   const llama_token* tokens, size_t n_tokens) KVEVICT_NOEXCEPT;

/**
 * Replaces a sequence by one that kvevict_llama_save() saved, in a context of
 * the same model, cache types and flash attention. The context's room and
 * policy must suit it, as for a target of kvevict_llama_evict(). Queries are
 * not saved: a policy that scores by them needs a window of new tokens before
 * it can evict again.
 *
 * @param[out] tokens          [tokens_capacity], receives the saved tokens;
 *                             NULL with 0.
 * @param[out] out_n_tokens    NULL, or receives how many were saved.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT for a file that is no
 *         saved sequence, is damaged, or comes from another model, cache type
 *         or flash attention, if that can be told; for a capacity that is too
 *         small (0 leaves tokens out), a context without room, lists that its
 *         policy cannot hold, and while a copy is pending, see
 *         kvevict_llama_copy(); KVEVICT_ERROR_UNSUPPORTED for another number of
 *         streams or other LongRoPE factors, and if llama.cpp does not take the
 *         state into an empty sequence, which stays empty;
 *         KVEVICT_ERROR_INTERNAL, "sequence lost: ", if it does not take the
 *         state into a sequence that had tokens; KVEVICT_ERROR_UNAVAILABLE with
 *         the system's reason; KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_load(
    kvevict_llama* kv, llama_seq_id seq, const char* path, llama_token* tokens,
    size_t tokens_capacity, size_t* out_n_tokens) KVEVICT_NOEXCEPT;

/**
 * Saves a sequence to memory, as kvevict_llama_save() does to a file.
 *
 * @param[out] data         [capacity] bytes; NULL with 0, to ask for the size.
 * @param[out] out_n_bytes  Non-NULL, receives the size.
 * @return As kvevict_llama_save(); KVEVICT_ERROR_INVALID_ARGUMENT for a
 *         capacity that is too small.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_save_data(kvevict_llama* kv, llama_seq_id seq,
                        const llama_token* tokens, size_t n_tokens, void* data,
                        size_t capacity, size_t* out_n_bytes) KVEVICT_NOEXCEPT;

/** Loads a sequence as kvevict_llama_load() does, from the bytes of
 *  kvevict_llama_save_data() or of a file of kvevict_llama_save(). They are
 *  borrowed until the call returns. */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_load_data(
    kvevict_llama* kv, llama_seq_id seq, const void* data, size_t n_bytes,
    llama_token* tokens, size_t tokens_capacity,
    size_t* out_n_tokens) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* KVEVICT_LLAMA_H_ */
