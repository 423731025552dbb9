/*
 * kvevict: physically shrinks the KV cache of LLM inference engines.
 *
 * The library scores the cached tokens, selects the ones that fit a budget and
 * compacts the survivors in place. An engine may enter at any of three doors,
 * kvevict_score(), kvevict_select() and kvevict_compact(), or let
 * kvevict_sequence_evict() walk through all three for a whole model.
 *
 *     context   device, allocator, parallel runner   share between threads
 *     policy    what survives: name and parameters   one thread at a time
 *     plan      geometry + policy, checked once      immutable, share
 *     sequence  what one request carries along       one thread at a time
 *     view      where one layer's K and V lie        value
 *     lists     which of a layer's slots to keep     value
 *
 * This header has the basic flow. The others include it:
 *
 *     kvevict/attention.h     attention over the cache as it lies
 *     kvevict/batch.h         many sequences: forks, saved ones, batches
 *     kvevict/paged.h         a paged cache of the library's own
 *     kvevict/prefill.h       a prompt read and evicted in chunks
 *     kvevict/experimental.h  rare and young calls, which may still change
 *     kvevict/all.h           all of them
 *
 * Rules that hold for every function below
 *
 * - Failure: functions that can fail return kvevict_status, KVEVICT_OK or
 *   KVEVICT_ERROR_INVALID_ARGUMENT if they name no others. On any status other
 *   than KVEVICT_OK no output has been written, no cache byte has moved, and
 *   kvevict_last_error_message() names the parameter, its value and the bound.
 *   On CUDA any call may also return KVEVICT_ERROR_DEVICE, which promises less.
 * - Ownership: pointers are borrowed until the call returns, unless stated
 *   otherwise. A handle keeps what it was made from alive: a plan its context,
 *   a sequence its plan. So handles may be destroyed in any order. NULL may be
 *   destroyed.
 * - Memory: create functions and kvevict_sequence_begin_observing(), _start(),
 *   _fork() and _load() allocate through the context's hooks. Executing calls
 *   (score, select, compact, reorder, observe, append, evict) never allocate,
 *   lock, print or read the environment, unless a CUDA kernel was not prepared.
 *   Their scratch is the caller's workspace. It must not overlap what they read
 *   or write; calls refuse one that overlaps rows of their caches, as far as
 *   the host knows where those are. A workspace serves one call at a time, on
 *   CUDA until the stream has passed the call.
 * - Hooks: alloc, free, parallel, log and a kvevict_prefill_fn do not throw. An
 *   exception that leaves one ends the process by std::terminate(). A
 *   std::bad_alloc from an allocator counts as NULL.
 * - Threads: functions may be called from any threads at once, except two that
 *   use one sequence, one workspace or one output.
 * - Cost: microseconds, or what a call says. Beside what executing calls do to
 *   rows, their time is proportional to the number of layers.
 * - CUDA: the same calls with a context on CUDA. Caches, queries, block tables,
 *   scores, keep lists and workspaces are then device addresses (a CUdeviceptr
 *   where the type is a pointer), called device memory below. Policies,
 *   options, views themselves, protected positions and reports stay in host
 *   memory. Executing calls queue work on the given stream and return without
 *   waiting; what they are given on the device must stay valid until the stream
 *   has passed them. They push the context's CUcontext and pop it again, so any
 *   thread may call. After kvevict_context_prepare() they may be captured into
 *   a CUDA graph, which must not be launched after the last handle of its
 *   context is gone. A call that would have to compile or to wait returns
 *   KVEVICT_ERROR_UNSUPPORTED while its stream is captured, and the capture
 *   goes on; docs/cuda.md lists these calls.
 * - Structs begin with struct_size = sizeof(the struct). Initialise one that a
 *   call reads with its *_INIT macro, then set what you need. One that a call
 *   writes needs only its struct_size. kvevict_plane has no struct_size and
 *   grows into its reserved fields. Other structs grow at their end. A caller
 *   of an older release passes a smaller size, down to the first release's, and
 *   fields that it lacks have their defaults. A caller of a newer one passes a
 *   larger size, which is accepted if the bytes that this library does not know
 *   are 0; in output structs those bytes stay as they are. Structs in an array
 *   have one struct_size, a multiple of 8, which is also their distance.
 * - Names: sizes in bytes end in _bytes, counts start with n_, lengths of
 *   arrays end in _len and count elements. Layouts are written outermost first.
 *   Positions, slots and lengths are at most 2^31 - 1; offsets are 64-bit.
 *   reserved fields are 0.
 * - slot: row of the cache, 0 .. stored length - 1. position: place of the
 *   token in the sequence, what RoPE saw, 0 .. logical length - 1. Before the
 *   first eviction they are equal.
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

/** What a call came to. One value per reaction a caller could have. */
KVEVICT_INT32_TYPE(kvevict_status)
enum kvevict_status KVEVICT_INT32 {
  KVEVICT_OK = 0, /**< It worked. */
  /** A parameter is wrong; correct the call. */
  KVEVICT_ERROR_INVALID_ARGUMENT = 1,
  /** Well-formed, but this layout, dtype or combination is not handled. */
  KVEVICT_ERROR_UNSUPPORTED = 2,
  /** The device or a library it needs is not on this machine. */
  KVEVICT_ERROR_UNAVAILABLE = 3,
  KVEVICT_ERROR_OUT_OF_MEMORY = 4, /**< The allocator hook returned NULL. */
  KVEVICT_ERROR_INTERNAL = 5,      /**< A bug; please report the message. */
  /** The driver reported an error; the message has the call and its name. What
   *  the call had queued may have run in part. "context lost" in the message
   *  means that nothing more will run in this CUcontext. */
  KVEVICT_ERROR_DEVICE = 6
};

/**
 * The sentence that explains the calling thread's last failed call.
 * @return ASCII, never NULL, "" if no call of this thread has failed yet.
 *         Static thread-local storage, overwritten by the thread's next
 *         failure; a successful call leaves it alone. Needs no memory.
 */
KVEVICT_API const char* kvevict_last_error_message(void) KVEVICT_NOEXCEPT;

/**
 * @param[in] status  Any number.
 * @return The name of a status, e.g. "INVALID_ARGUMENT"; "UNKNOWN" for a
 *          number that is none. Static.
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

/** A CUstream; NULL is the legacy default stream, CU_STREAM_PER_THREAD and the
 *  like pass through. Ignored on the CPU. */
typedef void* kvevict_stream;

/**
 * Element types. Values are ABI and never reused.
 *
 * Quantized rows are moved byte for byte and read as the f32 that they stand
 * for, rounded once (twice on SIMD targets without a fused multiply-add).
 * Quantized keys can be scored, but neither turned nor merged, for that would
 * round them again. Queries are f32, f16 or bf16.
 *
 * U8, I8, U4 and U4_HALVES stand for code * scale + minimum, FP8 for value *
 * scale. kvevict_role says where scale and minimum lie. Without one the minimum
 * is 0, and the scale of fp8 is 1; codes must have a scale to be scored. A
 * codec that packs tokens together and that only the engine can read is an
 * opaque row per group: docs/dtypes.md.
 */
KVEVICT_INT32_TYPE(kvevict_dtype)
enum kvevict_dtype KVEVICT_INT32 {
  /** Rows of bytes whose content is the engine's secret: they can be moved, not
   *  scored. */
  KVEVICT_DTYPE_OPAQUE = 0,
  KVEVICT_DTYPE_F32 = 1,  /**< IEEE 754 single precision. */
  KVEVICT_DTYPE_F16 = 2,  /**< IEEE 754 half precision. */
  KVEVICT_DTYPE_BF16 = 3, /**< The upper half of an f32. */
  /** Sign, 4 bits of exponent with bias 7, 3 of mantissa: the "fn" variant,
   *  up to 448, without infinities; 0x7F and 0xFF are NaN. */
  KVEVICT_DTYPE_FP8_E4M3 = 4,
  /** The upper half of an f16: up to 57344, with infinities and NaN. */
  KVEVICT_DTYPE_FP8_E5M2 = 5,
  KVEVICT_DTYPE_U8 = 6, /**< Codes 0 .. 255. */
  KVEVICT_DTYPE_I8 = 7, /**< Codes -128 .. 127, in two's complement. */
  /** Codes 0 .. 15, two per byte: element 2j in the high nibble of byte j,
   *  2j + 1 in the low one. head_dim is even. */
  KVEVICT_DTYPE_U4 = 8,
  /** Codes 0 .. 15, two per byte: of a row, element j in the low nibble of byte
   *  j, j + head_dim / 2 in the high one. head_dim is even. */
  KVEVICT_DTYPE_U4_HALVES = 9,
  /** ggml's: of 32 elements 34 bytes, an f16 d and 32 codes as I8; code * d.
   *  head_dim is a multiple of 32. */
  KVEVICT_DTYPE_Q8_0 = 10,
  /** ggml's: of 32 elements 18 bytes, an f16 d and 16 bytes, of which byte j
   *  has element j in the low nibble and j + 16 in the high one;
   *  (code - 8) * d. head_dim is a multiple of 32. */
  KVEVICT_DTYPE_Q4_0 = 11
};

/* ---- Context ------------------------------------------------------------- */

/** Device, allocator, parallel runner and log sink. Opaque. */
typedef struct kvevict_context kvevict_context;

