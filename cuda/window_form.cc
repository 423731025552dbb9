#include "cuda/window_form.h"

#include <algorithm>

#include "core/policy/shaping.h"
#include "core/signals/signal.h"
#include "cuda/device_state.h"
#include "cuda/kernels/window_attention_few.h"

namespace kvevict::cuda {
namespace {

// The most rows that a launch takes.
uint32_t MostRows(const kvevict_layer_geometry& g) {
  return PartRows(static_cast<uint32_t>(g.q_dtype),
                  static_cast<uint32_t>(g.k_dtype), g.k_head_dim);
}

// The form of sums over n rows for every query head.
WindowForm SumsOf(const kvevict_layer_geometry& g, uint32_t n_rows) {
  Policy policy;
  policy.rows = KVEVICT_REDUCE_SUM;
  policy.window.count = n_rows;
  WindowForm form(g, policy, /*per_query_head=*/true);
  form.is_part = true;
  return form;
}

}  // namespace

bool LeavesHeadsApart(const kvevict_layer_geometry& g, const Policy& policy) {
  return MakeShaping(policy, SignalOf(policy), g.n_q_heads / g.n_kv_heads)
             .n_terms > 1;
}

uint32_t SmOf(const Context& context) {
  return static_cast<uint32_t>(DeviceOf(context).sm());
}

WindowForm::WindowForm(const kvevict_layer_geometry& g, const Policy& policy,
                       bool per_query_head)
    : group(g.n_q_heads / g.n_kv_heads),
      window(ScoringRows(policy)),
      max_of_rows(policy.rows == KVEVICT_REDUCE_MAX),
      listed(HasReference(policy)),
      spread(static_cast<float>(policy.spread) *
             static_cast<float>(policy.window.count)),
      caps(g.logit_softcap != 0.0f),
      measure(MeasureOf(policy)) {
  if (policy.order == ShapingOrder::kReduceLogits) {
    logit_heads = group;
    group = 1;
  }
  softmax_past = !listed && policy.softmax == SoftmaxKeys::kPast;
  weigh_by_past = !listed && policy.row_weight == RowWeight::kPast;
  pools_rows = PoolsRows(policy);
  if (pools_rows) {
    reduces_after = true;
    max_of_rows = false;
    out = kRowsApart;
    return;
  }
  few = !listed && logit_heads == 1 && spread == 0.0f &&
        measure == Measure::kNone &&
        TakesFewRows(static_cast<uint32_t>(g.q_dtype),
                     static_cast<uint32_t>(g.k_dtype), g.k_head_dim,
                     group * window);
  const bool max = policy.group == KVEVICT_REDUCE_MAX;
  const bool reduces = group > 1 && !per_query_head;
  // If both reductions are maxima they are one. Otherwise the maximum is of
  // whole heads, which needs a block that has them.
  reduces_after =
      reduces && (max_of_rows ? !max : max && !CanReduceByMax(window));
  if (per_query_head || reduces_after) {
    out = group == 1 ? kSumOfGroup : kRowPerHead;
  } else {
    out = reduces && max && !max_of_rows ? kMaxOfGroup : kSumOfGroup;
  }
}

WindowForm::WindowForm(const kvevict_layer_geometry& g, const Policy& policy)
    : WindowForm(g, policy, LeavesHeadsApart(g, policy)) {}

WindowForm WindowForm::OfParts(const kvevict_layer_geometry& g) {
  WindowForm form = SumsOf(g, MostRows(g));
  form.few = false;
  return form;
}

WindowForm WindowForm::OfOneRow(const kvevict_layer_geometry& g) {
  return SumsOf(g, 1);
}

WindowForm WindowForm::OfChunks(const kvevict_layer_geometry& g,
                                const Policy& policy, bool per_query_head) {
  Policy of_rows;
  of_rows.rows = KVEVICT_REDUCE_SUM;
  of_rows.group = policy.group;
  of_rows.window.count = std::min(policy.block, MostRows(g));
  WindowForm form(g, of_rows, per_query_head);
  form.chunk = policy.block;
  form.caps = false;  // logits are not scaled either
  form.few = false;
  if (form.chunk > form.window && form.group > 1 && !per_query_head) {
    form.reduces_after = true;
    form.out = kRowPerHead;
  }
  return form;
}

float WindowForm::WeightScale(const Policy& policy) const {
  float scale = 1.0f;
  if (is_part || pools_rows) return scale;
  if (chunk == 0 && !listed && policy.rows == KVEVICT_REDUCE_MEAN) {
    scale /= static_cast<float>(window);
  }
  if (out == kSumOfGroup && policy.group == KVEVICT_REDUCE_MEAN) {
    scale /= static_cast<float>(group);
  }
  return scale;
}

uint32_t TileKeysOf(const Context& context, const kvevict_layer_geometry& g,
                    const WindowForm& form, bool mma) {
  if (form.logit_heads > 1) return LogitTileKeys(form.window);
  return TileKeys(mma, g.k_head_dim, SmOf(context));
}

ModuleKey ScorerOf(const Context& context, const kvevict_layer_geometry& g,
                   const WindowForm& form, const WindowVariant& variant) {
  const uint32_t tile_keys = TileKeysOf(context, g, form, variant.mma);
  ModuleKey key;
  key.module =
      variant.few ? ModuleId::window_attention_few : ModuleId::window_attention;
  key.Add("KV_Q_DTYPE", g.q_dtype);
  key.Add("KV_K_DTYPE", g.k_dtype);
  key.Add("KV_HEAD_DIM", g.k_head_dim);
  key.Add("KV_WINDOW", form.window);
  key.Add("KV_GROUP", form.group);
  key.Add("KV_PAGED", variant.paged);
  key.Add("KV_RAGGED", variant.ragged);
  key.Add("KV_USE_MMA", variant.mma);
  key.Add("KV_TILE_KEYS", tile_keys);
  key.Add("KV_OUT", form.out);
  if (form.softmax_past) key.Add("KV_SOFTMAX_PAST", true);
  if (form.weigh_by_past) key.Add("KV_WEIGH_BY_PAST", true);
  if (form.max_of_rows) key.Add("KV_MAX_OF_ROWS", true);
  if (form.logit_heads > 1) key.Add("KV_LOGIT_HEADS", form.logit_heads);
  if (form.is_part && !form.few) key.Add("KV_PART", true);
  if (form.chunk > 0) key.Add("KV_CHUNKS", true);
  if (form.listed) key.Add("KV_LISTED", true);
  if (form.spread > 0.0f) key.Add("KV_SPREAD", true);
  if (form.caps) key.Add("KV_SOFTCAP", true);
  if (variant.sinks) key.Add("KV_SINKS", true);
  if (variant.biases) key.Add("KV_BIAS", true);
  if (variant.token_groups) key.Add("KV_TOKEN_GROUPS", true);
  static_assert(static_cast<int>(Measure::kDynamics) == 1 &&
                static_cast<int>(Measure::kEnds) == 2);
  if (form.measure != Measure::kNone) {
    key.Add("KV_MEASURE", static_cast<int>(form.measure));
  }
  const WindowAttentionShape shape =
      ShapeWindowAttention(variant.mma, static_cast<uint32_t>(g.q_dtype),
                           g.k_head_dim, form.window, form.group, tile_keys);
  const uint32_t staged =
      StagedTiles(shape, static_cast<uint32_t>(g.k_dtype), SmOf(context));
  if (staged > 0) key.Add("KV_STAGED_TILES", staged);
  key.dynamic_shared_bytes =
      SharedBytes(shape, staged, tile_keys, g.k_head_dim);
  return key;
}

}  // namespace kvevict::cuda
