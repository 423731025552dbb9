/*
 * kvevict/experimental.h: what few callers need and what is young. Names and
 * fields in this header may change in a minor release; those of the other
 * headers change with KVEVICT_ABI_VERSION only.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_EXPERIMENTAL_H_
#define KVEVICT_EXPERIMENTAL_H_

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What this library and machine have ---------------------------------- */

/**
 * Asks whether contexts can be created on a device here.
 * @param[in] device  Any number.
 * @return KVEVICT_OK, or KVEVICT_ERROR_UNAVAILABLE with the reason as message,
 *         or KVEVICT_ERROR_INVALID_ARGUMENT for a number that is no device.
 */
KVEVICT_API kvevict_status kvevict_device_check(kvevict_device device)
    KVEVICT_NOEXCEPT;

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
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end.
 */
KVEVICT_API kvevict_status
kvevict_dtype_at(uint32_t index, kvevict_dtype_info* out) KVEVICT_NOEXCEPT;

/**
 * Enumerates the SIMD targets that this build holds and this CPU can run.
 * @param[in] index  0 is the best one, which contexts use that name none.
 * @return A name such as "AVX3_DL", static; NULL past the end.
 */
KVEVICT_API const char* kvevict_simd_target_at(uint32_t index) KVEVICT_NOEXCEPT;

/** A GPU, and what would compile kernels for it. Texts are static, never
 *  NULL. */
typedef struct kvevict_gpu_info {
  uint32_t struct_size;
  uint32_t compute_capability; /**< 90 is 9.0. */
  uint32_t driver_version;     /**< CUDA of the driver: 12040 is 12.4. */
  uint32_t nvrtc_version;      /**< Likewise; 0 if there is a problem. */
  const char* name;            /**< "NVIDIA H200". */
  const char* nvrtc;           /**< The libnvrtc found, as it was opened. */
  /** "sm_90": machine code for this GPU; "compute_80": PTX that the driver
   *  translates. */
  const char* target;
  /** Why no context can be created on it; "" if one can. */
  const char* problem;
} kvevict_gpu_info;

/**
 * Enumerates the GPUs that the CUDA driver sees, in its order. It looks for the
 * libraries where the system does.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end;
 *         KVEVICT_ERROR_UNAVAILABLE, with the reason, if there is no driver or
 *         no GPU.
 */
KVEVICT_API kvevict_status kvevict_gpu_at(uint32_t index, kvevict_gpu_info* out)
    KVEVICT_NOEXCEPT;

/** What the values of a parameter are. */
KVEVICT_INT32_TYPE(kvevict_parameter_type)
enum kvevict_parameter_type KVEVICT_INT32 {
  KVEVICT_PARAMETER_NUMBER = 0, /**< A number in [least, most]. */
  KVEVICT_PARAMETER_COUNT = 1,  /**< A whole number in [least, most]. */
  /** A count, or a share of the budget above 0 and below 1. */
  KVEVICT_PARAMETER_COUNT_OR_SHARE = 2,
  KVEVICT_PARAMETER_SEED = 3, /**< A whole number below 2^64. */
  KVEVICT_PARAMETER_FLAG = 4, /**< `no` or `yes`; as a number 0 or 1. */
  KVEVICT_PARAMETER_WORD = 5, /**< One of a few words. */
  KVEVICT_PARAMETER_POOL = 6  /**< `none`, `avgN` or `maxN`. */
};

/** A parameter of policies. Every text is static but default_text. */
typedef struct kvevict_parameter_info {
  uint32_t struct_size;
  kvevict_parameter_type type;
  const char* key;   /**< Its name in the text form and in every language. */
  const char* words; /**< "mean|max|sum"; "" for numbers. */
  const char* doc;   /**< What it does, in sentences. */
  double least;      /**< For numbers and counts; else 0. */
  double most;       /**< Likewise. */
  uint32_t excludes_least; /**< 1: values are above least. */
  uint32_t takes_zero;     /**< 1: 0 is allowed beside [least, most]. */
  char default_text[40];   /**< As in the text form; zero-terminated. */
} kvevict_parameter_info;

