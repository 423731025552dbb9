/*
 * kvevict: physically shrinks the KV cache of LLM inference engines.
 *
 * The library scores the cached tokens, selects the ones that fit a budget and
 * compacts the survivors in place. An engine may call one of these steps alone,
 * kvevict_score(), kvevict_select() or kvevict_compact(), or let
 * kvevict_sequence_evict() do all three for a whole model.
 *
 *     context   device, allocator, parallel runner   threads may share it
 *     policy    what survives: name and parameters   one thread at a time
 *     plan      geometry + policy, checked once      threads may share it
 *     sequence  what one request carries along       one thread at a time
 *     view      where one layer's K and V lie        a struct of the caller
 *     lists     which of a layer's slots to keep     a struct of the caller
 *
 * This is the basic flow. Create a context, a policy and a plan once. For each
 * request create a sequence and call kvevict_sequence_begin_observing(). For
 * each chunk of tokens store K and V, then call kvevict_sequence_observe() with
 * its queries and kvevict_sequence_append(). After the prompt, or after every
 * step, call kvevict_sequence_evict(). The next token then goes to slot
 * kvevict_sequence_stored_length(), with position
 * kvevict_sequence_logical_length().
 *
 * The other headers include this one and declare the rest of what it names:
 *
 *     kvevict/attention.h     attention over the cache as it lies
 *     kvevict/batch.h         many sequences: forks, saved ones, batches
 *     kvevict/paged.h         a paged cache of the library's own
 *     kvevict/calibration.h   statistics of a model's queries
 *     kvevict/edit.h          rows moved, rotated, edited; undo
 *     kvevict/prefill.h       a prompt read and evicted in chunks
 *     kvevict/experimental.h  rarely needed calls, which may still change
 *     kvevict/all.h           all of them
 *
 * Rules that hold for every function below
 *
 * - Failure: functions that can fail return kvevict_status. A function that
 *   names no statuses returns KVEVICT_OK or KVEVICT_ERROR_INVALID_ARGUMENT. On
 *   any status other than KVEVICT_OK no output has been written, no cache byte
 *   has moved, and kvevict_last_error_message() names the parameter, its value
 *   and the bound. The exception is KVEVICT_ERROR_DEVICE: on CUDA any call may
 *   return it after part of its work has run. A library that was built without
 *   some policies or dtypes also returns KVEVICT_ERROR_UNSUPPORTED for these.
 * - Ownership: pointers are borrowed until the call returns, unless stated
 *   otherwise. A plan keeps its context alive, and a sequence keeps its plan
 *   alive, so destroy handles in any order. Destroy functions ignore NULL.
 * - Memory: executing calls (score, attend, select, compact, reorder, rotate,
 *   observe, append, trim, reset, evict, undo) never allocate, lock, print or
 *   read the environment, unless they must compile a CUDA kernel that was not
 *   prepared. Other calls may allocate. The scratch memory of executing calls
 *   is the caller's workspace. It must not overlap what they read or write;
 *   they refuse one that overlaps cache rows whose addresses the host knows. A
 *   workspace serves one call at a time: on CUDA until the stream has passed it.
 * - Hooks: alloc, free, parallel, log and a kvevict_prefill_fn must not throw.
 *   A std::bad_alloc from an allocator counts as NULL; any other exception ends
 *   the process by std::terminate().
 * - Threads: calls may run on any threads at the same time, unless two of them
 *   use the same sequence, workspace or output, or one changes or destroys what
 *   another uses.
 * - Cost: a call takes microseconds unless it says otherwise. An executing call
 *   takes time for its rows, and a little for each layer.
 * - CUDA: the same calls work with a context on CUDA. "Device memory" below is
 *   memory of the context's device: host memory on the CPU. On CUDA a pointer
 *   to it holds a CUdeviceptr. Caches, queries, block tables, scores, keep
 *   lists and workspaces lie there; policies, options, the structs of views,
 *   protected positions and reports stay in host memory. Executing calls queue
 *   work on the given stream and return without waiting; what they are given on
 *   the device must stay valid until the stream has passed them. They push the
 *   context's CUcontext and pop it again, so any thread may call. After
 *   kvevict_context_prepare() they may be captured into a CUDA graph, which
 *   must not be launched after the last handle of its context is gone. While a
 *   stream is captured, a call that would have to compile or to wait returns
 *   KVEVICT_ERROR_UNSUPPORTED, and the capture goes on; docs/cuda.md lists
 *   these calls.
 * - Structs begin with struct_size = sizeof(the struct). Initialise a struct
 *   that a call reads with its *_INIT macro, then set what you need. A struct
 *   that a call writes needs only its struct_size. kvevict_plane has no
 *   struct_size and grows into its reserved fields. Other structs grow at their
 *   end. A caller of an older release passes a smaller size, down to the first
 *   release's; the fields that it lacks have their defaults. A caller of a
 *   newer release passes a larger size. It is accepted if the bytes that this
 *   library does not know are 0; in output structs those bytes stay as they
 *   are. Structs in an array have one struct_size, a multiple of 8, which is
 *   also their distance.
 * - Names: sizes in bytes end in _bytes, counts start with n_, lengths of
 *   arrays end in _len and count elements. Layouts are written outermost first.
 *   Positions, slots and lengths are at most 2^31 - 1; offsets are 64-bit.
 *   reserved fields are 0.
 * - A slot is a row of a KV head's cache, 0 .. stored length - 1. A position is
 *   a token's place in the sequence, which RoPE has seen, 0 .. logical length -
 *   1. Before the first eviction they are equal.
 * - Determinism: equal inputs give equal bytes on every run and for every
 *   thread count. The threads' floating-point mode does not matter and is left
 *   as it was. Equal scores give equal keep lists on every CPU target and
 *   device; scores of the CPU and of CUDA differ by rounding.
 */
#ifndef KVEVICT_KVEVICT_H_
#define KVEVICT_KVEVICT_H_

#include <stddef.h>
#include <stdint.h>

#define KVEVICT_VERSION_MAJOR 0
#define KVEVICT_VERSION_MINOR 1
#define KVEVICT_VERSION_PATCH 0

/** Rises with every incompatible change of this header; equals the SONAME. */
#define KVEVICT_ABI_VERSION 0

#if defined(SWIG) || defined(KVEVICT_STATIC)
#define KVEVICT_API
#elif defined(_WIN32)
#ifdef KVEVICT_BUILDING_LIBRARY
#define KVEVICT_API __declspec(dllexport)
#else
#define KVEVICT_API __declspec(dllimport)
#endif
#else
#define KVEVICT_API __attribute__((visibility("default")))
#endif

/* Enums are 32 bits wide in C++ as well; in C their type is an int32_t. */
#ifdef __cplusplus
#define KVEVICT_NOEXCEPT noexcept
#define KVEVICT_INT32 : int32_t
#define KVEVICT_INT32_TYPE(name)
#else
#define KVEVICT_NOEXCEPT
#define KVEVICT_INT32
#define KVEVICT_INT32_TYPE(name) typedef int32_t name;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------- */

/** @return "MAJOR.MINOR.PATCH" of the library in use; static. */
KVEVICT_API const char* kvevict_version(void) KVEVICT_NOEXCEPT;
/** @return KVEVICT_ABI_VERSION of the library in use. */
KVEVICT_API uint32_t kvevict_abi_version(void) KVEVICT_NOEXCEPT;

/* ---- Status and errors --------------------------------------------------- */

/** The outcome of a call. Each value calls for a different reaction. */
KVEVICT_INT32_TYPE(kvevict_status)
enum kvevict_status KVEVICT_INT32 {
  KVEVICT_OK = 0, /**< The call succeeded. */
  /** A parameter is wrong; correct the call. */
  KVEVICT_ERROR_INVALID_ARGUMENT = 1,
  /** The library cannot handle this layout, dtype or combination. */
  KVEVICT_ERROR_UNSUPPORTED = 2,
  /** The device or a library it needs is not on this machine. */
  KVEVICT_ERROR_UNAVAILABLE = 3,
  KVEVICT_ERROR_OUT_OF_MEMORY = 4, /**< The allocator hook returned NULL. */
  KVEVICT_ERROR_INTERNAL = 5,      /**< A bug; please report the message. */
  /** The driver reported an error; the message names the driver's call and the
   *  error. Work that was already queued may have run in part. "context lost"
   *  in the message means that nothing more will run in this CUcontext. */
  KVEVICT_ERROR_DEVICE = 6
};

/**
 * Returns the sentence that explains the calling thread's last failed call.
 * @return ASCII, never NULL, "" if no call of this thread has failed yet.
 *         Static thread-local storage, overwritten by the thread's next
 *         failure; a successful call leaves it alone. It needs no memory.
 */
KVEVICT_API const char* kvevict_last_error_message(void) KVEVICT_NOEXCEPT;

/**
 * @param[in] status  Any number.
 * @return The name of a status, e.g. "INVALID_ARGUMENT"; "UNKNOWN" for any
 *         other number. Static.
 */
KVEVICT_API const char* kvevict_status_name(kvevict_status status)
    KVEVICT_NOEXCEPT;

/* ---- Devices, element types, SIMD ---------------------------------------- */

/** Where the cache lies and the work is done. */
KVEVICT_INT32_TYPE(kvevict_device)
enum kvevict_device KVEVICT_INT32 {
  KVEVICT_DEVICE_CPU = 0, /**< Host memory, and the threads of the caller. */
  KVEVICT_DEVICE_CUDA = 1 /**< Memory of an NVIDIA GPU, and a CUDA stream. */
};

/** A CUstream. NULL is the legacy default stream; CU_STREAM_PER_THREAD and
 *  similar handles are passed on. The CPU ignores it. */
typedef void* kvevict_stream;

/**
 * Element types. Values are ABI and never reused.
 *
 * Quantized rows are moved byte for byte. To score them, their elements are
 * converted to f32, which rounds once (twice on SIMD targets without a fused
 * multiply-add). Quantized keys cannot be rotated, and quantized rows cannot be
 * merged, because that would round them again. Queries are f32, f16 or bf16.
 *
 * An element of U8, I8, U4 or U4_HALVES stands for code * scale + minimum, and
 * an element of FP8 for value * scale. Scales and minima lie in companion
 * planes: see kvevict_role. A missing minimum is 0, and a missing scale of FP8
 * is 1; codes without a scale cannot be scored. If only the engine can decode a
 * format that packs tokens together, describe each group as an opaque row:
 * docs/dtypes.md.
 */