/**
 * Allocates n_bytes (> 0) aligned to `alignment` (a power of two <= 256).
 * NULL means out of memory, and so does std::bad_alloc. Called only by
 * functions whose name ends in _create, by kvevict_sequence_begin_observing(),
 * _start(), _fork() and _load(), and where a CUDA kernel is compiled: by
 * kvevict_context_prepare(), or by the first call that needs it.
 * Must be thread-safe if contexts are shared.
 */
typedef void* (*kvevict_alloc_fn)(size_t n_bytes, size_t alignment,
                                  void* user_data);

/** Frees what kvevict_alloc_fn returned; n_bytes and alignment as then. */
typedef void (*kvevict_free_fn)(void* memory, size_t n_bytes, size_t alignment,
                                void* user_data);

/** Does item `item` of a task on worker number `worker`. Never throws. */
typedef void (*kvevict_task_fn)(void* task, uint32_t item, uint32_t worker);

/**
 * Runs run(task, i, w) once for every i in [0, n_items) and returns when all
 * are done. w < n_threads of the context; no two calls with the same w at the
 * same time. Any order, any distribution: results do not depend on it. If the
 * context is used by several threads at once, so is this.
 */
typedef void (*kvevict_parallel_fn)(uint32_t n_items, kvevict_task_fn run,
                                    void* task, void* user_data);

/** How important a log line is. */
KVEVICT_INT32_TYPE(kvevict_log_level)
enum kvevict_log_level KVEVICT_INT32 {
  KVEVICT_LOG_WARNING = 0, /**< Something to act on. */
  KVEVICT_LOG_INFO = 1,    /**< What was found and chosen. */
  KVEVICT_LOG_DEBUG = 2    /**< Details for whoever looks for an error. */
};

/** Receives one line without newline, borrowed. Called on the thread of a
 *  create function or of kvevict_context_prepare(); from executing calls only
 *  where they compile a CUDA kernel that was not prepared. */
typedef void (*kvevict_log_fn)(kvevict_log_level level, const char* message,
                               void* user_data);