/**
 * Enumerates the parameters, in the order of the text form.
 * @param[in]  name   A policy or a preset: those that it has, with its
 *                    defaults. NULL: all of the library, with their general
 *                    defaults. Ranges are the library's; validation knows more.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end, or if there
 *         is no such policy.
 */
KVEVICT_API kvevict_status
kvevict_parameter_at(const char* name, uint32_t index,
                     kvevict_parameter_info* out) KVEVICT_NOEXCEPT;

/** One row of the table of policies; every text is static. */
typedef struct kvevict_policy_info {
  uint32_t struct_size;
  uint32_t reserved;   /**< 0. */
  const char* name;    /**< As in the text form. */
  const char* signal;  /**< What ranks a token. */
  const char* shaping; /**< What happens to the numbers. */
  const char* budget;  /**< How many survive, where. */
  const char* trigger; /**< When it runs. */
  const char* paper;   /**< Source, e.g. "arXiv:2404.14469"; "" if none. */
  /** Parameters whose default is another than the library's, as in the text
   *  form; "" if none. */
  const char* defaults;
} kvevict_policy_info;

/**
 * Enumerates the policies: index 0, 1, ... until it fails.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_policy_at(uint32_t index, kvevict_policy_info* out) KVEVICT_NOEXCEPT;

/** A preset: the options under which another implementation's keep sets come
 *  out. */
typedef struct kvevict_preset_info {
  uint32_t struct_size;
  uint32_t reserved;       /**< 0. */
  const char* name;        /**< As in the text form; static. */
  const char* policy_text; /**< The same policy spelled out; static. */
  const char* reproduces;  /**< Whose behaviour this is; static. */
} kvevict_preset_info;

/**
 * Enumerates the presets: index 0, 1, ... until it fails.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_preset_at(uint32_t index, kvevict_preset_info* out) KVEVICT_NOEXCEPT;

/**
 * Creates a policy that equals another.
 * @param[in]  policy      Non-NULL.
 * @param[out] out_policy  Non-NULL. Destroy with kvevict_policy_destroy().
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT;
 *         KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_policy_copy(
    const kvevict_policy* policy, kvevict_policy** out_policy) KVEVICT_NOEXCEPT;

/**
 * Writes the text form: the policy's name and every parameter that differs from
 * that policy's default. A policy that keeps neither first nor last tokens
 * always has sink=0 and recent=0. A policy created from it is equal.
 * @param[in]  policy         Non-NULL.
 * @param[out] text           At least text_capacity bytes; zero-terminated on
 *                            success, untouched on error. May be NULL if
 *                            text_capacity is 0.
 * @param[in]  text_capacity  Bytes of text; 0 asks for the length alone.
 * @param[out] out_text_len   NULL, or receives the length without the
 *                            terminator, also when text_capacity is 0 (a size
 *                            query, OK).
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if
 *         0 < text_capacity <= length.
 */
KVEVICT_API kvevict_status kvevict_policy_format(
    const kvevict_policy* policy, char* text, size_t text_capacity,
    size_t* out_text_len) KVEVICT_NOEXCEPT;

/* ---- What a policy asks for ---------------------------------------------- */

/**
 * Reads a parameter that is a number, as kvevict_policy_set_number() sets it.
 * @param[in]  policy     Non-NULL.
 * @param[in]  key        Zero-terminated: "budget".
 * @param[out] out_value  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if the policy has no such
 *         parameter, or it is a word, a pooling or a seed > 2^53.
 */
KVEVICT_API kvevict_status
kvevict_policy_get_number(const kvevict_policy* policy, const char* key,
                          double* out_value) KVEVICT_NOEXCEPT;

/** What a policy may read of a layer: rows of its view, or a plane of
 *  kvevict_signal_inputs. */