KVEVICT_INT32_TYPE(kvevict_dtype)
enum kvevict_dtype KVEVICT_INT32 {
  /** Bytes that only the engine can read: they are moved, never scored. */
  KVEVICT_DTYPE_OPAQUE = 0,
  KVEVICT_DTYPE_F32 = 1,  /**< IEEE 754 single precision. */
  KVEVICT_DTYPE_F16 = 2,  /**< IEEE 754 half precision. */
  KVEVICT_DTYPE_BF16 = 3, /**< The upper half of an f32. */
  /** 1 sign, 4 exponent (bias 7) and 3 mantissa bits: the "fn" variant, up to
   *  448, without infinities; 0x7F and 0xFF are NaN. */
  KVEVICT_DTYPE_FP8_E4M3 = 4,
  /** The upper half of an f16: up to 57344, with infinities and NaN. */
  KVEVICT_DTYPE_FP8_E5M2 = 5,
  KVEVICT_DTYPE_U8 = 6, /**< Codes 0 .. 255. */
  KVEVICT_DTYPE_I8 = 7, /**< Codes -128 .. 127, in two's complement. */
  /** Codes 0 .. 15, two per byte: element 2j in the high nibble of byte j,
   *  2j + 1 in the low one. head_dim is even. */
  KVEVICT_DTYPE_U4 = 8,
  /** Codes 0 .. 15, two per byte: byte j of a row holds element j in the low
   *  nibble and element j + head_dim / 2 in the high one. head_dim is even. */
  KVEVICT_DTYPE_U4_HALVES = 9,
  /** ggml's format: 32 elements take 34 bytes, an f16 d and 32 I8 codes. An
   *  element is code * d. head_dim is a multiple of 32. */
  KVEVICT_DTYPE_Q8_0 = 10,
  /** ggml's format: 32 elements take 18 bytes, an f16 d and 16 bytes. Byte j
   *  holds element j in the low nibble and element j + 16 in the high one. An
   *  element is (code - 8) * d. head_dim is a multiple of 32. */
  KVEVICT_DTYPE_Q4_0 = 11
};

/* ---- Context ------------------------------------------------------------- */

/** Device, allocator, parallel runner and log sink. Opaque. */
typedef struct kvevict_context kvevict_context;

/**
 * Allocates n_bytes (> 0) aligned to `alignment` (a power of two <= 256). It
 * returns NULL if there is no memory. Any call but the executing ones may use
 * this hook, and so may compiling a CUDA kernel. It must be thread-safe if
 * threads share the context.
 */
typedef void* (*kvevict_alloc_fn)(size_t n_bytes, size_t alignment,
                                  void* user_data);

/** Frees what kvevict_alloc_fn returned for these n_bytes and alignment. */
typedef void (*kvevict_free_fn)(void* memory, size_t n_bytes, size_t alignment,
                                void* user_data);

/** Does item `item` of a task as worker `worker`. It never throws. */
typedef void (*kvevict_task_fn)(void* task, uint32_t item, uint32_t worker);

/**
 * Calls run(task, i, w) once for every i in [0, n_items) and returns when all
 * calls are done. w is below the context's n_threads; calls that run at the
 * same time have different w. Their order and threads do not change results.
 * If several threads use the context at once, they call this hook at once.
 */
typedef void (*kvevict_parallel_fn)(uint32_t n_items, kvevict_task_fn run,
                                    void* task, void* user_data);

/** How important a log line is. */
KVEVICT_INT32_TYPE(kvevict_log_level)
enum kvevict_log_level KVEVICT_INT32 {
  KVEVICT_LOG_WARNING = 0, /**< Something to act on. */
  KVEVICT_LOG_INFO = 1,    /**< What was found and chosen. */
  KVEVICT_LOG_DEBUG = 2    /**< Details for debugging. */
};

/** Receives one line without newline, borrowed. Create functions and
 *  kvevict_context_prepare() call it on the calling thread. Executing calls do
 *  so only when they compile a CUDA kernel that was not prepared. */
typedef void (*kvevict_log_fn)(kvevict_log_level level, const char* message,
                               void* user_data);

/** Options of kvevict_context_create(). */
typedef struct kvevict_context_options {
  uint32_t struct_size;
  kvevict_device device; /**< Where the caches lie. */
  /** Workers of `parallel`, 1 .. 1024; 0 means 1. More than 1 needs it. */
  uint32_t n_threads;
  kvevict_log_level log_level; /**< Lines above this level are not sent. */
  kvevict_alloc_fn alloc;      /**< NULL, with free NULL: aligned malloc. */
  kvevict_free_fn free;
  void* alloc_user_data;        /**< Passed to alloc and free. */
  kvevict_parallel_fn parallel; /**< NULL: the calling thread does the work. */
  void* parallel_user_data;
  kvevict_log_fn log; /**< NULL: silence. */
  void* log_user_data;
  /** SIMD target of the CPU's kernels, a name from kvevict_simd_target_at();
   *  NULL: the best. Copied. */
  const char* simd_target;
  /* The fields below are for CUDA and must be 0 on the CPU. */
  /** CUcontext to work in; NULL: the current one of the creating thread. The
   *  library does not retain it: it must outlive the handles. */
  void* cuda_context;
  const char* libcuda_path; /**< NULL: libcuda.so.1 or nvcuda.dll. Copied. */
  /** NULL: the newest libnvrtc of the system that compiles for this GPU and
   *  whose code the driver accepts. Copied. */
  const char* libnvrtc_path;
  /** Directory in which compiled kernels are kept; it is created if missing.
   *  NULL: none is kept. It must belong to the user, and nobody else may write
   *  to it, because its files run on the GPU. Copied. */
  const char* kernel_cache_dir;
  /** Allocates device memory of sequences; NULL, with device_free NULL:
   *  cuMemAlloc. The CUcontext is current during the call. The hook returns a
   *  CUdeviceptr; no queued work may still use that memory. */
  kvevict_alloc_fn device_alloc;
  kvevict_free_fn device_free;
  void* device_alloc_user_data;
  /** 1: an eviction scores on the GPU, copies the scores, selects on the host
   *  and uploads the keep lists. It waits for the stream, and the host knows
   *  the positions when it returns. Each sequence then holds host memory for
   *  the scores of all layers at max_tokens, 4 bytes per token and KV head. */
  uint32_t select_on_host;
  /** 1: wait after every kernel, so that a fault names it, and check on the
   *  device that keep lists ascend and that slots of kvevict_reorder() exist. */
  uint32_t debug;
} kvevict_context_options;

#define KVEVICT_CONTEXT_OPTIONS_INIT                                           \
  {                                                                            \
    (uint32_t)sizeof(kvevict_context_options), KVEVICT_DEVICE_CPU, 0,          \
        KVEVICT_LOG_WARNING, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
  }

/**
 * Creates a context.
 * @param[in]  options      NULL for the defaults (CPU, one thread). Hooks and
 *                          their user_data must stay valid until every handle
 *                          made from the context is destroyed.
 * @param[out] out_context  Non-NULL. Destroy with kvevict_context_destroy().
 * @return KVEVICT_OK, KVEVICT_ERROR_INVALID_ARGUMENT, KVEVICT_ERROR_UNAVAILABLE
 *         (no such device, no CUcontext, no compiler; the message has the
 *         reason), KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status
kvevict_context_create(const kvevict_context_options* options,
                       kvevict_context** out_context) KVEVICT_NOEXCEPT;

/**
 * Destroys a context; NULL is ignored. Plans and sequences made from it stay
 * usable, and the context is released with the last of them.
 * @param[in] context  NULL or a context.
 */
KVEVICT_API void kvevict_context_destroy(kvevict_context* context)
    KVEVICT_NOEXCEPT;

/* ---- Policy -------------------------------------------------------------- */

/** How several numbers become one. NaN among them gives NaN. */
KVEVICT_INT32_TYPE(kvevict_reduce)
enum kvevict_reduce KVEVICT_INT32 {
  KVEVICT_REDUCE_MEAN = 0, /**< Their mean. */
  KVEVICT_REDUCE_MAX = 1,  /**< Their maximum. */
  KVEVICT_REDUCE_SUM = 2   /**< Their sum. */
};

/** What shares one keep list. */
KVEVICT_INT32_TYPE(kvevict_scope)
enum kvevict_scope KVEVICT_INT32 {
  /** Nothing: every KV head of every layer has its own. */
  KVEVICT_SCOPE_KV_HEAD = 0,
  KVEVICT_SCOPE_LAYER = 1, /**< The heads of a layer. */
  KVEVICT_SCOPE_MODEL = 2  /**< All layers and their heads. */
};

/** Which of two equal scores survives. */
KVEVICT_INT32_TYPE(kvevict_tie)
enum kvevict_tie KVEVICT_INT32 {
  KVEVICT_TIE_LOWER_POSITION = 0, /**< The earlier token. */
  KVEVICT_TIE_HIGHER_POSITION = 1 /**< The later token. */
};

/**
 * What happens to the rows that compaction drops: they are lost, or each is
 * merged into a row that stays.
 *
 * Each KV head is merged by itself. An evicted token e is merged into the
 * surviving token t whose key has the highest cosine with e's key, which is
 * called their similarity. If several have the highest, the lowest slot is t.
 * The row of t becomes a mean of itself and of the rows merged into it. It is
 * computed in f32 and rounded once to the plane's dtype. Rows that receive
 * nothing keep their bytes, and so do companions. A token whose key or value
 * has no finite norm in f32 takes no part. See docs/policies/refinements.md.
 */
KVEVICT_INT32_TYPE(kvevict_merge)
enum kvevict_merge KVEVICT_INT32 {
  KVEVICT_MERGE_NONE = 0, /**< They are lost. */
  /** Values only, weighted by the similarity of their keys. merge_threshold and
   *  merge_fraction select the rows. arXiv:2210.09461, arXiv:2406.13035. */
  KVEVICT_MERGE_VALUES = 1,
  /** Keys and values, each halfway to its target. LOOK-M, arXiv:2406.18139. */
  KVEVICT_MERGE_PIVOT = 2,
  /** Keys and values, weighted by similarity. KVMerger, arXiv:2407.08454. */
  KVEVICT_MERGE_WEIGHTED = 3
};

/**
 * A policy decides what survives an eviction. It is an opaque value: a name and
 * the values of its parameters, most easily written as a text:
 * `snapkv:budget=2048,window=32`. `budget` is the number of tokens that each KV
 * head of a layer keeps; up to 1 it is a ratio of the tokens seen so far.
 * docs/parameters.md lists the parameters; kvevict/experimental.h enumerates
 * policies, presets and parameters.
 *
 * These tokens always stay, and count inside the budget: the first `sink`
 * tokens (of each chunk, if `chunk` is set), the last `recent`, the observation
 * window, which is the last `window` tokens (unless keep_window=no), and
 * protected positions. The rest of the budget goes to the highest scores. `tie`
 * decides between equal scores; NaN comes last.
 *
 * The tokens that must stay have to fit. streaming-llm needs sink < budget;
 * snapkv, pyramidkv, tova, r-kv and cake need sink + max(recent, kept window) <
 * budget; the others need sink + recent <= budget. docs/reference.md has the
 * rule for split=lazy, blocks and chunks. A budget in tokens that is too small
 * is an error. An eviction leaves a context alone if it is too short for a
 * budget that is a ratio, or shorter than the observation window;
 * kvevict_evict_report then says KVEVICT_REASON_SMALL_BUDGET.
 *
 * One thread at a time may change a policy; while none does, several may read
 * it. Plans copy it. A policy is small, and not allocated by a context's hooks.
 */
typedef struct kvevict_policy kvevict_policy;

/**
 * Creates a policy from its text: `name` or `name:key=value,key=value`, where
 * name is a policy ("snapkv") or a preset ("snapkv-kvpress"). Spaces around
 * names, keys and values are ignored. If a key is given twice, the last value
 * counts. A key that the policy does not have is an error.
 * @param[in]  text        Zero-terminated, non-NULL.
 * @param[out] out_policy  Non-NULL. Destroy with kvevict_policy_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_OUT_OF_MEMORY;
 *         KVEVICT_ERROR_INVALID_ARGUMENT. If the text cannot be read, the
 *         message has the column and what was expected there; if values
 *         contradict each other, it has the values.
 */