/** How to make a context. */
typedef struct kvevict_context_options {
  uint32_t struct_size;
  kvevict_device device; /**< KVEVICT_DEVICE_CPU. */
  /** Workers of `parallel`, 1 .. 1024; 0 means 1. Over 1 needs `parallel`. */
  uint32_t n_threads;
  kvevict_log_level log_level; /**< Lines above this level are not sent. */
  kvevict_alloc_fn alloc;      /**< NULL, together with free: aligned malloc. */
  kvevict_free_fn free;
  void* alloc_user_data;        /**< Passed to alloc and free. */
  kvevict_parallel_fn parallel; /**< NULL: the calling thread does the work. */
  void* parallel_user_data;
  kvevict_log_fn log; /**< NULL: silence. */
  void* log_user_data;
  /** SIMD target of the CPU's kernels, a name of kvevict_simd_target_at();
   *  NULL: the best. Copied. */
  const char* simd_target;
  /* What follows concerns CUDA and must be 0 on the CPU. */
  /** CUcontext to work in; NULL: the one current on the creating thread. The
   *  library never makes or retains one: it must outlive the handles. */
  void* cuda_context;
  const char* libcuda_path; /**< NULL: libcuda.so.1 or nvcuda.dll. Copied. */
  /** NULL: the newest libnvrtc of the system that compiles for this GPU and
   *  whose code the driver takes. Copied. */
  const char* libnvrtc_path;
  /** Directory in which compiled kernels are kept, created if need be; NULL:
   *  none. It must belong to the user and be writable by nobody else: what
   *  lies in it runs on the GPU. Copied. */
  const char* kernel_cache_dir;
  /** Device memory of sequences; NULL, together with device_free: cuMemAlloc.
   *  Called with the CUcontext current. Returns a CUdeviceptr; no queued work
   *  may still use that memory. */
  kvevict_alloc_fn device_alloc;
  kvevict_free_fn device_free;
  void* device_alloc_user_data;
  /** 1: an eviction scores on the GPU, copies the scores, selects on the host
   *  and uploads the keep lists. It waits for the stream, and the host knows
   *  the positions when it returns. Each sequence then holds host memory for
   *  the scores of all layers at max_tokens, 4 bytes per token and KV head. */
  uint32_t select_on_host;
  /** 1: wait after every kernel, so that a fault names the kernel, and check
   *  on the device that keep lists are strictly ascending and that the slots
   *  of kvevict_reorder() are there. */
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
 *         (no such device, no CUcontext, no compiler: with the reason),
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status
kvevict_context_create(const kvevict_context_options* options,
                       kvevict_context** out_context) KVEVICT_NOEXCEPT;

/**
 * Destroys a context; NULL is ignored. Plans and sequences made from it stay
 * usable and release it with the last of them.
 * @param[in] context  NULL or a context.
 */
KVEVICT_API void kvevict_context_destroy(kvevict_context* context)
    KVEVICT_NOEXCEPT;

/* ---- Policy -------------------------------------------------------------- */

/** How several numbers become one; NaN in, NaN out. */
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
 * What becomes of a row that compaction drops: nothing, or it is merged into
 * one that stays.
 *
 * For each KV head by itself, a token e that goes is merged into the token t
 * that stays whose key has the highest cosine with its own, the similarity; of
 * equals the lowest slot. x_t becomes a mean of what x_t and the x_e were,
 * computed in f32 and rounded once to the plane's dtype. Rows that get nothing
 * keep their bytes, and so do companions. A token whose key or value has no
 * finite norm in f32 takes no part. docs/policies/refinements.md has the
 * formulas.
 */
KVEVICT_INT32_TYPE(kvevict_merge)
enum kvevict_merge KVEVICT_INT32 {
  KVEVICT_MERGE_NONE = 0, /**< Nothing. */
  /** Values only, weighted by the similarity of their keys. merge_threshold and
   *  merge_fraction say which take part. arXiv:2210.09461, arXiv:2406.13035. */
  KVEVICT_MERGE_VALUES = 1,
  /** Keys and values, each halfway to its target. LOOK-M, arXiv:2406.18139. */
  KVEVICT_MERGE_PIVOT = 2,
  /** Keys and values, weighted by similarity. KVMerger, arXiv:2407.08454. */
  KVEVICT_MERGE_WEIGHTED = 3
};

/**
 * What survives an eviction: signal, shaping, budget. Opaque. It is a name and
 * the values of its parameters, most easily written as a text:
 * `snapkv:budget=2048,window=32`. docs/parameters.md lists them.
 *
 * Always kept: the first `sink` tokens (of each chunk, where there are chunks),
 * the last `recent`, the observation window (unless keep_window=no) and
 * protected positions; they count inside the budget. The rest of the budget
 * goes to the highest scores: descending, ties by `tie`, NaN last, +infinity
 * first.
 *
 * What must stay has to fit: sink < budget for streaming-llm, sink +
 * max(recent, kept window) < budget for snapkv, pyramidkv, tova, r-kv and cake,
 * sink + recent <= budget for the others; docs/policies.md has blocks and
 * chunks. A budget in tokens that is too small is an error. With a ratio that
 * is too small for a short context the context is left alone, and
 * kvevict_evict_report says KVEVICT_REASON_SMALL_BUDGET. So is a context
 * shorter than the query window.
 *
 * One thread at a time may change a policy; several may read it. Plans copy it.
 * Policies are small and allocated by malloc().
 */
typedef struct kvevict_policy kvevict_policy;

/**
 * Creates a policy from its text: `name` or `name:key=value,key=value`, where
 * name is a policy ("snapkv") or a preset ("snapkv-kvpress"). Spaces around
 * names, keys and values are ignored; of a key given twice the last value
 * counts. A key that means nothing to the policy is an error.
 * @param[in]  text        Zero-terminated, non-NULL.
 * @param[out] out_policy  Non-NULL. Destroy with kvevict_policy_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_OUT_OF_MEMORY;
 *         KVEVICT_ERROR_INVALID_ARGUMENT: with the column and what was expected
 *         there where the text cannot be read, with the numbers where they do
 *         not go together.
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
 * Sets a parameter to a value of the text form, without spaces. Whether values
 * go together is checked by kvevict_policy_validate() and where the policy is
 * used.
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
 * Sets a parameter that is a number. A flag is 1 or 0. For parameters that are
 * a count or a share, a number above 0 and below 1 is a share.
 * @param[in,out] policy  Non-NULL; unchanged on error.
 * @param[in]     key     Zero-terminated: "budget".
 * @param[in]     value   Within the parameter's range.
 * @return As kvevict_policy_set(); words and poolings are no numbers.
 */
KVEVICT_API kvevict_status kvevict_policy_set_number(
    kvevict_policy* policy, const char* key, double value) KVEVICT_NOEXCEPT;

/**
 * Writes a parameter's value as it stands in the text form.
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
 * Checks whether the values of the parameters go together, for any context
 * length.
 * @param[in] policy  Non-NULL.
 */
KVEVICT_API kvevict_status kvevict_policy_validate(const kvevict_policy* policy)
    KVEVICT_NOEXCEPT;

/* ---- View ---------------------------------------------------------------- */

/** What a companion plane is for the rows that it goes with. */
KVEVICT_INT32_TYPE(kvevict_role)
enum kvevict_role KVEVICT_INT32 {
  KVEVICT_ROLE_NONE = 0,        /**< Nothing that this library reads. */
  KVEVICT_ROLE_KEY_SCALE = 1,   /**< What codes of keys are multiplied by. */
  KVEVICT_ROLE_KEY_MINIMUM = 2, /**< What is added to codes of keys then. */
  KVEVICT_ROLE_VALUE_SCALE = 3, /**< What codes of values are multiplied by. */
  KVEVICT_ROLE_VALUE_MINIMUM = 4, /**< What is added to codes of values then. */
  /** Keys of the slots from kvevict_view.first_recent on, not quantized. */
  KVEVICT_ROLE_KEY_RECENT = 5,
  KVEVICT_ROLE_VALUE_RECENT = 6 /**< Values of the same slots. */
};

/**
 * Rows of one tensor, one per token and head, in any layout. docs/layouts.md
 * shows those of engines.
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
 * Inner groups are how vectorised keys lie, [n_blocks, H, D/x, block_size, x]:
 * group_elems is x, and group_stride_bytes is block_size * x * bytes of an
 * element. An address table is for blocks that were allocated one by one: data
 * is then where in a block the plane begins, and block_stride_bytes is 0.
 * Entries of blocks that hold none of the tokens in question are not read.
 * Blocks must all be different and share no byte; that is not checked. Inner
 * groups and address tables are for planes of a view alone.
 *
 * Strides may be negative, or zero where no two rows overlap. Each must exceed
 * what the smaller ones reach; other layouts are errors. No alignment is
 * needed, except that CUDA scores only elements at multiples of their size and
 * blocks with addresses at multiples of 16 bytes. A plane with neither data nor
 * address_table is absent, and then 0 throughout.
 *
 * A companion with a role holds one number of f32, f16 or bf16 per token and
 * head (head_dim 1). A view has at most one of each role. It moves with its
 * rows, unless its token and block strides and its address table are 0: then a
 * head has one number for all tokens, or with a head stride of 0 all heads
 * have. Such a plane stays, and layers may share it.
 *
 * With group_tokens G, slots i * G to i * G + G - 1 of a head share a packed
 * row of numbers, one per element (head_dim that of the rows), as KIVI has them
 * for keys (arXiv:2402.02750). The formulas then take t / G for t, and G
 * divides block_size. Rows are u8, i8, u4 or u4_halves, scale and minimum have
 * the same G, and there is no ring. Writing such rows stores groups anew: see
 * kvevict_compact().
 *
 * A recent plane has the last rows, not quantized yet: f32, f16 or bf16,
 * packed, slot t at data + (t - first_recent) * token_stride_bytes + h *
 * head_stride_bytes, in no blocks. It goes with quantized rows of any dtype. K
 * and V both have one, or neither. Slots from first_recent on are not read in
 * K's and V's own planes. Recent rows never move, and rings have none.
 */
typedef struct kvevict_plane {
  uint64_t data; /**< Address: a host pointer, or a CUdeviceptr. */
  int64_t token_stride_bytes;
  int64_t head_stride_bytes;
  /** 0: packed, as elements of a group are, and those that are not bytes of
   *  their own. */
  int64_t element_stride_bytes;
  int64_t block_stride_bytes; /**< Paged only. */
  kvevict_dtype dtype;
  uint32_t head_dim;  /**< Elements per row; 0 for opaque. */
  uint32_t row_bytes; /**< Opaque: bytes per row, packed; otherwise 0. */
  kvevict_role role;  /**< What a companion is; else KVEVICT_ROLE_NONE. */
  int64_t group_stride_bytes; /**< To the next inner group; 0 without. */
  /** Paged only: address of the blocks' addresses, u64 by block id, where block
   *  tables lie and borrowed as they are; a multiple of 8. 0: none. */
  uint64_t address_table;
  uint32_t address_table_len; /**< Elements; no id is as large. */
  uint32_t group_elems;       /**< Divides head_dim; 0: no groups. */
  /** How many tokens share a scale or minimum per element, 1 .. 256; 0: each
   *  number belongs to a token, or to all. */
  uint64_t group_tokens;
  uint64_t reserved[5]; /**< 0: room for what rows of other kinds will need. */
} kvevict_plane;

#define KVEVICT_PLANE_INIT                                                    \
  {                                                                           \
    0, 0, 0, 0, 0, KVEVICT_DTYPE_OPAQUE, 0, 0, KVEVICT_ROLE_NONE, 0, 0, 0, 0, \
        0, {                                                                  \
      0, 0, 0, 0, 0                                                           \
    }                                                                         \
  }

#ifndef SWIG
/* Planes of packed rows in the common layouts, whose last dimension is
 * head_dim: [S, H, D], [H, S, D], and blocks of both. n_slots is how many a
 * head has room for. head_dim counts bytes if rows are opaque. */
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
 * Calls with a plan take what is 0 from its geometry: n_kv_heads; dtype and
 * head_dim of a K or V with neither, nor row_bytes; and if such a plane has no
 * token and head strides either, those of packed [S, H, D] rows or blocks.
 */
typedef struct kvevict_view {
  uint32_t struct_size;
  uint32_t n_kv_heads; /**< 1 .. 65535. */
  kvevict_plane k;
  /** Absent for caches with one row per token (MLA), whose values are part of
   *  the keys' rows. Where a geometry is at hand and has values, a view without
   *  V cannot be evicted; kvevict_compact() and kvevict_reorder() do not know,
   *  and move what is there. Layers without keys and values have no view: see
   *  kvevict_layer_geometry. */
  kvevict_plane v;
  /** What else has a row per token and head and must move along: scales and
   *  minima, which say so by their role, position arrays. n_companions planes,
   *  borrowed; NULL if 0. */
  const kvevict_plane* companions;
  uint32_t n_companions; /**< At most 64. */
  uint32_t block_size;   /**< Tokens per block; 0: contiguous. */
  /** Paged: block ids, i32, non-negative, all different, in token order;
   *  borrowed, and read but for evictions by_table. That they differ is not
   *  checked. NULL, where all planes have an address table: an entry is its own
   *  index, so that those tables are in token order. */
  const int32_t* block_table;
  /** Elements of all tables together; 0 with NULL. The last table counts as if
   *  its head held as many tokens as the longest. */
  size_t block_table_len;
  /** Elements from one KV head's table to the next's; 0: all heads share
   *  one. */
  uint64_t block_table_head_stride;
  /** Rows of a ring, as sliding windows have them; 0: no ring. Token t is slot
   *  t in all calls, and lies where the formulas above put (t + ring_first) %
   *  ring_slots. */
  uint32_t ring_slots;
  uint32_t ring_first; /**< Row of token 0, < ring_slots; 0 without. */
  /** Paged: how many blocks, from the first of every table on, others hold too,
   *  as forks and prefix caches do. They are read, never written: calls that
   *  might are refused. Compacting to a destination, or from a first_slot
   *  behind them on, is not. 0 for a ring. */
  uint32_t n_shared_blocks;
  /** The first slot of the recent planes; those before it are quantized. 0
   *  without such planes. */
  uint32_t first_recent;
} kvevict_view;

#define KVEVICT_VIEW_INIT                                                      \
  {                                                                            \
    (uint32_t)sizeof(kvevict_view), 0, KVEVICT_PLANE_INIT, KVEVICT_PLANE_INIT, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                           \
  }

/**
 * Checks a view as executing calls on the CPU do. It reads block and address
 * tables, which must be host memory here; on CUDA calls check all but what is
 * in them.
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

/** What a layer keeps of the tokens that it has seen. */
KVEVICT_INT32_TYPE(kvevict_layer_cache)
enum kvevict_layer_cache KVEVICT_INT32 {
  /** A row of every token, until it is evicted. */
  KVEVICT_LAYER_CACHE_FULL = 0,
  /** The tokens of a sliding window: the engine drops the others. */
  KVEVICT_LAYER_CACHE_WINDOW = 1,
  /** No keys and values: recurrent layers, and those that read another
   *  layer's. */
  KVEVICT_LAYER_CACHE_NONE = 2
};

/** The attention geometry of one layer. */
typedef struct kvevict_layer_geometry {
  uint32_t struct_size;
  /** Only full caches are evicted. Other layers have no keep lists, no budget
   *  and no stored length, and nothing of them is observed. Their fields below
   *  are not read, and of their entries in arrays of views and inputs only
   *  struct_size is. */
  kvevict_layer_cache cache;
  uint32_t n_q_heads; /**< A multiple of n_kv_heads; heads 1 .. 65535. */
  /** Query head h reads KV head h / (n_q_heads / n_kv_heads). */
  uint32_t n_kv_heads;
  uint32_t k_head_dim; /**< Elements of a key row, up to 65536; 0 if opaque. */
  /** Elements of a value row. 0 if v_dtype is opaque; with any other 0 means
   *  that there is no V. */
  uint32_t v_head_dim;
  /** What queries handed to observe and score are: f32, f16 or bf16, or opaque
   *  where no signal reads them. */
  kvevict_dtype q_dtype;
  kvevict_dtype k_dtype;
  kvevict_dtype v_dtype;
  float softmax_scale; /**< Multiplies q.k; 0 means 1/sqrt(k_head_dim). */
  /** Scaled logits x become c * tanh(x / c), c being this (Gemma 2); 0: they
   *  stay. Read by window attention, and h2o where it scores by queries. */
  float logit_softcap;
  uint32_t reserved; /**< 0. */
} kvevict_layer_geometry;

#define KVEVICT_LAYER_GEOMETRY_INIT                                           \
  {                                                                           \
    (uint32_t)sizeof(kvevict_layer_geometry), KVEVICT_LAYER_CACHE_FULL, 0, 0, \
        0, 0, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 0.0f,  \
        0.0f, 0                                                               \
  }

/** Which elements of a key RoPE turns together. */
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
  uint32_t n_layers;   /**< 1 .. 4096. */
  uint32_t max_tokens; /**< Most slots a layer will ever hold, 1 .. 2^31 - 1. */
  kvevict_rope_layout rope_layout; /**< Read with rope_inv_freq. */
  /** One that all layers have, or one for each; borrowed. */
  const kvevict_layer_geometry* layers;
  size_t layers_len; /**< 1 or n_layers. */
  /** How RoPE turned the keys of layers with a full cache: pair f of a key at
   *  position p by p * rope_inv_freq[f] radians, whatever scaling went into
   *  that. Each within [-65536, 65536], host memory, copied. Elements beyond
   *  the pairs are not turned (partial rotary). NULL: not said; triattention
   *  and kvevict_rotate() need it. */
  const float* rope_inv_freq;
  size_t rope_inv_freq_len; /**< Pairs: up to k_head_dim / 2 and 256; 0. */
  /** NULL, or f32 [query heads of all layers with a full cache], layer by
   *  layer: a logit per head that takes part in its softmax and has no value
   *  (gpt-oss). It is neither scaled nor capped; -infinity: the head has none.
   *  Host memory, copied. Read where logit_softcap is. If the logits of heads
   *  are reduced to one row (order=reduce-logits) the largest counts. */
  const float* sink_logits;
  size_t sink_logits_len; /**< The n_q_heads of these layers; 0 with NULL. */
} kvevict_geometry;