KVEVICT_INT32_TYPE(kvevict_input)
enum kvevict_input KVEVICT_INT32 {
  KVEVICT_INPUT_KEYS = 0,             /**< k of the view, of a scored dtype. */
  KVEVICT_INPUT_VALUES = 1,           /**< v of the view, likewise. */
  KVEVICT_INPUT_QUERIES = 2,          /**< The last tokens'; non-causal: all. */
  KVEVICT_INPUT_ROW_LSE = 3,          /**< Log-sum-exps of these queries. */
  KVEVICT_INPUT_SCORES = 4,           /**< The caller's own. */
  KVEVICT_INPUT_ATTENTION_SUMS = 5,   /**< Attention that each slot got. */
  KVEVICT_INPUT_QUERY_MEAN = 6,       /**< Mean of the queries to come. */
  KVEVICT_INPUT_QUERY_COVARIANCE = 7, /**< Their covariance. */
  KVEVICT_INPUT_KEY_FILTER = 8,       /**< A direction per KV head. */
  KVEVICT_INPUT_TOKEN_WEIGHTS = 9,    /**< What scores are multiplied by. */
  KVEVICT_INPUT_QUERY_CENTERS = 10    /**< Where queries lie before RoPE. */
};

/** Whether a policy wants an input. */
KVEVICT_INT32_TYPE(kvevict_need)
enum kvevict_need KVEVICT_INT32 {
  KVEVICT_NEED_NONE = 0, /**< It is not read. */
  /** It is used where it is given. h2o needs attention_sums, observed or given,
   *  or else keys and queries. Each of these is optional, since the other way
   *  may replace it. */
  KVEVICT_NEED_OPTIONAL = 1,
  KVEVICT_NEED_REQUIRED = 2 /**< Without it calls fail. */
};

/**
 * Says whether a policy wants an input, so that an engine makes no others.
 * @param[in]  policy    Non-NULL.
 * @param[in]  input     One of kvevict_input.
 * @param[out] out_need  Non-NULL.
 */
KVEVICT_API kvevict_status
kvevict_policy_need(const kvevict_policy* policy, kvevict_input input,
                    kvevict_need* out_need) KVEVICT_NOEXCEPT;

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
 *         tokens.
 */
KVEVICT_API kvevict_status
kvevict_policy_resolve(const kvevict_policy* policy, uint32_t n_context,
                       kvevict_resolved_policy* out) KVEVICT_NOEXCEPT;

/* ---- What a plan can do, and asks for ------------------------------------ */

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
 * @param[in]  plan   Non-NULL.
 * @param[in]  layer  < n_layers.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_plan_capabilities(const kvevict_plan* plan, uint32_t layer,
                          kvevict_capabilities* out) KVEVICT_NOEXCEPT;

/**
 * Writes what a plan's policy asks of kvevict_select(): what must stay, the tie
 * rule, the reduction of rows, whole blocks, the number of lists and how many
 * slots each keeps. The caller adds scores, protected slots and where the lists
 * lie. The rows are [n_kv_heads] of the layer; with scope MODEL those of all
 * layers, end to end.
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
 */
KVEVICT_API kvevict_status kvevict_plan_selection(
    const kvevict_plan* plan, uint32_t layer, uint32_t n_tokens,
    uint32_t n_seen, kvevict_select_options* options,
    kvevict_keep_lists* keep) KVEVICT_NOEXCEPT;

/* ---- Budgets ------------------------------------------------------------- */

/**
 * Suggests a budget for a model: min(max_tokens / 4, 4096), at least 1024, at
 * most max_tokens; 0, do not evict, while the full cache is under 256 MiB.
 * @param[in]  max_tokens        The model's context length, 1 .. 2^31 - 1.
 * @param[in]  full_cache_bytes  K and V of all layers at max_tokens.
 * @param[out] out_budget        Tokens.
 */
KVEVICT_API kvevict_status
kvevict_auto_budget(uint32_t max_tokens, uint64_t full_cache_bytes,
                    uint32_t* out_budget) KVEVICT_NOEXCEPT;

/**
 * What each layer keeps of a context, per KV head: the budget by `split`.
 * @param[in]  policy       Non-NULL.
 * @param[in]  n_context    Tokens, 1 .. 2^31 - 1.
 * @param[out] budgets      [n_layers] tokens, 1 .. n_context each; all of it if
 *                          the context is left alone.
 * @param[in]  budgets_len  = n_layers, 1 .. 4096.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         where scores decide (split cake or lazy).
 */