KVEVICT_API kvevict_status kvevict_policy_create(
    const char* text, kvevict_policy** out_policy) KVEVICT_NOEXCEPT;

/**
 * Destroys a policy; NULL is ignored.
 * @param[in] policy  NULL or a policy.
 */
KVEVICT_API void kvevict_policy_destroy(kvevict_policy* policy)
    KVEVICT_NOEXCEPT;

/**
 * Sets a parameter to a value in text form, without spaces. This call does not
 * check whether values contradict each other: kvevict_policy_validate() and the
 * calls that use the policy do.
 * @param[in,out] policy  Non-NULL; unchanged on error.
 * @param[in]     key     Zero-terminated: "budget".
 * @param[in]     value   Zero-terminated: "0.25", "avg7", "yes".
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if the policy has no such
 *         parameter, or the value is outside its range.
 */
KVEVICT_API kvevict_status
kvevict_policy_set(kvevict_policy* policy, const char* key,
                   const char* value) KVEVICT_NOEXCEPT;

/**
 * Sets a parameter by a number. A flag is 1 or 0. For a parameter that is a
 * count or a share, a number above 0 and below 1 is a share.
 * @param[in,out] policy  Non-NULL; unchanged on error.
 * @param[in]     key     Zero-terminated: "budget".
 * @param[in]     value   Within the parameter's range.
 * @return As kvevict_policy_set(), also if the parameter's values are words or
 *         poolings: these cannot be set by a number.
 */
KVEVICT_API kvevict_status kvevict_policy_set_number(
    kvevict_policy* policy, const char* key, double value) KVEVICT_NOEXCEPT;

/**
 * Writes a parameter's value in text form.
 * @param[in]  policy         Non-NULL.
 * @param[in]  key            Zero-terminated: "budget".
 * @param[out] text           At least text_capacity bytes; zero-terminated on
 *                            success, untouched on error. May be NULL if
 *                            text_capacity is 0. 40 bytes hold every value.
 * @param[in]  text_capacity  Bytes of text; 0 asks for the length alone.
 * @param[out] out_text_len   NULL, or receives the length without the
 *                            terminator, also when text_capacity is 0.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if the policy has no such
 *         parameter or 0 < text_capacity <= length.
 */
KVEVICT_API kvevict_status
kvevict_policy_get(const kvevict_policy* policy, const char* key, char* text,
                   size_t text_capacity, size_t* out_text_len) KVEVICT_NOEXCEPT;

/**
 * Checks that the values of the parameters do not contradict each other,
 * whatever the context length.
 * @param[in] policy  Non-NULL.
 */
KVEVICT_API kvevict_status kvevict_policy_validate(const kvevict_policy* policy)
    KVEVICT_NOEXCEPT;

/* ---- View ---------------------------------------------------------------- */

/** What a companion plane holds for the rows of K or V. */
KVEVICT_INT32_TYPE(kvevict_role)
enum kvevict_role KVEVICT_INT32 {
  KVEVICT_ROLE_NONE = 0,          /**< Nothing that this library reads. */
  KVEVICT_ROLE_KEY_SCALE = 1,     /**< Factors for the keys' codes. */
  KVEVICT_ROLE_KEY_MINIMUM = 2,   /**< Added to code * scale of keys. */
  KVEVICT_ROLE_VALUE_SCALE = 3,   /**< Factors for the values' codes. */
  KVEVICT_ROLE_VALUE_MINIMUM = 4, /**< Added to code * scale of values. */
  /** Unquantized keys of the slots from kvevict_view.first_recent on. */
  KVEVICT_ROLE_KEY_RECENT = 5,
  KVEVICT_ROLE_VALUE_RECENT = 6, /**< Values of the same slots. */
  KVEVICT_ROLE_BIAS = 7          /**< Added to the logits of a slot's key. */
};

/**
 * Says where the rows of one tensor lie, one per token and head, in any layout.
 * docs/layouts.md shows the layouts of engines.
 *
 * Element e of head h of token t lies at
 *     contiguous  data + t * token_stride_bytes + h * head_stride_bytes + E(e)
 *     paged       B(id) + (t % block_size) * token_stride_bytes
 *                       + h * head_stride_bytes + E(e)
 * with id = block_table[h * block_table_head_stride + t / block_size], and
 *     E(e)   e * element_stride_bytes; with an inner group
 *            (e / group_elems) * group_stride_bytes
 *                + (e % group_elems) * bytes of an element
 *     B(id)  data + id * block_stride_bytes; with an address table
 *            data + address_table[id].
 *
 * Inner groups describe vectorised keys, [n_blocks, H, D/x, block_size, x]:
 * group_elems is x, and group_stride_bytes is block_size * x * bytes of an
 * element. An address table is for blocks that were allocated one by one: data
 * is then the plane's offset within a block, and block_stride_bytes is 0.
 * Entries of blocks that hold none of the call's tokens are not read. Blocks
 * must not share a byte; that is not checked. Only planes of a view may have
 * inner groups and address tables.
 *
 * Strides may be negative, and 0 along a dimension of one entry. Rows must not
 * overlap: each stride is at least the bytes that all smaller ones span. No
 * alignment is needed, except that CUDA scores only elements at multiples of
 * their size and blocks with addresses at multiples of 16 bytes. A plane with
 * neither data nor address_table is absent, and all its fields are 0.
 *
 * A view has at most one companion of each role. A scale or minimum plane holds
 * one f32, f16 or bf16 number per token and head (head_dim 1). It moves with
 * the rows that it belongs to. If its token and block strides and its address
 * table are 0, one number serves all tokens of a head, or all heads if the head
 * stride is 0 too; such a plane does not move, and layers may share it.
 *
 * With group_tokens G, slots i * G to i * G + G - 1 of a head share a packed
 * row of scales or minima, one per element (head_dim is that of the rows), as
 * KIVI's keys do (arXiv:2402.02750). The formulas then use t / G for t, and G
 * divides block_size. The rows must be u8, i8, u4 or u4_halves, scale and
 * minimum have the same G, and the view is no ring. Writing such rows
 * requantizes whole groups: see kvevict_compact().
 *
 * A bias plane holds one f32 per token and head. The engine writes 0 for each
 * new token, and a policy with fit=bias-values changes it. kvevict_attend(),
 * signals that compute attention and the engine's own attention add it to each
 * logit, after scale and cap; -infinity hides a slot. Log-sum-exps include it.
 *
 * A recent plane holds the last rows, which are not quantized yet. They are
 * f32, f16 or bf16, packed, and not in blocks: slot t lies at data + (t -
 * first_recent) * token_stride_bytes + h * head_stride_bytes. The other rows
 * may have any quantized dtype. K and V both have a recent plane, or neither.
 * Slots from first_recent on are not read in K's and V's own planes. Recent
 * rows never move; rings and views with a bias plane have none.
 */
typedef struct kvevict_plane {
  uint64_t data;              /**< Address: a host pointer, or a CUdeviceptr. */
  int64_t token_stride_bytes; /**< Bytes from a token to the next. */
  int64_t head_stride_bytes;  /**< Bytes from a head to the next. */
  /** Bytes from an element to the next; 0: packed. Elements of inner groups,
   *  and of u4, u4_halves, q8_0 and q4_0, are always packed. */
  int64_t element_stride_bytes;
  int64_t block_stride_bytes; /**< Bytes to the next block; paged only. */
  kvevict_dtype dtype;        /**< Dtype of the elements. */
  uint32_t head_dim;          /**< Elements per row; 0 for opaque. */
  uint32_t row_bytes; /**< Opaque: bytes per row, packed; otherwise 0. */
  kvevict_role role; /**< What a companion holds; KVEVICT_ROLE_NONE for K, V. */
  int64_t group_stride_bytes; /**< Bytes to the next inner group; 0 without. */
  /** Paged only: the address, a multiple of 8, of an array that has the address
   *  of each block, u64, at its id. Borrowed, in device memory. 0: none. */
  uint64_t address_table;
  uint32_t address_table_len; /**< Elements; ids are below it. */
  uint32_t group_elems; /**< Elements per group; divides head_dim; 0: none. */
  /** How many tokens share a scale or minimum per element, 1 .. 256; 0: each
   *  number belongs to one token, or to all. */
  uint64_t group_tokens;
  uint64_t reserved[5]; /**< 0. */
} kvevict_plane;

#define KVEVICT_PLANE_INIT                                                    \
  {                                                                           \
    0, 0, 0, 0, 0, KVEVICT_DTYPE_OPAQUE, 0, 0, KVEVICT_ROLE_NONE, 0, 0, 0, 0, \
        0, {                                                                  \
      0, 0, 0, 0, 0                                                           \
    }                                                                         \
  }

#ifndef SWIG
/* Planes of packed rows in the common layouts: _token_major() is [S, H, D],
 * _head_major() is [H, S, D] with S = n_slots, the slots that a head has room
 * for, and the others are blocks of these. D is head_dim, or the bytes of a row
 * if rows are opaque. They serve K, V, companions and queries. */
static inline int64_t kvevict_row_bytes(kvevict_dtype dtype,
                                        uint32_t head_dim) {
  const int64_t n = head_dim;
  if (dtype == KVEVICT_DTYPE_F32) return n * 4;
  if (dtype == KVEVICT_DTYPE_F16 || dtype == KVEVICT_DTYPE_BF16) return n * 2;
  if (dtype == KVEVICT_DTYPE_U4 || dtype == KVEVICT_DTYPE_U4_HALVES)
    return n / 2;
  if (dtype == KVEVICT_DTYPE_Q8_0) return n / 32 * 34;
  if (dtype == KVEVICT_DTYPE_Q4_0) return n / 32 * 18;
  return n;
}

static inline kvevict_plane kvevict_plane_token_major(const void* data,
                                                      kvevict_dtype dtype,
                                                      uint32_t n_heads,
                                                      uint32_t head_dim) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  const uint32_t is_opaque = dtype == KVEVICT_DTYPE_OPAQUE;
  plane.data = (uint64_t)(uintptr_t)data;
  plane.dtype = dtype;
  plane.head_dim = is_opaque ? 0 : head_dim;
  plane.row_bytes = is_opaque ? head_dim : 0;
  plane.head_stride_bytes = kvevict_row_bytes(dtype, head_dim);
  plane.token_stride_bytes = plane.head_stride_bytes * n_heads;
  return plane;
}

static inline kvevict_plane kvevict_plane_head_major(const void* data,
                                                     kvevict_dtype dtype,
                                                     uint32_t n_slots,
                                                     uint32_t head_dim) {
  kvevict_plane plane = kvevict_plane_token_major(data, dtype, 1, head_dim);
  plane.head_stride_bytes = plane.token_stride_bytes * n_slots;
  return plane;
}

