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
 * - Failure: functions that can fail return kvevict_status. On any status other
 *   than KVEVICT_OK no output has been written, no cache byte has moved, and
 *   kvevict_last_error_message() names the parameter, its value and the bound.
 *   On CUDA any call may also return KVEVICT_ERROR_DEVICE, which promises less.
 * - Ownership: pointers are borrowed until the call returns, unless stated
 *   otherwise. A handle keeps what it was made from alive: a plan its context,
 *   a sequence its plan. So handles may be destroyed in any order, and NULL may
 *   be destroyed.
 * - Memory: create functions and kvevict_sequence_begin_observing(), _start(),
 *   _fork() and _load() allocate through the context's hooks. Executing calls
 *   (score, select, compact, reorder, observe, append, evict) allocate nothing,
 *   take no lock, print nothing and read no environment, but for a CUDA kernel
 *   that was not prepared. Their scratch is the caller's workspace, apart from
 *   all that they read and write: score, compact, reorder and evict refuse one
 *   that overlaps rows of their caches, as far as the host knows where those
 *   are. One call at a time may use a workspace; on CUDA a call uses it until
 *   the stream has passed the call, so that calls on two streams need two.
 * - Hooks: alloc, free, parallel, log and a kvevict_prefill_fn do not throw. An
 *   exception that leaves one ends the process by std::terminate(), since rows
 *   may be half moved by then. From an allocator std::bad_alloc counts as NULL.
 * - Threads: functions may be called from any threads at once, but for two that
 *   use one sequence, one workspace or one output.
 * - Cost: microseconds, or what a call says. Executing calls take time
 *   proportional to the layers beside what they do to rows.
 * - CUDA: the same calls with a context on CUDA. Caches, queries, block tables,
 *   scores, keep lists and workspaces are then device addresses (a CUdeviceptr
 *   where the type is a pointer), which the library does not read on the host;
 *   policies, options, views themselves, protected positions and reports stay
 *   host memory. Executing calls queue work on the given stream and return
 *   without waiting; what they are given on the device must stay valid until
 *   the stream has passed them. They push the context's CUcontext and pop it
 *   again, so any thread may call. After kvevict_context_prepare() they compile
 *   and load nothing and may be captured into a CUDA graph, which must not be
 *   launched after the last handle of its context is gone. A call that would
 *   have to compile or to wait returns KVEVICT_ERROR_UNSUPPORTED while its
 *   stream is captured, and the capture goes on. Such calls are those whose
 *   kernels are not prepared, questions about positions, sequences that start
 *   from listed positions, are saved or loaded, or trimmed into what was
 *   evicted, evictions whose budgets scores decide (parameter heads; split
 *   cake or lazy), and all evictions with select_on_host or debug.
 * - Structs begin with struct_size = sizeof(the struct). Initialise one that a
 *   call reads with its *_INIT macro, then set what you need. A struct that a call writes needs only its struct_size.
 *   kvevict_plane has no struct_size: KVEVICT_PLANE_INIT fills it, and its
 *   reserved fields are what it grows into.
 *   Structs grow at their end. A caller of an older release passes a smaller
 *   size, down to the first release's; fields that it lacks have their
 *   defaults. A caller of a newer one passes a larger size, which is accepted
 *   if the bytes that this library does not know are 0; in output structs those
 *   bytes stay as they are. Structs in an array have one struct_size, a
 *   multiple of 8, which is also how far they are apart.
 * - Sizes in bytes end in _bytes, counts start with n_, lengths of arrays end
 *   in _len and count elements. Layouts are written outermost first. Positions,
 *   slots and lengths are at most 2^31 - 1; offsets are 64-bit throughout.
 * - slot: row of the cache, 0 .. stored length - 1. position: place of the
 *   token in the sequence, what RoPE saw, 0 .. logical length - 1. Before the
 *   first eviction they are equal.
 * - Determinism: equal inputs give equal bytes on every run and for every
 *   thread count. The threads' floating-point mode (rounding, denormals, traps)
 *   does not matter and is left as it was. Equal scores give equal keep lists
 *   on every CPU target and device; scores of the CPU and of CUDA differ by
 *   rounding.
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

#ifdef __cplusplus
#define KVEVICT_NOEXCEPT noexcept
#else
#define KVEVICT_NOEXCEPT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------- */

/** @return "MAJOR.MINOR.PATCH" of the library in use; static. Since: 0.1 */
KVEVICT_API const char* kvevict_version(void) KVEVICT_NOEXCEPT;

/** @return KVEVICT_ABI_VERSION of the library in use. Since: 0.1 */
KVEVICT_API uint32_t kvevict_abi_version(void) KVEVICT_NOEXCEPT;

/* ---- Status and errors --------------------------------------------------- */

/** What a call came to. One value per reaction a caller could have. */
enum kvevict_status
#ifdef __cplusplus
    : int32_t
#endif
{
  /** It worked. */
  KVEVICT_OK = 0,
  /** A parameter is wrong; correct the call. */
  KVEVICT_ERROR_INVALID_ARGUMENT = 1,
  /** Well-formed, but this layout, dtype or combination is not handled. */
  KVEVICT_ERROR_UNSUPPORTED = 2,
  /** The device or a library it needs is not on this machine. */
  KVEVICT_ERROR_UNAVAILABLE = 3,
  /** The allocator hook returned NULL. */
  KVEVICT_ERROR_OUT_OF_MEMORY = 4,
  /** A bug in kvevict; please report the message. */
  KVEVICT_ERROR_INTERNAL = 5,
  /** The driver reported an error; the message has the call and its name. What
   *  the call had queued may have run in part. "context lost" in the message
   *  means that nothing more will run in this CUcontext. */
  KVEVICT_ERROR_DEVICE = 6
};
#ifndef __cplusplus
typedef int32_t kvevict_status;
#endif

/**
 * The sentence that explains the calling thread's last failed call.
 *
 * @return ASCII, never NULL, "" if no call of this thread has failed yet.
 *         Static thread-local storage, overwritten by the thread's next
 *         failure; a successful call leaves it alone. Needs no memory.
 *         Since: 0.1
 */
KVEVICT_API const char* kvevict_last_error_message(void) KVEVICT_NOEXCEPT;

/**
 * @param[in] status  Any number.
 * @return The name of a status, e.g. "INVALID_ARGUMENT"; "UNKNOWN" for a
 *          number that is none. Static. Since: 0.1
 */
KVEVICT_API const char* kvevict_status_name(kvevict_status status)
    KVEVICT_NOEXCEPT;

/* ---- Devices, element types, SIMD ---------------------------------------- */

/** Where the cache lies and the work is done. */
enum kvevict_device
#ifdef __cplusplus
    : int32_t
#endif
{
  /** Host memory, and the threads of the caller. */
  KVEVICT_DEVICE_CPU = 0,
  /** Memory of an NVIDIA GPU, and a CUDA stream. */
  KVEVICT_DEVICE_CUDA = 1
};
#ifndef __cplusplus
typedef int32_t kvevict_device;
#endif

/**
 * Asks whether contexts can be created on a device here.
 *
 * @param[in] device  Any number.
 * @return KVEVICT_OK, or KVEVICT_ERROR_UNAVAILABLE with the reason as message,
 *         or KVEVICT_ERROR_INVALID_ARGUMENT for a number that is no device.
 *         Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_device_check(kvevict_device device)
    KVEVICT_NOEXCEPT;

/** A CUstream; NULL is the legacy default stream, CU_STREAM_PER_THREAD and the
 *  like pass through. Ignored on the CPU. */
typedef void* kvevict_stream;

/**
 * Element types. Values are ABI and never reused.
 *
 * Quantized rows are moved byte for byte and read as the f32 that they stand
 * for, rounded once, or on SIMD targets without a fused multiply-add twice;
 * there are no copies of them in memory. Quantized keys can be scored, but
 * neither turned nor merged, for that would round them again; queries are f32,
 * f16 or bf16.
 *
 * U8, I8, U4 and U4_HALVES stand for code * scale + minimum, FP8 for
 * value * scale, with the scale and minimum of their token and head or of more:
 * see kvevict_role. Without one the minimum is 0, and the scale of fp8 is 1;
 * codes must have a scale to be scored.
 *
 * Keys quantized per channel over a group of tokens (KIVI) are codes whose scale
 * and minimum have group_tokens: see kvevict_plane. A codec that only the engine
 * can read, and that packs a group of tokens together, has no row per token. An
 * engine may call such a group a token (an opaque row of all its bytes) and keep
 * whole groups, or store rows in another type.
 */
enum kvevict_dtype
#ifdef __cplusplus
    : int32_t
