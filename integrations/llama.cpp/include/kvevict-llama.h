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
 * - Failure: functions that can fail return kvevict_status, and on any other
 *   than KVEVICT_OK kvevict_llama_last_error_message() says why. Nothing has
 *   changed then, neither in the cache nor in any sequence, unless the message
 *   begins with "sequence lost: ": llama.cpp then failed to take a state after
 *   rows had moved, and the sequence is empty there and here.
 * - Ownership: the adapter owns nothing of llama.cpp's, and its pointers are
 *   borrowed until the call returns, but for the context, which must stay until
 *   the adapter is destroyed or attached to another.
 * - Threads: one thread at a time per adapter, that of its context: an adapter
 *   works inside llama_decode(). Two adapters are independent.
 * - Positions: tokens go on being counted as if nothing had been evicted, and
 *   keys keep their rotation. The position that llama.cpp has of a cell is that
 *   of the first layer's first KV head; others may hold another token there,
 *   which changes nothing: all lie in the past of every later token.
 * - Layers: those whose cache keeps every token are evicted; sliding windows
 *   and recurrent state are left as they are. Layers of kvevict are numbered
 *   from 0 without the others, see kvevict_llama_layer().
 * - Memory: the queries that score (for expected-attention their products,
 *   n_q_heads * k_head_dim^2 f32 of each layer and sequence), the workspace of
 *   an eviction, and for a sequence that is evicted in place, as much again as
 *   what stays of it takes;
 *   kept for the next eviction.
 * - Cells that the application removes itself, but for the tail of a sequence
 *   or all of it, and positions that it shifts (llama_memory_seq_add(),
 *   _seq_div(), context shift), are noticed by the next llama_decode() and make
 *   a sequence unfit for eviction until it has been removed; before that
 *   llama_decode() calls for the sequence are refused. So are a tail that
 *   begins before the last eviction, since heads have kept other tokens there,
 *   and a state of as many tokens that llama_state_seq_set_data() set.
 *   kvevict_llama_invalidate() says of any other change that it was made.
 * - Several adapters of a context: what one has evicted every call of the
 *   others refuses that reads, copies, trims or evicts the sequence.
 * - Copies are made by kvevict_llama_copy(). One that llama_memory_seq_cp()
 *   made is unfit for eviction until it has been removed; others are evicted
 *   beside it without touching its rows. With a stream for each sequence
 *   (kv_unified off) nothing tells until the next llama_decode() that
 *   llama_memory_seq_cp() copied over a sequence of as many tokens: call
 *   kvevict_llama_invalidate() for it at once.
 */
#ifndef KVEVICT_LLAMA_H_
#define KVEVICT_LLAMA_H_

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

/** What one llama_context needs to be evicted. Opaque. */
typedef struct kvevict_llama kvevict_llama;

/** How an adapter works. */
typedef struct kvevict_llama_options {
  uint32_t struct_size;
  /** Last queries of each layer and sequence that are there to score by, where
   *  the policy scores by queries; at least, and with 0, its window. More
   *  serve h2o and non-causal. h2o scores by so many, or by all since the last
   *  eviction where these are fewer, however tokens were batched. Non-causal
   *  needs those of all cells. 16 more are kept so that some rejected tokens
   *  leave enough. At most 2^31 - 17. f32 memory of each layer and sequence:
   *  2 * (max(query_rows, window) + 16) * n_q_heads * k_head_dim * 4
   *  bytes; none with a policy that reads no queries. */
  uint32_t query_rows;
  /** On the CPU, with the application's threads; kept alive by the adapter.
   *  NULL: one of its own, which works in the calling thread. */
  const kvevict_context* context;
} kvevict_llama_options;

#define KVEVICT_LLAMA_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_llama_options), 0, 0 }

/** @return The sentence that explains the calling thread's last failed call of
 *  this library; thread-local, never NULL. */
KVEVICT_LLAMA_API const char* kvevict_llama_last_error_message(void)
    KVEVICT_NOEXCEPT;