static inline kvevict_plane kvevict_plane_token_major_blocks(
    const void* data, kvevict_dtype dtype, uint32_t block_size,
    uint32_t n_heads, uint32_t head_dim) {
  kvevict_plane plane =
      kvevict_plane_token_major(data, dtype, n_heads, head_dim);
  plane.block_stride_bytes = plane.token_stride_bytes * block_size;
  return plane;
}

static inline kvevict_plane kvevict_plane_head_major_blocks(const void* data,
                                                            kvevict_dtype dtype,
                                                            uint32_t block_size,
                                                            uint32_t n_heads,
                                                            uint32_t head_dim) {
  kvevict_plane plane =
      kvevict_plane_head_major(data, dtype, block_size, head_dim);
  plane.block_stride_bytes = plane.head_stride_bytes * n_heads;
  return plane;
}
#endif

/**
 * Where one layer's cache lies. K and V may differ in dtype, head size and
 * strides. Nothing is copied or owned.
 *
 * Calls that take a plan or a sequence complete a view from the geometry. An
 * n_kv_heads of 0 becomes the layer's. A K or V with data whose dtype, head_dim
 * and row_bytes are 0 gets the geometry's dtype and head size; if its token and
 * head strides are 0 too, its rows are packed [S, H, D], in blocks as well.
 * Other calls need complete views: kvevict_view_validate(), kvevict_compact().
 */
typedef struct kvevict_view {
  uint32_t struct_size;
  uint32_t n_kv_heads; /**< KV heads, 1 .. 65535; 0: the geometry's. */
  kvevict_plane k;
  /** Absent for caches with one row per token (MLA), whose values are part of
   *  the keys' rows. If the geometry has values, a view without V cannot be
   *  evicted; kvevict_compact() and kvevict_reorder() have no geometry and move
   *  the planes that they get. Layers without keys and values have no view: see
   *  kvevict_layer_geometry. */
  kvevict_plane v;
  /** [n_companions], borrowed; NULL if 0. Other planes with a row per token and
   *  head that must move along: scales and minima (named by their role),
   *  position arrays. */
  const kvevict_plane* companions;
  uint32_t n_companions; /**< At most 64. */
  uint32_t block_size;   /**< Tokens per block; 0: contiguous. */
  /** Paged: block ids in token order, non-negative, all different (which is not
   *  checked). Borrowed, in device memory; only evictions by_table write to it.
   *  NULL if all planes have an address table: block i of the tokens is then
   *  entry i of these tables. */
  const int32_t* block_table;
  /** Elements of all tables together; 0 with NULL. The last head's table must
   *  be as long as the longest head needs. */
  size_t block_table_len;
  /** Elements from one head's table to the next's; 0: heads share one. */
  uint64_t block_table_head_stride;
  /** Rows of a ring, as for a sliding window; 0: no ring. Calls still say slot
   *  t for token t; its row lies where the formulas above put row (t +
   *  ring_first) % ring_slots. A ring in blocks uses every block that holds one
   *  of its rows. */
  uint32_t ring_slots;
  uint32_t ring_first; /**< Row of token 0, < ring_slots; 0 without. */
  /** Paged: the number of blocks at the start of every table that other
   *  sequences hold too, as with forks and prefix caches. Calls read them, and
   *  are refused if they might write to them. Compacting to a destination, or
   *  from a first_slot behind these blocks, is allowed. 0 for a ring. */
  uint32_t n_shared_blocks;
  /** The first slot of the recent planes; slots before it are quantized. 0
   *  without recent planes. */
  uint32_t first_recent;
} kvevict_view;

#define KVEVICT_VIEW_INIT                                                      \
  {                                                                            \
    (uint32_t)sizeof(kvevict_view), 0, KVEVICT_PLANE_INIT, KVEVICT_PLANE_INIT, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                           \
  }

/**
 * Checks a view as executing calls on the CPU do. It reads block and address
 * tables, which must be host memory here. Calls on CUDA do not read these
 * tables, but check everything else.
 * @param[in] view      Non-NULL.
 * @param[in] n_tokens  Slots that will be addressed; 0 is valid.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (unknown dtype, no rows,
 *         a description without an address, rows or planes that overlap, a
 *         table too short, an id that is negative or beyond an address table, a
 *         block without an address, more tokens than a ring has rows, an offset
 *         beyond 64 bits).
 */
KVEVICT_API kvevict_status kvevict_view_validate(
    const kvevict_view* view, uint32_t n_tokens) KVEVICT_NOEXCEPT;

/* ---- Plan ---------------------------------------------------------------- */

/** Which tokens a layer's cache holds before any eviction. */
KVEVICT_INT32_TYPE(kvevict_layer_cache)
enum kvevict_layer_cache KVEVICT_INT32 {
  /** All tokens. */
  KVEVICT_LAYER_CACHE_FULL = 0,
  /** Those of a sliding window: the engine drops the others. */
  KVEVICT_LAYER_CACHE_WINDOW = 1,
  /** None: a recurrent layer, or one that reads another layer's cache. */
  KVEVICT_LAYER_CACHE_NONE = 2
};

/** The attention geometry of one layer. */
typedef struct kvevict_layer_geometry {
  uint32_t struct_size;
  /** What the layer keeps. Only full caches are evicted. Layers with another
   *  cache have no keep lists, budget or stored length, and are not observed.
   *  Their fields below are not read, and of their entries in arrays of views
   *  and inputs only struct_size is read. */
  kvevict_layer_cache cache;
  uint32_t n_q_heads; /**< Query heads, a multiple of n_kv_heads, to 65535. */
  /** KV heads; query head h reads KV head h / (n_q_heads / n_kv_heads). */
  uint32_t n_kv_heads;
  uint32_t k_head_dim; /**< Elements of a key row, up to 65536; 0 if opaque. */
  /** Elements of a value row; 0 if v_dtype is opaque. With any other v_dtype 0
   *  means that there is no V. */
  uint32_t v_head_dim;
  /** Dtype of the queries that are given: f32, f16 or bf16, or opaque if the
   *  signal does not read them. If it is f16 or bf16, a sequence may also
   *  observe f32 rows for window attention. It rounds each element by at most
   *  2^-11 of it (f16, up to 65504; 2^-25 near 0) or 2^-8 (bf16). It then keeps
   *  half the bytes, and CUDA multiplies half as much. */
  kvevict_dtype q_dtype;
  kvevict_dtype k_dtype; /**< Dtype of the keys. */
  kvevict_dtype v_dtype; /**< Dtype of the values. */
  float softmax_scale;   /**< Multiplies q.k; 0 means 1/sqrt(k_head_dim). */
  /** The cap c: scaled logits x become c * tanh(x / c) (Gemma 2); 0: no cap.
   *  Window attention reads it, and h2o when it scores by queries. */
  float logit_softcap;
  uint32_t reserved; /**< 0. */
} kvevict_layer_geometry;

#define KVEVICT_LAYER_GEOMETRY_INIT                                           \
  {                                                                           \
    (uint32_t)sizeof(kvevict_layer_geometry), KVEVICT_LAYER_CACHE_FULL, 0, 0, \
        0, 0, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 0.0f,  \
        0.0f, 0                                                               \
  }

/** Which elements of a key RoPE rotates as a pair. */
KVEVICT_INT32_TYPE(kvevict_rope_layout)
enum kvevict_rope_layout KVEVICT_INT32 {
  /** f and f + rope_inv_freq_len (NeoX, Hugging Face). */
  KVEVICT_ROPE_LAYOUT_HALF = 0,
  /** 2 f and 2 f + 1 (GPT-J; Llama's keys in llama.cpp). */
  KVEVICT_ROPE_LAYOUT_INTERLEAVED = 1
};

/** The attention geometry of a model. */
typedef struct kvevict_geometry {
  uint32_t struct_size;
  uint32_t n_layers;   /**< Layers, 1 .. 4096. */
  uint32_t max_tokens; /**< Most slots a layer will ever hold, 1 .. 2^31 - 1. */
  kvevict_rope_layout rope_layout; /**< Which elements of keys are a pair. */
  /** One geometry for all layers, or one per layer; borrowed. */
  const kvevict_layer_geometry* layers;
  size_t layers_len; /**< 1 or n_layers. */
  /** How RoPE rotated the keys of layers with a full cache: it turned pair f of
   *  a key at position p by p * rope_inv_freq[f] radians, any scaling included.
   *  Each is within [-65536, 65536]; host memory, copied. Elements beyond the
   *  pairs are not rotated (partial rotary). NULL: unknown; triattention,
   *  leverage, rotate=yes and kvevict_rotate() need it. */
  const float* rope_inv_freq;
  /** Pairs, up to k_head_dim / 2 and 256; 0 with NULL. */
  size_t rope_inv_freq_len;
  /** NULL, or f32 [query heads of all layers with a full cache], layer by
   *  layer: a logit per head that takes part in its softmax and has no value
   *  (gpt-oss). It is neither scaled nor capped; -infinity: the head has no
   *  sink. Host memory, copied. The signals that read logit_softcap read it.
   *  order=reduce-logits takes the largest logit of the heads it reduces. */
  const float* sink_logits;
  size_t sink_logits_len; /**< The n_q_heads of these layers; 0 with NULL. */
} kvevict_geometry;

#define KVEVICT_GEOMETRY_INIT                                                 \
  {                                                                           \
    (uint32_t)sizeof(kvevict_geometry), 0, 0, KVEVICT_ROPE_LAYOUT_HALF, 0, 0, \
        0, 0, 0, 0                                                            \
  }

/** A geometry, a policy and a context, checked once. Immutable, opaque. */
typedef struct kvevict_plan kvevict_plan;

/** Options of kvevict_plan_create(). */
typedef struct kvevict_plan_options {
  uint32_t struct_size;
  /** The most tokens that one speculative step takes back, at most 2^31 - 1. A
   *  policy that scores by the last queries remembers this many rows beyond its
   *  window, so that a trim by as many leaves the window complete. Other
   *  policies ignore it. */
  uint32_t draft_tokens;
  /** Tokens that each KV head keeps, everything included, in place of the
   *  policy's budget and layer split; one number per head of all layers with a
   *  full cache, layer by layer. Each is at least one token, or one
   *  select_block, and has room for the tokens that must stay. A head shorter
   *  than its budget keeps everything. Needs scope=head and heads=equal;
   *  docs/reference.md lists the parameters that it excludes. NULL: the
   *  policy's. Copied. */
  const uint32_t* head_budgets;
  size_t head_budgets_len; /**< Number of these heads; 0 with NULL. */
  /** A budget for each layer with a full cache, in place of the policy's budget
   *  and layer split: a number up to 1 is a ratio of the context, a larger one
   *  counts tokens. Scope MODEL needs equal budgets. Excludes head_budgets and
   *  the splits cake, lazy and scores. NULL: the policy's. Copied. */
  const double* layer_budgets;
  size_t layer_budgets_len; /**< Number of these layers; 0 with NULL. */
  /** 1: evictions measure the mass that they keep, for kvevict_list_report.
   *  They read the scores once more and may need a larger workspace; a sequence
   *  takes 12 bytes more per list. */
  uint32_t report_mass;
  /** 1: evictions may be given destinations; a sequence takes under 500 bytes
   *  more per layer. 0: they may not. */
  uint32_t has_destinations;
} kvevict_plan_options;

#define KVEVICT_PLAN_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_plan_options), 0, 0, 0, 0, 0, 0, 0 }

