/*
 * kvevict/experimental.h: calls that few engines need or that are new. Names
 * and fields in this header may change in a minor release; those of the other
 * headers change only with KVEVICT_ABI_VERSION.
 *
 * The rules at the top of kvevict.h hold here too.
 */
#ifndef KVEVICT_EXPERIMENTAL_H_
#define KVEVICT_EXPERIMENTAL_H_

#include "kvevict/kvevict.h"
#include "kvevict/paged.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What library and machine offer -------------------------------------- */

/**
 * Tells whether contexts can be created on a device of this machine.
 * @param[in] device  Any number.
 * @return KVEVICT_OK; KVEVICT_ERROR_UNAVAILABLE, the message is the reason;
 *         KVEVICT_ERROR_INVALID_ARGUMENT for a number that is no device.
 */
KVEVICT_API kvevict_status kvevict_device_check(kvevict_device device)
    KVEVICT_NOEXCEPT;

/** One row of the table of element types. */
typedef struct kvevict_dtype_info {
  uint32_t struct_size;
  kvevict_dtype dtype;
  const char* name;        /**< "f32"; static. */
  uint32_t element_bytes;  /**< 0 if elements are packed or opaque. */
  uint32_t can_move;       /**< 1 if compaction moves it. */
  uint32_t can_score;      /**< 1 if a signal can read keys of it. */
  uint32_t can_rotate;     /**< 1 if kvevict_rotate() can rotate keys of it. */
  uint32_t block_elements; /**< Elements stored together; 0 for opaque. */
  uint32_t block_bytes;    /**< Bytes that they take; 0 for opaque. */
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
 * @param[in] index  0 is the best target, the default of contexts.
 * @return A name such as "AVX3_DL", static; NULL past the end.
 */
KVEVICT_API const char* kvevict_simd_target_at(uint32_t index) KVEVICT_NOEXCEPT;

/** A GPU and the compiler for its kernels. Texts are static, never NULL. */
typedef struct kvevict_gpu_info {
  uint32_t struct_size;
  uint32_t compute_capability; /**< 90 is 9.0. */
  uint32_t driver_version;     /**< The driver's CUDA: 12040 is 12.4. */
  uint32_t nvrtc_version;      /**< 12040 is 12.4; 0 with a problem. */
  const char* name;            /**< "NVIDIA H200". */
  const char* nvrtc;           /**< The name that libnvrtc was opened by. */
  /** "sm_90": machine code for this GPU; "compute_80": PTX that the driver
   *  translates. */
  const char* target;
  /** Why no context can be created on it; "" if one can. */
  const char* problem;
} kvevict_gpu_info;

/**
 * Enumerates the GPUs that the CUDA driver sees, in its order. Libraries are
 * found by the system's search path.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end;
 *         KVEVICT_ERROR_UNAVAILABLE, with the reason, if there is no driver or
 *         no GPU.
 */
KVEVICT_API kvevict_status kvevict_gpu_at(uint32_t index, kvevict_gpu_info* out)
    KVEVICT_NOEXCEPT;

/** The type of a parameter's values. */
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

/** A parameter of policies. All texts but default_text are static. */
typedef struct kvevict_parameter_info {
  uint32_t struct_size;
  kvevict_parameter_type type;
  const char* key;   /**< Its name in the text form and in every language. */
  const char* words; /**< "mean|max|sum"; "" for numbers. */
  const char* doc;   /**< What it does, in sentences. */
  double least;      /**< For numbers and counts; else 0. */
  double most;       /**< Likewise. */
  uint32_t excludes_least; /**< 1: values are above least. */
  uint32_t takes_zero;     /**< 1: 0 is allowed besides [least, most]. */
  char default_text[40];   /**< In text form; zero-terminated. */
} kvevict_parameter_info;

/**
 * Enumerates the parameters, in the order of the text form.
 * @param[in]  name   A policy or a preset: its parameters with its defaults.
 *                    NULL: all parameters with the library's defaults. The
 *                    ranges hold for every policy; kvevict_policy_validate()
 *                    checks more.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT past the end and for an
 *         unknown name.
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
  const char* summary; /**< What it keeps, in words. */
  const char* trigger; /**< When it runs. */
  const char* paper;   /**< Source, e.g. "arXiv:2404.14469"; "" if none. */
  /** Parameters whose default differs from the library's, in text form; "" if
   *  none. */
  const char* defaults;
} kvevict_policy_info;