#if !defined(_WIN32)
/**
 * Says which llama.cpp the adapters of this library call. Without it they call
 * the functions that the program sees. A program that has loaded libllama for
 * itself alone (RTLD_LOCAL, as ctypes and llama-cpp-python do) names it here
 * before the first adapter is attached.
 *
 * @param[in] path    The libllama.so that the program has loaded, as for
 *                    dlopen(), which keeps it loaded; NULL with handle.
 * @param[in] handle  What dlopen() gave for it; NULL with path. Stays open as
 *                    long as this library is used.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT for none or both, and
 *         where functions of another library have been called;
 *         KVEVICT_ERROR_UNAVAILABLE where the path cannot be loaded;
 *         KVEVICT_ERROR_UNSUPPORTED for a library that lacks a function, which
 *         the message names.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_use(const char* path,
                                                   void* handle)
    KVEVICT_NOEXCEPT;
#endif

/**
 * Creates an adapter for a policy.
 *
 * @param[in]  policy   Text form, see kvevict_policy_create(). llama.cpp has one
 *                      list of cells for all layers and heads, so all have to
 *                      keep equally many tokens.
 * @param[in]  options  NULL for the defaults.
 * @param[out] out      Non-NULL. Destroy with kvevict_llama_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT for a bad policy;
 *         KVEVICT_ERROR_UNSUPPORTED for one whose layers or heads keep
 *         different numbers of tokens (split other than uniform, heads other
 *         than equal), that turns keys (rotate) or that reads a table of the
 *         model's (triattention);
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_create(const char* policy, const kvevict_llama_options* options,
                     kvevict_llama** out) KVEVICT_NOEXCEPT;

/**
 * Destroys an adapter; NULL is ignored. The context, whose graphs call the
 * adapter, must not compute any more.
 */
KVEVICT_LLAMA_API void kvevict_llama_destroy(kvevict_llama* kv)
    KVEVICT_NOEXCEPT;

/** The callback that kvevict_llama_install() sets. Not to be called. */
KVEVICT_LLAMA_API bool kvevict_llama_eval(struct ggml_tensor* tensor, bool ask,
                                          void* kv) KVEVICT_NOEXCEPT;

/** Names the callback that goes on being called for every node: the
 *  application's own. NULL: none. */
KVEVICT_LLAMA_API void kvevict_llama_chain(
    kvevict_llama* kv, ggml_backend_sched_eval_callback callback,
    void* user_data) KVEVICT_NOEXCEPT;

/**
 * Puts the adapter into the parameters of the context that it is for. What
 * they had as cb_eval is called as before.
 */
static inline void kvevict_llama_install(kvevict_llama* kv,
                                         struct llama_context_params* params) {
  kvevict_llama_chain(kv, params->cb_eval, params->cb_eval_user_data);
  params->cb_eval = &kvevict_llama_eval;
  params->cb_eval_user_data = kv;
}

/**
 * Says which context the adapter is for. Call it before the first
 * llama_decode(), and again for a new context: what was known of the cache and
 * its sequences is then forgotten.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNSUPPORTED for a model without a cache, and where the
 *         loaded ggml numbers operations in another way, or has other tensors,
 *         than the headers that the adapter was compiled with.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_attach(
    kvevict_llama* kv, struct llama_context* ctx) KVEVICT_NOEXCEPT;

/**
 * Says which batch the next llama_decode() gets. Needed with a unified cache of
 * several sequences (kv_unified, n_seq_max above 1), whose graphs do not tell
 * whose tokens they compute; else it does nothing. Copied. Hybrid models take
 * the tokens of such a cache in an order of their own: their sequences are
 * evicted with a stream for each (kv_unified off), or one alone.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNSUPPORTED for tokens that belong to several
 *         sequences: kvevict_llama_copy() serves these.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_batch(
    kvevict_llama* kv, const struct llama_batch* batch) KVEVICT_NOEXCEPT;

/**
 * The same for batches of another kind, such as the llama_batch_ext of newer
 * versions that llama_process() takes, which do not tell what is in them: the
 * tokens in the order in which they were added, each of one sequence.
 *
 * @param[in] seqs       [n_tokens]; NULL with 0.
 * @param[in] positions  [n_tokens], to be compared with those of the graph;
 *                       NULL: they are not.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_tokens(
    kvevict_llama* kv, const llama_seq_id* seqs, const llama_pos* positions,
    size_t n_tokens) KVEVICT_NOEXCEPT;

/** How an eviction goes about. */
enum kvevict_llama_way
#ifdef __cplusplus
    : int32_t