/**
 * Checks a geometry and a policy against each other and lays out the workspace.
 *
 * If the policy scores keys whose dtype cannot be scored, the plan is still
 * created, because its other calls work; see kvevict_plan_capabilities().
 *
 * @param[in]  context   Non-NULL; kept alive by the plan.
 * @param[in]  geometry  Non-NULL; copied.
 * @param[in]  policy    Non-NULL; copied.
 * @param[in]  options   NULL for none; copied.
 * @param[out] out_plan  Non-NULL. Destroy with kvevict_plan_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_plan_create(
    const kvevict_context* context, const kvevict_geometry* geometry,
    const kvevict_policy* policy, const kvevict_plan_options* options,
    kvevict_plan** out_plan) KVEVICT_NOEXCEPT;

/**
 * Destroys a plan; NULL is ignored. Sequences made from it stay usable.
 * @param[in] plan  NULL or a plan.
 */
KVEVICT_API void kvevict_plan_destroy(kvevict_plan* plan) KVEVICT_NOEXCEPT;

/**
 * Compiles and loads the kernels that a plan's calls may launch, instead of at
 * first use. On the CPU it does nothing.
 *
 * Window attention has kernels of its own for each combination of dtypes,
 * k_head_dim, window and group size. This call prepares those for contiguous
 * keys and for block ids, and those for heads of different lengths if the plan
 * may have such heads. The first call that needs another one compiles it, e.g.
 * for rings and address tables. A policy with fit=bias-values evicts only slots
 * with biases, so its kernels that score are prepared for these.
 * kvevict_attend() likewise compiles kernels for tensor cores at its first call
 * with new dtypes, head sizes or, up to 64, numbers of query rows, and for
 * slots with biases. All other kernels serve every plan.
 *
 * @param[in] context  Non-NULL.
 * @param[in] plan     Created from `context`; NULL: only the kernels that serve
 *                     every plan.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNAVAILABLE
 *         (the compiler's log is in the message); KVEVICT_ERROR_OUT_OF_MEMORY;
 *         KVEVICT_ERROR_DEVICE. It may take seconds and waits for other
 *         compiling threads.
 */
KVEVICT_API kvevict_status kvevict_context_prepare(
    const kvevict_context* context, const kvevict_plan* plan) KVEVICT_NOEXCEPT;

/** What a plan knows about a layer. */
typedef struct kvevict_layer_info {
  uint32_t struct_size;
  kvevict_layer_cache cache;
  uint32_t n_q_heads;  /**< 0 without a full cache. */
  uint32_t n_kv_heads; /**< 0 without a full cache. */
  /** Number of its keep lists: n_kv_heads if heads may keep different tokens
   *  (scope KV_HEAD of a policy that ranks, or head_budgets), else 1; 0 without
   *  a full cache. */
  uint32_t n_lists;
  /** Index of its first list if the lists of all layers lie end to end. A layer
   *  without lists has the index of the next layer's first list. */
  uint32_t first_list;
} kvevict_layer_info;

/**
 * Tells what a plan knows about a layer.
 * @param[in]  plan   Non-NULL.
 * @param[in]  layer  < n_layers.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_plan_layer(const kvevict_plan* plan, uint32_t layer,
                   kvevict_layer_info* out) KVEVICT_NOEXCEPT;

/**
 * The memory that a call works in, whatever its inputs contain.
 *
 * The results are the same bytes with any size from least_bytes on. More than
 * best_bytes makes the call no faster. The memory is device memory and may hold
 * anything before and after. A workspace for more tokens also serves fewer.
 */
typedef struct kvevict_workspace {
  uint32_t struct_size;
  uint32_t alignment; /**< Of its address: 64, on CUDA 256. */
  size_t least_bytes; /**< If it is 0, NULL may be passed. */
  size_t best_bytes;
} kvevict_workspace;

#define KVEVICT_WORKSPACE_INIT \
  { (uint32_t)sizeof(kvevict_workspace), 0, 0, 0 }

/** What a plan's workspace is for. */
KVEVICT_INT32_TYPE(kvevict_operation)
enum kvevict_operation KVEVICT_INT32 {
  KVEVICT_OPERATION_EVICT = 0, /**< kvevict_sequence_evict(). */
  KVEVICT_OPERATION_SCORE = 1, /**< kvevict_score(). */
  /** kvevict_sequence_begin_observing(). It holds what a sequence observes,
   *  until kvevict_sequence_end_observing(). A policy that scores by the last
   *  queries needs (window + draft_tokens) * n_q_heads rows of k_head_dim
   *  elements per layer, and on CUDA one float per row. h2o needs max_tokens
   *  floats per KV head, query head or layer (see `sums`), and sum_last times
   *  more if that is set; custom needs them per KV head. Others need none. */
  KVEVICT_OPERATION_OBSERVE = 2
};

/**
 * Tells the size of the workspace for an operation of a plan.
 *
 * With less than best_bytes, scoring on the CPU computes most products of
 * queries and keys twice, to the same bytes, and takes 1.4 to 2 times as long;
 * an eviction also works on fewer layers at once. With scope MODEL and the
 * splits cake, lazy and scores it always works on all layers at once. h2o
 * needs a workspace only if it scores by queries. docs/reference.md has bounds
 * and measured sizes.
 *
 * @param[in]  plan       Non-NULL.
 * @param[in]  operation  Which.
 * @param[in]  n_tokens   The most slots that a layer will hold at the call, up
 *                        to max_tokens; 0: max_tokens. OBSERVE ignores it.
 * @param[out] out        Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status kvevict_plan_workspace(
    const kvevict_plan* plan, kvevict_operation operation, uint32_t n_tokens,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/** Why a plan cannot do something, or why an eviction did nothing. */
KVEVICT_INT32_TYPE(kvevict_reason)
enum kvevict_reason KVEVICT_INT32 {
  KVEVICT_REASON_NONE = 0, /**< No reason: it can, or it did. */
  /** Keys are opaque: nothing can be read from them. */
  KVEVICT_REASON_OPAQUE_KEYS = 1,
  KVEVICT_REASON_OPAQUE_QUERIES = 2, /**< Queries are opaque. */
  /** The geometry does not say how RoPE rotated the keys (rope_inv_freq). */
  KVEVICT_REASON_NO_ROPE = 3,
  /** The layer has no cache, or only that of a sliding window. */
  KVEVICT_REASON_NO_FULL_CACHE = 4,
  /** Values are opaque, or there are none. */
  KVEVICT_REASON_OPAQUE_VALUES = 5,
  /** Keys are quantized: rotating would round them again, and merges and fits
   *  take f32, f16 and bf16. */
  KVEVICT_REASON_QUANTIZED_KEYS = 6,
  /** Queries are quantized: queries must be f32, f16 or bf16. */
  KVEVICT_REASON_QUANTIZED_QUERIES = 7,
  /** Values are quantized: a merge or a fit would round them again. */
  KVEVICT_REASON_QUANTIZED_VALUES = 8,
  /** Groups of tokens share scales, or the view has recent planes, so rows
   *  cannot move one by one. Calls with such a view report it, plans do not. */
  KVEVICT_REASON_TOKEN_GROUPS = 9,
  /** An eviction did nothing: the policy's `prompt` is not inside, and
   *  kvevict_sequence_end_prompt() has not been called. */
  KVEVICT_REASON_OPEN_PROMPT = 10,
  /** An eviction left a layer alone because the context is still too short: the
   *  tokens that must stay do not fit a budget that is a ratio of it, or it has
   *  fewer tokens than the window. */
  KVEVICT_REASON_SMALL_BUDGET = 11
};

/**
 * @param[in] reason  Any number.
 * @return A sentence that explains it; "" for NONE and unknown numbers. Static.
 */
KVEVICT_API const char* kvevict_reason_text(kvevict_reason reason)
    KVEVICT_NOEXCEPT;

/* ---- Score, select, compact ---------------------------------------------- */

/** What a signal reads of a layer besides K and V. A policy reads only some of
 *  the fields and ignores the others, but reference_queries must be NULL unless
 *  it has `reference`. Set dtype and head_dim of each plane. */
typedef struct kvevict_signal_inputs {
  uint32_t struct_size;
  /** Rows of attention_sums: n_q_heads, or n_kv_heads if the query heads of
   *  each KV head are already reduced, or 1 if all heads are reduced, which
   *  KVEVICT_SCOPE_LAYER and KVEVICT_SCOPE_MODEL allow. 0: n_q_heads. */
  uint32_t n_sum_heads;
  /** Query rows [n_q_heads, rows, k_head_dim] in any strides, after RoPE, of
   *  the geometry's q_dtype. A stride of 0 is an error if there is more than
   *  one head or row. Window attention reads the window's rows. h2o reads
   *  n_query_rows rows if attention_sums is NULL. non-causal reads one per slot
   *  held: row t is the query of slot t of its KV head. CUDA uses tensor cores
   *  if elements are packed and rows of queries and keys begin at multiples of
   *  16 bytes. */
  const kvevict_plane* queries;
  /** NULL, or f32 [n_q_heads, rows], head_dim 1: the natural log-sum-exp of
   *  each query row's logits, scaled and capped, over the keys that it sees and
   *  its sink, as flash attention computes it. In any strides; 0 means packed.
   *  With it h2o, and window attention on CUDA, read the keys once instead of
   *  twice, but not with softmax=past, order=reduce-logits or reference. */
  const kvevict_plane* row_lse;
  /** Policy custom: f32 [n_kv_heads, slots held, or rows observed], head_dim 1,
   *  elements at multiples of 4 bytes, tokens packed, rows of heads one after
   *  another; a stride of 0 means packed. */
  const kvevict_plane* scores;
  /* The planes below are f32, lie like scores, and may have strides of 0. */
  /** Policy h2o: [n_sum_heads, slots held], head_dim 1: the attention weight
   *  that each slot received. kvevict_sequence_observe() takes it for one step
   *  or chunk, summed over the query rows, and adds it up. kvevict_score() and
   *  kvevict_sequence_evict() take the sum over all queries that saw the slot.
   *  The engine keeps that sum and moves it when the tokens move: by
   *  kvevict_compact(), or with n_kv_heads rows as a companion of the view. The
   *  row of a KV head counts for each of its query heads (in equal parts with
   *  group=sum), and the only row for every head. */
  const kvevict_plane* attention_sums;
  /** Policy expected-attention: [n_q_heads, 1, k_head_dim]: the mean of the
   *  queries to come, rotated to their positions. Do not multiply it by the
   *  softmax scale: the library does. */
  const kvevict_plane* query_mean;
  /** Policy expected-attention: [n_q_heads, k_head_dim, k_head_dim]: their
   *  covariance. The plane's head_dim is k_head_dim, its tokens are the
   *  matrix's rows. NULL: 0. */
  const kvevict_plane* query_covariance;
  /** Policy q-filter: [n_kv_heads, 1, k_head_dim]: the direction of a KV head
   *  in which keys get no attention. */
  const kvevict_plane* key_filter;
  /** weight=given: [n_kv_heads, slots held], head_dim 1: factors of scores. For
   *  CriticalKV and DefensiveKV: the L1 norm of the slot's value times the
   *  output projection, the mean over the query heads of the KV head. */
  const kvevict_plane* token_weights;
  /** Policy triattention: [n_q_heads, 3, rope_inv_freq_len]: statistics of the
   *  model's queries before RoPE, measured once per model. A pair of elements
   *  (see rope_layout) is taken as a complex number. Row 0 is the real part of
   *  its mean, row 1 the imaginary part, row 2 the mean of its absolute value. */
  const kvevict_plane* query_centers;
  /** Rows of queries and row_lse given to kvevict_score() and
   *  kvevict_sequence_evict(), for the last tokens: 1 .. the slots held. 0
   *  selects the policy's own number: the window for window attention, every
   *  held slot for h2o and non-causal. Only h2o accepts another. */
  uint32_t n_query_rows;
  uint32_t n_reference_rows; /**< The policy's `reference`; 0 without. */
  /** Policies with `reference` above 0: queries of no token held, to score or
   *  to fit by, in strides as for queries. */
  const kvevict_plane* reference_queries;
  /** i32 [n_reference_rows], device memory: their positions, at least 0, which
   *  CUDA does not check; NULL: after all slots. A row sees the slots up to its
   *  position; kvevict_score() and rotate=yes take slots for positions. */
  const int32_t* reference_positions;
} kvevict_signal_inputs;