KVEVICT_API kvevict_status kvevict_policy_layer_budgets(
    const kvevict_policy* policy, uint32_t n_context, uint32_t* budgets,
    size_t budgets_len) KVEVICT_NOEXCEPT;

/**
 * kvevict_policy_layer_budgets() for the plan's policy and layers, or what its
 * layer_budgets make of a context; of head_budgets, the most of each layer.
 * @param[in]  plan         Non-NULL.
 * @param[in]  n_tokens     Tokens seen so far, 1 .. 2^31 - 1; above max_tokens
 *                          it counts as max_tokens, less what its last block
 *                          of select_block is then fuller by: as in an eviction
 *                          of a cache that has lost whole blocks.
 * @param[out] budgets      [n_layers] tokens; 0 for layers without a full
 *                          cache, which do not count where the budget is
 *                          spread.
 * @param[in]  budgets_len  = n_layers.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         where scores decide (split cake or lazy).
 */
KVEVICT_API kvevict_status kvevict_plan_layer_budgets(
    const kvevict_plan* plan, uint32_t n_tokens, uint32_t* budgets,
    size_t budgets_len) KVEVICT_NOEXCEPT;

/** Scores of one layer, by which its budget is found. */
typedef struct kvevict_layer_scores {
  uint32_t struct_size;
  uint32_t n_rows; /**< Keep lists, mostly KV heads; 1 .. 65535. */
  /** f32 [n_rows, n_tokens], host memory, as kvevict_score() writes them. */
  const float* scores;
  size_t scores_len; /**< = n_rows * n_tokens. */
  uint32_t n_tokens; /**< 1 .. 2^31 - 1. */
  uint32_t reserved; /**< 0. */
} kvevict_layer_scores;

#define KVEVICT_LAYER_SCORES_INIT \
  { (uint32_t)sizeof(kvevict_layer_scores), 0, 0, 0, 0, 0 }

/** Which budget kvevict_budget_for_mass() looks for. */
typedef struct kvevict_mass_options {
  uint32_t struct_size;
  /** Which rows have one budget: KV_HEAD each its own, LAYER those of a layer,
   *  MODEL all. */
  kvevict_scope scope;
  double mass;       /**< To be kept, in (0, 1]. */
  uint32_t n_sink;   /**< First slots that must stay; they count. */
  uint32_t n_recent; /**< Last slots that must stay, the window included. */
  /** 1: every row that shares the budget keeps the mass; 0: the mean of their
   *  shares does. */
  uint32_t every_row;
  uint32_t reserved; /**< 0. */
} kvevict_mass_options;

#define KVEVICT_MASS_OPTIONS_INIT                                              \
  {                                                                            \
    (uint32_t)sizeof(kvevict_mass_options), KVEVICT_SCOPE_LAYER, 0.0, 0, 0, 0, \
        0                                                                      \
  }

/**
 * The smallest budgets that keep a share of the mass: how many tokens a policy
 * has to keep of prompts like this one.
 *
 * A row keeps what must stay and then its highest scores, as kvevict_select()
 * chooses them; a row shorter than the budget keeps all. The mass of a slot is
 * its score; NaN and infinities have none, though +infinity still stays first,
 * so that rows of kvevict_score() may be given as they are. The share of a row
 * is what it keeps of the sum, 1 where that is 0. Sums are in f64: what must
 * stay in order of slots, then scores descending; means row by row.
 *
 * Meant for calibration, not for every step: it sorts all rows, on the
 * context's workers, in memory of the context as large as the scores.
 *
 * @param[in]  context     Non-NULL; of any device.
 * @param[in]  layers      [layers_len], all with the same struct_size.
 * @param[in]  layers_len  Any; 0 with NULL.
 * @param[in]  options     Non-NULL.
 * @param[out] budgets      Tokens, at least 1: of each row, end to end, of each
 *                          layer, or one, as scope says.
 * @param[in]  budgets_len  As many; with scope MODEL and no layers 0.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also if a score is below
 *         0: the message has its place; KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_budget_for_mass(
    const kvevict_context* context, const kvevict_layer_scores* layers,
    size_t layers_len, const kvevict_mass_options* options, uint32_t* budgets,
    size_t budgets_len) KVEVICT_NOEXCEPT;

/* ---- Rows in another order ----------------------------------------------- */