/**
 * Enumerates the policies.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_policy_at(uint32_t index, kvevict_policy_info* out) KVEVICT_NOEXCEPT;

/** A preset: the parameters that reproduce the keep sets of another
 *  implementation. */
typedef struct kvevict_preset_info {
  uint32_t struct_size;
  uint32_t reserved;       /**< 0. */
  const char* name;        /**< As in the text form; static. */
  const char* policy_text; /**< The same policy spelled out; static. */
  const char* reproduces;  /**< Whose behaviour this is; static. */
} kvevict_preset_info;

/**
 * Enumerates the presets.
 * @param[in]  index  0, 1, ... until the call fails.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_preset_at(uint32_t index, kvevict_preset_info* out) KVEVICT_NOEXCEPT;

/**
 * Creates a copy of a policy.
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
 * always writes sink=0 and recent=0. kvevict_policy_create() makes an equal
 * policy from it.
 * @param[in]  policy         Non-NULL.
 * @param[out] text           At least text_capacity bytes; zero-terminated on
 *                            success, untouched on error. May be NULL if
 *                            text_capacity is 0.
 * @param[in]  text_capacity  Bytes of text; 0 asks for the length alone.
 * @param[out] out_text_len   NULL, or receives the length without the
 *                            terminator, also if text_capacity is 0 (a size
 *                            query).
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if
 *         0 < text_capacity <= length.
 */
KVEVICT_API kvevict_status kvevict_policy_format(
    const kvevict_policy* policy, char* text, size_t text_capacity,
    size_t* out_text_len) KVEVICT_NOEXCEPT;

/* ---- What a policy needs ------------------------------------------------- */

/**
 * Reads a parameter that is a number, as kvevict_policy_set_number() sets it.
 * @param[in]  policy     Non-NULL.
 * @param[in]  key        Zero-terminated: "budget".
 * @param[out] out_value  Non-NULL.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT if the policy has no such
 *         parameter, or its value is a word, a pooling or a seed > 2^53.
 */
KVEVICT_API kvevict_status
kvevict_policy_get_number(const kvevict_policy* policy, const char* key,
                          double* out_value) KVEVICT_NOEXCEPT;

/** What a policy may read of a layer: rows of its view, or a plane of
 *  kvevict_signal_inputs. */
KVEVICT_INT32_TYPE(kvevict_input)
enum kvevict_input KVEVICT_INT32 {
  KVEVICT_INPUT_KEYS = 0,    /**< k of the view; it can be scored. */
  KVEVICT_INPUT_VALUES = 1,  /**< v of the view; it can be scored. */
  KVEVICT_INPUT_QUERIES = 2, /**< Queries of the last or all tokens. */
  KVEVICT_INPUT_ROW_LSE = 3, /**< Log-sum-exps of these queries. */
  KVEVICT_INPUT_SCORES = 4,  /**< The caller's scores, given or observed. */
  KVEVICT_INPUT_ATTENTION_SUMS = 5,   /**< Attention that each slot received. */
  KVEVICT_INPUT_QUERY_MEAN = 6,       /**< Mean of the queries to come. */
  KVEVICT_INPUT_QUERY_COVARIANCE = 7, /**< Their covariance. */
  KVEVICT_INPUT_KEY_FILTER = 8,       /**< A direction per KV head. */
  KVEVICT_INPUT_TOKEN_WEIGHTS = 9,    /**< Factors of the scores. */
  KVEVICT_INPUT_QUERY_CENTERS = 10,   /**< Queries' statistics before RoPE. */
  KVEVICT_INPUT_REFERENCE_QUERIES = 11, /**< Queries of no token held. */
  /** The slots' positions. Sequences know them; for kvevict_score() a slot's
   * position is its number. */
  KVEVICT_INPUT_POSITIONS = 12
};