#define KVEVICT_SIGNAL_INPUTS_INIT                                            \
  {                                                                           \
    (uint32_t)sizeof(kvevict_signal_inputs), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0                                                               \
  }

/** One layer's part of kvevict_score(). */
typedef struct kvevict_score_job {
  uint32_t struct_size;
  uint32_t layer;    /**< Below n_layers, with a full cache. */
  uint32_t n_tokens; /**< Slots held, 1 .. max_tokens. */
  /** Tokens seen so far, evicted ones included, n_tokens .. 2^31 - 1; 0:
   *  n_tokens. A policy that rotates keys takes n_tokens in any case. */
  uint32_t n_seen;
  /** u32 [n_kv_heads], device memory, if heads hold different numbers: each at
   *  most n_tokens and, if queries score, at least the policy's window. NULL:
   *  all hold n_tokens. CUDA does not check them. */
  const uint32_t* token_counts;
  /** The cache: k, and v if values are read. NULL if no row is read. */
  const kvevict_view* view;
  /** NULL if only keys are read. Row i of the n rows of queries and row_lse is
   *  the query of token n_tokens - n + i. */
  const kvevict_signal_inputs* inputs;
  /** Out: f32 [n_kv_heads, n_tokens], device memory; higher keeps. Tokens of a
   *  kept window get +infinity. Those beyond a head's count are unspecified. */
  float* scores;
  size_t scores_len; /**< = n_kv_heads * n_tokens. */
} kvevict_score_job;

#define KVEVICT_SCORE_JOB_INIT \
  { (uint32_t)sizeof(kvevict_score_job), 0, 0, 0, 0, 0, 0, 0, 0 }

/** The most jobs or moves that one call takes. */
#define KVEVICT_MAX_JOBS 128

/**
 * Scores the cached tokens of layers by the signal of the plan's policy. A
 * score is f32, and higher keeps. docs/policies.md has a page for each family
 * with its formulas, costs and sources. The call takes slots for positions,
 * which is right until the first eviction.
 *
 * The call applies `weight`, subtracts redundancy (arXiv:2505.24133), and
 * randomizes the scores for `draw` last. Only an eviction runs the stages of
 * `secure`. A key with NaN or infinity scores NaN, and makes every score NaN
 * that depends on it.
 *
 * @param[in]  plan      Non-NULL.
 * @param[in]  jobs      [jobs_len], one layer each.
 * @param[in]  jobs_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in]  workspace  That of SCORE, see kvevict_plan_workspace().
 * @param[in]  workspace_bytes  At least least_bytes for the largest n_tokens.
 * @param[in]  stream      See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also if the policy ranks
 *         nothing); KVEVICT_ERROR_UNSUPPORTED (n_tokens > chunk > 0; the policy
 *         needs keys, values or queries that cannot be read; on CUDA elements,
 *         scales and minima that are not aligned to their size, q8_0 and q4_0
 *         to 2 bytes).
 */