/**
 * Moves row keep[i] of every head of layers to slot i, in place, as if all rows
 * were read before the first is written.
 *
 * Slots may come in any order and more than once; a row may so be copied to
 * several slots. Straightens a ring that has wrapped, with its survivors' slots
 * in the order of their positions, and serves keep lists that do not ascend;
 * kvevict_compact() is faster for those that do. K, V and companions move
 * alike, byte for byte. Other rows are not touched. Cost: on the CPU reads and
 * writes the rows that change place, once, and one row more per cycle of them.
 * On CUDA a row whose slot is below a list's count passes through the
 * workspace, so it is read and written twice.
 *
 * @param[in] context    Non-NULL; device and parallel runner.
 * @param[in] moves      [moves_len], a layer each, counts at most n_tokens,
 *                       without merge, first_slot and destination. That slots
 *                       are in [0, n_tokens) is checked on the CPU, on CUDA
 *                       only by a context with debug set.
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
 * The workspace of kvevict_reorder(): on the CPU 8 bytes per listed slot and a
 * row per worker; on CUDA the listed rows of all planes, but no more than 32
 * MiB or one plane's. Layers take turns with it.
 * @param[in]  context    Non-NULL.
 * @param[in]  moves      [moves_len] as for the call; of the lists only n_lists
 *                        and count are read, and n_tokens is not.
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
  uint32_t layer;    /**< < n_layers, with a full cache. */
  uint32_t n_tokens; /**< Slots held, 1 .. max_tokens. */
  uint32_t n_lists;  /**< Rows of offsets: 1 for all heads, or n_kv_heads. */
  /** u32 [n_kv_heads], if heads hold different numbers: each at most
   *  n_tokens, device memory; NULL: all hold n_tokens. On CUDA they are the
   *  caller's word. */
  const uint32_t* token_counts;
  const kvevict_view* view; /**< The layer's cache; only k is touched. */
  /** int32 [n_lists, n_tokens], device memory: by how many positions the key in
   *  each slot moves, new position - old one. 0 leaves its bytes alone. */
  const int32_t* offsets;
  size_t offsets_len; /**< = n_lists * n_tokens. */
} kvevict_rotation;

#define KVEVICT_ROTATION_INIT \
  { (uint32_t)sizeof(kvevict_rotation), 0, 0, 1, 0, 0, 0, 0 }

/**
 * Turns cached keys as RoPE would have at other positions, in place.
 *
 * For engines that count positions by slots: after an eviction survivor i, of
 * position p, moves by i - p, and the next token goes to position n_kept, as
 * StreamingLLM (arXiv:2309.17453) and FINCH do. Pair f of a key turns by
 * offset * rope_inv_freq[f] radians in the geometry's rope_layout; factors that
 * RoPE put on keys (YaRN's attention scale) stay as they are. Angles are kept
 * as 64-bit fractions of a turn, so cosines and sines are within 2e-7 at any
 * offset, and turning by a and then by b is turning by a + b but for rounding
 * to k_dtype, twice instead of once. NaN and infinity spread over their pair.
 * The CPU and CUDA make the same bits where the CPU has a fused multiply-add.
 *
 * A sequence is not told: the positions that it reports remain those of the
 * tokens in the text, and so does its logical length. The engine keeps the
 * positions that it gave. A second rotation starts from those, and so does the
 * n_seen of policy triattention. Blocks that other sequences share turn for
 * them too. All checks come before the first byte changes. Cost: keys that move
 * are read and written once; on CUDA one launch for layers that lie alike.
 *
 * @param[in] plan       Non-NULL; its geometry has rope_inv_freq. See
 *                       kvevict_plan_capabilities().
 * @param[in] rotations  [rotations_len], a layer each. Caches must not overlap.
 * @param[in] rotations_len  0 does nothing; at most KVEVICT_MAX_JOBS.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         for keys that cannot be turned, with the reason, and on CUDA for
 *         elements that are not aligned to their size. Threads: safe for
 *         distinct caches.
 */