#endif
{
  /** Rows of bytes whose content is the engine's secret: they can be moved, not
   *  scored. */
  KVEVICT_DTYPE_OPAQUE = 0,
  /** IEEE 754 single precision. */
  KVEVICT_DTYPE_F32 = 1,
  /** IEEE 754 half precision. */
  KVEVICT_DTYPE_F16 = 2,
  /** The upper half of an f32. */
  KVEVICT_DTYPE_BF16 = 3,
  /** Sign, 4 bits of exponent with bias 7, 3 of mantissa: the "fn" variant,
   *  up to 448, without infinities; 0x7F and 0xFF are NaN. */
  KVEVICT_DTYPE_FP8_E4M3 = 4,
  /** The upper half of an f16: up to 57344, with infinities and NaN. */
  KVEVICT_DTYPE_FP8_E5M2 = 5,
  /** Codes 0 .. 255. */
  KVEVICT_DTYPE_U8 = 6,
  /** Codes -128 .. 127, in two's complement. */
  KVEVICT_DTYPE_I8 = 7,
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
#ifndef __cplusplus
typedef int32_t kvevict_dtype;
#endif

/** One row of the table of element types. */
typedef struct kvevict_dtype_info {
  uint32_t struct_size;
  kvevict_dtype dtype;
  const char* name;        /**< "f32"; static. */
  uint32_t element_bytes;  /**< 0 where elements are not bytes of their own. */
  uint32_t can_move;       /**< 1 if compaction moves it. */
  uint32_t can_score;      /**< 1 if a signal can read keys of it. */
  uint32_t can_rotate;     /**< 1 if RoPE can be re-applied to keys of it. */
  uint32_t block_elements; /**< Elements are stored so many together, and */
  uint32_t block_bytes;    /**< so many bytes; 0 and 0 for opaque. */
  uint32_t takes_scale;    /**< 1 if rows may have a scale, 2 if they must. */
  uint32_t takes_minimum;  /**< 1 if rows may have a minimum. */
} kvevict_dtype_info;

/**
 * Enumerates the element types.
 *
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end.
 *         Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_dtype_at(uint32_t index, kvevict_dtype_info* out) KVEVICT_NOEXCEPT;

/**
 * Enumerates the SIMD targets that this build holds and this CPU can run.
 *
 * @param[in] index  0 is the best one, which contexts use that name none.
 * @return A name such as "AVX3_DL", static; NULL past the end.
 *         Since: 0.1
 */
KVEVICT_API const char* kvevict_simd_target_at(uint32_t index) KVEVICT_NOEXCEPT;

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
enum kvevict_log_level
#ifdef __cplusplus
    : int32_t
#endif
{
  /** Something to act on. */
  KVEVICT_LOG_WARNING = 0,
  /** What was found and chosen. */
  KVEVICT_LOG_INFO = 1,
  /** Details for whoever looks for an error. */
  KVEVICT_LOG_DEBUG = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_log_level;
#endif

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
 *
 * @param[in]  options      NULL for the defaults (CPU, one thread). Hooks and
 *                          their user_data must stay valid until every handle
 *                          made from the context is destroyed.
 * @param[out] out_context  Non-NULL. Destroy with kvevict_context_destroy().
 * @return KVEVICT_OK, KVEVICT_ERROR_INVALID_ARGUMENT, KVEVICT_ERROR_UNAVAILABLE
 *         (no such device, no CUcontext, no compiler: with the reason),
 *         KVEVICT_ERROR_OUT_OF_MEMORY. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_context_create(const kvevict_context_options* options,
                       kvevict_context** out_context) KVEVICT_NOEXCEPT;

/**
 * Destroys a context; NULL is ignored. Plans and sequences made from it stay
 * usable and release it with the last of them.
 *
 * @param[in] context  NULL or a context.
 * Since: 0.1
 */
KVEVICT_API void kvevict_context_destroy(kvevict_context* context)
    KVEVICT_NOEXCEPT;

/* ---- Policy -------------------------------------------------------------- */

/** How several numbers become one; NaN in, NaN out. */
enum kvevict_reduce
#ifdef __cplusplus
    : int32_t
#endif
{
  /** Their mean. */
  KVEVICT_REDUCE_MEAN = 0,
  /** Their maximum. */
  KVEVICT_REDUCE_MAX = 1,
  /** Their sum. */
  KVEVICT_REDUCE_SUM = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_reduce;
#endif

/** What shares one keep list. */
enum kvevict_scope
#ifdef __cplusplus
    : int32_t
#endif
{
  /** Nothing: every KV head of every layer has its own. */
  KVEVICT_SCOPE_KV_HEAD = 0,
  /** The heads of a layer. */
  KVEVICT_SCOPE_LAYER = 1,
  /** All layers and their heads. */
  KVEVICT_SCOPE_MODEL = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_scope;
#endif

/** Which of two equal scores survives. */
enum kvevict_tie
#ifdef __cplusplus
    : int32_t
#endif
{
  /** The earlier token. */
  KVEVICT_TIE_LOWER_POSITION = 0,
  /** The later token. */
  KVEVICT_TIE_HIGHER_POSITION = 1
};
#ifndef __cplusplus
typedef int32_t kvevict_tie;
#endif

/** What becomes of a row that compaction drops: nothing, or it is merged into
 *  one that stays.
 *
 *  For each KV head by itself, with u = k / max(|k|, 1e-6): a token e that goes
 *  has a target, the token t of those that stay whose u_t . u_e, the
 *  similarity, is the highest; of equals the lowest slot. Rows are changed
 *  where they lie, before survivors move: x_t becomes a mean of what x_t and
 *  the x_e were, added up in ascending order of the slots in f32 and rounded
 *  once to the plane's dtype, to the nearest, halves to even. Targets that get
 *  nothing keep their bytes, and so do companions. A token whose key or value
 *  row has no finite norm in f32, as with NaN or infinity, takes no part. */
enum kvevict_merge
#ifdef __cplusplus
    : int32_t
#endif
{
  /** Nothing. */
  KVEVICT_MERGE_NONE = 0,
  /** Values only, by how similar their keys are: with
   *  w_e = max(similarity, 0) |v_e| / (|v_e| + |v_t| + 1e-6),
   *  v_t = (v_t + sum w_e v_e) / (1 + sum w_e), where the sum of weights is
   *  above 0. merge_threshold and merge_fraction say which e take part.
   *  MergingPress of kvpress, after arXiv:2210.09461 and arXiv:2406.13035. */
  KVEVICT_MERGE_VALUES = 1,
  /** Keys and values: x_t = the mean of x_t and of (x_e + x_t) / 2 of every e.
   *  Keys that RoPE has turned are averaged over positions. LOOK-M,
   *  arXiv:2406.18139. */
  KVEVICT_MERGE_PIVOT = 2,
  /** Keys, likewise, and values: with w_e = max((similarity + 1) / 2, 1e-6),
   *  x_t = (x_t + sum w_e x_e) / (1 + sum w_e). KVMerger,
   *  arXiv:2407.08454. */
  KVEVICT_MERGE_WEIGHTED = 3
};
#ifndef __cplusplus
typedef int32_t kvevict_merge;
#endif

/** What a policy may read of a layer: rows of its view, or a plane of
 *  kvevict_signal_inputs. */
enum kvevict_input
#ifdef __cplusplus
    : int32_t
#endif
{
  KVEVICT_INPUT_KEYS = 0,    /**< k of the view, of a scored dtype. */
  KVEVICT_INPUT_VALUES = 1,  /**< v of the view, likewise. */
  KVEVICT_INPUT_QUERIES = 2, /**< Of the last tokens; non-causal: of all. */
  KVEVICT_INPUT_ROW_LSE = 3, /**< Log-sum-exps of these queries. */
  KVEVICT_INPUT_SCORES = 4,  /**< The caller's own. */
  KVEVICT_INPUT_ATTENTION_SUMS = 5,   /**< Attention that each slot got. */
  KVEVICT_INPUT_QUERY_MEAN = 6,       /**< Mean of the queries to come. */
  KVEVICT_INPUT_QUERY_COVARIANCE = 7, /**< Their covariance. */
  KVEVICT_INPUT_KEY_FILTER = 8,       /**< A direction per KV head. */
  KVEVICT_INPUT_TOKEN_WEIGHTS = 9,    /**< What scores are multiplied by. */
  KVEVICT_INPUT_QUERY_CENTERS = 10    /**< Where queries lie before RoPE. */
};
#ifndef __cplusplus
typedef int32_t kvevict_input;
#endif

/** Whether a policy wants an input. */
enum kvevict_need
#ifdef __cplusplus
    : int32_t
#endif
{
  /** It is not read. */
  KVEVICT_NEED_NONE = 0,
  /** It is used where it is given. h2o needs attention_sums, observed or given,
   *  or else keys and queries. Each of these is optional, since the other way
   *  may replace it. */
  KVEVICT_NEED_OPTIONAL = 1,
  /** Without it calls fail. */
  KVEVICT_NEED_REQUIRED = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_need;
#endif

/**
 * What survives an eviction: signal, shaping, budget. Opaque. It is a name and the
 * values of its parameters, and is most easily written as a text:
 * `snapkv:budget=2048,window=32`. kvevict_policy_at() lists the names,
 * kvevict_preset_at() those of presets, kvevict_parameter_at() the parameters
 * with their range, default and meaning; docs/parameters.md has them as a table.
 *
 * Always kept: the first `sink` tokens (of each chunk, where there are chunks),
 * the last `recent`, the observation window (unless keep_window=no) and
 * protected positions; they count inside the budget. The rest of the budget
 * goes to the highest scores: descending, ties by `tie`, NaN last, +infinity
 * first.
 *
 * What must stay has to fit: sink < budget for streaming-llm,
 * sink + max(recent, kept window) < budget for snapkv, pyramidkv, tova, r-kv
 * and cake, sink + recent <= budget for the others. With select_block b, at
 * whatever length: sink, rounded up to whole blocks, + recent or kept window
 * + b - 1 <= budget. With chunks, the sum of what each must keep, at least one
 * token, <= budget; a budget in tokens also needs sink < chunk. A budget in
 * tokens that is too small is an error. A ratio of a short context may be too
 * small too: then the context is left alone, and kvevict_evict_report says
 * KVEVICT_REASON_SMALL_BUDGET. A context shorter than the query window is left
 * alone likewise, whether the budget is a ratio or a count.
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
 *
 * @param[in]  text        Zero-terminated, non-NULL.
 * @param[out] out_policy  Non-NULL. Destroy with kvevict_policy_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_OUT_OF_MEMORY;
 *         KVEVICT_ERROR_INVALID_ARGUMENT: with the column and what was expected
 *         there where the text cannot be read, with the numbers where they do
 *         not go together. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_policy_create(
    const char* text, kvevict_policy** out_policy) KVEVICT_NOEXCEPT;

/**
 * Creates a policy that equals another.
 *
 * @param[in]  policy      Non-NULL.
 * @param[out] out_policy  Non-NULL. Destroy with kvevict_policy_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_policy_copy(
    const kvevict_policy* policy, kvevict_policy** out_policy) KVEVICT_NOEXCEPT;

/**
 * Destroys a policy; NULL is ignored.
 *
 * @param[in] policy  NULL or a policy.
 * Since: 0.1
 */
KVEVICT_API void kvevict_policy_destroy(kvevict_policy* policy)
    KVEVICT_NOEXCEPT;

/**
 * Sets a parameter to a value of the text form, without spaces. Whether values go
 * together is checked by kvevict_policy_validate() and where the policy is used.
 *
 * @param[in,out] policy  Non-NULL; unchanged on error.
 * @param[in]     key     Zero-terminated: "budget".
 * @param[in]     value   Zero-terminated: "0.25", "avg7", "yes".
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if the policy has no such
 *         parameter, or the value is outside its range. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_policy_set(kvevict_policy* policy, const char* key,
                   const char* value) KVEVICT_NOEXCEPT;

/**
 * Sets a parameter that is a number. A flag is 1 or 0. Of parameters that are a
 * count or a share, a number above 0 and below 1 is a share.
 *
 * @param[in,out] policy  Non-NULL; unchanged on error.
 * @param[in]     key     Zero-terminated: "budget".
 * @param[in]     value   Within the parameter's range.
 * @return As kvevict_policy_set(); words and poolings are no numbers. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_policy_set_number(
    kvevict_policy* policy, const char* key, double value) KVEVICT_NOEXCEPT;

/**
 * Writes a parameter's value as it stands in the text form.
 *
 * @param[in]  policy         Non-NULL.
 * @param[in]  key            Zero-terminated: "budget".
 * @param[out] text           At least text_capacity bytes; zero-terminated on
 *                            success, untouched on error. May be NULL if
 *                            text_capacity is 0. 40 bytes hold every value.
 * @param[in]  text_capacity  Bytes of text; 0 asks for the length alone.
 * @param[out] out_text_len   NULL, or receives the length without the
 *                            terminator, also when text_capacity is 0.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if the policy has no such
 *         parameter or 0 < text_capacity <= length. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_policy_get(const kvevict_policy* policy, const char* key, char* text,
                   size_t text_capacity, size_t* out_text_len) KVEVICT_NOEXCEPT;

/**
 * Reads a parameter that is a number, as kvevict_policy_set_number() sets it.
 *
 * @param[in]  policy     Non-NULL.
 * @param[in]  key        Zero-terminated: "budget".
 * @param[out] out_value  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if the policy has no such
 *         parameter, or it is a word, a pooling or a seed > 2^53. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_policy_get_number(const kvevict_policy* policy, const char* key,
                          double* out_value) KVEVICT_NOEXCEPT;

/**
 * Writes the text form: the policy's name and every parameter that differs from
 * that policy's default. Of a policy that keeps neither first nor last tokens
 * it always has sink=0 and recent=0. A policy created from it is equal.
 *
 * @param[in]  policy         Non-NULL.
 * @param[out] text           At least text_capacity bytes; zero-terminated on
 *                            success, untouched on error. May be NULL if
 *                            text_capacity is 0.
 * @param[in]  text_capacity  Bytes of text; 0 asks for the length alone.
 * @param[out] out_text_len   NULL, or receives the length without the
 *                            terminator, also when text_capacity is 0 (a size
 *                            query, OK).
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if
 *         0 < text_capacity <= length. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_policy_format(
    const kvevict_policy* policy, char* text, size_t text_capacity,
    size_t* out_text_len) KVEVICT_NOEXCEPT;

/**
 * Checks whether the values of the parameters go together, for any context
 * length.
 *
 * @param[in] policy  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_policy_validate(const kvevict_policy* policy)
    KVEVICT_NOEXCEPT;

/** A number of query rows: as many as the caller gives. */
#define KVEVICT_QUERY_ROWS_ANY 4294967295u
/** A number of query rows: one for each slot held. */
#define KVEVICT_QUERY_ROWS_ALL 4294967294u

/** A policy in tokens, for one context length. */
typedef struct kvevict_resolved_policy {
  uint32_t struct_size;
  /** Tokens kept in all; n_sink + n_recent + n_selected. With select_block each
   *  is a sum of whole blocks of a cache that holds the context. */
  uint32_t budget;
  uint32_t n_sink;   /**< First tokens kept, with chunks of all of them. */
  uint32_t n_recent; /**< Last tokens kept, the observation window included. */
  uint32_t n_selected; /**< Tokens chosen by score. */
  /** Query rows by which a layer is scored: the observation window of policies
   *  that have one; KVEVICT_QUERY_ROWS_ANY where it is as many as are given
   *  (h2o); KVEVICT_QUERY_ROWS_ALL where it is one for each slot held
   *  (non-causal); 0 where queries are not read. */
  uint32_t n_query_rows;
  /** 1: the scores by which lists are chosen are a mass, whatever the context;
   *  see kvevict_list_report. 0: they are not. */
  uint32_t scores_are_mass;
} kvevict_resolved_policy;

/**
 * Turns a policy into token counts for a context length.
 *
 * An eviction leaves the context alone where budget is n_context: it is within
 * its budget, or the budget is a ratio that has no room for what must stay. Of
 * a context shorter than what must stay, n_sink and then n_recent are what
 * there is. none: budget = n_selected = n_context.
 *
 * @param[in]  policy     Non-NULL.
 * @param[in]  n_context  Tokens, 1 .. 2^31 - 1.
 * @param[out] out        Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT naming the numbers: a bad
 *         policy, or chunks of such a context keep more than a budget in
 *         tokens. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_policy_resolve(const kvevict_policy* policy, uint32_t n_context,
                       kvevict_resolved_policy* out) KVEVICT_NOEXCEPT;

/**
 * Says whether a policy wants an input, so that an engine makes no others.
 *
 * @param[in]  policy    Non-NULL.
 * @param[in]  input     One of kvevict_input.
 * @param[out] out_need  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_policy_need(const kvevict_policy* policy, kvevict_input input,
                    kvevict_need* out_need) KVEVICT_NOEXCEPT;

/* ---- View ---------------------------------------------------------------- */

/** What a companion plane is for the rows that it goes with. */
enum kvevict_role
#ifdef __cplusplus
    : int32_t
#endif
{
  /** Nothing that this library reads. */
  KVEVICT_ROLE_NONE = 0,
  /** What codes of keys are multiplied by. */
  KVEVICT_ROLE_KEY_SCALE = 1,
  /** What is added to codes of keys then. */
  KVEVICT_ROLE_KEY_MINIMUM = 2,
  /** What codes of values are multiplied by. */
  KVEVICT_ROLE_VALUE_SCALE = 3,
  /** What is added to codes of values then. */
  KVEVICT_ROLE_VALUE_MINIMUM = 4,
  /** Keys of the slots from kvevict_view.first_recent on, not quantized. */
  KVEVICT_ROLE_KEY_RECENT = 5,
  /** Values of the same slots. */
  KVEVICT_ROLE_VALUE_RECENT = 6
};
#ifndef __cplusplus
typedef int32_t kvevict_role;
#endif

/**
 * Rows of one tensor, one per token and head, in any layout.
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
 * Groups are how vectorised keys lie, [n_blocks, H, D/x, block_size, x]: x is
 * group_elems, and group_stride_bytes is block_size * x * bytes of an element.
 * An address table is for blocks that were allocated one by one: data is then
 * where in a block the plane begins, most often 0 or behind the keys, and
 * block_stride_bytes is 0. Entries of blocks that hold none of the tokens in
 * question are not read, and may be 0. Blocks of a table are all different and
 * share no byte, nor do those of two tables; that is not checked. Groups and
 * address tables are for planes of a view alone.
 *
 * Strides may be negative or zero where no two rows overlap. Each exceeds what
 * the smaller ones reach: other layouts without an overlap are errors too, whose
 * message says that they are too intricate to tell. No alignment is needed, but
 * for elements that CUDA is to score: at multiples of their size. On CUDA blocks
 * of an address table begin at multiples of 16 bytes. A plane with neither data
 * nor address_table is absent, and then 0 throughout.
 *
 * A companion with a role holds one number of f32, f16 or bf16 per token and
 * head (head_dim 1), and there is one of a role at most. It moves with its
 * rows, unless its token and block strides and its address table are 0: then a
 * head has one number for all tokens, or with a head stride of 0 all heads
 * have. Such a plane stays, and any number of layers may share it.
 *
 * With group_tokens G the numbers are those of a channel: slots i * G to
 * i * G + G - 1 of a head share a row of them, packed, one for each element
 * (head_dim that of the rows), as KIVI has them of keys (arXiv:2402.02750). In
 * the formulas t is then t / G, and G divides block_size. Rows are u8, i8, u4
 * or u4_halves, their scale and minimum have the same G, and there is no ring.
 * They are read by all that reads rows; what writes them stores groups anew:
 * see kvevict_compact().
 *
 * A recent plane has the last rows, which are not quantized yet: f32, f16 or
 * bf16, packed, the one of slot t at data + (t - first_recent) *
 * token_stride_bytes + h * head_stride_bytes, in no blocks. It goes with rows
 * of any dtype that is quantized. K and V both have one, or neither has. Slots
 * from first_recent on are not read in K's and V's own planes. Recent rows
 * never move: see kvevict_compact(). No ring has them.
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
  kvevict_role role;  /**< Of a companion; otherwise KVEVICT_ROLE_NONE. */
  int64_t group_stride_bytes; /**< From group to group; 0 without. */
  /** Paged only: address of the blocks' addresses, u64 by block id, where block
   *  tables lie and borrowed as they are; a multiple of 8. 0: none. */
  uint64_t address_table;
  uint32_t address_table_len; /**< Elements; no id is as large. */
  uint32_t group_elems;       /**< Divides head_dim; 0: no groups. */
  /** Of a scale or minimum: how many tokens share one per element, 1 .. 256;
   *  0: a number is of a token, or of all. */
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

/**
 * Where one layer's cache lies. K and V may differ in dtype, head size and
 * strides. Nothing is copied or owned.
 *
 * More examples of layouts: token-major [S, H, D] has strides {H*D*b, D*b};
 * head-major [H, S, D] {D*b, S*D*b}; transposed V [H*D, S] {b, D*S*b, S*b} with
 * b bytes per element. docs/layouts.md shows those of engines.
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
  /** Of a ring, as sliding windows have them: its rows. Token t is in slot t of
   *  all calls, and in the formulas above it is (t + ring_first) % ring_slots;
   *  a ring with blocks uses all that hold its rows. 0: no ring. */
  uint32_t ring_slots;
  uint32_t ring_first; /**< Row of token 0, < ring_slots; 0 without. */
  /** Paged: how many blocks, from the first of every table on, others hold too,
   *  as forks and prefix caches do. They are read, never written: calls that
   *  might are refused. Compacting to a destination, or from a first_slot
   *  behind them on, is not. 0 for a ring. */
  uint32_t n_shared_blocks;
  /** Of a view with recent planes: the first slot that they have; those before
   *  it are quantized. 0 without. */
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
 *
 * @param[in] view      Non-NULL.
 * @param[in] n_tokens  Slots that will be addressed; 0 is valid.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (unknown dtype, no rows,
 *         a description without an address, rows or planes that overlap, a
 *         table too short, an id that is negative or beyond an address table, a
 *         block without an address, more tokens than a ring has rows, an offset
 *         beyond 64 bits). Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_view_validate(
    const kvevict_view* view, uint32_t n_tokens) KVEVICT_NOEXCEPT;

/* ---- Plan ---------------------------------------------------------------- */

/** What a layer keeps of the tokens that it has seen. */
enum kvevict_layer_cache
#ifdef __cplusplus
    : int32_t
#endif
{
  /** A row of every token, until it is evicted. */
  KVEVICT_LAYER_CACHE_FULL = 0,
  /** The tokens of a sliding window: the engine drops the others. */
  KVEVICT_LAYER_CACHE_WINDOW = 1,
  /** No keys and values: recurrent layers, and those that read another
   *  layer's. */
  KVEVICT_LAYER_CACHE_NONE = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_layer_cache;
#endif

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
  /** Of the queries handed to observe and score: f32, f16 or bf16, or opaque
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
enum kvevict_rope_layout
#ifdef __cplusplus
    : int32_t
#endif
{
  /** f and f + rope_inv_freq_len (NeoX, Hugging Face). */
  KVEVICT_ROPE_LAYOUT_HALF = 0,
  /** 2 f and 2 f + 1 (GPT-J; Llama's keys in llama.cpp). */
  KVEVICT_ROPE_LAYOUT_INTERLEAVED = 1
};
#ifndef __cplusplus
typedef int32_t kvevict_rope_layout;
#endif

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
   *  Host memory, copied. Read where logit_softcap is. Of heads whose logits
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
  /** Tokens that each KV head keeps, everything included, and at least one, or
   *  a block of select_block: the heads of all layers with a full cache, layer
   *  by layer, in place of the policy's budget and layer split. What must stay
   *  has to fit each. A head shorter
   *  than its budget keeps everything. Heads may then hold different numbers of
   *  tokens, so scope must be head, heads equal, and split not
   *  one that scores decide. NULL: the policy's. Copied. */
  const uint32_t* head_budgets;
  size_t head_budgets_len; /**< As many as there are heads; 0 with NULL. */
  /** Budgets of the layers with a full cache, each what budget of
   *  kvevict_policy means, in place of that and of the layer split: a ratio of
   *  the context up to 1, else tokens. All else of the policy holds for each
   *  layer as if it were alone. Under scope MODEL all are equal. Not with
   *  head_budgets, nor with a split that scores decide. NULL: the
   *  policy's. Copied. */
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
 *         Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_plan_create(
    const kvevict_context* context, const kvevict_geometry* geometry,
    const kvevict_policy* policy, const kvevict_plan_options* options,
    kvevict_plan** out_plan) KVEVICT_NOEXCEPT;

/**
 * Destroys a plan; NULL is ignored. Sequences made from it stay usable.
 *
 * @param[in] plan  NULL or a plan.
 * Since: 0.1
 */
KVEVICT_API void kvevict_plan_destroy(kvevict_plan* plan) KVEVICT_NOEXCEPT;

/**
 * Compiles and loads the kernels that a plan's calls may launch, now instead of
 * at first use. On the CPU there is nothing to do.
 *
 * Window attention has kernels of its own for each combination of dtypes,
 * k_head_dim, window and group size. Those for contiguous keys and for
 * block ids are prepared. Those for heads of several lengths are prepared for a
 * plan with head_budgets or heads that are not equal. The first call that needs any other
 * compiles it, as with rings and blocks with addresses.
 * All other kernels serve every plan. With a kernel_cache_dir compiled kernels
 * are taken from there.
 *
 * @param[in] context  Non-NULL.
 * @param[in] plan     Made from `context`; NULL: only the kernels that serve
 *                     every plan.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_UNAVAILABLE (the compiler's log is in the message);
 *         KVEVICT_ERROR_OUT_OF_MEMORY; KVEVICT_ERROR_DEVICE. May take seconds,
 *         waits for other threads that compile. Since: 0.1
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
 *
 * @param[in]  plan   Non-NULL.
 * @param[in]  layer  < n_layers.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
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
  uint32_t alignment; /**< Of the address, in bytes: 64, on CUDA 256. */
  size_t least_bytes; /**< 0: the call can do without; NULL may be passed. */
  size_t best_bytes;
} kvevict_workspace;

#define KVEVICT_WORKSPACE_INIT \
  { (uint32_t)sizeof(kvevict_workspace), 0, 0, 0 }

/** What a plan's workspace is for. */
enum kvevict_operation
#ifdef __cplusplus
    : int32_t
#endif
{
  /** kvevict_sequence_evict(). */
  KVEVICT_OPERATION_EVICT = 0,
  /** kvevict_score(). */
  KVEVICT_OPERATION_SCORE = 1,
  /** kvevict_sequence_begin_observing(): there a sequence keeps what it
   *  observes until kvevict_sequence_end_observing(). Of policies that score by
   *  the last queries, for each layer (window + draft_tokens) * n_q_heads
   *  rows of k_head_dim elements, and on CUDA a float with each; of h2o
   *  max_tokens floats for each KV head, query head or layer, as `sums` says,
   *  and with sum_last so many more times as many; 0 for others. */
  KVEVICT_OPERATION_OBSERVE = 2
};
#ifndef __cplusplus
typedef int32_t kvevict_operation;
#endif

/**
 * The workspace of an operation of a plan.
 *
 * In the least, scoring on the CPU computes most products of queries and keys
 * twice, to the same bytes. With 4 query heads per KV head, 32 window rows and
 * a head size of 128 that takes 1.8 times as long as in the best, 1.4 times in
 * half of it; with 16 query heads 1.9 times, with 128 of 576 elements twice as
 * long. Policy h2o needs it where it scores by queries: at best 128 MiB per
 * thread, room for as many products.
 *
 * Per thread the least of SCORE at 131,072 tokens is 0.5 MiB for that first
 * shape (the best 65.3), 0.6 with 16 query heads per KV head, 1.1 with 256
 * window rows, and 2.1 with 128 query heads of 576 elements (the best 360).
 * Whatever the model and the window, it is at most 3.5 MiB, 672 * k_head_dim
 * bytes and 8 bytes per token. Not per thread, but once come n_q_heads floats
 * per token where rows are pooled before their maximum is taken, or averaged
 * before that of a maximum pool (order=pool-reduce). An eviction also scores
 * and selects fewer layers at once, down to one; with scope MODEL, and where
 * scores decide what layers keep (split cake or lazy), always all.
 *
 * @param[in]  plan       Non-NULL.
 * @param[in]  operation  Which.
 * @param[in]  n_tokens   The most slots that a layer will hold then, up to
 *                        max_tokens; 0: max_tokens. OBSERVE does not read it.
 * @param[out] out        Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also when a size would
 *         not fit in size_t). Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_plan_workspace(
    const kvevict_plan* plan, kvevict_operation operation, uint32_t n_tokens,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/** Why a plan cannot do something, or why an eviction did nothing. */
enum kvevict_reason
#ifdef __cplusplus
    : int32_t
#endif
{
  /** It can. */
  KVEVICT_REASON_NONE = 0,
  /** Keys are opaque: nothing can be read from them. */
  KVEVICT_REASON_OPAQUE_KEYS = 1,
  /** Queries are opaque. */
  KVEVICT_REASON_OPAQUE_QUERIES = 2,
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
#ifndef __cplusplus
typedef int32_t kvevict_reason;
#endif

/** What a plan can do with a layer, and why not. */
typedef struct kvevict_capabilities {
  uint32_t struct_size;
  uint32_t can_move; /**< 1 or 0, as the next two. */
  /** What the policy reads of rows can be read: to score, and to merge. */
  uint32_t can_score;
  uint32_t can_rotate;        /**< kvevict_rotate() can turn its keys. */
  kvevict_reason move_reason; /**< KVEVICT_REASON_NONE where it can. */
  kvevict_reason score_reason;
  kvevict_reason rotate_reason;
  uint32_t needs_score; /**< 1 if the policy has to read rows to evict. */
  /** An eviction by_table takes views whose block_size divides this; 0 where
   *  move_reason says why not. */
  uint32_t table_block;
  /** 1: and that have a block table for each KV head, whose lists differ. */
  uint32_t needs_head_tables;
  /** 1: and no table of another layer, which keeps other tokens. */
  uint32_t needs_layer_tables;
  uint32_t reserved; /**< 0. */
} kvevict_capabilities;

/**
 * Says what the plan can do with a layer.
 *
 * @param[in]  plan   Non-NULL.
 * @param[in]  layer  < n_layers.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_plan_capabilities(const kvevict_plan* plan, uint32_t layer,
                          kvevict_capabilities* out) KVEVICT_NOEXCEPT;

/**
 * @param[in] reason  Any number.
 * @return A sentence for a reason; "" for NONE and unknown numbers. Static.
 *          Since: 0.1
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
  /** Query rows [n_q_heads, rows, k_head_dim] in any strides, after RoPE; dtype
   *  = the geometry's q_dtype. A stride of 0 is an error where there is more
   *  than one head or row. Window attention: of the window. Policy h2o without
   *  attention_sums: n_query_rows. Policy non-causal: of all slots held; row t
   *  is the query of slot t of its KV head. CUDA takes its tensor cores where
   *  elements are packed and rows of queries and keys begin at multiples of 16
   *  bytes, else a slower kernel. */
  const kvevict_plane* queries;
  /** NULL, or f32 [n_q_heads, rows], head_dim 1: the natural log-sum-exp of
   *  each row's logits, scaled and capped, over the keys that it sees and its
   *  sink, as flash attention leaves it behind. In any strides; a stride of 0
   *  means packed. Saves h2o the first of two passes over the keys, and window
   *  attention on CUDA; it has no use on the CPU there, nor with softmax=past
   *  or order=reduce-logits, whose sums are others. */
  const kvevict_plane* row_lse;
  /** Policy custom: f32 [n_kv_heads, slots held], head_dim 1, elements at
   *  multiples of 4 bytes, tokens packed, rows of heads one after another; a
   *  stride of 0 means packed. */
  const kvevict_plane* scores;
  /* What follows is f32 as well, packed within a head and aligned to 4 bytes,
   * rows of heads one after another; strides of 0 as for scores. */
  /** Policy h2o: [n_sum_heads, slots held], head_dim 1: the attention weight
   *  that each slot got. kvevict_sequence_observe() takes those of a step or
   *  chunk, summed over its query rows, and keeps the sums of all. Given to
   *  kvevict_score() and kvevict_sequence_evict() they are summed over all
   *  queries that saw the slot, and the engine's to keep, and to move when an
   *  eviction moves their tokens: by kvevict_compact(), or beside a contiguous
   *  cache, with n_kv_heads rows, as a companion of the view. Rows of KV heads
   *  stand for each of their query heads where those are pooled one by one,
   *  with group=sum in equal parts, and a row of all heads for every head. */
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
   *  queries are like before RoPE, found once per model. Of each pair of
   *  elements, as a complex number in the geometry's rope_layout: the real part
   *  of its mean, the imaginary part, and the mean of its absolute value. In
   *  the file that `kvevict calibration` writes, a head's rows lie as they are
   *  wanted here, with a fourth one between heads. */
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
  /** Where heads hold different numbers: u32 [n_kv_heads], each at most
   *  n_tokens and at least the policy's window where queries score, device
   *  memory; NULL: all hold n_tokens. On CUDA they are the caller's word. */
  const uint32_t* token_counts;
  /** The layer's cache; k as in the geometry, and v where values are read. NULL
   *  where no row is read. */
  const kvevict_view* view;
  /** NULL where nothing but keys is read. Of n rows of queries and row_lse, row
   *  i is the query of token n_tokens - n + i. */
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
 * Scores the cached tokens of layers by the signal of the plan's policy.
 *
 * Window attention (snapkv, pyramidkv, tova, r-kv, cake): weights are the exact
 * causal softmax over all of a head's keys, or with softmax=past over those
 * before the window; they are reduced over the window's rows and the query
 * heads of each KV head and pooled over the tokens before the window (with
 * keep_window=no over all), as the policy says. Accumulated in f32 whatever the
 * dtypes. NaN in a key makes every weight of the rows that see it NaN, and so
 * the head's other scores. Method: SnapKV, arXiv:2404.14469. Cost: reads K
 * once; n_q_heads x window x n_tokens x head_dim multiply-adds. On CUDA
 * twice as much of both without row_lse.
 *
 * Accumulated attention (h2o): attention_sums, with rows=mean divided by the
 * queries that could see each token, and reduced over the query heads of each
 * KV head. This call takes slots for positions and n_seen for the tokens seen;
 * slots are positions until the first eviction, and kvevict_sequence_evict()
 * knows both. Without attention_sums they are made of the n_query_rows last
 * queries: column sums of the exact causal softmax, each row over the slots up
 * to its own, which rows=mean divides by the rows that see the slot. Method:
 * H2O, arXiv:2306.14048. Cost: reads the sums once; of queries, no more than
 * causal attention of as many rows, half of that with row_lse, and never a
 * matrix of rows times slots.
 *
 * Expected attention: softmax over a head's keys k of s m.k + s^2 / 2 k' C k,
 * with the mean m and the covariance C of the queries to come and the softmax
 * scale s; by query head, reduced over the query heads of each KV head and
 * pooled. The first `sink` tokens are left out of the softmax and get 0.
 * Accumulated in f32. NaN in any other key, or with a covariance infinity,
 * makes the scores of all others NaN. Method: arXiv:2510.00636. Cost: reads K
 * once; n_q_heads*n_tokens*head_dim^2 multiply-adds, without a covariance
 * head_dim.
 *
 * Attention within chunks (non-causal): the first `block` slots, the next, and
 * so on to the last ones, which may be fewer. Each query attends to all keys of
 * its chunk, those before it and after it, and to no others: softmax of q.k,
 * without the softmax scale. A slot's score is the sum over its chunk's
 * queries, reduced over the query heads of each KV head; then it is weighed,
 * then pooled, in the order that `order` says. NaN in a key makes NaN of
 * its chunk. Accumulated in f32. Method: Compactor, arXiv:2507.08143, whose
 * normalisation over the layer's heads and tokens is left out: it scales and
 * shifts all scores of a layer alike, and so changes no keep list. Cost: reads
 * K once; n_q_heads * block * n_tokens * head_dim multiply-adds, on CUDA twice
 * as much of both.
 *
 * Query centers (triattention): with the center q and the mean length a of a
 * pair of a query head before RoPE, the pair k of a key as it is cached, the
 * pair's frequency w and the tokens seen t, a key's score by the query head is
 * the sum over its pairs of Re(q m conj(k)) + max(0, a - |q|) |k|, where m is
 * the mean of e^(i w (t + o)) over distances o = 1, 2, 4 .. 65536 of queries to
 * come. Each query head's scores less their mean are divided by their standard
 * deviation, at least 1e-6, and reduced over the query heads of each KV head
 * and pooled. The first `sink` tokens are left out of both and get 0; a key
 * with NaN or infinity gets NaN and is in neither. Keys must still be turned to
 * the positions where their tokens were seen. A factor that all keys have
 * (YaRN's) does not matter. In f32, m in double. Method: arXiv:2604.04921.
 * Cost: reads K once; 3/2 n_q_heads*n_tokens*head_dim multiply-adds and a
 * square root per pair and key.
 *
 * Keys alone: knorm scores a key k by -|k|; keydiff by -cos(k, m), m being the
 * mean direction of the head's keys; q-filter by -(k . key_filter). A key with
 * NaN or infinity scores NaN in keydiff, and is not in the mean. Methods:
 * arXiv:2406.11430, arXiv:2504.15364, arXiv:2503.02812. Cost: reads K once,
 * keydiff twice.
 *
 * keydiff with a block b above 0 goes through the keys as its paper does in a
 * prefill by blocks: of a list that keeps n slots the first n stay; then come b
 * at a time, or what is left, the mean direction is made anew of those that
 * stayed and those that came, and of them the n with the highest scores stay,
 * equal ones by `tie`, NaN last. Those that stay to the end keep their last
 * score; one that left scores -2 less the number of blocks that came after.
 * This call takes for n the layer's budget of a context of n_seen. Cost: each
 * block reads the keys that stayed and those that came, (n_tokens - n) / b *
 * (n + b) rows in all; an item of parallel work is a KV head of a layer. Of
 * policies whose scores do not depend on other keys (knorm, q-filter, h2o,
 * random, custom) going by blocks keeps what they keep at once.
 *
 * Keys and values against their neighbours (lagkv, cur): slots behind the sinks
 * are cut into partitions of `block`, slots from 0 on into windows. lagkv: how
 * far a token's channels spread on the scale of the next partition, as a place
 * within its own, in [0, 1), or with ranks=no as the mean of two softmaxes
 * over the partition, of keys and of values. Sinks, the last whole partition
 * and what follows it score 1. With fewer than two whole partitions slot t
 * scores (t - sink) / (n_tokens - sink), so that late ones stay. cur: the
 * shares that a token's squared norms have of their window's, multiplied, of
 * the sum of all; sinks 1. A token with NaN or infinity scores NaN and changes
 * no other score but those it would be compared with. Methods: LagKV,
 * arXiv:2504.04704; CurDKV, arXiv:2509.15038. Cost: reads K and V once, or
 * twice where two partitions do not fit the cache.
 *
 * With a `weight` shaped scores are weighed here too, all of them: the stages
 * of `secure` are an eviction's. Cost of weight=norm: it reads V
 * once.
 *
 * With redundancy above 0 that of the keys is taken off last. C[i, j] being the
 * cosine of keys i and j of a head, 0 for i = j, and 0 for one j of every i:
 * the last with C[i, j] > similarity, so that of keys alike the latest stays,
 * or j = 0 where there is none; R is the softmax over the head's tokens j of
 * the mean over i of C[i, j]. Keys are divided by their norms + 1e-8. A key
 * with NaN or infinity scores NaN and is in no mean. Accumulated in f32,
 * without n_tokens^2 memory. Method: R-KV, arXiv:2505.24133. Cost per KV head:
 * reads K four times, and meets keys with the last ones, in blocks, until each
 * has met a similar one: n_tokens^2 * head_dim multiply-adds where none is
 * similar, few where most are. An item of parallel work is a KV head of a
 * layer.
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
 *         workspaces. Since: 0.1
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
 * Tokens that go later than others, but may go, or sooner.
 *
 * What must stay stays; of the rest a token of a higher rank stays before any
 * of a lower one, whatever their scores, NaN included; within a rank scores
 * decide, and then ties. Tokens in no range have rank 0, so a negative rank
 * goes before them. A block of select_block has the highest rank in it.
 *
 * Ranks say which tokens a list keeps, never how many: layers, heads
 * (parameter heads) and chunks keep as many as without ranges. With `secure`
 * the tokens secured are the best by rank and then by score. With `rescue` the
 * blocks of the budget are those of the highest rank and then score, and the
 * rescued are chosen from all others as without ranges: they stay whatever
 * their rank, and bits go by scores alone.
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
  /** Where lists hold different numbers: u32 [n_lists], each at most n_tokens,
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
  kvevict_tie tie;       /**< Of equal scores. */
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
 *         distinct lists and workspaces. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_select(
    const kvevict_context* context, const kvevict_select_options* options,
    const kvevict_keep_lists* keep, void* workspace, size_t workspace_bytes,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * The workspace of kvevict_select().
 *
 * @param[in]  context   Non-NULL.
 * @param[in]  n_tokens  The most slots held.
 * @param[in]  n_lists   Keep lists.
 * @param[out] out       Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also when a size would
 *         not fit in size_t). Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_select_workspace(
    const kvevict_context* context, uint32_t n_tokens, uint32_t n_lists,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/**
 * Writes what a plan's policy asks of kvevict_select(): what must stay, the tie
 * rule, the reduction of rows, whole blocks, the number of lists and how many
 * slots each keeps.
 *
 * The caller adds scores, protected slots and where the lists lie. The rows are
 * [n_kv_heads] of the layer; with scope MODEL those of all layers, end to end.
 *
 * @param[in]  plan      Non-NULL.
 * @param[in]  layer     < n_layers, with a full cache; decides the budget.
 *                       Scope MODEL: the first one.
 * @param[in]  n_tokens  Slots held, 1 .. max_tokens.
 * @param[in]  n_seen    Tokens seen so far, n_tokens .. 2^31 - 1: a ratio
 *                       budget is a part of them, as in
 *                       kvevict_sequence_evict(). 0: n_tokens. Above max_tokens
 *                       it counts as max_tokens.
 * @param[out] options   Non-NULL, options->struct_size set. All other fields
 *                       become 0. If the caller's struct is too short for a
 *                       field that the policy sets, that is an error.
 * @param[out] keep      Non-NULL, keep->struct_size set; likewise.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         for a layer whose heads have budgets of their own, for one of two
 *         stages (`secure`), or where scores decide: of heads
 *         (parameter heads), which kvevict_sequence_evict() does also with
 *         the caller's scores (policy custom), or of layers (split cake or
 *         lazy), which have to be together.
 *         Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_plan_selection(
    const kvevict_plan* plan, uint32_t layer, uint32_t n_tokens,
    uint32_t n_seen, kvevict_select_options* options,
    kvevict_keep_lists* keep) KVEVICT_NOEXCEPT;

/** One layer's part of kvevict_compact() or kvevict_reorder(). */
typedef struct kvevict_move {
  uint32_t struct_size;
  uint32_t n_tokens;        /**< Slots held before, the most of any head. */
  const kvevict_view* view; /**< The cache; see kvevict_view_validate(). */
  /** Slots that are held; NULL with a destination: all of them, in their
   *  order. */
  const kvevict_keep_lists* keep;
  /** Where heads hold different numbers: u32 [n_kv_heads], each at most
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
   *  scales and minima of another kind: see kvevict_compact(). Of other
   *  companions it has as many, alike and in the same order. NULL with merge
   *  and for kvevict_reorder(). */
  const kvevict_view* destination;
} kvevict_move;

#define KVEVICT_MOVE_INIT \
  { (uint32_t)sizeof(kvevict_move), 0, 0, 0, 0, KVEVICT_MERGE_NONE, 0, 0, 0, 0 }

/**
 * Moves the surviving rows of layers down to slots that follow each other, in
 * place, or copies them to other caches.
 *
 * Row keep[i] of a head goes to slot first_slot + i, which mostly is i. K, V
 * and companions move alike, byte for byte. In place, rows from first_slot +
 * the list's count on are unspecified afterwards. Needs no staging memory:
 * survivors only move down. For lists in another order there is
 * kvevict_reorder(). All checks come before the first byte moves. Cost: reads
 * and writes the kept rows that change place, once. On CUDA one launch for all
 * planes that lie alike, whatever their layer.
 *
 * With first_slot only the tail of a cache is compacted, such as the tree of a
 * speculative step of which few tokens were accepted. Slots below it are
 * neither read nor written, and nor are their entries in block tables, so
 * sequences that share a prefix's blocks may go together. Cost: that of the
 * tail. Heads whose tails begin later list the slots before it as well.
 *
 * With a destination the cache that rows come from stays as it is, and of the
 * destination only the slots that rows go to change: what fills a staging page,
 * or makes a smaller cache, or one of another layout, in one pass. Lists may
 * then name any slots that are held, still ascending.
 *
 * K or V whose destination has another dtype is requantised on the way: rows
 * are read as floats and stored anew, from any dtype that can be scored to any
 * other. So f32 becomes u4 (it is quantized), u4 becomes f32 (it is read), and
 * n new tokens are appended to a quantized cache by a move of all of them, with
 * first_slot where they go. The destination's scales and minima move with the
 * rows, and are made: u8, u4 and u4_halves have the scale (max - min) / 255 or
 * / 15, the minimum min, and the codes round((x - minimum) / scale), halves to
 * even; or they do not move, and are read. i8 and fp8 may do without a minimum.
 * Errors are at most half a step. Rows with NaN or infinity stand for NaN
 * throughout. docs/dtypes.md has all of it, for each dtype. The same happens
 * where K or V keep their dtype but a scale or minimum is there on one side
 * only, has another dtype, or does not move and lies elsewhere.
 *
 * Rows whose numbers are shared by groups of tokens (group_tokens) are always
 * stored anew, in place as well: survivors are read group by group, and each
 * group of G slots gets numbers of its own, one scale and minimum per element.
 * In place, groups before the first slot that goes are left as they are.
 * Rows that a first group holds before first_slot are read and stored with it.
 * An element of a group in which one is NaN or infinite stands for NaN in all
 * its rows. A destination with recent planes takes rows from slot first_recent
 * on in these, as floats are rounded, and the others in codes. In place rows of
 * recent planes stay where they are: lists name all slots from first_recent on,
 * which is afterwards the number of slots that they name before it; all heads
 * hold equally many then, and on CUDA keep.counts is NULL. To quantize recent
 * rows, compact a view of these alone to one without recent planes.
 *
 * A move with merge changes rows that stay, also those that stay where they
 * are: a block that another sequence shares must be copied first. Cost: as many
 * multiply-adds as rows that go times rows that stay times head_dim, per head.
 * Memory grows with the slots, not with their square. Any number of threads
 * makes the same bytes, and so does CUDA where the CPU has a fused
 * multiply-add.
 *
 * @param[in] context    Non-NULL; device and parallel runner.
 * @param[in] moves      [moves_len], a layer each. Lists are strictly
 *                       ascending, which is checked on the CPU, on CUDA only by
 *                       a context with debug set. Caches, destinations among
 *                       them, must not overlap, which is checked as
 *                       kvevict_sequence_evict() does; of one with first_slot
 *                       the slots from there on count.
 * @param[in] moves_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] workspace  See kvevict_compact_workspace(). Where nothing merges,
 *                       less than the best is not touched, and CUDA may be
 *                       slower.
 * @param[in] workspace_bytes  Its size; 0 with NULL.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also for a destination
 *         that lacks a scale or minimum); KVEVICT_ERROR_UNSUPPORTED (rows to
 *         merge, or of another dtype, that cannot be read; on CUDA elements
 *         that are not aligned to their size). Threads: safe for distinct
 *         caches and workspaces. Since: 0.1
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
 *
 * @param[in]  context    Non-NULL.
 * @param[in]  moves      [moves_len] as for the call; of the lists only n_lists
 *                        and count are read, and n_tokens only with merge.
 * @param[in]  moves_len  At most KVEVICT_MAX_JOBS.
 * @param[out] out        Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_compact_workspace(
    const kvevict_context* context, const kvevict_move* moves, size_t moves_len,
    kvevict_workspace* out) KVEVICT_NOEXCEPT;

/* ---- Sequence ------------------------------------------------------------ */

/**
 * What one request carries between steps: the position of every slot, stored
 * and logical length, and, while it observes, the last queries of every layer,
 * or the attention that its slots have got. Opaque. One thread at a time.
 *
 * A sequence is small: under 2 KiB per layer, twice 4 bytes per position that
 * an eviction may leave behind (with adaptive heads any head may get what all
 * have), and query memory only between kvevict_sequence_begin_observing() and
 * kvevict_sequence_end_observing().
 *
 * On CUDA queries, sums, positions and lengths lie in device memory; the host
 * follows the lengths by counting where counts are the plan's. Calls that a
 * stream captures into a graph count as one run; see
 * kvevict_sequence_replayed().
 */
typedef struct kvevict_sequence kvevict_sequence;

/** As first_position: the sequence's logical length. On CUDA it is then read
 *  from device memory when the work runs, so that a captured graph goes on
 *  where the sequence is. */
#define KVEVICT_POSITION_NEXT UINT32_MAX

/**
 * Creates an empty sequence. Takes microseconds on the CPU.
 *
 * @param[in]  plan          Non-NULL; kept alive by the sequence.
 * @param[out] out_sequence  Non-NULL. Destroy with kvevict_sequence_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_create(
    const kvevict_plan* plan, kvevict_sequence** out_sequence) KVEVICT_NOEXCEPT;

/**
 * Destroys a sequence; NULL is ignored. It gives query memory back as
 * kvevict_sequence_end_observing() does. On CUDA its work must have run: device
 * memory is freed.
 *
 * @param[in] sequence  NULL or a sequence.
 * Since: 0.1
 */
KVEVICT_API void kvevict_sequence_destroy(kvevict_sequence* sequence)
    KVEVICT_NOEXCEPT;

/**
 * Forgets everything, as if newly created, but keeps query memory; allocates
 * nothing.
 *
 * @param[in] sequence  Non-NULL.
 * @param[in] stream    See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_reset(
    kvevict_sequence* sequence, kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Gives a sequence the memory in which it keeps what it is shown: the last
 * query rows, or sums of attention.
 *
 * For policies that score by queries: call it before the first row is observed
 * and kvevict_sequence_end_observing() once the eviction that uses the rows is
 * done, so that a sequence that only decodes does without. For h2o, where it is
 * to keep the sums: they last as long as the memory. It does nothing for other
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
 *         KVEVICT_ERROR_OUT_OF_MEMORY. Since: 0.1
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
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_sequence_end_observing(kvevict_sequence* sequence) KVEVICT_NOEXCEPT;

/** What a layer shows of one chunk of tokens. */
typedef struct kvevict_observation {
  uint32_t struct_size;
  uint32_t layer; /**< < n_layers. */
  /** Of the chunk's n_rows rows: queries, row_lse, or both; or attention_sums,
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
 * remembered. Any split of a prompt into chunks leaves the same rows behind,
 * and a chunk may leave out rows that later ones push out anyway. Showing
 * earlier positions again replaces them and forgets what came after (rollback).
 * Log-sum-exps may come with the rows or after them. CUDA uses them where it
 * has all of a layer's window, and then skips the first of two passes; the CPU
 * never reads them. An eviction forgets those of layers that lose tokens, since
 * they cover keys that are gone.
 *
 * Accumulated attention (h2o): attention_sums, [n_sum_heads, slots], of the
 * slots that a layer holds once the rows' own tokens are stored, whether they
 * have been appended yet or not: the attention weights of the n_rows queries,
 * summed over them. They are reduced to the rows that `sums` of the policy
 * says, so n_sum_heads may not be fewer, pooled by sum_pool, and added to the
 * sums; slots that are new begin at 0. An eviction that is given neither
 * attention_sums nor queries scores by these sums, which have to reach up to
 * the last token; those of tokens that stay move with their rows, and those of
 * others are dropped. An engine may begin with any row, e.g. with the last few
 * of its prompt: rows=mean then divides by as many of the rows from that one on
 * as could see a slot. From there on no row may be left out: rows that do not
 * follow on are an error. Sums are f32 and are added up in the order of calls.
 *
 * Sums cannot be taken back: what trimmed rows paid to tokens that stay remains
 * in theirs, so show rows of speculation when they are accepted. With sum_last
 * a trim forgets the calls that have rows it takes back. A trim to the first
 * row observed, or below it, forgets a layer's sums, and the next call begins
 * anew. A start, a load and a reset forget sums, and so does, of layers that
 * lose tokens, an eviction when sums do not reach up to the last token; a fork
 * has the same.
 *
 * Does nothing for other policies, and for layers without what the policy
 * observes; for others the sequence must have memory, see
 * kvevict_sequence_begin_observing(). On CUDA neighbouring layers whose planes
 * have the same shape and strides take one launch, with sum_last one more; the
 * first sums behind tokens of which none were observed cannot be captured, but
 * with sum_last they can.
 *
 * @param[in] sequence          Non-NULL.
 * @param[in] observations      [observations_len], of ascending layers.
 * @param[in] observations_len  0 does nothing.
 * @param[in] n_rows            Of each layer; 0 is valid and does nothing.
 * @param[in] first_position    Position of row 0, or KVEVICT_POSITION_NEXT.
 * @param[in] stream            See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (also sums of rows that do
 *         not follow on, or of more slots than max_tokens);
 *         KVEVICT_ERROR_UNSUPPORTED (opaque queries). Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_observe(
    kvevict_sequence* sequence, const kvevict_observation* observations,
    size_t observations_len, uint32_t n_rows, uint32_t first_position,
    kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Notes that the engine stored n_tokens more rows in every layer, each at the
 * layer's next slot and with the next positions.
 *
 * @param[in] sequence  Non-NULL.
 * @param[in] n_tokens  0 does nothing.
 * @param[in] stream    See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if a layer would hold more
 *         than max_tokens or the sequence more than 2^31 - 1. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_sequence_append(kvevict_sequence* sequence, uint32_t n_tokens,
                        kvevict_stream stream) KVEVICT_NOEXCEPT;

/**
 * Says that what has been appended so far is the prompt; see prompt and every
 * of kvevict_policy. Trimming into the prompt shortens it, a reset forgets it.
 *
 * @param[in] sequence  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also where the prompt has
 *         ended before. Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_sequence_end_prompt(kvevict_sequence* sequence) KVEVICT_NOEXCEPT;

/**
 * Takes back the last tokens, e.g. rejected speculation: the sequence is then
 * as if they had not been appended. No cache byte changes; the engine writes
 * over their slots.
 *
 * Two ranges of lengths are exact: from the logical length at the last eviction
 * of any layer on, and up to kvevict_sequence_exact_prefix(), where the
 * sequence is as if nothing had been evicted. Between them tokens are missing
 * that do not come back; such a length is an error that names the nearest exact
 * one on either side. Observed queries of the tokens are forgotten. Those of
 * the tokens before them are still there if at most draft_tokens of
 * kvevict_plan_options are taken back; if more are, an eviction may want some
 * of them observed again. Sums of attention stay as long as a row of theirs
 * does, see kvevict_sequence_observe(). kvevict_sequence_report() stays.
 *
 * On CUDA a length below the last eviction waits as
 * kvevict_sequence_exact_prefix() does; others do not.
 *
 * @param[in] sequence    Non-NULL.
 * @param[in] new_length  The logical length to return to; the present one does
 *                        nothing.
 * @param[in] stream      See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, which names the bounds.
 *         Since: 0.1
 */
KVEVICT_API kvevict_status
kvevict_sequence_trim_to(kvevict_sequence* sequence, uint32_t new_length,
                         kvevict_stream stream) KVEVICT_NOEXCEPT;

/** What an eviction may be told beside the policy. */
typedef struct kvevict_evict_options {
  uint32_t struct_size;
  /** 1: rows stay where they are, and the views' tables are written to: blocks
   *  that survive come first in them, those that go behind. See
   *  kvevict_sequence_evict(). 0: survivors move. */
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
  /** [n_layers] views, as the views of the call are given: other caches, to
   *  which the rows that stay are copied, as rows of their dtype. See
   *  kvevict_sequence_evict(); for a plan with has_destinations. NULL: rows
   *  stay in the views. */
  const kvevict_view* destinations;
  size_t destinations_len; /**< = n_layers; 0 with NULL. */
} kvevict_evict_options;

#define KVEVICT_EVICT_OPTIONS_INIT \
  { (uint32_t)sizeof(kvevict_evict_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Scores, selects and compacts the cache of a whole model in place.
 *
 * A layer within its budget is left alone, and so is one whose budget is a
 * ratio of the context and has no room for what must stay: the ends, protected
 * positions, a pinned prompt; or whose context has fewer tokens than the query
 * window. With policy none, or when every layer is left alone, no byte changes. A decoding loop may so call this
 * after every step: margin, every and prompt of the policy say when there is
 * something to do. Every check is made before the
 * first byte moves. Afterwards the next token goes to slot
 * kvevict_sequence_stored_length() with position
 * kvevict_sequence_logical_length().
 *
 * With merge, rows that go are merged first, by the lists of the survivors;
 * also rows that stay where they are change, so that a block that another
 * sequence shares must be copied before.
 *
 * Two layers that share one cache (equal views) are compacted once, by the
 * first one's queries. A companion that several layers have moves once too;
 * they must keep the same tokens, with scope MODEL or with streaming-llm and a
 * uniform split. Caches that overlap otherwise are an error where something is
 * to move. A block in use counts as full, but for the only one of a cache, and
 * as every head's; contiguous heads count as long as the longest. Caches apart
 * are refused where these meet, or where strides have so little in common that
 * it takes too long to tell. CUDA does not read block ids: there, paged caches
 * are compared only if they share a block_table; blocks of different tables
 * must differ, and so must blocks of planes that lie further apart than a
 * block.
 *
 * Where scores decide what layers keep (split cake or lazy), layers that hold
 * more than a layer keeps at least are all scored, and the others have no
 * preference. Protected positions then count as kept by every layer, beside
 * sinks and recent tokens; layers with one cache go by the first one's weights.
 * On CUDA the call waits for the weights once. One layer's cache alone cannot
 * be evicted so: the layers are together in this call.
 *
 * By table no row moves, so that a paged cache drops blocks for the price of
 * their table. Whole blocks stay or go: block_size of each view divides the
 * policy's select_block, or both are 1, as in a pool of tokens with an index
 * list. Only the last block of a list may be filled in part; it is the recent
 * end and always stays, and the next token goes into it. The entries in use of
 * each table are permuted: first the blocks that stay, in order, then those
 * that go, in any order that is the same on every device; the engine frees the
 * entries from ceil(kvevict_sequence_stored_length() / block_size) on. Tables
 * are block_table, const as a view has it but memory that can be written, or
 * without one the address tables of the planes; one for all heads, or where
 * heads keep lists of their own one for each. Tables that layers or planes
 * share are permuted once: then layers keep the same tokens, with scope MODEL
 * or streaming-llm, and are equally long. Other tables do not overlap, nor do
 * those of the sequences of a batch. Blocks that others hold too
 * (n_shared_blocks) are left to them, unless merge or rotate change rows where
 * they lie. Positions, lengths and report are as if rows had moved. Undo saves
 * the rows of the blocks that go and puts them back into any blocks; an engine
 * that keeps the freed blocks until then may keep a copy of the table instead.
 * kvevict_plan_capabilities() says what a plan takes for it.
 *
 * Rows in recent planes of a view are never evicted and stay where they are.
 * They count as recent tokens; if layers have different numbers of them, the
 * largest counts for all. Afterwards first_recent is
 * kvevict_sequence_stored_length() less their number. Rows that share numbers
 * by groups of tokens are stored anew: see kvevict_compact(). Undo, by_table
 * and chunk are refused with either. Recent planes are also refused where heads
 * hold different numbers of tokens.
 *
 * With destinations the views are read and stay as they are. The survivors of
 * each list go to the first slots of its layer's destination. All rows of a
 * layer that loses none go there too, also with policy none and where nothing
 * was due. After a call that succeeds the sequence's rows are those.
 *
 * K or V that have another dtype there are stored anew on the way, with the
 * scales and minima of the destination: the bytes are those that
 * kvevict_compact() makes of the same lists. With rotate keys are turned in the
 * destination, as f32, f16 or bf16. Recent rows of a view go like all others.
 *
 * Slots behind the survivors are not written. kvevict_sequence_kept_slots()
 * says for how many there must be room. Layers with one cache have one
 * destination. Other destinations share no plane with each other and no byte
 * with any view.
 *
 * The next call is given the destinations as its views. Where K or V have
 * another dtype there, a fork with a plan of that geometry goes on in place of
 * this sequence: kvevict_sequence_fork(). The views have all rows still, and a
 * fork that was made before goes on over them: undo is refused, as are merge
 * and by_table.
 *
 * On CUDA this call waits for the eviction before it and copies its positions
 * in two cases: more positions are protected than the budget has room for, or
 * keep_window is no and tokens of the window may be gone. With select_on_host it
 * always waits.
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
 *         not reach up to the last token, a budget smaller than what must
 *         stay, layers of unequal length under scope MODEL, a destination that
 *         the plan has no room for, or that rows cannot go to);
 *         KVEVICT_ERROR_UNSUPPORTED (the policy scores by keys or values that
 *         cannot be read, merges them, or turns keys that cannot be turned; or
 *         tokens of the window are gone already, which keep_window=no allows; or
 *         chunk is no multiple of the block size; or by_table parts of blocks
 *         would go, a view is contiguous or a ring, or heads or layers that
 *         keep different tokens share a table). Since: 0.1
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
 * What it did to one keep list.
 *
 * The mass of a token is the score that the list was chosen by: shaped, weighed
 * and reduced. That is a mass where the signal is attention, paid or expected,
 * or the caller's: of all policies but streaming-llm, random, knorm, keydiff,
 * q-filter, lagkv, cur and triattention, without redundancy, secure, rescue or
 * diverse_mass. A token without a score has no mass and is in neither sum:
 * those of a kept window, whose queries do the scoring, and where the score is
 * NaN or infinite. Sinks and other tokens that must stay have the mass of their
 * score. With chunk= only chunks that lose tokens have masses.
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
 *
 * @param[in]  sequence   Non-NULL.
 * @param[out] out        NULL, or out->struct_size set.
 * @param[out] lists      [lists_len], each with struct_size set, all to the
 *                        same: the lists of all layers end to end, see
 *                        kvevict_plan_layer().
 * @param[in]  lists_len  0, or as many as there are.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; with masses on CUDA
 *         KVEVICT_ERROR_UNSUPPORTED while the stream is captured. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_report(
    const kvevict_sequence* sequence, kvevict_evict_report* out,
    kvevict_list_report* lists, size_t lists_len) KVEVICT_NOEXCEPT;

/**
 * Slots in use by a layer and KV head: where its next row goes.
 *
 * @param[in]  sequence    Non-NULL.
 * @param[in]  layer       < n_layers, with a full cache: kvevict_plan_layer()
 *                         tells which ones have it.
 * @param[in]  kv_head     < n_kv_heads; all alike but for a plan with
 *                         head_budgets or heads that are not equal.
 * @param[out] out_length  Slots.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_stored_length(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * Tokens seen so far: the position of the next one. RoPE's too, but with rotate
 * of kvevict_policy, where that is kvevict_sequence_stored_length().
 *
 * @param[in]  sequence    Non-NULL.
 * @param[out] out_length  Tokens.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_logical_length(
    const kvevict_sequence* sequence, uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * How many tokens are still where they were stored: the most p such that every
 * list of every layer holds tokens [0, p) in slots [0, p). Another request with
 * these p tokens can use the rows.
 *
 * An eviction that merged may have changed any row: until the next reset it is
 * then 0. On CUDA waits as kvevict_sequence_position_of_slot() does.
 *
 * @param[in]  sequence    Non-NULL.
 * @param[out] out_length  Tokens; the logical length if nothing was evicted.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_exact_prefix(
    const kvevict_sequence* sequence, uint32_t* out_length) KVEVICT_NOEXCEPT;

/**
 * The position of the token in a slot.
 *
 * On CUDA this and the next two wait for the last eviction, once, and copy the
 * positions to the host, by the stream of the sequence's last call.
 *
 * @param[in]  sequence      Non-NULL.
 * @param[in]  layer         < n_layers, with a full cache.
 * @param[in] kv_head  < n_kv_heads; all alike unless the scope is KV_HEAD.
 * @param[in] slot     < the layer's stored length.
 * @param[out] out_position  The position.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_position_of_slot(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t slot, int32_t* out_position) KVEVICT_NOEXCEPT;

/**
 * The slot that holds the token of a position; -1 if it was evicted.
 *
 * @param[in]  sequence  Non-NULL.
 * @param[in]  layer     < n_layers, with a full cache.
 * @param[in]  kv_head   < n_kv_heads; all alike where they share a list.
 * @param[in] position  < the logical length.
 * @param[out] out_slot  The slot, or -1.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_slot_of_position(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t position, int32_t* out_slot) KVEVICT_NOEXCEPT;

/**
 * The positions of all slots of a layer and KV head, ascending.
 *
 * @param[in]  sequence            Non-NULL.
 * @param[in]  layer               < n_layers, with a full cache.
 * @param[in]  kv_head             < n_kv_heads; all alike where they share a
 *                                 list.
 * @param[out] positions  The layer's stored length in elements.
 * @param[in]  positions_capacity  Elements of positions.
 * @param[out] out_positions_len   Elements written.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, e.g. a capacity that is
 *         too small, with both numbers. Since: 0.1
 */
KVEVICT_API kvevict_status kvevict_sequence_keep_positions(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    int32_t* positions, size_t positions_capacity,
    size_t* out_positions_len) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_KVEVICT_H_ */