KVEVICT_API kvevict_status
kvevict_score(const kvevict_plan* plan, const kvevict_score_job* jobs,
              size_t jobs_len, void* workspace, size_t workspace_bytes,
              kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Which slots of a layer to keep: one list for all KV heads, or one per KV
 * head; lists may differ in length. Nothing is copied or owned.
 */
typedef struct kvevict_keep_lists {
  uint32_t struct_size;
  uint32_t n_lists; /**< 1 or the view's n_kv_heads; at most 65535. */
  int32_t* slots;   /**< [n_lists, list_stride], device memory. */
  size_t slots_len; /**< Elements of slots. */
  /** Elements from one list to the next, count .. 2^32 - 1; 0: count. */
  uint64_t list_stride;
  uint32_t count;    /**< Slots in every list; with counts, in the longest. */
  uint32_t reserved; /**< 0. */
  /** u32 [n_lists], each at most count; device memory. NULL: all are count. */
  uint32_t* counts;
} kvevict_keep_lists;

#define KVEVICT_KEEP_LISTS_INIT \
  { (uint32_t)sizeof(kvevict_keep_lists), 0, 0, 0, 0, 0, 0, 0 }

/**
 * Gives tokens a rank, so that they are evicted sooner or later than others.
 * Among the tokens that need not stay, those of a higher rank are kept before
 * those of a lower one, whatever their scores, NaN included; within a rank
 * scores decide, then ties. Tokens in no range have rank 0. A block of
 * select_block tokens has the highest rank of its tokens. Ranks decide which
 * tokens a list keeps, never how many. docs/policies.md says what they do with
 * `secure` and `rescue`.
 */
typedef struct kvevict_token_range {
  uint32_t struct_size;
  int32_t rank;   /**< Any; tokens of a higher rank stay longer. */
  uint32_t first; /**< First position, or slot. */
  uint32_t end;   /**< One past the last; first .. 2^32 - 1. */
} kvevict_token_range;

#define KVEVICT_TOKEN_RANGE_INIT \
  { (uint32_t)sizeof(kvevict_token_range), 0, 0, 0 }

/** What kvevict_select() chooses from, and which slots must stay. */
typedef struct kvevict_select_options {
  uint32_t struct_size;
  uint32_t n_tokens; /**< Slots held, 1 .. 2^31 - 1. */
  /** u32 [n_lists], device memory, if lists hold different numbers: each at
   *  most n_tokens; every list then has one row of scores. NULL: all hold
   *  n_tokens. */
  const uint32_t* token_counts;
  /** f32 [n_rows, n_tokens] of any values, device memory. NULL, with length 0:
   *  nothing is ranked; every list keeps the slots that must stay and then the
   *  first tokens, or the last with KVEVICT_TIE_HIGHER_POSITION. */
  const float* scores;
  size_t scores_len; /**< = n_rows * n_tokens; 0 with NULL. */
  /** A multiple of n_lists: row r belongs to list r / (n_rows / n_lists). 0:
   *  one row per list. */
  uint32_t n_rows;
  kvevict_reduce reduce; /**< How the rows of a list become one. */
  uint32_t n_sink;       /**< First slots that must stay. */
  uint32_t n_recent;     /**< Last slots that must stay. */
  kvevict_tie tie;       /**< Which of equal scores stays. */
  /** Slots stay or go in whole blocks of this many, as by the parameter of that
   *  name; a list must lose a multiple of it. 0 means 1. */
  uint32_t select_block;
  /** Strictly ascending slots < n_tokens that must stay, in host memory; NULL
   *  with length 0 for none. */
  const int32_t* protected_slots;
  size_t protected_slots_len;
  /** Ranks of slots: at most 64 ascending ranges that do not overlap, in host
   *  memory; slots not held are ignored. NULL with length 0 for none. */
  const kvevict_token_range* ranges;
  size_t ranges_len;
} kvevict_select_options;

#define KVEVICT_SELECT_OPTIONS_INIT                                          \
  {                                                                          \
    (uint32_t)sizeof(kvevict_select_options), 0, 0, 0, 0, 0,                 \
        KVEVICT_REDUCE_MEAN, 0, 0, KVEVICT_TIE_LOWER_POSITION, 0, 0, 0, 0, 0 \
  }

/**
 * Chooses the slots that must stay, and then those with the highest scores.
 * `tie` decides between equal scores; NaN comes last. With ranges the rank
 * decides before the score. keep->count or keep->counts says how many slots
 * each list keeps. Cost: three passes over the scores, whatever their values;
 * one more with select_block, two more with ranges.
 *
 * @param[in]  context  Non-NULL; device and parallel runner.
 * @param[in]  options  Non-NULL.
 * @param[in]  keep      Lists whose slots are written, ascending. A count above
 *                       the slots that a list holds, or below those that must
 *                       stay, is an error. The CPU checks every count, CUDA
 *                       checks `count` but not `counts`.
 * @param[in]  workspace  See kvevict_select_workspace().
 * @param[in]  workspace_bytes  Its size.
 * @param[in]  stream   See kvevict_stream.
 */
KVEVICT_API kvevict_status kvevict_select(
    const kvevict_context* context, const kvevict_select_options* options,
    const kvevict_keep_lists* keep, void* workspace, size_t workspace_bytes,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Tells the size of the workspace of kvevict_select().
 * @param[in]  context   Non-NULL.
 * @param[in]  n_tokens  The most slots held.
 * @param[in]  n_lists   Keep lists.
 * @param[out] out       Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status kvevict_select_workspace(
    const kvevict_context* context, uint32_t n_tokens, uint32_t n_lists,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/** One layer's part of kvevict_compact() or kvevict_reorder(). The fields
 *  merge, first_slot and destination are for kvevict_compact() alone;
 *  kvevict_reorder() takes none of them. */
typedef struct kvevict_move {
  uint32_t struct_size;
  uint32_t n_tokens;        /**< Slots held before, by the longest head. */
  const kvevict_view* view; /**< The cache; see kvevict_view_validate(). */
  /** The slots to keep; NULL with a destination: all slots, in order. */
  const kvevict_keep_lists* keep;
  /** u32 [n_kv_heads], device memory, if heads hold different numbers: each at
   *  most n_tokens. NULL: all hold n_tokens. A head's block table is read only
   *  up to its own count. CUDA does not check them. */
  const uint32_t* token_counts;
  /** What happens to dropped rows. All but KVEVICT_MERGE_NONE need K and V of
   *  f32, f16 or bf16; a view without V is an error only for
   *  KVEVICT_MERGE_VALUES. */
  kvevict_merge merge;
  /** Slot of the first survivor of every head. Without a destination it is at
   *  most n_tokens, and no listed slot is below it. 0 with merge. */
  uint32_t first_slot;
  double merge_threshold; /**< As the policy's parameter of that name. */
  double merge_fraction;  /**< As the policy's parameter; 0 means 1. */
  /** Another cache that the survivors are copied to, with room for first_slot +
   *  the longest list; NULL: they move in place. It has the heads of `view` and
   *  the head_dim or row size of each plane; strides, block table and block
   *  size may differ. K and V may have another dtype, or other scales and
   *  minima: see kvevict_compact(). Its other companions have the number, kind
   *  and order of those of `view`. NULL with merge. */
  const kvevict_view* destination;
} kvevict_move;

#define KVEVICT_MOVE_INIT \
  { (uint32_t)sizeof(kvevict_move), 0, 0, 0, 0, KVEVICT_MERGE_NONE, 0, 0, 0, 0 }

/**
 * Moves the surviving rows of layers down to consecutive slots, in place, or
 * copies them to other caches. Row keep[i] of a head goes to slot first_slot +
 * i; K, V and companions move alike, byte for byte. After a move in place, rows
 * from first_slot + the list's count on are unspecified. Cost: the kept rows
 * that change place are read and written once, on CUDA in one launch for all
 * planes that lie alike.
 *
 * With first_slot only the tail of a cache is compacted, such as the tree of a
 * speculative step. Slots below it and their entries in block tables are
 * neither read nor written. A head whose tail begins after first_slot also
 * lists the slots between. With a destination the source cache stays as it is,
 * and only the slots that receive rows change.
 *
 * K or V are requantized if their destination has another dtype, or other
 * scales and minima. Rows are then read as floats and get scales and minima of
 * their own, or the destination's if these planes do not move. Errors are at
 * most half a quantization step; NaN and infinity become NaN. Rows that share
 * scales by groups of tokens are always requantized, in place from the group of
 * the first evicted slot on. docs/dtypes.md has the rule for each dtype.
 *
 * If a destination has recent planes, rows from slot first_recent on go to
 * these. In place, recent rows stay: lists must name all slots from
 * first_recent on, heads hold equally many, and on CUDA keep.counts is NULL. A
 * move with merge also changes surviving rows that do not move, so first copy
 * blocks that another sequence shares.
 *
 * @param[in] context    Non-NULL; device and parallel runner.
 * @param[in] moves      [moves_len], one layer each. Lists are strictly
 *                       ascending; on CUDA only a context with `debug` checks
 *                       that. Caches and destinations must not overlap, which
 *                       is checked as by kvevict_sequence_evict(); with
 *                       first_slot the slots from there on count.
 * @param[in] moves_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] workspace  See kvevict_compact_workspace(). Without merge a
 *                       workspace below best_bytes is not used, and CUDA may be
 *                       slower.
 * @param[in] workspace_bytes  Its size; 0 with NULL.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also for a destination
 *         that lacks a scale or minimum); KVEVICT_ERROR_UNSUPPORTED (rows to
 *         merge, or of another dtype, that cannot be read; on CUDA elements
 *         that are not aligned to their size).
 */
KVEVICT_API kvevict_status
kvevict_compact(const kvevict_context* context, const kvevict_move* moves,
                size_t moves_len, void* workspace, size_t workspace_bytes,
                kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Tells the size of the workspace of kvevict_compact(). Without merge
 * least_bytes is 0; so is best_bytes on the CPU, and on CUDA for wide rows.
 * With merge the CPU needs 28 bytes per slot and worker, and tiles of some
 * rows. CUDA needs 16 bytes per slot and head of one layer; with those of 16
 * layers it is fastest.
 * @param[in]  context    Non-NULL.
 * @param[in]  moves      [moves_len] as for the call. Only n_lists and count of
 *                        the lists are read, and n_tokens only with merge.
 * @param[in]  moves_len  At most KVEVICT_MAX_JOBS.
 * @param[out] out        Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status kvevict_compact_workspace(
    const kvevict_context* context, const kvevict_move* moves, size_t moves_len,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/* ---- Sequence ------------------------------------------------------------ */

/**
 * What one request carries between steps: the position of every slot, stored
 * and logical length, and, while it observes, the last queries of every layer
 * or the attention that its slots received. Opaque. One thread at a time.
 *
 * A sequence is small: under 2 KiB per layer, 8 bytes per position that an
 * eviction may leave behind (with adaptive heads every head may get the budget
 * of all), and query memory only while it observes.
 *
 * On CUDA queries, sums, positions and lengths lie in device memory; the host
 * also knows the lengths. Calls that a stream captures into a graph count as
 * one run: see kvevict_sequence_replayed().
 */
typedef struct kvevict_sequence kvevict_sequence;

/** As a first position: the sequence's logical length. CUDA reads it from
 *  device memory when the work runs, so that a captured graph continues at the
 *  sequence's end. */
#define KVEVICT_POSITION_NEXT UINT32_MAX

/**
 * Creates an empty sequence.
 * @param[in]  plan          Non-NULL; kept alive by the sequence.
 * @param[out] out_sequence  Non-NULL. Destroy with kvevict_sequence_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_sequence_create(
    const kvevict_plan* plan, kvevict_sequence** out_sequence) KVEVICT_NOEXCEPT;

/**
 * Destroys a sequence and gives its query memory back, as
 * kvevict_sequence_end_observing() does; NULL is ignored. On CUDA the
 * sequence's work must have run, because device memory is freed.
 * @param[in] sequence  NULL or a sequence.
 */
KVEVICT_API void kvevict_sequence_destroy(kvevict_sequence* sequence)
    KVEVICT_NOEXCEPT;

/**
 * Makes a sequence empty, as it was created, but it keeps its query memory.
 * @param[in] sequence  Non-NULL.
 * @param[in] stream    See kvevict_stream.
 */
KVEVICT_API kvevict_status kvevict_sequence_reset(
    kvevict_sequence* sequence, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Gives a sequence the memory for the rows, sums or scores that it observes.
 *
 * For policies that score by queries, call it before the first row is observed,
 * and call kvevict_sequence_end_observing() after the eviction that uses the
 * rows. For h2o and custom keep it as long as the sums or scores are needed.
 * For other policies the call does nothing, so you may always make it.
 *
 * @param[in] sequence  Non-NULL, not observing yet.
 * @param[in] memory    A workspace of OBSERVE, see kvevict_plan_workspace(),
 *                      lent until observing ends. NULL: memory from the
 *                      context's pool. The pool takes a lock, allocates if it
 *                      has none that is large enough, and keeps returned memory
 *                      until the context is destroyed.
 * @param[in] memory_bytes  0 with NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status
kvevict_sequence_begin_observing(kvevict_sequence* sequence, void* memory,
                                 size_t memory_bytes) KVEVICT_NOEXCEPT;

/**
 * Drops query rows, sums and scores and gives their memory back. It does
 * nothing for a sequence that does not observe.
 *
 * On CUDA all work that uses them must have run, also evictions and graphs that
 * observe, because another sequence may get the memory at once.
 *
 * @param[in] sequence  Non-NULL.
 */
KVEVICT_API kvevict_status
kvevict_sequence_end_observing(kvevict_sequence* sequence) KVEVICT_NOEXCEPT;

/** What a sequence observes of one layer for one chunk of tokens. */
typedef struct kvevict_observation {
  uint32_t struct_size;
  uint32_t layer; /**< Below n_layers. */
  /** queries, row_lse or both for the chunk's n_rows rows; or attention_sums,
   *  summed over these rows; or scores of their tokens. Copied. */
  const kvevict_signal_inputs* inputs;
} kvevict_observation;

#define KVEVICT_OBSERVATION_INIT \
  { (uint32_t)sizeof(kvevict_observation), 0, 0 }

/**
 * Shows a chunk's query rows, the attention that they paid, or its scores.
 * Layers may come in one call or in several, before kvevict_sequence_append()
 * counts the chunk's tokens or after it.
 *
 * Window attention: the sequence remembers the last window + draft_tokens rows
 * of each layer, however the prompt is split into chunks. Earlier rows need not
 * be shown. Showing a position again replaces its row and drops the later rows
 * (rollback). Log-sum-exps may come with the rows or after them; only CUDA uses
 * them, if it has those of a layer's whole window.
 *
 * h2o: attention_sums, [n_sum_heads, slots], hold the attention weights summed
 * over the n_rows queries, for all slots that the layer holds once the rows'
 * own tokens are stored. The call reduces them as `sums` of the policy says,
 * pools them by sum_pool, and adds them in the order of calls. An eviction that
 * is given neither attention_sums nor queries scores by these sums, which must
 * reach up to the last token. Any row may be the first that is shown; after it
 * no row may be left out. Sums cannot be taken back, so show speculative rows
 * only when they are accepted. A trim to the first row observed or below, a
 * start, a load and a reset drop the sums. An eviction drops those of a layer
 * that loses tokens if they stop before the last token. A fork copies them.
 *
 * custom: scores, [n_kv_heads, n_rows], stay with the slots of the rows'
 * tokens, from position 0 on. An eviction that is given no scores uses them.
 *
 * The call does nothing for other policies and for layers without a full cache.
 * Otherwise the sequence must be observing. Without sum_last CUDA cannot
 * capture the first sums after unobserved tokens. docs/reference.md has more.
 *
 * @param[in] sequence          Non-NULL.
 * @param[in] observations      [observations_len], ascending by layer.
 * @param[in] observations_len  0 does nothing.
 * @param[in] n_rows            Rows of each layer; 0 does nothing.
 * @param[in] first_position    Position of row 0, or KVEVICT_POSITION_NEXT if
 *                              its token has not been appended yet.
 * @param[in] stream            See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also if rows of sums or
 *         scores leave a gap or have more slots than max_tokens);
 *         KVEVICT_ERROR_UNSUPPORTED (opaque queries).
 */
KVEVICT_API kvevict_status kvevict_sequence_observe(
    kvevict_sequence* sequence, const kvevict_observation* observations,
    size_t observations_len, uint32_t n_rows, uint32_t first_position,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Counts n_tokens tokens more, whose rows the engine stores in every layer: at
 * the layer's next slots and with the next positions.
 * @param[in] sequence  Non-NULL.
 * @param[in] n_tokens  0 does nothing.
 * @param[in] stream    See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if a layer would hold more
 *         than max_tokens or the sequence more than 2^31 - 1.
 */
KVEVICT_API kvevict_status
kvevict_sequence_append(kvevict_sequence* sequence, uint32_t n_tokens,
                        kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Declares the tokens appended so far to be the prompt; see the parameters
 * `prompt` and `every`. A trim into the prompt shortens it; a reset drops it.
 * It is an error if the prompt has ended already.
 * @param[in] sequence  Non-NULL.
 */
KVEVICT_API kvevict_status
kvevict_sequence_end_prompt(kvevict_sequence* sequence) KVEVICT_NOEXCEPT;

/**
 * Takes back the last tokens, e.g. rejected drafts: the sequence is then as if
 * they had not been appended. No cache byte changes; the engine reuses the
 * slots.
 *
 * The new length must be at least the logical length at the last eviction of
 * any layer, or at most kvevict_sequence_exact_prefix(), below which no token
 * was evicted. Between the two tokens would be missing: that is an error, which
 * names the nearest exact lengths. Observed queries of the trimmed tokens are
 * dropped. After a trim by at most draft_tokens of kvevict_plan_options the
 * window is still complete; otherwise the next eviction may need some rows
 * observed again. kvevict_sequence_observe() says what happens to sums.
 * kvevict_sequence_report() keeps its values.
 *
 * On CUDA a trim to below the last eviction waits as
 * kvevict_sequence_exact_prefix() does; others do not wait.
 *
 * @param[in] sequence    Non-NULL.
 * @param[in] new_length  The logical length to return to; the current one does
 *                        nothing.
 * @param[in] stream      See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, which names the bounds.
 */
KVEVICT_API kvevict_status
kvevict_sequence_trim_to(kvevict_sequence* sequence, uint32_t new_length,
                         kvevict_stream stream) KVEVICT_NOEXCEPT;

/** Options of kvevict_sequence_evict(). */
typedef struct kvevict_evict_options {
  uint32_t struct_size;
  /** 0: survivors move. 1: rows stay, and the views' tables are permuted:
   *  surviving blocks come first, in order, then the others. The engine frees
   *  the blocks of the entries from ceil(stored length / block_size) on. Whole
   *  blocks stay or go: block_size of each view divides select_block, or both
   *  are 1. The tables are block_table, or without one the planes' address
   *  tables; they must be writable. Heads with lists of their own need tables
   *  of their own, and layers that share a table must keep the same tokens.
   *  Other tables must not overlap. Blocks that other sequences hold
   *  (n_shared_blocks) are left to them. See kvevict_plan_capabilities(). */
  uint32_t by_table;
  /** Strictly ascending positions below the logical length that must stay;
   *  evicted ones are ignored. NULL with length 0 for none. */
  const int32_t* protected_positions;
  size_t protected_positions_len;
  /** [n_layers]: what the policy's signal and weights read besides K and V.
   *  Query rows (as for kvevict_score()), attention_sums and scores given here
   *  replace observed ones; row_lse is read only with query rows. NULL: none. */
  const kvevict_signal_inputs* inputs;
  size_t inputs_len; /**< = n_layers; 0 with NULL. */
  /** Device memory, aligned as a workspace, that receives the evicted rows: see
   *  kvevict_sequence_undo(). It must not overlap the workspace or any plane of
   *  the views, and is not written if nothing is evicted. NULL: these rows are
   *  lost. */
  void* undo;
  /** At least kvevict_sequence_undo_bytes(); 0 with NULL. */
  size_t undo_bytes;
  /** Ranks of positions: at most 64 ascending ranges that do not overlap.
   *  Positions that a list does not hold, evicted or to come, are ignored, so
   *  the same ranges serve every eviction. NULL with length 0 for none. */
  const kvevict_token_range* ranges;
  size_t ranges_len;
  /** NULL: survivors stay in the views. Otherwise [n_layers] views of other
   *  caches, to whose first slots all survivors are copied, also those of
   *  layers that lose no token. The call's views stay as they are; from then on
   *  the sequence's rows are those of the destinations. K or V of another dtype
   *  are requantized: see kvevict_compact(). kvevict_sequence_kept_slots() says
   *  how many slots they need. Layers that share a cache share a destination;
   *  other destinations share no plane, and none shares a byte with a view.
   *  Needs has_destinations; excludes undo, by_table, merge and fit. */
  const kvevict_view* destinations;
  size_t destinations_len; /**< = n_layers; 0 with NULL. */
} kvevict_evict_options;

#define KVEVICT_EVICT_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_evict_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Scores, selects and compacts the cache of a whole model in place. Afterwards
 * the next token goes to slot kvevict_sequence_stored_length() with position
 * kvevict_sequence_logical_length().
 *
 * A layer is left alone if it is within its budget, if its budget is a ratio
 * without room for the tokens that must stay, or if the context is shorter than
 * the observation window. If all layers are left alone, or with policy none, no
 * byte changes. So a decoding loop may call this after every step: `margin`,
 * `every` and `prompt` of the policy decide when tokens are evicted.
 *
 * With merge or fit surviving rows change even if they do not move: first copy
 * blocks that another sequence shares. Layers that share a cache (equal views)
 * are compacted once, by the first one's queries. They, and layers that share a
 * companion, must keep the same tokens: scope MODEL, or streaming-llm with a
 * uniform split. Caches that overlap otherwise are an error if rows have to
 * move. CUDA does not read block ids: it compares paged caches only if they
 * share a block_table.
 *
 * If scores decide the layers' budgets (split cake, lazy or scores), all layers
 * longer than the least budget are scored, and protected positions count as
 * kept by every layer. With split=scores all layers are scored if they hold
 * more together than their budgets. CUDA waits for the stream with these
 * splits, with a `heads` other than equal, with select_on_host, if more
 * positions are protected than fit the budget, and if keep_window is no and
 * tokens of the window may be gone.
 *
 * Rows in recent planes stay in place and count as recent tokens; if layers
 * differ in their number, the largest counts for all. Afterwards first_recent
 * is kvevict_sequence_stored_length() minus their number. Recent planes and
 * groups of tokens exclude undo, by_table and chunk, and recent planes exclude
 * heads of different lengths. docs/integration.md explains by_table and
 * destinations, docs/reference.md the corner cases.
 *
 * @param[in]  sequence         Non-NULL.
 * @param[in]  views      [n_layers] views, all with the same struct_size.
 * @param[in]  views_len  = n_layers.
 * @param[in]  options    NULL for none.
 * @param[in]  workspace  That of EVICT, see kvevict_plan_workspace().
 * @param[in]  workspace_bytes  At least least_bytes for the longest layer.
 * @param[in]  stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a bad view, a view
 *         without planes that the geometry has, too few observed queries, sums
 *         that stop before the last token, a budget too small for the tokens
 *         that must stay, layers of unequal length under scope MODEL,
 *         destinations without has_destinations, or that cannot take the rows);
 *         KVEVICT_ERROR_UNSUPPORTED (the dtype of keys or values does not
 *         allow what the policy does: to score, merge, fit or rotate them; or
 *         tokens of the window are gone already, which keep_window=no allows;
 *         or chunk is no multiple of the block size or of a companion's
 *         group_tokens; or with by_table: parts of blocks would go, a view is
 *         contiguous or a ring, or heads or layers that keep different tokens
 *         share a table).
 */
KVEVICT_API kvevict_status kvevict_sequence_evict(
    kvevict_sequence* sequence, const kvevict_view* views, size_t views_len,
    const kvevict_evict_options* options, void* workspace,
    size_t workspace_bytes, kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What an eviction did. Bytes count K, V and companions of all layers. */
typedef struct kvevict_evict_report {
  uint32_t struct_size;
  uint32_t evicted;      /**< 1 if any layer lost a token. */
  uint64_t bytes_before; /**< In use before. */
  uint64_t bytes_after;  /**< In use after, in the destinations if given. */
  /** Slots in use before: those of each layer's longest head, summed. */
  uint64_t tokens_before;
  uint64_t tokens_after;
  /** Paged: blocks that the eviction emptied, summed over layers and block
   *  tables: the entries of each table from ceil(stored length / block_size)
   *  on. 0 with destinations. */
  uint64_t blocks_freed;
  /** Why layers that may exceed their budgets were left alone:
   *  KVEVICT_REASON_OPEN_PROMPT (all of them) or KVEVICT_REASON_SMALL_BUDGET
   *  (one at least). Otherwise KVEVICT_REASON_NONE. */
  kvevict_reason reason;
  /** KV heads whose values were fitted to fewer than twice as many queries as
   *  they have slots. There the result depends on `fit_ridge`. Heads that no
   *  step of fit=bias-values settled keep their biases; they are not counted. */
  uint32_t n_weak_fits;
} kvevict_evict_report;

#define KVEVICT_EVICT_REPORT_INIT                             \
  {                                                           \
    (uint32_t)sizeof(kvevict_evict_report), 0, 0, 0, 0, 0, 0, \
        KVEVICT_REASON_NONE, 0                                \
  }

/**
 * What an eviction did to one keep list.
 *
 * The mass of a token is the score that the list was chosen by: pooled,
 * weighted and reduced. kvevict_policy_resolve() tells whether the scores of a
 * policy are a mass. Tokens without a finite score, and those of a kept window,
 * have no mass and are in neither sum. The mass of other tokens that must stay
 * is their score. With `chunk` only chunks that lose tokens have masses.
 */
typedef struct kvevict_list_report {
  uint32_t struct_size;
  uint32_t layer;
  uint32_t tokens_before; /**< Slots in use. */
  uint32_t tokens_after;
  /** The share of the list's mass that stayed, in [0, 1]; 1 for a list that
   *  lost no mass, also an empty one. NaN if unknown: before the first
   *  eviction, without report_mass of kvevict_plan_options, if scores are not
   *  a mass, or if a score of the list is below 0. Sums are in f32: 256 partial
   *  sums, of every 256th slot, are added pairwise. */
  float mass_kept;
  /** The largest mass of one evicted token, as a share of the list's mass; 0 if
   *  none had any, NaN as above. */
  float largest_mass_evicted;
} kvevict_list_report;

#define KVEVICT_LIST_REPORT_INIT \
  { (uint32_t)sizeof(kvevict_list_report), 0, 0, 0, 0, 0 }

/**
 * Tells what the last successful kvevict_sequence_evict() did; counts are 0
 * before the first, after a reset or a load, and after a failure of the device.
 * CUDA keeps masses on the device: a call with lists waits for them.
 * @param[in]  sequence   Non-NULL.
 * @param[out] out        NULL, or out->struct_size set.
 * @param[out] lists      [lists_len], all with the same struct_size set: the
 *                        lists of all layers end to end, see
 *                        kvevict_plan_layer().
 * @param[in]  lists_len  0, or the number of lists.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         for masses on CUDA while the stream is captured.
 */
KVEVICT_API kvevict_status kvevict_sequence_report(
    const kvevict_sequence* sequence, kvevict_evict_report* out,
    kvevict_list_report* lists, size_t lists_len) KVEVICT_NOEXCEPT;

/**
 * Tells how many slots a layer and KV head use: the slot of its next row.
 * @param[in]  sequence    Non-NULL.
 * @param[in]  layer       < n_layers, with a full cache (see
 *                         kvevict_plan_layer()).
 * @param[in]  kv_head     < n_kv_heads. Heads differ only in a plan with
 *                         head_budgets or a `heads` other than equal.
 * @param[out] out_length  Slots.
 */
KVEVICT_API kvevict_status kvevict_sequence_stored_length(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Tells how many tokens the sequence has seen: the position of the next one.
 * RoPE uses it too, unless the policy has rotate=yes: then RoPE's position is
 * kvevict_sequence_stored_length().
 * @param[in]  sequence    Non-NULL.
 * @param[out] out_length  Tokens.
 */
KVEVICT_API kvevict_status kvevict_sequence_logical_length(
    const kvevict_sequence* sequence, uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Writes the positions of all slots of a layer and KV head, ascending. CUDA
 * waits for the stream of the sequence's last call to read them.
 * @param[in]  sequence            Non-NULL.
 * @param[in]  layer               < n_layers, with a full cache.
 * @param[in]  kv_head             < n_kv_heads; heads that share a list are
 *                                 alike.
 * @param[out] positions           i32, host memory.
 * @param[in]  positions_capacity  Elements of positions; an error if they are
 *                                 fewer than the head's stored length.
 * @param[out] out_positions_len   Elements written.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         on CUDA while the stream is captured.
 */
KVEVICT_API kvevict_status kvevict_sequence_keep_positions(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    int32_t* positions, size_t positions_capacity,
    size_t* out_positions_len) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_KVEVICT_H_ */