#define KVEVICT_GEOMETRY_INIT                                                 \
  {                                                                           \
    (uint32_t)sizeof(kvevict_geometry), 0, 0, KVEVICT_ROPE_LAYOUT_HALF, 0, 0, \
        0, 0, 0, 0                                                            \
  }

/** Geometry + policy + context, checked once. Immutable, opaque. */
typedef struct kvevict_plan kvevict_plan;

/** What a plan may be told beside geometry and policy. */
typedef struct kvevict_plan_options {
  uint32_t struct_size;
  /** The most tokens that a step of speculation takes back, at most 2^31 - 1.
   *  A policy that scores by the last queries then remembers so many rows
   *  beside its window, and a trim by as many leaves the window whole.
   *  Other policies ignore it. */
  uint32_t draft_tokens;
  /** Tokens that each KV head keeps, everything included, in place of the
   *  policy's budget and layer split: the heads of all layers with a full
   *  cache, layer by layer. Each is at least one token, or a block of
   *  select_block, and has room for what must stay. A head shorter than its
   *  budget keeps everything. Needs scope=head and heads=equal, and no split
   *  that scores decide. NULL: the policy's. Copied. */
  const uint32_t* head_budgets;
  size_t head_budgets_len; /**< As many as there are heads; 0 with NULL. */
  /** A budget for each layer with a full cache, in place of the policy's and
   *  its layer split: a ratio of the context up to 1, else tokens. Scope MODEL
   *  needs equal ones. Not with head_budgets, nor with a split that scores
   *  decide. NULL: the policy's. Copied. */
  const double* layer_budgets;
  size_t layer_budgets_len; /**< As many as there are such layers; 0. */
  /** 1: evictions measure what mass they keep, for kvevict_list_report. They
   *  then read the scores once more, in a workspace with room for keys beside
   *  them, and a sequence has 12 bytes per list. */
  uint32_t report_mass;
  /** 1: evictions may be given destinations, for which a sequence of the plan
   *  then has room, about 500 bytes per layer. 0: they may not. */
  uint32_t has_destinations;
} kvevict_plan_options;

#define KVEVICT_PLAN_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_plan_options), 0, 0, 0, 0, 0, 0, 0 }

/**
 * Checks a geometry and a policy against each other and lays out the workspace.
 *
 * A plan whose policy must score keys of a dtype that cannot be scored is
 * created all the same, since its other doors work; see
 * kvevict_plan_capabilities().
 *
 * @param[in]  context   Non-NULL; kept alive by the plan.
 * @param[in]  geometry  Non-NULL; copied.
 * @param[in]  policy    Non-NULL; copied.
 * @param[in]  options   NULL for none; copied.
 * @param[out] out_plan  Non-NULL. Destroy with kvevict_plan_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also when a workspace
 *         size would not fit in size_t); KVEVICT_ERROR_OUT_OF_MEMORY.
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
 * Compiles and loads the kernels that a plan's calls may launch, now instead of
 * at first use. On the CPU there is nothing to do.
 *
 * Window attention has kernels of its own for each combination of dtypes,
 * k_head_dim, window and group size. This call prepares those for contiguous
 * keys and for block ids, and those for heads of several lengths if the plan
 * may have such. The first call that needs another one compiles it, as with
 * rings and blocks with addresses. All other kernels serve every plan. With a
 * kernel_cache_dir compiled kernels are taken from there.
 *
 * @param[in] context  Non-NULL.
 * @param[in] plan     Made from `context`; NULL: only the kernels that serve
 *                     every plan.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNAVAILABLE (the compiler's log is in the message);
 *         KVEVICT_ERROR_OUT_OF_MEMORY; KVEVICT_ERROR_DEVICE. May take seconds,
 *         waits for other threads that compile.
 */
KVEVICT_API kvevict_status kvevict_context_prepare(
    const kvevict_context* context, const kvevict_plan* plan) KVEVICT_NOEXCEPT;

/** What a layer is for a plan. */
typedef struct kvevict_layer_info {
  uint32_t struct_size;
  kvevict_layer_cache cache;
  uint32_t n_q_heads;
  uint32_t n_kv_heads; /**< 0 without a full cache. */
  /** Its keep lists: n_kv_heads where heads may keep different tokens (scope
   *  KV_HEAD of a policy that ranks, or head_budgets), else one for all; 0
   *  without a full cache. */
  uint32_t n_lists;
  /** The place of its first one where the lists of all layers lie end to end;
   *  without any, of the next layer's. */
  uint32_t first_list;
} kvevict_layer_info;

/**
 * Tells what a layer is for a plan.
 * @param[in]  plan   Non-NULL.
 * @param[in]  layer  < n_layers.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_plan_layer(const kvevict_plan* plan, uint32_t layer,
                   kvevict_layer_info* out) KVEVICT_NOEXCEPT;

/**
 * The memory that a call works in, for any contents of its inputs.
 *
 * A call gives the same bytes in any size from the least on. More than the best
 * makes it no faster. The memory lies on the context's device, may hold
 * anything before and after the call, and serves one call at a time: on CUDA
 * until the stream has passed the call. A workspace for more tokens also serves
 * fewer.
 */
typedef struct kvevict_workspace {
  uint32_t struct_size;
  uint32_t alignment; /**< Its address is a multiple: 64, on CUDA 256. */
  size_t least_bytes; /**< 0: the call can do without; NULL may be passed. */
  size_t best_bytes;
} kvevict_workspace;

#define KVEVICT_WORKSPACE_INIT \
  { (uint32_t)sizeof(kvevict_workspace), 0, 0, 0 }

/** What a plan's workspace is for. */
KVEVICT_INT32_TYPE(kvevict_operation)
enum kvevict_operation KVEVICT_INT32 {
  KVEVICT_OPERATION_EVICT = 0, /**< kvevict_sequence_evict(). */
  KVEVICT_OPERATION_SCORE = 1, /**< kvevict_score(). */
  /** kvevict_sequence_begin_observing(): holds what a sequence observes until
   *  kvevict_sequence_end_observing(). A policy that scores by the last queries
   *  needs, for each layer, (window + draft_tokens) * n_q_heads rows of
   *  k_head_dim elements, and on CUDA a float with each. h2o needs max_tokens
   *  floats for each KV head, query head or layer, as `sums` says, and with
   *  sum_last that many times more. Others need nothing. */
  KVEVICT_OPERATION_OBSERVE = 2
};

/**
 * The workspace of an operation of a plan.
 *
 * With less than the best, scoring on the CPU computes most products of queries
 * and keys twice, to the same bytes, and takes 1.4 to 2 times as long; an
 * eviction also works on fewer layers at once. docs/performance.md has the
 * sizes: per thread the least of SCORE is at most 3.5 MiB + 672 * k_head_dim
 * bytes + 8 bytes per token, and once n_q_heads floats per token if rows are
 * pooled before they are reduced. With scope MODEL, and if scores decide what
 * layers keep, all layers are worked on at once. h2o needs it only where it
 * scores by queries.
 *
 * @param[in]  plan       Non-NULL.
 * @param[in]  operation  Which.
 * @param[in]  n_tokens   The most slots that a layer will hold then, up to
 *                        max_tokens; 0: max_tokens. OBSERVE does not read it.
 * @param[out] out        Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also when a size would
 *         not fit in size_t).
 */