#endif
{
  /** In place where it can be, else by state. */
  KVEVICT_LLAMA_WAY_AUTO = 0,
  /** On the cache's own tensors: a sequence with a stream of its own (or the
   *  only one that has tokens) in cells that are in order, in host memory, of a model without
   *  windows and recurrence. No copy of the cache is made but one of what
   *  stays, since llama.cpp takes positions only so; its memory is made ready
   *  while tokens are decoded beyond the budget. */
  KVEVICT_LLAMA_WAY_IN_PLACE = 1,
  /** In a copy of the sequence's state, which llama.cpp then takes. */
  KVEVICT_LLAMA_WAY_STATE = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_llama_way;
#endif

/** What an eviction may be told. */
typedef struct kvevict_llama_evict_options {
  uint32_t struct_size;
  kvevict_llama_way way;
  /** The adapter of another context with the same model, cache types and flash
   *  attention, most often of a smaller n_ctx, which receives what stays; the
   *  sequence here stays as it was. Destroying its context gives its memory
   *  back. The target's llama_n_ctx_seq() is room for the cells that stay: that
   *  is n_ctx / n_seq_max with a stream for each sequence, and in a unified
   *  cache n_ctx, less the cells of its other sequences. For a model with
   *  sliding windows it is n_swa + n_ubatch or more. Its policy may
   *  be any whose keep lists can be what the cells hold: lists of a layer go to
   *  heads, lists of heads to a layer only if they are equal. NULL: what stays
   *  stays here. */
  kvevict_llama* target;
  llama_seq_id target_seq; /**< Replaced there. Must be 0 without target. */
  uint32_t reserved;       /**< Must be 0. */
  /** Protected positions, ranges and inputs, by layers of kvevict; NULL: none.
   *  Inputs replace those that the adapter has: queries that were kept, and
   *  with weight=given the L1 norms of values times the output projection;
   *  for expected-attention the moments of all queries that were seen. undo and by_table are refused. The
   *  last token is always protected: llama_decode() wants the next one to
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
  uint32_t evicted;      /**< 1 if tokens went. */
  uint32_t in_place;     /**< 1 if it worked on the cache's own tensors. */
  uint32_t cells_before; /**< Of the sequence, in layers that are evicted. */
  uint32_t cells_after;
  uint32_t reserved;
  uint64_t bytes_before; /**< K and V of these cells. */
  uint64_t bytes_after;
  double total_ms; /**< Of the whole call. */
  double evict_ms; /**< Of it, scoring, selecting, moving: what
                      kvevict_sequence_evict() took. */
} kvevict_llama_report;

#define KVEVICT_LLAMA_REPORT_INIT \
  { (uint32_t)sizeof(kvevict_llama_report), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Evicts a sequence: scores its tokens, keeps the best by the policy, and frees
 * the cells of the others, which later tokens and other sequences then use. The
 * cache's tensors keep their size; to give memory back, evict into a context
 * with a smaller n_ctx (`target`). A sequence within its budget is left alone,
 * so that a decoding loop may call this after every token.
 *
 * @param[in]  kv       Attached, and has seen a llama_decode() of its context.
 * @param[in]  seq      0 .. n_seq_max - 1.
 * @param[in]  options  NULL for none.
 * @param[out] report   NULL, or report->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also where fewer queries
 *         are known than score: those of tokens decoded since the last removal
 *         or load are); KVEVICT_ERROR_UNSUPPORTED with the reason (shifted or
 *         removed cells, ALiBi with lists that differ or where attention
 *         scores; weight=given where the output projection is repacked, or
 *         no product follows attention directly, as with MLA; a target whose cache has another number of streams, or turns
 *         keys by other factors of LongRoPE; caches of another form);
 *         KVEVICT_ERROR_OUT_OF_MEMORY;
 *         KVEVICT_ERROR_INTERNAL where llama.cpp fails, "sequence lost: "
 *         where it took the sequence with it (by target: the target's).
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_evict(kvevict_llama* kv, llama_seq_id seq,
                    const kvevict_llama_evict_options* options,
                    kvevict_llama_report* report) KVEVICT_NOEXCEPT;

/**
 * Makes a sequence a copy of another one, in place of llama_memory_seq_cp(),
 * which it calls: evicted or not, the copy is evicted by itself from then on.
 * What it held before is removed. A prompt that several sequences have in
 * common is decoded for one and copied to the others. An empty sequence is no
 * source; llama_memory_seq_rm() empties `to`.
 *
 * In a unified cache the sequences share cells. An eviction of one then goes by
 * state, into cells beside those that others share, so that they keep theirs;
 * it is refused where the cache surely has no room for that. With a stream for
 * each sequence (kv_unified off) llama.cpp copies the rows at the next
 * llama_decode(), of any sequence. Until then the copy cannot be saved,
 * evicted or copied on, nor can its source be evicted or replaced; the source
 * can be copied to further sequences. A copy that was removed before then takes
 * no state either: the rows still come.
 *
 * @param[in] from  Has one token or more, decoded, loaded or copied here.
 * @param[in] to    Another one.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNSUPPORTED as for kvevict_llama_evict();
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_copy(
    kvevict_llama* kv, llama_seq_id from, llama_seq_id to) KVEVICT_NOEXCEPT;

/** Says that what has been decoded so far is the prompt of a sequence; see
 *  kvevict_sequence_end_prompt(). */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_end_prompt(kvevict_llama* kv, llama_seq_id seq) KVEVICT_NOEXCEPT;

/**
 * Takes back the last tokens of a sequence, here and in the cache. Exact to the
 * lengths that kvevict_sequence_trim_to() takes.
 *
 * Layers with a sliding window forget tokens by themselves. Exact are then only
 * lengths whose window is still held: llama_memory_seq_pos_min() must be at
 * most max(0, new_length - n_swa + 1). A context with swa_full holds all tokens
 * there, until its first eviction: that goes by state, which holds the last
 * window alone.
 *
 * Tokens that the application or another adapter of the context has taken back
 * by llama_memory_seq_rm() are told by the same call, with the length that they
 * have left: each adapter of a context is told of every trim. Positions that
 * were shifted to that length are refused.
 *
 * @param[in] new_length  The logical length to return to.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, which names the nearest
 *         exact lengths; KVEVICT_ERROR_UNSUPPORTED where llama.cpp cannot take
 *         tokens back (recurrent state, windows that have lost tokens), and
 *         for a sequence that is unfit for eviction.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_trim_to(
    kvevict_llama* kv, llama_seq_id seq, uint32_t new_length) KVEVICT_NOEXCEPT;

/**
 * The logical length that a sequence had when it was last evicted: it can be
 * taken back to any length from there on, see kvevict_llama_trim_to(). 0 where
 * nothing of it has been evicted. Copies and loaded sequences have that of
 * what they were made from. A sequence that llama.cpp has emptied has its old
 * one until its next token.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_evicted_at(const kvevict_llama* kv, llama_seq_id seq,
                         uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Says that the application has changed a sequence through llama.cpp in another
 * way than by decoding, removing all of it or taking back its tail: set a
 * state, say. It is unfit for eviction then, until it has been removed, loaded
 * or made a copy.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_invalidate(kvevict_llama* kv, llama_seq_id seq) KVEVICT_NOEXCEPT;

/**
 * The sequence as kvevict knows it: lengths, positions of all slots, report of
 * the last eviction, by the functions of kvevict.h that only read. Compares
 * llama.cpp's cells: their number, which costs a walk over them, or from a load
 * or an eviction by state until the next token of the sequence its state, which
 * costs a copy of it.
 *
 * @param[out] out  Borrowed until the adapter's next call or llama_decode().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT before the context's first
 *         llama_decode() or load; KVEVICT_ERROR_UNSUPPORTED if it is unfit for
 *         eviction.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_sequence(kvevict_llama* kv, llama_seq_id seq,
                       const kvevict_sequence** out) KVEVICT_NOEXCEPT;

/**
 * llama.cpp's number of the index-th layer that is evicted, as in the name of
 * its tensors.
 *
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end, and before
 *         the context's first llama_decode() or load.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_layer(const kvevict_llama* kv, uint32_t index,
                    uint32_t* out_layer) KVEVICT_NOEXCEPT;

/**
 * Writes a sequence to a file: its state as llama.cpp has it, the positions of
 * all slots, and tokens, if given, as the application wants to find them. The
 * file takes the kept cells' bytes, not those that were evicted.
 *
 * @param[in] path      Non-NULL. A file there, or that a link leads to, is
 *                      replaced when all is written, by way of a file beside
 *                      it with ".part" behind its name. A device or pipe is
 *                      written to.
 * @param[in] tokens    [n_tokens]; NULL with 0.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNAVAILABLE with the system's reason;
 *         KVEVICT_ERROR_OUT_OF_MEMORY; KVEVICT_ERROR_INTERNAL.
 */
KVEVICT_LLAMA_API kvevict_status
kvevict_llama_save(kvevict_llama* kv, llama_seq_id seq, const char* path,
                   const llama_token* tokens, size_t n_tokens) KVEVICT_NOEXCEPT;

/**
 * Makes a sequence what kvevict_llama_save() saved, in a context of the same
 * model, cache types and flash attention. Its room and its policy are as for a
 * target of kvevict_llama_evict(). What the sequence held is replaced. Queries
 * are not saved: a policy that scores by them needs a window of more tokens
 * before the next eviction that works.
 *
 * @param[out] tokens          [tokens_capacity], receives the saved tokens;
 *                             NULL with 0.
 * @param[out] out_n_tokens    NULL, or receives how many were saved.
 * @return KVEVICT_OK;
 *         KVEVICT_ERROR_INVALID_ARGUMENT for a file that is none of these,
 *         damaged, or of a model, cache type or flash attention that the
 *         context is known not to have, for a capacity that is too small (0
 *         leaves tokens out), a context without room, lists that its policy
 *         cannot hold, and before llama.cpp has made a copy, see
 *         kvevict_llama_copy();
 *         KVEVICT_ERROR_UNSUPPORTED for another number of streams or LongRoPE's
 *         other factors, and where llama.cpp does not take the state into a
 *         sequence that was empty, and stays so;
 *         KVEVICT_ERROR_INTERNAL, "sequence lost: ", where it does not take it
 *         into one that had tokens;
 *         KVEVICT_ERROR_UNAVAILABLE with the system's reason;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_load(
    kvevict_llama* kv, llama_seq_id seq, const char* path, llama_token* tokens,
    size_t tokens_capacity, size_t* out_n_tokens) KVEVICT_NOEXCEPT;

/**
 * The same as kvevict_llama_save(), to memory.
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

/** The same as kvevict_llama_load(), from the bytes that
 *  kvevict_llama_save_data() or a file of kvevict_llama_save() has. Borrowed
 *  until the call returns. */
KVEVICT_LLAMA_API kvevict_status kvevict_llama_load_data(
    kvevict_llama* kv, llama_seq_id seq, const void* data, size_t n_bytes,
    llama_token* tokens, size_t tokens_capacity,
    size_t* out_n_tokens) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* KVEVICT_LLAMA_H_ */