/** Whether a policy reads an input. */
KVEVICT_INT32_TYPE(kvevict_need)
enum kvevict_need KVEVICT_INT32 {
  KVEVICT_NEED_NONE = 0, /**< It is not read. */
  /** It is read if it is given. h2o needs attention_sums, observed or given, or
   *  else keys and queries; each of the three is optional because the other way
   *  can replace it. */
  KVEVICT_NEED_OPTIONAL = 1,
  KVEVICT_NEED_REQUIRED = 2 /**< Calls fail without it. */
};

/**
 * Tells whether a policy reads an input. An engine need not compute others.
 * @param[in]  policy    Non-NULL.
 * @param[in]  input     One of kvevict_input.
 * @param[out] out_need  Non-NULL.
 */
KVEVICT_API kvevict_status
kvevict_policy_need(const kvevict_policy* policy, kvevict_input input,
                    kvevict_need* out_need) KVEVICT_NOEXCEPT;

/** A number of query rows that means: as many as the caller gives. */
#define KVEVICT_QUERY_ROWS_ANY 4294967295u
/** A number of query rows that means: one for each slot held. */
#define KVEVICT_QUERY_ROWS_ALL 4294967294u

/** A policy in tokens, for one context length. */
typedef struct kvevict_resolved_policy {
  uint32_t struct_size;
  /** Tokens kept in all: n_sink + n_recent + n_selected. With select_block each
   *  of these covers whole blocks of a cache that holds the context. */
  uint32_t budget;
  uint32_t n_sink;   /**< First tokens kept, summed over chunks if any. */
  uint32_t n_recent; /**< Last tokens kept, the observation window included. */
  uint32_t n_selected; /**< Tokens chosen by score. */
  /** Query rows that score a layer, without reference queries: the observation
   *  window if the policy reads its queries; KVEVICT_QUERY_ROWS_ANY for h2o;
   *  KVEVICT_QUERY_ROWS_ALL for non-causal; 0 if the policy reads no queries. */
  uint32_t n_query_rows;
  /** 1: the scores that choose lists are a mass, for any context; see
   *  kvevict_list_report. */
  uint32_t scores_are_mass;
} kvevict_resolved_policy;

/**
 * Turns a policy into token counts for a context length.
 *
 * If budget is n_context, an eviction leaves the context alone: it is within
 * its budget, or the budget is a ratio without room for the tokens that must
 * stay. In a context shorter than these, n_sink is counted first, then
 * n_recent. Policy none has budget = n_selected = n_context.
 *
 * @param[in]  policy     Non-NULL.
 * @param[in]  n_context  Tokens, 1 .. 2^31 - 1.
 * @param[out] out        Non-NULL, out->struct_size set.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT with the numbers: a bad
 *         policy, or the chunks of this context must keep more than the budget
 *         in tokens.
 */
KVEVICT_API kvevict_status
kvevict_policy_resolve(const kvevict_policy* policy, uint32_t n_context,
                       kvevict_resolved_policy* out) KVEVICT_NOEXCEPT;

/* ---- What a plan can do, and needs --------------------------------------- */

