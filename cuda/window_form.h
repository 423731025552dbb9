// Which variant of window_attention.cu computes a policy's scores.
#ifndef KVEVICT_CUDA_WINDOW_FORM_H_
#define KVEVICT_CUDA_WINDOW_FORM_H_

#include <algorithm>
#include <cstdint>

#include "core/context.h"
#include "core/policy/policy.h"
#include "cuda/kernels/window_attention.h"
#include "cuda/list_rows.h"
#include "cuda/module_cache.h"

namespace kvevict::cuda {

// KV_OUT of a variant.
enum WindowOut : uint32_t {
  kSumOfGroup = 0,
  kMaxOfGroup = 1,
  kRowPerHead = 2,
  kRowsApart = 3
};

// The part of a variant that the policy decides.
struct WindowForm {
  uint32_t group;  // query heads / logit_heads
  uint32_t window;
  WindowOut out;
  bool reduces_after;  // rows of query heads are reduced by another launch
  bool max_of_rows = false;
  bool softmax_past = false;
  bool weigh_by_past = false;
  uint32_t logit_heads = 1;
  bool is_part = false;
  bool pools_rows = false;  // each row by itself, by further launches
  // Tokens of a chunk, whose rows see only its keys; 0: the window's form.
  uint32_t chunk = 0;
  bool listed = false;  // a list says what rows see and weigh
  float spread = 0.0f;  // factor of the rows' variance
  bool caps = false;    // logits are capped
  Measure measure;
  // Rows so few that window_attention_few.cu takes them where the layout suits
  // it, and window_attention.cu without tensor cores elsewhere.
  bool few = false;

  WindowForm(const kvevict_layer_geometry& g, const Policy& policy,
             bool per_query_head);
  // The form for the plan's own shaping.
  WindowForm(const kvevict_layer_geometry& g, const Policy& policy);
  // The form of rows that are processed part by part: sums for every query
  // head.
  static WindowForm OfParts(const kvevict_layer_geometry& g);
  // The same for a row of each query head, as in decoding.
  static WindowForm OfOneRow(const kvevict_layer_geometry& g);
  // The form within chunks: sums of their rows, in parts if there are too many
  // rows for one.
  static WindowForm OfChunks(const kvevict_layer_geometry& g,
                             const Policy& policy, bool per_query_head);

  // The most layers in one launch.
  uint32_t MaxLayers() const {
    // One layer's chunks are enough work for a device, and their log-sum-exps
    // are many.
    if (pools_rows) return 1;  // its rows take much memory
    if (listed) return ListedJobs::kMaxLayers;
    if (few) return 16;  // logits take much memory
    return chunk > 0 ? 16 : ScoreParams::kMaxLayers;
  }
  // The rows of a query head that are reduced by further launches.
  uint32_t RowsPerHead() const { return pools_rows ? window : 1; }
  KeySplits SplitsOf(uint32_t n_tokens) const {
    if (chunk == 0) return SplitKeys(n_tokens);
    return {CeilDiv(n_tokens, chunk), chunk};
  }
  // The most splits for any length up to n_tokens.
  uint32_t MostSplits(uint32_t n_tokens) const {
    if (chunk > 0) return CeilDiv(n_tokens, chunk);
    return std::clamp(n_tokens / 1024, 1u, 64u);
  }
  // The factor of the summed weights of a row of scores.
  float WeightScale(const Policy& policy) const;
};

// The part of a variant that the caches decide.
struct WindowVariant {
  uint32_t paged;  // KV_PAGED
  bool ragged;     // heads have lengths of their own
  bool mma;
  bool few;  // by window_attention_few.cu
  bool sinks;
  bool biases;
  bool token_groups;  // rows share scales, or some are recent
};

bool LeavesHeadsApart(const kvevict_layer_geometry& g, const Policy& policy);

uint32_t SmOf(const Context& context);

uint32_t TileKeysOf(const Context& context, const kvevict_layer_geometry& g,
                    const WindowForm& form, bool mma);

ModuleKey ScorerOf(const Context& context, const kvevict_layer_geometry& g,
                   const WindowForm& form, const WindowVariant& variant);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_WINDOW_FORM_H_