KVEVICT_API kvevict_status
kvevict_rotate(const kvevict_plan* plan, const kvevict_rotation* rotations,
               size_t rotations_len, kvevict_stream stream) KVEVICT_NOEXCEPT;

/* ---- Around an eviction -------------------------------------------------- */

/**
 * How many slots an eviction now would leave of each layer's longest list: what
 * a destination has room for.
 *
 * If scores decide how many tokens a layer or head keeps it is what the
 * layer holds. Nothing is scored, and CUDA does not wait.
 *
 * @param[in]  sequence   Non-NULL.
 * @param[in]  views      As for kvevict_sequence_evict().
 * @param[in]  views_len  = n_layers.
 * @param[out] slots      [n_layers]; 0 of layers without a full cache.
 * @param[in]  slots_len  = n_layers.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a bad view, a budget
 *         smaller than what must stay).
 */
KVEVICT_API kvevict_status kvevict_sequence_kept_slots(
    kvevict_sequence* sequence, const kvevict_view* views, size_t views_len,
    uint32_t* slots, size_t slots_len) KVEVICT_NOEXCEPT;

/**
 * How many bytes an eviction now would need to be undone: K, V, companions and
 * sums, or calls, of the slots that go, in all layers and heads, their lists of
 * slots, and up to 64 bytes per plane and layer.
 *
 * 0 where it would leave every layer alone. If scores decide how many tokens
 * a layer or head keeps it is what the least of them would need, so that no
 * eviction needs more. Nothing is scored, and CUDA does not wait.
 *
 * @param[in]  sequence   Non-NULL.
 * @param[in]  views      As for kvevict_sequence_evict().
 * @param[in]  views_len  = n_layers.
 * @param[out] out_bytes  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a bad view, a budget
 *         smaller than what must stay); KVEVICT_ERROR_UNSUPPORTED if the policy
 *         merges or rotates, which changes rows that stay.
 */
KVEVICT_API kvevict_status kvevict_sequence_undo_bytes(
    kvevict_sequence* sequence, const kvevict_view* views, size_t views_len,
    size_t* out_bytes) KVEVICT_NOEXCEPT;

/**
 * Takes back the last eviction, of which kvevict_evict_options.undo received
 * the rows: all rows stand again where they stood, byte for byte, and
 * positions, lengths and what `every` and `prompt` go by are as before it.
 *
 * What was appended since stays, behind the rows that come back, as if the
 * eviction had never been; so do observed queries and what was added to sums,
 * and the prompt's end, if there is one. Trim first what is not wanted. With
 * sum_last calls come back too, the last so many of those before and since;
 * those since have 0 for the tokens that were away, and if they do not follow
 * on, those before are forgotten.
 * Log-sum-exps of queries that were observed are forgotten in layers that get
 * tokens back; the report is empty.
 *
 * One eviction, once: until the next one that evicts, a reset, a load, or a
 * trim to fewer tokens than there were then. Calls of kvevict_sequence_evict()
 * that leave every layer alone do not count. A fork has nothing to undo.
 *
 * The memory is not needed between the calls at any one place: its bytes may be
 * copied and come back elsewhere. Survivors move up in place, rows from the
 * first evicted slot of a head on are read and written once; policies that
 * merge or rotate change others, and evict with undo is refused. On CUDA
 * nothing waits, in a captured graph neither.
 *
 * @param[in] sequence   Non-NULL.
 * @param[in] views      [n_layers] views as at the eviction: the same planes
 *                       and heads, caches that are shared shared still, with
 *                       room for all slots. Paged: blocks that were given back
 *                       are others now, behind those in use.
 * @param[in] views_len  = n_layers.
 * @param[in] undo       Non-NULL: as the eviction left it. Not modified.
 * @param[in] undo_bytes At least as many as were written, up to what was lent.
 * @param[in] stream     See kvevict_stream.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (nothing to undo, a bad
 *         view or another than then, more slots than max_tokens).
 */