/** What a plan can do with a layer, and why not. */
typedef struct kvevict_capabilities {
  uint32_t struct_size;
  uint32_t can_move; /**< 1: its rows can be moved; 0: they cannot. */
  /** 1: the rows that the policy scores by, merges or fits can be read. */
  uint32_t can_score;
  uint32_t can_rotate; /**< 1: kvevict_rotate() can rotate its keys; 0: not. */
  kvevict_reason move_reason; /**< KVEVICT_REASON_NONE if it can. */
  kvevict_reason score_reason;
  kvevict_reason rotate_reason;
  uint32_t needs_score; /**< 1 if the policy reads rows to evict. */
  /** An eviction by_table takes views whose block_size divides this; 0: none,
   *  see move_reason. */
  uint32_t table_block;
  /** 1: by_table needs a block table per KV head, since lists differ. */
  uint32_t needs_head_tables;
  /** 1: by_table needs tables of its own per layer, since lists differ. */
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
 * Writes the arguments of kvevict_select() that a plan's policy decides: sinks
 * and recents, the tie rule, the reduction of rows, whole blocks, the number of
 * lists and how many slots each keeps. The caller adds scores, protected slots
 * and the lists' memory. The scores have one row per KV head of the layer; with
 * scope MODEL the rows of all layers lie end to end.
 * @param[in]  plan      Non-NULL.
 * @param[in]  layer     < n_layers, with a full cache; it decides the budget.
 *                       Scope MODEL: the first such layer.
 * @param[in]  n_tokens  Slots held, 1 .. max_tokens.
 * @param[in]  n_seen    Tokens seen so far, n_tokens .. 2^31 - 1; 0: n_tokens.
 *                       A budget that is a ratio is a share of them, as in
 *                       kvevict_sequence_evict(). More than max_tokens count as
 *                       max_tokens.
 * @param[out] options   Non-NULL, options->struct_size set. All other fields
 *                       become 0. A struct that is too short for a field that
 *                       the policy sets is an error.
 * @param[out] keep      Non-NULL, keep->struct_size set; as `options`.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         for a layer whose heads have budgets of their own (head_budgets), for
 *         selection in two stages (`secure`, `first_stage_mass`,
 *         `secure_values`), and if scores decide the budgets of heads (`heads`)
 *         or layers (split cake, lazy or scores).
 *         kvevict_sequence_evict() does all of these, with policy custom also
 *         by the caller's scores.
 */
KVEVICT_API kvevict_status kvevict_plan_selection(
    const kvevict_plan* plan, uint32_t layer, uint32_t n_tokens,
    uint32_t n_seen, kvevict_select_options* options,
    kvevict_keep_lists* keep) KVEVICT_NOEXCEPT;

/* ---- Budgets ------------------------------------------------------------- */

/**
 * Suggests a budget for a model: min(max_tokens / 4, 4096), at least 1024, at
 * most max_tokens. It is 0 (do not evict) if the full cache is under 256 MiB.
 * @param[in]  max_tokens        The model's context length, 1 .. 2^31 - 1.
 * @param[in]  full_cache_bytes  K and V of all layers at max_tokens.
 * @param[out] out_budget        Tokens.
 */
KVEVICT_API kvevict_status
kvevict_auto_budget(uint32_t max_tokens, uint64_t full_cache_bytes,
                    uint32_t* out_budget) KVEVICT_NOEXCEPT;

/**
 * Tells how many tokens of a context each layer keeps per KV head, by the
 * parameter `split`.
 * @param[in]  policy       Non-NULL.
 * @param[in]  n_context    Tokens, 1 .. 2^31 - 1.
 * @param[out] budgets      [n_layers] tokens, 1 .. n_context each; n_context if
 *                          the context is left alone.
 * @param[in]  budgets_len  = n_layers, 1 .. 4096.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         where scores decide (split cake, lazy or scores).
 */
KVEVICT_API kvevict_status kvevict_policy_layer_budgets(
    const kvevict_policy* policy, uint32_t n_context, uint32_t* budgets,
    size_t budgets_len) KVEVICT_NOEXCEPT;

/**
 * Tells how many tokens of a context each layer of a plan keeps per KV head.
 * The policy or layer_budgets decide it; with head_budgets it is the largest
 * number of the layer's heads.
 * @param[in]  plan         Non-NULL.
 * @param[in]  n_tokens     Tokens seen so far, 1 .. 2^31 - 1. More than
 *                          max_tokens count as the largest number up to
 *                          max_tokens whose last select_block is as full, as in
 *                          an eviction of a cache that has lost whole blocks.
 * @param[out] budgets      [n_layers] tokens; 0 for layers without a full
 *                          cache, which get no share of the budget.
 * @param[in]  budgets_len  = n_layers.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT; KVEVICT_ERROR_UNSUPPORTED
 *         where scores decide (split cake, lazy or scores).
 */
KVEVICT_API kvevict_status kvevict_plan_layer_budgets(
    const kvevict_plan* plan, uint32_t n_tokens, uint32_t* budgets,
    size_t budgets_len) KVEVICT_NOEXCEPT;

/** Scores of one layer, for kvevict_budget_for_mass(). */
typedef struct kvevict_layer_scores {
  uint32_t struct_size;
  uint32_t n_rows; /**< Keep lists, usually KV heads; 1 .. 65535. */
  /** f32 [n_rows, n_tokens], host memory, as kvevict_score() writes them. */
  const float* scores;
  size_t scores_len; /**< = n_rows * n_tokens. */
  uint32_t n_tokens; /**< Tokens of a row, 1 .. 2^31 - 1. */
  uint32_t reserved; /**< 0. */
} kvevict_layer_scores;

#define KVEVICT_LAYER_SCORES_INIT \
  { (uint32_t)sizeof(kvevict_layer_scores), 0, 0, 0, 0, 0 }

/** Which budgets kvevict_budget_for_mass() finds. */
typedef struct kvevict_mass_options {
  uint32_t struct_size;
  /** Which rows share a budget: with KVEVICT_SCOPE_KV_HEAD none, with
   *  KVEVICT_SCOPE_LAYER those of a layer, with KVEVICT_SCOPE_MODEL all. */
  kvevict_scope scope;
  double mass;       /**< Share to keep, in (0, 1]. */
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
 * Finds the smallest budgets that keep a share of the mass: how many tokens a
 * policy has to keep of prompts like this one.
 *
 * A row keeps the slots that must stay and then its highest scores, as
 * kvevict_select() chooses them; a row shorter than the budget keeps all. The
 * mass of a slot is its score; NaN and infinities have no mass, but +infinity
 * still stays first, so rows of kvevict_score() can be given unchanged. The
 * share of a row is the part of its sum that it keeps, 1 if the sum is 0. Sums
 * are in f64: slots that must stay are added first, in order, then scores in
 * descending order. Means add row by row.
 *
 * The call is for calibration, not for every step: it sorts all rows on the
 * context's workers, in memory from the context's allocator as large as the
 * scores.
 *
 * @param[in]  context     Non-NULL; on any device.
 * @param[in]  layers      [layers_len], all with the same struct_size.
 * @param[in]  layers_len  Any; 0 with NULL.
 * @param[in]  options     Non-NULL.
 * @param[out] budgets      Tokens, at least 1: one per row, end to end, one per
 *                          layer, or one in all, by options->scope.
 * @param[in]  budgets_len  Their number; with scope MODEL and no layers 0.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT, also if a score is below
 *         0 (the message has its place); KVEVICT_ERROR_OUT_OF_MEMORY.
 */
KVEVICT_API kvevict_status kvevict_budget_for_mass(
    const kvevict_context* context, const kvevict_layer_scores* layers,
    size_t layers_len, const kvevict_mass_options* options, uint32_t* budgets,
    size_t budgets_len) KVEVICT_NOEXCEPT;

/* ---- Before an eviction -------------------------------------------------- */

/**
 * Tells how many slots an eviction now would leave in each layer's longest
 * list: the room that a destination needs.
 *
 * If scores decide how many tokens a layer or head keeps, it is the number that
 * the layer holds. Nothing is scored, and CUDA does not wait.
 *
 * @param[in]  sequence   Non-NULL.
 * @param[in]  views      As for kvevict_sequence_evict().
 * @param[in]  views_len  = n_layers.
 * @param[out] slots      [n_layers]; 0 for layers without a full cache.
 * @param[in]  slots_len  = n_layers.
 * @return KVEVICT_OK; KVEVICT_ERROR_INVALID_ARGUMENT (a bad view, a budget
 *         too small for what must stay).
 */
KVEVICT_API kvevict_status kvevict_sequence_kept_slots(
    kvevict_sequence* sequence, const kvevict_view* views, size_t views_len,
    uint32_t* slots, size_t slots_len) KVEVICT_NOEXCEPT;

/* ---- Which token a slot holds -------------------------------------------- */

/**
 * Tells the position of the token in a slot.
 *
 * On CUDA the first call that asks for positions after an eviction waits for it
 * and copies the positions to the host, on the stream of the sequence's last
 * call.
 *
 * @param[in]  sequence      Non-NULL.
 * @param[in]  layer         < n_layers, with a full cache.
 * @param[in] kv_head  < n_kv_heads; heads that share a list are alike.
 * @param[in] slot     < the layer's stored length.
 * @param[out] out_position  The position.
 */
KVEVICT_API kvevict_status kvevict_sequence_position_of_slot(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t slot, int32_t* out_position) KVEVICT_NOEXCEPT;

/**
 * Tells which slot holds the token of a position; -1 if it was evicted.
 * @param[in]  sequence  Non-NULL.
 * @param[in]  layer     < n_layers, with a full cache.
 * @param[in]  kv_head   < n_kv_heads; heads that share a list are alike.
 * @param[in] position  < the logical length.
 * @param[out] out_slot  The slot, or -1.
 */
KVEVICT_API kvevict_status kvevict_sequence_slot_of_position(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t position, int32_t* out_slot) KVEVICT_NOEXCEPT;

/* ---- What a sequence holds on the device --------------------------------- */

/** Addresses of a sequence's state for one layer, on its context's device. */
typedef struct kvevict_sequence_memory {
  uint32_t struct_size;
  uint32_t n_lists; /**< The layer's, see kvevict_plan_layer(). */
  /** u32 [n_lists, 2]: stored and logical length of each list, updated by work
   *  on the stream; those of all layers lie end to end. Engines' kernels may
   *  read it: the next token goes to slot `stored` with position `logical`. The
   *  address is fixed for the sequence's life. 0 with policy none and for
   *  layers without a full cache. */
  uint64_t lengths;
  /** i32 [n_lists, n_listed]: positions of the layer's first slots; later slots
   *  have consecutive positions up to logical length - 1. The address changes
   *  with every eviction, start and load. */
  uint64_t positions;
  /** u32 [n_lists]: how many slots each list has in `positions`, if lists
   *  differ; 0 if all have n_listed. The address changes with every
   *  eviction. */
  uint64_t listed_counts;
  uint32_t n_listed;    /**< Row length of `positions`. */
  uint32_t n_sum_heads; /**< Rows of sums; 0 without. */
  /** f32 [n_sum_heads, sum_stride]: the observed attention that each slot
   *  received, or with policy custom its score, see
   *  kvevict_sequence_observe(). The address is fixed while the sequence
   *  observes; 0 without sums, and with sum_last, which keeps single calls. */
  uint64_t sums;
  uint64_t sum_stride; /**< Elements from row to row. */
} kvevict_sequence_memory;

/**
 * Tells where the state of a layer is.
 * @param[in]  sequence  Non-NULL.
 * @param[in]  layer  < n_layers.
 * @param[out] out    Non-NULL, out->struct_size set.
 */
KVEVICT_API kvevict_status
kvevict_sequence_memory_of(const kvevict_sequence* sequence, uint32_t layer,
                           kvevict_sequence_memory* out) KVEVICT_NOEXCEPT;

/**
 * Tells the host that a graph was launched once more. In that launch every
 * layer observed n_tokens query rows, or the sums of as many, with
 * KVEVICT_POSITION_NEXT, and the sequence appended n_tokens; a sequence that
 * does not observe only appended. The device has already counted them. The rows
 * of such a launch have no log-sum-exps, so a window that holds them is scored
 * without any. With sum_last this is one call of kvevict_sequence_observe() for
 * each layer that has observed any since the sequence got its memory; if the
 * graph contains several calls, report them one by one.
 * @param[in] sequence  Non-NULL.
 * @param[in] n_tokens  Tokens of one launch.
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