KVEVICT_API kvevict_status kvevict_plan_workspace(
    const kvevict_plan* plan, kvevict_operation operation, uint32_t n_tokens,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/** Why a plan cannot do something, or why an eviction did nothing. */
KVEVICT_INT32_TYPE(kvevict_reason)
enum kvevict_reason KVEVICT_INT32 {
  KVEVICT_REASON_NONE = 0, /**< It can. */
  /** Keys are opaque: nothing can be read from them. */
  KVEVICT_REASON_OPAQUE_KEYS = 1,
  KVEVICT_REASON_OPAQUE_QUERIES = 2, /**< Queries are opaque. */
  /** The geometry does not say how RoPE turned the keys (rope_inv_freq). */
  KVEVICT_REASON_NO_ROPE = 3,
  /** The layer has no cache, or only that of a sliding window. */
  KVEVICT_REASON_NO_FULL_CACHE = 4,
  /** Values are opaque, or there are none. */
  KVEVICT_REASON_OPAQUE_VALUES = 5,
  /** Keys are quantized: turned or merged they would be rounded again. */
  KVEVICT_REASON_QUANTIZED_KEYS = 6,
  /** Queries are quantized, and have no scales of their own. */
  KVEVICT_REASON_QUANTIZED_QUERIES = 7,
  /** Values are quantized: merged they would be rounded again. */
  KVEVICT_REASON_QUANTIZED_VALUES = 8,
  /** Rows share scales by groups of tokens, or the last ones lie apart: they do
   *  not move one by one. Calls that are given such a view say so; a plan never
   *  does. */
  KVEVICT_REASON_TOKEN_GROUPS = 9,
  /** An eviction does nothing: the policy's prompt is not INSIDE, and
   *  kvevict_sequence_end_prompt() has not been called. */
  KVEVICT_REASON_OPEN_PROMPT = 10,
  /** An eviction leaves a layer alone, since the context is too short yet: its
   *  budget, a ratio, has no room for what must stay, or it has fewer tokens
   *  than the window. */
  KVEVICT_REASON_SMALL_BUDGET = 11
};

/**
 * @param[in] reason  Any number.
 * @return A sentence for a reason; "" for NONE and unknown numbers. Static.
 */
KVEVICT_API const char* kvevict_reason_text(kvevict_reason reason)
    KVEVICT_NOEXCEPT;

/* ---- The three doors ----------------------------------------------------- */

/** What signals read of a layer beside its keys. Each policy's signal needs
 *  some of them; what it has no use for may be absent, and is not read. */
typedef struct kvevict_signal_inputs {
  uint32_t struct_size;
  /** Rows of attention_sums: n_q_heads, or n_kv_heads where the query heads of
   *  a KV head are reduced already, or, with scope LAYER or MODEL, 1 of all
   *  heads; 0: n_q_heads. */
  uint32_t n_sum_heads;
  /** Query rows [n_q_heads, rows, k_head_dim] in any strides, after RoPE, of
   *  the geometry's q_dtype. A stride of 0 is an error where there is more than
   *  one head or row. Window attention takes the window's rows, h2o without
   *  attention_sums n_query_rows, non-causal those of all slots held: row t is
   *  the query of slot t of its KV head. CUDA uses tensor cores if elements are
   *  packed and rows of queries and keys begin at multiples of 16 bytes. */
  const kvevict_plane* queries;
  /** NULL, or f32 [n_q_heads, rows], head_dim 1: the natural log-sum-exp of
   *  each row's logits, scaled and capped, over the keys that it sees and its
   *  sink, as flash attention leaves it behind. In any strides; 0 means packed.
   *  It saves h2o, and window attention on CUDA, the first of two passes over
   *  the keys. It is not used with softmax=past or order=reduce-logits. */
  const kvevict_plane* row_lse;
  /** Policy custom: f32 [n_kv_heads, slots held], head_dim 1, elements at
   *  multiples of 4 bytes, tokens packed, rows of heads one after another; a
   *  stride of 0 means packed. */
  const kvevict_plane* scores;
  /* What follows is f32 as well, packed within a head and aligned to 4 bytes,
   * rows of heads one after another; strides of 0 as for scores. */
  /** Policy h2o: [n_sum_heads, slots held], head_dim 1: the attention weight
   *  that each slot got. kvevict_sequence_observe() takes that of a step or
   *  chunk, summed over its query rows, and adds it up. kvevict_score() and
   *  kvevict_sequence_evict() take sums over all queries that saw the slot. The
   *  engine keeps those, and moves them when their tokens move: by
   *  kvevict_compact(), or with n_kv_heads rows as a companion of the view. A
   *  row of a KV head stands for each of its query heads, with group=sum in
   *  equal parts, and a row of all heads for every head. */
  const kvevict_plane* attention_sums;
  /** Policy expected-attention: [n_q_heads, 1, k_head_dim]: the mean of the
   *  queries to come, rotated to where they will be; without the softmax scale,
   *  which is applied to it. */
  const kvevict_plane* query_mean;
  /** Policy expected-attention: [n_q_heads, k_head_dim, k_head_dim]: their
   *  covariance: head_dim is k_head_dim, and tokens are the matrix's rows.
   *  NULL: 0. */
  const kvevict_plane* query_covariance;
  /** Policy q-filter: [n_kv_heads, 1, k_head_dim]: the direction of a KV head
   *  in which keys get no attention. */
  const kvevict_plane* key_filter;
  /** With weight=given: [n_kv_heads, slots held], head_dim 1: what scores are
   *  multiplied by, whatever the signal. */
  const kvevict_plane* token_weights;
  /** Policy triattention: [n_q_heads, 3, rope_inv_freq_len]: what the model's
   *  queries are like before RoPE, found once per model. Each pair of elements
   *  in the geometry's rope_layout is a complex number: the rows are the real
   *  part of its mean, the imaginary part, and the mean of its absolute value.
   *  Files of `kvevict calibration` have a fourth row between heads. */
  const kvevict_plane* query_centers;
  /** Rows of queries and of row_lse that kvevict_score() and
   *  kvevict_sequence_evict() are given, those of the last tokens: 1 .. the
   *  slots held. 0 selects the policy's own number: the window for window
   *  attention, every slot held for h2o and non-causal. Only h2o accepts
   *  another. */
  uint32_t n_query_rows;
  uint32_t reserved; /**< 0. */
} kvevict_signal_inputs;

#define KVEVICT_SIGNAL_INPUTS_INIT                                            \
  {                                                                           \
    (uint32_t)sizeof(kvevict_signal_inputs), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0                                                                     \
  }

/** One layer's part of kvevict_score(). */
typedef struct kvevict_score_job {
  uint32_t struct_size;
  uint32_t layer;    /**< < n_layers, with a full cache. */
  uint32_t n_tokens; /**< Slots held, 1 .. max_tokens. */
  /** Tokens seen so far, evicted ones included, n_tokens .. 2^31 - 1; 0:
   *  n_tokens. Read by h2o and triattention, and keydiff with a block;
   *  triattention takes n_tokens with rotate. */
  uint32_t n_seen;
  /** u32 [n_kv_heads], if heads hold different numbers: each at most
   *  n_tokens and at least the policy's window where queries score, device
   *  memory; NULL: all hold n_tokens. On CUDA they are the caller's word. */
  const uint32_t* token_counts;
  /** The layer's cache; k as in the geometry, and v where values are read. NULL
   *  where no row is read. */
  const kvevict_view* view;
  /** NULL where nothing but keys is read. Row i of n rows of queries and
   *  row_lse is the query of token n_tokens - n + i. */
  const kvevict_signal_inputs* inputs;
  /** Out: f32 [n_kv_heads, n_tokens], device memory; higher keeps. Tokens of a
   *  kept window get +infinity. Beyond a head's own count unspecified. */
  float* scores;
  size_t scores_len; /**< = n_kv_heads * n_tokens. */
} kvevict_score_job;

#define KVEVICT_SCORE_JOB_INIT \
  { (uint32_t)sizeof(kvevict_score_job), 0, 0, 0, 0, 0, 0, 0, 0 }

/** Jobs and moves that one call takes at most. */
#define KVEVICT_MAX_JOBS 128

/**
 * Scores the cached tokens of layers by the signal of the plan's policy. A
 * score is f32, and higher keeps. docs/policies.md has a page for each family,
 * docs/reference.md every formula and cost.
 *
 *   snapkv, pyramidkv, tova,  exact causal softmax of the window's queries over
 *   r-kv, cake                all keys, with softmax=past over those before the
 *                           window, reduced and pooled (arXiv:2404.14469)
 *   h2o                       attention_sums, or those of the n_query_rows last
 *                           queries; rows=mean divides by the queries that
 *                           saw a token, slots being positions, as they are
 *                           until the first eviction (arXiv:2306.14048)
 *   expected-attention        softmax of what queries to come of that mean and
 *                           covariance pay (arXiv:2510.00636)
 *   non-causal                what the queries of a chunk of `block` slots pay
 *                           its keys (arXiv:2507.08143)
 *   triattention              how keys agree with the centers of the queries,
 *                           as turned at their own positions (arXiv:2604.04921)
 *   knorm, keydiff, q-filter  keys alone (arXiv:2406.11430, arXiv:2504.15364,
 *                           arXiv:2503.02812); keydiff with a block takes the
 *                           layer's budget for a context of n_seen
 *   lagkv, cur                keys and values against their neighbours
 *                           (arXiv:2504.04704, arXiv:2509.15038)
 *   custom                    the caller's scores, pooled
 *
 * `weight` is applied here, and redundancy (arXiv:2505.24133) is subtracted
 * last; the two stages of `secure` belong to an eviction. A key with NaN or
 * infinity scores NaN. With window attention it spoils the scores of the head,
 * with non-causal those of its chunk, with expected-attention those of the
 * head. Cost: K is read once, by keydiff, lagkv and cur up to twice, and by
 * window attention on CUDA twice without row_lse.
 *
 * @param[in]  plan      Non-NULL.
 * @param[in]  jobs      [jobs_len], a layer each.
 * @param[in]  jobs_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in]  workspace  For SCORE, see kvevict_plan_workspace().
 * @param[in]  workspace_bytes  Its size, at least the least for the most
 *                              n_tokens.
 * @param[in]  stream      See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also where the policy
 *         ranks nothing); KVEVICT_ERROR_UNSUPPORTED (the policy reads keys,
 *         values or queries that cannot be read; on CUDA elements, scales and
 *         minima that are not aligned to their size, or q8_0 and q4_0 to 2
 *         bytes). Threads: safe for distinct scores and
 *         workspaces.
 */
KVEVICT_API kvevict_status
kvevict_score(const kvevict_plan* plan, const kvevict_score_job* jobs,
              size_t jobs_len, void* workspace, size_t workspace_bytes,
              kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Which slots of a layer to keep: one list that all KV heads share, or one for
 * each, every list with a count of its own. Nothing is copied or owned.
 */
typedef struct kvevict_keep_lists {
  uint32_t struct_size;
  uint32_t n_lists; /**< 1 or the view's n_kv_heads; at most 65535. */
  int32_t* slots;   /**< [n_lists, list_stride]; device memory. */
  size_t slots_len; /**< Elements of slots. */
  /** Elements from one list to the next, from count to UINT32_MAX; 0: count. */
  uint64_t list_stride;
  uint32_t count;    /**< Slots in every list; with counts, the most of any. */
  uint32_t reserved; /**< 0. */
  /** u32 [n_lists], each at most count; device memory. NULL: all are count. */
  uint32_t* counts;
} kvevict_keep_lists;

#define KVEVICT_KEEP_LISTS_INIT \
  { (uint32_t)sizeof(kvevict_keep_lists), 0, 0, 0, 0, 0, 0, 0 }

/**
 * Tokens that go later or sooner than others, but may go. What must stay stays.
 * Among the others a token of a higher rank stays before any of a lower one,
 * whatever their scores, NaN included; within a rank scores decide, and then
 * ties. Tokens in no range have rank 0. A block of select_block has the highest
 * rank in it. Ranks say which tokens a list keeps, never how many.
 * docs/policies.md has their part in `secure` and `rescue`.
 */
typedef struct kvevict_token_range {
  uint32_t struct_size;
  int32_t rank;   /**< Any. */
  uint32_t first; /**< First position, or slot. */
  uint32_t end;   /**< Behind the last one, from first to UINT32_MAX. */
} kvevict_token_range;

#define KVEVICT_TOKEN_RANGE_INIT \
  { (uint32_t)sizeof(kvevict_token_range), 0, 0, 0 }

/** What kvevict_select() chooses from, and what must stay. */
typedef struct kvevict_select_options {
  uint32_t struct_size;
  uint32_t n_tokens; /**< Slots held, 1 .. 2^31 - 1. */
  /** u32 [n_lists], if lists hold different numbers: each at most n_tokens,
   *  device memory; NULL: all hold n_tokens. Every list then has one row: with
   *  n_rows above the lists it is an error. */
  const uint32_t* token_counts;
  /** f32 [n_rows, n_tokens] of any values, device memory. NULL, with length 0:
   *  nothing is ranked, and every list keeps what must stay and then the first
   *  tokens, or the last with KVEVICT_TIE_HIGHER_POSITION. */
  const float* scores;
  size_t scores_len; /**< = n_rows * n_tokens; 0 with NULL. */
  /** A multiple of the lists: row r is list r / (n_rows / n_lists)'s. 0: one
   *  for each list. */
  uint32_t n_rows;
  kvevict_reduce reduce; /**< Over the rows of a list. */
  uint32_t n_sink;       /**< First slots that must stay. */
  uint32_t n_recent;     /**< Last slots that must stay. */
  kvevict_tie tie;       /**< Which of equal scores stays. */
  /** Slots stay or go in whole blocks of so many, see kvevict_policy; a list
   *  must lose a multiple of it. 0: 1. */
  uint32_t select_block;
  /** Strictly ascending slots < n_tokens that must stay, in host memory; NULL
   *  with length 0 for none. */
  const int32_t* protected_slots;
  size_t protected_slots_len;
  /** Slots that go later or sooner: at most 64 ranges, none of which begins
   *  before the end of the one before, in host memory; slots that are not held
   *  are ignored. NULL with length 0 for none. */
  const kvevict_token_range* ranges;
  size_t ranges_len;
} kvevict_select_options;

#define KVEVICT_SELECT_OPTIONS_INIT                                          \
  {                                                                          \
    (uint32_t)sizeof(kvevict_select_options), 0, 0, 0, 0, 0,                 \
        KVEVICT_REDUCE_MEAN, 0, 0, KVEVICT_TIE_LOWER_POSITION, 0, 0, 0, 0, 0 \
  }

/**
 * Chooses slots: what must stay, and then the highest scores, descending, ties
 * by `tie`, NaN last; with ranges by rank first.
 *
 * How many is said by the lists: keep->count, or keep->counts. A list whose
 * count is all that it holds keeps every slot. Cost: three passes over the
 * scores, independent of their values; one more with select_block, and two with
 * ranges.
 *
 * @param[in]  context  Non-NULL; device and parallel runner.
 * @param[in]  options  Non-NULL.
 * @param[in]  keep      Lists whose slots are written, ascending. A count
 *                       above what a list holds, or below what must stay, is
 *                       an error. The CPU checks every count, CUDA `count` but
 *                       not `counts`.
 * @param[in]  workspace  See kvevict_select_workspace().
 * @param[in]  workspace_bytes  Its size.
 * @param[in]  stream   See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Threads: safe for
 *         distinct lists and workspaces.
 */
KVEVICT_API kvevict_status kvevict_select(
    const kvevict_context* context, const kvevict_select_options* options,
    const kvevict_keep_lists* keep, void* workspace, size_t workspace_bytes,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * The workspace of kvevict_select().
 * @param[in]  context   Non-NULL.
 * @param[in]  n_tokens  The most slots held.
 * @param[in]  n_lists   Keep lists.
 * @param[out] out       Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also when a size would
 *         not fit in size_t).
 */
KVEVICT_API kvevict_status kvevict_select_workspace(
    const kvevict_context* context, uint32_t n_tokens, uint32_t n_lists,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/** One layer's part of kvevict_compact() or kvevict_reorder(). */
typedef struct kvevict_move {
  uint32_t struct_size;
  uint32_t n_tokens;        /**< Slots held before, the most of any head. */
  const kvevict_view* view; /**< The cache; see kvevict_view_validate(). */
  /** Slots that are held; NULL with a destination: all of them, in their
   *  order. */
  const kvevict_keep_lists* keep;
  /** u32 [n_kv_heads], if heads hold different numbers: each at most
   *  n_tokens, device memory; NULL: all hold n_tokens. A head's block table is
   *  read only as far as its own count reaches. On CUDA they are the caller's
   *  word. */
  const uint32_t* token_counts;
  /** kvevict_compact(): what becomes of the rows that go, as in
   *  kvevict_policy; K, and V where the view has one, must be f32, f16 or
   *  bf16, and values needs V. kvevict_reorder(): none. */
  kvevict_merge merge;
  /** kvevict_compact(): where the first survivor of every head goes; without a
   *  destination at most n_tokens, and no listed slot is below it. 0 with merge
   *  and for kvevict_reorder(). */
  uint32_t first_slot;
  double merge_threshold; /**< See the parameter of that name. */
  double merge_fraction;  /**< Likewise; 0: 1. */
  /** kvevict_compact(): another cache that the survivors are copied to, with
   *  slots for first_slot + the longest list; NULL: they move in place. As many
   *  heads as `view`, and of each plane the same head_dim or row size; strides,
   *  block table and block size are its own. K and V may have another dtype, or
   *  scales and minima of another kind: see kvevict_compact(). Its other
   *  companions it has as many, alike and in the same order. NULL with merge
   *  and for kvevict_reorder(). */
  const kvevict_view* destination;
} kvevict_move;

#define KVEVICT_MOVE_INIT \
  { (uint32_t)sizeof(kvevict_move), 0, 0, 0, 0, KVEVICT_MERGE_NONE, 0, 0, 0, 0 }

/**
 * Moves the surviving rows of layers down to consecutive slots, in place, or
 * copies them to other caches. Row keep[i] of a head goes to slot first_slot +
 * i; K, V and companions move alike, byte for byte. In place rows from
 * first_slot + the list's count on are unspecified afterwards. All checks come
 * before the first byte moves. Cost: the kept rows that change place are read
 * and written once, on CUDA in one launch for all planes that lie alike.
 *
 * With first_slot only the tail of a cache is compacted, such as the tree of a
 * speculative step. Slots below it and their entries in block tables are
 * neither read nor written. Heads whose tails begin later list the slots before
 * it as well. With a destination the cache that rows come from stays as it is,
 * and only the slots that receive rows change.
 *
 * K or V whose destination has another dtype, or other scales and minima, are
 * stored anew: rows are read as floats and quantized with numbers of their own,
 * or with those of the destination if these do not move. Errors are at most
 * half a step; NaN and infinity become NaN. Rows that share numbers by groups
 * of tokens are always stored anew, in place from the group of the first slot
 * that goes on. docs/dtypes.md has the rule for each dtype.
 *
 * A destination with recent planes takes rows from slot first_recent on in
 * these. In place such rows stay: lists name all slots from first_recent on,
 * heads hold equally many, and on CUDA keep.counts is NULL. A move with merge
 * changes rows that stay, also where they do not move: copy blocks that another
 * sequence shares before.
 *
 * @param[in] context    Non-NULL; device and parallel runner.
 * @param[in] moves      [moves_len], a layer each. Lists are strictly
 *                       ascending, which is checked on the CPU, on CUDA only by
 *                       a context with debug set. Caches, destinations among
 *                       them, must not overlap, which is checked as
 *                       kvevict_sequence_evict() does; of one with first_slot
 *                       the slots from there on count.
 * @param[in] moves_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] workspace  See kvevict_compact_workspace(). If nothing merges,
 *                       less than the best is not touched, and CUDA may be
 *                       slower.
 * @param[in] workspace_bytes  Its size; 0 with NULL.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also for a destination
 *         that lacks a scale or minimum); KVEVICT_ERROR_UNSUPPORTED (rows to
 *         merge, or of another dtype, that cannot be read; on CUDA elements
 *         that are not aligned to their size). Threads: safe for distinct
 *         caches and workspaces.
 */
KVEVICT_API kvevict_status
kvevict_compact(const kvevict_context* context, const kvevict_move* moves,
                size_t moves_len, void* workspace, size_t workspace_bytes,
                kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * The workspace of kvevict_compact(): the least is 0. So is the best on the
 * CPU, and on CUDA where rows are wide enough to move without. Moves with merge
 * need 28 bytes per slot and worker on the CPU, beside tiles of some rows; on
 * CUDA 16 bytes per slot and head of one layer, and make use of as much for 16.
 * @param[in]  context    Non-NULL.
 * @param[in]  moves      [moves_len] as for the call; of the lists only n_lists
 *                        and count are read, and n_tokens only with merge.
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
 * or the attention that its slots have got. Opaque. One thread at a time.
 *
 * A sequence is small: under 2 KiB per layer, twice 4 bytes per position that
 * an eviction may leave behind (with adaptive heads any head may get what all
 * have), and query memory only while it observes.
 *
 * On CUDA queries, sums, positions and lengths lie in device memory; the host
 * follows the lengths by counting where counts are the plan's. Calls that a
 * stream captures into a graph count as one run: see
 * kvevict_sequence_replayed().
 */
typedef struct kvevict_sequence kvevict_sequence;

/** As first_position: the sequence's logical length. On CUDA it is then read
 *  from device memory when the work runs, so that a captured graph goes on
 *  where the sequence is. */
#define KVEVICT_POSITION_NEXT UINT32_MAX

/**
 * Creates an empty sequence. Takes microseconds on the CPU.
 * @param[in]  plan          Non-NULL; kept alive by the sequence.
 * @param[out] out_sequence  Non-NULL. Destroy with kvevict_sequence_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_sequence_create(
    const kvevict_plan* plan, kvevict_sequence** out_sequence) KVEVICT_NOEXCEPT;

/**
 * Destroys a sequence; NULL is ignored. It gives query memory back as
 * kvevict_sequence_end_observing() does. On CUDA its work must have run: device
 * memory is freed.
 * @param[in] sequence  NULL or a sequence.
 */
KVEVICT_API void kvevict_sequence_destroy(kvevict_sequence* sequence)
    KVEVICT_NOEXCEPT;

/**
 * Forgets everything, as if newly created, but keeps query memory; allocates
 * nothing.
 * @param[in] sequence  Non-NULL.
 * @param[in] stream    See kvevict_stream.
 */
KVEVICT_API kvevict_status kvevict_sequence_reset(
    kvevict_sequence* sequence, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Gives a sequence the memory in which it keeps what it is shown: the last
 * query rows, or sums of attention.
 *
 * For policies that score by queries, call it before the first row is observed,
 * and kvevict_sequence_end_observing() once the eviction that uses the rows is
 * done. For h2o the sums last as long as the memory. It does nothing for other
 * policies.
 *
 * @param[in] sequence  Non-NULL, not observing yet.
 * @param[in] memory    Lent until the end: the workspace of OBSERVE, see
 *                      kvevict_plan_workspace(). NULL: from a pool of the
 *                      context, which allocates where it has none that is large
 *                      enough, takes a lock, and keeps what comes back until
 *                      the context goes.
 * @param[in] memory_bytes  0 with NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status
kvevict_sequence_begin_observing(kvevict_sequence* sequence, void* memory,
                                 size_t memory_bytes) KVEVICT_NOEXCEPT;

/**
 * Forgets query rows and sums and gives their memory back. Does nothing for a
 * sequence that does not observe.
 *
 * On CUDA the work that uses them must have run, the eviction above all,
 * and so must graphs that observe: somebody else may get the memory at once.
 *
 * @param[in] sequence  Non-NULL.
 */
KVEVICT_API kvevict_status
kvevict_sequence_end_observing(kvevict_sequence* sequence) KVEVICT_NOEXCEPT;

/** What a layer shows of one chunk of tokens. */
typedef struct kvevict_observation {
  uint32_t struct_size;
  uint32_t layer; /**< < n_layers. */
  /** Queries, row_lse or both of the chunk's n_rows rows; or attention_sums,
   *  summed over these rows. Copied. */
  const kvevict_signal_inputs* inputs;
} kvevict_observation;

#define KVEVICT_OBSERVATION_INIT \
  { (uint32_t)sizeof(kvevict_observation), 0, 0 }

/**
 * Shows the query rows of one chunk, of one layer or of many, or the attention
 * that they paid.
 *
 * Window attention: the last window + draft_tokens rows of each layer are
 * remembered, however the prompt is split into chunks. Showing earlier
 * positions again replaces them and forgets what came after (rollback).
 * Log-sum-exps may come with the rows or after them; only CUDA uses them, if it
 * has all of a layer's window.
 *
 * h2o: attention_sums, [n_sum_heads, slots], are the attention weights of the
 * n_rows queries, summed over them, for the slots that the layer holds with the
 * rows' own tokens. They are reduced to the rows that `sums` of the policy
 * says, pooled by sum_pool, and added in the order of calls. An eviction that
 * is given neither attention_sums nor queries scores by these sums, which must
 * reach up to the last token. An engine may begin with any row; from then on no
 * row may be left out. Sums cannot be taken back, so show rows of speculation
 * when they are accepted. With sum_last a trim forgets the calls that have rows
 * it takes back. A trim to the first row observed or below, a start, a load and
 * a reset forget sums; a fork copies them.
 *
 * The call does nothing for other policies and for layers without a full cache.
 * Otherwise the sequence must have memory: kvevict_sequence_begin_observing().
 * CUDA cannot capture the first sums behind tokens of which none were observed,
 * unless with sum_last. docs/reference.md has more.
 *
 * @param[in] sequence          Non-NULL.
 * @param[in] observations      [observations_len], of ascending layers.
 * @param[in] observations_len  0 does nothing.
 * @param[in] n_rows            Of each layer; 0 is valid and does nothing.
 * @param[in] first_position    Position of row 0, or KVEVICT_POSITION_NEXT.
 * @param[in] stream            See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also sums of rows that do
 *         not follow on, or of more slots than max_tokens);
 *         KVEVICT_ERROR_UNSUPPORTED (opaque queries).
 */
KVEVICT_API kvevict_status kvevict_sequence_observe(
    kvevict_sequence* sequence, const kvevict_observation* observations,
    size_t observations_len, uint32_t n_rows, uint32_t first_position,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Notes that the engine stored n_tokens more rows in every layer, each at the
 * layer's next slot and with the next positions.
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
 * Says that what has been appended so far is the prompt; see prompt and every
 * of kvevict_policy. Trimming into the prompt shortens it, a reset forgets it.
 * @param[in] sequence  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also where the prompt has
 *         ended before.
 */
KVEVICT_API kvevict_status
kvevict_sequence_end_prompt(kvevict_sequence* sequence) KVEVICT_NOEXCEPT;

/**
 * Takes back the last tokens, e.g. rejected speculation: the sequence is then
 * as if they had not been appended. No cache byte changes; the engine writes
 * over their slots.
 *
 * Two ranges of lengths are exact: from the logical length at the last eviction
 * of any layer on, and up to kvevict_sequence_exact_prefix(). Between them
 * tokens are missing that do not come back: such a length is an error that
 * names the nearest exact one on either side. Observed queries of the tokens
 * are forgotten. Those of the tokens before them are all there if at most
 * draft_tokens of kvevict_plan_options are taken back; otherwise an eviction
 * may want some of them observed again. kvevict_sequence_observe() says what
 * becomes of sums. kvevict_sequence_report() stays.
 *
 * On CUDA a length below the last eviction waits as
 * kvevict_sequence_exact_prefix() does; others do not.
 *
 * @param[in] sequence    Non-NULL.
 * @param[in] new_length  The logical length to return to; the present one does
 *                        nothing.
 * @param[in] stream      See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, which names the bounds.
 */
KVEVICT_API kvevict_status
kvevict_sequence_trim_to(kvevict_sequence* sequence, uint32_t new_length,
                         kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What an eviction may be told beside the policy. */
typedef struct kvevict_evict_options {
  uint32_t struct_size;
  /** 0: survivors move. 1: rows stay, and the views' tables are permuted:
   *  blocks that stay come first, in order, the others behind. The engine frees
   *  the entries from ceil(stored length / block_size) on. Whole blocks stay or
   *  go: block_size of each view divides select_block, or both are 1. Tables
   *  are block_table, or without one the planes' address tables; they must be
   *  writable. Heads with lists of their own have tables of their own, and
   *  layers that share a table keep the same tokens. Other tables do not
   *  overlap. Blocks that others hold (n_shared_blocks) are left to them. See
   *  kvevict_plan_capabilities() and docs/integration.md. */
  uint32_t by_table;
  /** Strictly ascending positions below the logical length that must stay;
   *  those already evicted are ignored. NULL with length 0 for none. */
  const int32_t* protected_positions;
  size_t protected_positions_len;
  /** [n_layers]: what the policy's signal and weights need beside keys and
   *  values. Query rows of the window, as kvevict_score() takes them, and
   *  attention_sums replace observed ones; row_lse is read only beside query
   *  rows. NULL: none. */
  const kvevict_signal_inputs* inputs;
  size_t inputs_len; /**< = n_layers; 0 with NULL. */
  /** Memory on the context's device, aligned as a workspace, that receives the
   *  rows that go: see kvevict_sequence_undo(). NULL: they are gone for good.
   *  Not written where nothing goes. Apart from the workspace and all planes of
   *  the views. */
  void* undo;
  /** At least what kvevict_sequence_undo_bytes() says; 0 with NULL. */
  size_t undo_bytes;
  /** Positions that go later or sooner than others: at most 64 ranges, none of
   *  which begins before the end of the one before. Positions that a list does
   *  not hold, evicted or yet to come, are ignored, so that the same ranges do
   *  for every eviction. NULL with length 0 for none. */
  const kvevict_token_range* ranges;
  size_t ranges_len;
  /** NULL: rows stay in the views. Else [n_layers] views, given as the views of
   *  the call: other caches, to whose first slots all rows that stay are
   *  copied, also those of layers that lose none. The views stay as they are,
   *  and the sequence's rows are those of the destinations. K or V of another
   *  dtype are stored anew, see kvevict_compact().
   *  kvevict_sequence_kept_slots() says how many slots they need. Layers with
   *  one cache have one destination; others share no plane and no byte with a
   *  view. Needs a plan with has_destinations. Undo, merge and by_table are
   *  refused. */
  const kvevict_view* destinations;
  size_t destinations_len; /**< = n_layers; 0 with NULL. */
} kvevict_evict_options;

#define KVEVICT_EVICT_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_evict_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Scores, selects and compacts the cache of a whole model in place. Every check
 * is made before the first byte moves. Afterwards the next token goes to slot
 * kvevict_sequence_stored_length() with position
 * kvevict_sequence_logical_length().
 *
 * A layer is left alone if it is within its budget, if its budget is a ratio
 * that has no room for what must stay, or if the context is shorter than the
 * query window. If all are, or with policy none, no byte changes. So a decoding
 * loop may call this after every step: margin, every and prompt of the policy
 * say when there is something to do.
 *
 * merge changes rows that stay, also where they do not move: copy blocks that
 * another sequence shares before. Layers that share a cache (equal views) are
 * compacted once, by the first one's queries. They, and layers that share a
 * companion, must keep the same tokens: scope MODEL, or streaming-llm with a
 * uniform split. Caches that overlap otherwise are an error where rows are to
 * move. CUDA does not read block ids: it compares paged caches only if they
 * share a block_table.
 *
 * If scores decide what layers keep (split cake or lazy), all layers longer
 * than the least budget are scored, protected positions count as kept by every
 * layer, and CUDA waits once. It also waits for the eviction before this one if
 * more positions are protected than the budget has room for, if keep_window is
 * no and tokens of the window may be gone, and with select_on_host.
 *
 * Rows in recent planes stay where they are and count as recent tokens; the
 * largest number of any layer counts for all. Afterwards first_recent is
 * kvevict_sequence_stored_length() less their number. Recent planes and groups
 * of tokens exclude undo, by_table and chunk, and recent planes exclude heads
 * of different lengths. docs/integration.md has by_table and destinations,
 * docs/reference.md the corner cases.
 *
 * @param[in]  sequence         Non-NULL.
 * @param[in]  views      [n_layers] views, all with the same struct_size, a
 *                        multiple of a view's alignment.
 * @param[in]  views_len  = n_layers.
 * @param[in]  options    NULL for none.
 * @param[in]  workspace  For EVICT, see kvevict_plan_workspace().
 * @param[in]  workspace_bytes  Its size, at least the least for the longest
 *                        layer.
 * @param[in]  stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a bad view, one without
 *         planes that the geometry has, too few observed queries, sums that do
 *         not reach up to the last token, a budget smaller than what must stay,
 *         layers of unequal length under scope MODEL, a destination that the
 *         plan has no room for, or that rows cannot go to);
 *         KVEVICT_ERROR_UNSUPPORTED (the policy scores by keys or values that
 *         cannot be read, merges them, or turns keys that cannot be turned; or
 *         tokens of the window are gone already, which keep_window=no allows;
 *         or chunk is no multiple of the block size; or by_table parts of
 *         blocks would go, a view is contiguous or a ring, or heads or layers
 *         that keep different tokens share a table).
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
  uint64_t bytes_after;  /**< In use then, by destinations if there are. */
  /** Slots in use before, summed over the layers: of a layer whose heads
   *  differ, the most of any head. */
  uint64_t tokens_before;
  uint64_t tokens_after;
  /** Paged: blocks, summed over the layers and the block tables of heads, that
   *  hold nothing any more: the entries of each block table from
   *  ceil(stored length / block_size) on. 0 with destinations. */
  uint64_t blocks_freed;
  /** Why layers were left alone that may be over their budgets:
   *  KVEVICT_REASON_OPEN_PROMPT, then all were; KVEVICT_REASON_SMALL_BUDGET,
   *  then one was at least. Otherwise KVEVICT_REASON_NONE. */
  kvevict_reason reason;
  uint32_t reserved; /**< 0. */
} kvevict_evict_report;

#define KVEVICT_EVICT_REPORT_INIT                             \
  {                                                           \
    (uint32_t)sizeof(kvevict_evict_report), 0, 0, 0, 0, 0, 0, \
        KVEVICT_REASON_NONE, 0                                \
  }

/**
 * What an eviction did to one keep list.
 *
 * The mass of a token is the score that the list was chosen by: shaped, weighed
 * and reduced. Scores are a mass if the signal is attention, paid or expected,
 * or the caller's, without redundancy, secure, rescue or diverse_mass;
 * kvevict_policy_resolve() tells. Tokens without a finite score, and those of a
 * kept window, have no mass and are in neither sum. Sinks and other tokens that
 * must stay have the mass of their score. With chunk= only chunks that lose
 * tokens have masses.
 */
typedef struct kvevict_list_report {
  uint32_t struct_size;
  uint32_t layer;
  uint32_t tokens_before; /**< Slots in use. */
  uint32_t tokens_after;
  /** What share of the list's mass stayed, in [0, 1]; 1 for a list that lost no
   *  mass, also an empty one. NaN where nothing is known: before the first
   *  eviction, without report_mass of kvevict_plan_options, where scores are no
   *  masses, or if one of the list is below 0. Sums are in f32, of every 256th
   *  slot and then of halves. */
  float mass_kept;
  /** The largest mass of a single token that went, as a share of the list's;
   *  0 if none had any, NaN likewise. */
  float largest_mass_evicted;
} kvevict_list_report;

#define KVEVICT_LIST_REPORT_INIT \
  { (uint32_t)sizeof(kvevict_list_report), 0, 0, 0, 0, 0 }

/**
 * Tells what the last successful kvevict_sequence_evict() did; counts are 0
 * before it, after a reset or a load, and after a failure of the device. Masses
 * that CUDA has measured stay there: with lists this call then waits for the
 * eviction.
 * @param[in]  sequence   Non-NULL.
 * @param[out] out        NULL, or out->struct_size set.
 * @param[out] lists      [lists_len], each with struct_size set, all to the
 *                        same: the lists of all layers end to end, see
 *                        kvevict_plan_layer().
 * @param[in]  lists_len  0, or as many as there are.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; with masses on CUDA
 *         KVEVICT_ERROR_UNSUPPORTED while the stream is captured.
 */
KVEVICT_API kvevict_status kvevict_sequence_report(
    const kvevict_sequence* sequence, kvevict_evict_report* out,
    kvevict_list_report* lists, size_t lists_len) KVEVICT_NOEXCEPT;

/**
 * Slots in use by a layer and KV head: where its next row goes.
 * @param[in]  sequence    Non-NULL.
 * @param[in]  layer       < n_layers, with a full cache: kvevict_plan_layer()
 *                         tells which ones have it.
 * @param[in]  kv_head     < n_kv_heads; all alike but for a plan with
 *                         head_budgets or heads that are not equal.
 * @param[out] out_length  Slots.
 */
KVEVICT_API kvevict_status kvevict_sequence_stored_length(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Tokens seen so far: the position of the next one. RoPE's too, but with rotate
 * of kvevict_policy, where that is kvevict_sequence_stored_length().
 * @param[in]  sequence    Non-NULL.
 * @param[out] out_length  Tokens.
 */
KVEVICT_API kvevict_status kvevict_sequence_logical_length(
    const kvevict_sequence* sequence, uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * The positions of all slots of a layer and KV head, ascending.
 * @param[in]  sequence            Non-NULL.
 * @param[in]  layer               < n_layers, with a full cache.
 * @param[in]  kv_head             < n_kv_heads; all alike where they share a
 *                                 list.
 * @param[out] positions  The layer's stored length in elements.
 * @param[in]  positions_capacity  Elements of positions.
 * @param[out] out_positions_len   Elements written.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, e.g. a capacity that is
 *         too small, with both numbers.
 */
KVEVICT_API kvevict_status kvevict_sequence_keep_positions(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    int32_t* positions, size_t positions_capacity,
    size_t* out_positions_len) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_KVEVICT_H_ */