KVEVICT_API kvevict_status
kvevict_sequence_undo(kvevict_sequence* sequence, const kvevict_view* views,
                      size_t views_len, const void* undo, size_t undo_bytes,
                      kvevict_stream stream) KVEVICT_NOEXCEPT;

/* ---- Which token a slot holds -------------------------------------------- */

/**
 * The position of the token in a slot.
 *
 * On CUDA questions about positions wait for the last eviction, once, and copy
 * the positions to the host, by the stream of the sequence's last call.
 *
 * @param[in]  sequence      Non-NULL.
 * @param[in]  layer         < n_layers, with a full cache.
 * @param[in] kv_head  < n_kv_heads; all alike unless the scope is KV_HEAD.
 * @param[in] slot     < the layer's stored length.
 * @param[out] out_position  The position.
 */
KVEVICT_API kvevict_status kvevict_sequence_position_of_slot(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t slot, int32_t* out_position) KVEVICT_NOEXCEPT;

/**
 * The slot that holds the token of a position; -1 if it was evicted.
 * @param[in]  sequence  Non-NULL.
 * @param[in]  layer     < n_layers, with a full cache.
 * @param[in]  kv_head   < n_kv_heads; all alike where they share a list.
 * @param[in] position  < the logical length.
 * @param[out] out_slot  The slot, or -1.
 */
KVEVICT_API kvevict_status kvevict_sequence_slot_of_position(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t position, int32_t* out_slot) KVEVICT_NOEXCEPT;

/* ---- What a sequence holds on the device --------------------------------- */

/** Where a sequence keeps its state, on the device of its plan's context. */
typedef struct kvevict_sequence_memory {
  uint32_t struct_size;
  uint32_t n_lists; /**< The layer's, see kvevict_plan_layer(). */
  /** u32 [n_lists, 2] of the layer: stored and logical length, brought up to
   *  date by the streams' work; those of all layers lie end to end. For the
   *  engine's kernels: the next token goes to slot `stored` with position
   *  `logical`. Fixed for the sequence's life. 0 with policy none and for
   *  layers without a full cache. */
  uint64_t lengths;
  /** i32 [n_lists, n_listed] positions of the layer's first slots; those after
   *  count up by one each to logical length - 1. Moves with every eviction,
   *  start and load. */
  uint64_t positions;
  /** u32 [n_lists]: how many slots of a list are listed, where lists differ; 0
   *  where all list n_listed. Moves with every eviction. */
  uint64_t listed_counts;
  uint32_t n_listed;    /**< The most of any list. */
  uint32_t n_sum_heads; /**< Rows of sums; 0 without. */
  /** f32 [n_sum_heads, sum_stride]: what the layer's slots have got of the
   *  attention observed, see kvevict_sequence_observe(). Fixed while the
   *  sequence observes; 0 where it keeps none, or single calls. */
  uint64_t sums;
  uint64_t sum_stride; /**< Elements from row to row. */
} kvevict_sequence_memory;

/**
 * Tells where the state of a layer lies.
 * @param[in]  sequence  Non-NULL.
 * @param[in]  layer  < n_layers.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_sequence_memory_of(const kvevict_sequence* sequence, uint32_t layer,
                           kvevict_sequence_memory* out) KVEVICT_NOEXCEPT;

/**
 * Tells the host that a graph ran once more. The graph has observed n_tokens
 * query rows in every layer, or the sums of as many where a layer has such,
 * with KVEVICT_POSITION_NEXT, and appended n_tokens;
 * without query memory it has appended only. The device has counted already.
 * Log-sum-exps are not counted: a window with rows of replays is scored without
 * them. With sum_last it was one call for each layer that has had one since the
 * sequence got its memory: of a graph with several calls tell them one by one.
 * @param[in] sequence  Non-NULL.
 * @param[in] n_tokens  Of one run of the graph.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT as for
 *         kvevict_sequence_append(); KVEVICT_ERROR_UNSUPPORTED on the CPU,
 *         which has no graphs.
 */
KVEVICT_API kvevict_status kvevict_sequence_replayed(
    kvevict_sequence* sequence, uint32_t n_tokens) KVEVICT_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVEVICT_EXPERIMENTAL_H_ */
