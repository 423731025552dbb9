#include "tests/gpu/random_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "core/dtype.h"

#include "kvevict/experimental.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kMostTokens = 160;

uint64_t RoundUp(uint64_t n, uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

kvevict_dtype RandomDType(Random* random) {
  return random->Pick(
      {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16, KVEVICT_DTYPE_BF16});
}

uint32_t ElementBytesOf(kvevict_dtype dtype) {
  return ElementBytes(static_cast<DType>(dtype));
}

kvevict_layer_geometry UnreadLayer(kvevict_layer_cache cache) {
  kvevict_layer_geometry layer;
  std::memset(&layer, 0xEE, sizeof(layer));
  layer.struct_size = sizeof(layer);
  layer.cache = cache;
  return layer;
}

namespace {

kvevict_layer_geometry DrawLayer(Random* random, bool small) {
  kvevict_layer_geometry g = KVEVICT_LAYER_GEOMETRY_INIT;
  g.n_kv_heads = small ? 1 : random->In(1, 4);
  g.n_q_heads = g.n_kv_heads * random->In(1, small ? 2 : 8);
  g.k_head_dim = small
                     ? random->Pick({3u, 16u})
                     : random->Pick({1u, 3u, 8u, 16u, 24u, 32u, 33u, 64u, 80u});
  g.v_head_dim = random->OneOf(3) ? random->In(1, 40) : g.k_head_dim;
  g.k_dtype = RandomDType(random);
  g.q_dtype = random->OneOf(3) ? RandomDType(random) : g.k_dtype;
  g.v_dtype = random->OneOf(3) ? RandomDType(random) : g.k_dtype;
  if (random->OneOf(4)) g.softmax_scale = 2.0f;
  return g;
}

// Layers of two kinds in any order, with some without a full cache between them.
std::vector<kvevict_layer_geometry> DrawUnlikeLayers(Random* random,
                                                     uint32_t n_layers,
                                                     bool small) {
  const kvevict_layer_geometry kinds[] = {DrawLayer(random, small),
                                          DrawLayer(random, small)};
  std::vector<kvevict_layer_geometry> layers;
  for (uint32_t l = 0; l < n_layers; ++l) {
    layers.push_back(random->OneOf(4)
                         ? UnreadLayer(random->Pick({KVEVICT_LAYER_CACHE_WINDOW,
                                                     KVEVICT_LAYER_CACHE_NONE}))
                         : kinds[random->In(0, 1)]);
  }
  layers[random->In(0, n_layers - 1)] = kinds[0];
  return layers;
}

Geometry DrawGeometry(Random* random, Much much) {
  Geometry g = {random->In(1, 4),
                random->OneOf(4) ? random->In(2, kMostTokens)
                                 : random->In(40, kMostTokens),
                {}};
  const bool many_layers = much == Much::kLayers;
  if (many_layers) {  // more than go in a launch
    g.n_layers = random->In(100, 130);
    g.max_tokens = random->In(20, 26);
  } else if (much != Much::kNothing) {  // more positions than go in a launch
    g.n_layers = 1;
    // One block cannot select from so many.
    g.max_tokens = much == Much::kSelection ? 66001 : random->In(1000, 2500);
    g.layers = {DrawLayer(random, true)};
    g.layers[0].n_q_heads = g.layers[0].n_kv_heads;
    g.layers[0].k_head_dim = g.layers[0].v_head_dim = 2;
    return g;
  }
  if (random->OneOf(2)) {
    g.layers = {DrawLayer(random, many_layers)};
  } else {
    g.n_layers = std::max(g.n_layers, 2u);
    g.layers = DrawUnlikeLayers(random, g.n_layers, many_layers);
  }
  return g;
}

// Directions of such keys cancel out, so only rounding would rank them.
bool HasScalarKeys(const Geometry& g) {
  for (uint32_t l = 0; l < g.n_layers; ++l) {
    if (g.IsFull(l) && g.layer(l).k_head_dim == 1) return true;
  }
  return false;
}

// Holds all tokens that must stay, wherever blocks begin, and one token more.
uint32_t LeastBudget(const oracle_policy& p) {
  const uint32_t b = p.select_block;
  return (p.sink + b - 1) / b * b +
         std::max(p.recent, p.keep_window ? p.window : 0) + b;
}

oracle_policy DrawPolicy(Random* random, uint32_t max_tokens,
                         const std::string& name) {
  oracle_policy p = ParsePolicy(name);
  const oracle_kind kind = p.kind;
  p.sink = random->In(0, 4);
  p.block = random->OneOf(4) ? random->In(20, 60) : random->In(2, 12);
  p.recent = random->OneOf(2) ? 0 : random->In(0, 12);
  p.window = random->OneOf(4) ? random->In(1, 64) : random->In(1, 12);
  const bool spreads = kind == ORACLE_CAKE;
  if (spreads) p.window = std::max(2u, p.window);
  p.keep_window = !random->OneOf(4);
  if (random->OneOf(4)) p.select_block = random->In(2, 20);
  p.budget = random->OneOf(5)
                 ? 0.3 + random->In(0, 60) * 0.01
                 : LeastBudget(p) + random->In(0, std::max(1u, max_tokens / 5));
  p.pool = random->Pick({ORACLE_POOL_NONE, ORACLE_POOL_AVG, ORACLE_POOL_MAX});
  p.pool_width = 2 * random->In(0, random->OneOf(4) ? 40 : 5) + 1;
  p.edge = random->Pick({ORACLE_EDGE_PAD, ORACLE_EDGE_SHRINK});
  p.rows = random->Pick({KVEVICT_REDUCE_MEAN, KVEVICT_REDUCE_SUM});
  if (spreads) {
    p.rows = KVEVICT_REDUCE_MEAN;
    p.spread = random->In(0, 2) * 10.0;
  }
  p.group = random->Pick(
      {KVEVICT_REDUCE_MEAN, KVEVICT_REDUCE_MAX, KVEVICT_REDUCE_SUM});
  p.order = random->Pick({ORACLE_ORDER_REDUCE_POOL, ORACLE_ORDER_POOL_REDUCE});
  if (ByWindow(kind) && random->OneOf(4)) {
    oracle_policy of_rows = p;
    of_rows.order = ORACLE_ORDER_POOL_ROWS;
    if (p.pool == ORACLE_POOL_AVG && random->OneOf(2)) {
      of_rows.edge = ORACLE_EDGE_MASS;
    }
    if (random->OneOf(2)) of_rows.rows = KVEVICT_REDUCE_MAX;
    if (IsValid(of_rows)) p = of_rows;
  }
  if (ByWindow(kind) && kind != ORACLE_CAKE && random->OneOf(3)) {
    p.reference = random->In(1, random->OneOf(4) ? 70 : 9);
    p.reference_weight = random->Pick({0.25, 0.5, 1.0, 1.0});
    p.row_weight = random->Pick({ORACLE_ROW_WEIGHT_NONE, ORACLE_ROW_WEIGHT_NONE,
                                 ORACLE_ROW_WEIGHT_PAST});
    p.softmax = random->Pick(
        {ORACLE_SOFTMAX_CAUSAL, ORACLE_SOFTMAX_CAUSAL, ORACLE_SOFTMAX_PAST});
    if (random->OneOf(3)) p.rows = KVEVICT_REDUCE_MAX;
  }
  p.scope = random->Pick(
      {KVEVICT_SCOPE_KV_HEAD, KVEVICT_SCOPE_LAYER, KVEVICT_SCOPE_MODEL});
  p.over = random->Pick(
      {KVEVICT_REDUCE_MEAN, KVEVICT_REDUCE_MAX, KVEVICT_REDUCE_SUM});
  p.tie =
      random->Pick({KVEVICT_TIE_LOWER_POSITION, KVEVICT_TIE_HIGHER_POSITION});
  if (p.scope == KVEVICT_SCOPE_MODEL) {
    p.split = ORACLE_SPLIT_UNIFORM;
  } else if (random->OneOf(3)) {
    p.split = ORACLE_SPLIT_GEOMETRIC;
    p.alpha = 0.9;
  } else if (random->OneOf(3)) {
    p.split = ORACLE_SPLIT_SCORES;
    p.floor = random->In(0, 5) * 0.1;
    p.rounding = random->Pick({ORACLE_ROUNDING_HEAD, ORACLE_ROUNDING_TOGETHER});
    if (!IsValid(p)) p.split = ORACLE_SPLIT_UNIFORM;
  } else {
    p.split = ORACLE_SPLIT_UNIFORM;
  }
  p.seed = random->Bits();
  if (kind == ORACLE_CUSTOM && random->OneOf(2)) {
    p.half_life = random->In(1, 100);
  }
  // Norms round otherwise on either side. Scores lent to the twin do not depend on
  // them.
  const bool lends = LendsScores(p);
  p.weight = random->OneOf(3)            ? ORACLE_WEIGHT_GIVEN
             : lends && random->OneOf(2) ? ORACLE_WEIGHT_NORM
                                         : ORACLE_WEIGHT_NONE;
  // Scores that are lent are the door's, which takes equal slots for equal tokens.
  if (!lends && p.weight == ORACLE_WEIGHT_GIVEN && random->OneOf(2)) {
    p.share = ORACLE_SHARE_HEADS;
  }
  // Not to what is below 0, lest a mean near 0 is all rounding.
  if ((!lends || ByWindow(kind)) && random->OneOf(3)) {
    p.prior = ORACLE_PRIOR_MEAN;
  }
  // Not to what is below 0, lest a sum near 0 is all rounding.
  if (kind != ORACLE_KNORM && random->OneOf(2)) p.epsilon = 0.25;
  if (lends && random->OneOf(3)) p.redundancy = 0.5;
  // A small deviation of scores that differ by rounding is all rounding.
  if (!lends && kind != ORACLE_STREAMING_LLM) {
    p.standardize = random->OneOf(4);
    if (random->OneOf(4)) p.leverage = 0.25 * random->In(1, 8);
    p.leverage_scale = static_cast<int>(random->In(0, 1));
  }
  if (!lends && random->OneOf(5)) {
    p.chunk = random->In(20, 60);
    if (!IsValid(p)) p.chunk = 0;
  }
  p.similarity = random->In(0, 4) * 0.2;
  if (random->OneOf(3)) {
    p.merge = random->Pick(
        {KVEVICT_MERGE_VALUES, KVEVICT_MERGE_PIVOT, KVEVICT_MERGE_WEIGHTED});
    p.merge_threshold = random->In(0, 2) * 0.25;
    p.merge_fraction = 1.0 - random->In(0, 3) * 0.25;
  }
  if (random->OneOf(4)) p.rotate = 1;
  if (random->OneOf(4)) p.margin = random->In(1, 20);
  if (random->OneOf(4)) {
    p.every = random->In(0, 8);
    p.prompt = random->Pick({ORACLE_PROMPT_INSIDE, ORACLE_PROMPT_BESIDE,
                             ORACLE_PROMPT_PINNED, ORACLE_PROMPT_PINNED_BESIDE,
                             ORACLE_PROMPT_AT_END});
  }
  for (oracle_number& own : std::span(p.own, p.n_own)) {
    const double number = own.value * std::exp2(random->In(0, 12) - 6.0);
    own.value = std::clamp(own.is_count ? std::floor(number) : number,
                           own.least, own.most);
  }
  return p;
}

// Budgets around the policy's. In some models a head may keep everything, which
// ends what can be appended.
std::vector<uint32_t> DrawHeadBudgets(Random* random, const Geometry& g,
                                      const oracle_policy& policy) {
  const uint32_t least = LeastBudget(policy);
  const bool some_keep_all = random->OneOf(4);
  std::vector<uint32_t> budgets;
  for (uint32_t l = 0; l < g.n_layers; ++l) {
    for (uint32_t h = 0; g.IsFull(l) && h < g.layer(l).n_kv_heads; ++h) {
      uint32_t budget = least + random->In(0, g.max_tokens / 5);
      if (some_keep_all && random->OneOf(4)) budget = g.max_tokens;
      budgets.push_back(budget);
    }
  }
  return budgets;
}

// For policies that rank.
void DrawHeadSplit(Random* random, oracle_policy* policy) {
  if (policy->kind == ORACLE_STREAMING_LLM) return;
  policy->rounding =
      random->Pick({ORACLE_ROUNDING_HEAD, ORACLE_ROUNDING_TOGETHER});
  if (policy->split == ORACLE_SPLIT_SCORES) {
    policy->scope = KVEVICT_SCOPE_KV_HEAD;
    policy->heads = ORACLE_HEADS_ADAPTIVE;
    return;
  }
  policy->scope = KVEVICT_SCOPE_KV_HEAD;
  policy->heads =
      random->Pick({ORACLE_HEADS_ADAPTIVE, ORACLE_HEADS_ADAPTIVE_BLEND,
                    ORACLE_HEADS_THRESHOLD});
  policy->floor = random->In(0, 10) * 0.1;
  policy->threshold = random->In(0, 8) * 0.01;
  policy->normalize = random->OneOf(3);
}

// For policies whose scores are not lent to the twin, which cannot refine them.
void DrawSecure(Random* random, oracle_policy* policy) {
  if (LendsScores(*policy)) return;
  oracle_policy p = *policy;
  p.weight = ORACLE_WEIGHT_GIVEN;
  p.secure = random->In(1, 10) * 0.1;
  if (IsValid(p)) *policy = p;
}

bool HasPlainValues(const Geometry& g) {
  for (uint32_t l = 0; l < g.n_layers; ++l) {
    if (!g.IsFull(l)) continue;
    const kvevict_dtype v = g.layer(l).v_dtype;
    if (g.layer(l).v_head_dim == 0 ||
        (v != KVEVICT_DTYPE_F32 && v != KVEVICT_DTYPE_F16 &&
         v != KVEVICT_DTYPE_BF16)) {
      return false;
    }
  }
  return true;
}

// Tokens that are drawn, or that stay for the ranges of their values, which both
// sides compute alike.
void DrawChance(Random* random, bool has_plain_values, oracle_policy* policy) {
  if (LendsScores(*policy)) return;
  oracle_policy p = *policy;
  p.draw = random->OneOf(2);
  if (has_plain_values && (!p.draw || random->OneOf(2))) {
    p.secure_values = random->In(1, 30);
  }
  if (IsValid(p)) *policy = p;
}

// Groups of 16 bytes or a few elements; 0: none.
uint32_t DrawGroup(Random* random, uint32_t row_len, uint32_t element_bytes) {
  if (!random->OneOf(4)) return 0;
  const uint32_t n = random->OneOf(2) ? 16 / element_bytes : random->In(1, 6);
  return row_len % n == 0 ? n : 0;
}

// Draws rescue or diversity of blocks, and sums of all calls or of the last.
void DrawBlocks(Random* random, oracle_policy* policy) {
  oracle_policy p = *policy;
  if (random->OneOf(2)) {
    p.rescue = random->In(1, 3);
    p.anchor = random->Pick({ORACLE_ANCHOR_MEAN, ORACLE_ANCHOR_ZEROS,
                             ORACLE_ANCHOR_ONES, ORACLE_ANCHOR_ALTERNATING,
                             ORACLE_ANCHOR_RANDOM});
    if (p.kind == ORACLE_H2O) p.rows = KVEVICT_REDUCE_SUM;
  } else {
    p.diverse_mass = random->In(1, 10) * 0.1;
  }
  if (IsValid(p)) *policy = p;
}

void DrawSums(Random* random, oracle_policy* policy) {
  if (policy->kind != ORACLE_H2O) return;
  oracle_policy p = *policy;
  p.sums =
      random->Pick({ORACLE_SUMS_HEAD, ORACLE_SUMS_QUERY, ORACLE_SUMS_LAYER});
  p.sum_pool = random->In(1, 9);
  if (IsValid(p)) *policy = p;
  p.sum_last = random->In(1, 4);
  p.raw_first = random->In(0, 1);
  if (IsValid(p)) *policy = p;
}

}  // namespace

namespace {

// Draws codes for keys, values or both if rows have whole blocks of them.
void DrawCodes(Random* random, Geometry* geometry) {
  const auto draw = [&] {
    std::vector<kvevict_dtype> coded;
    for (const DTypeInfo& info : kDTypes) {
      if (!info.is_quantized()) continue;
      coded.push_back(static_cast<kvevict_dtype>(info.dtype));
    }
    const kvevict_dtype dtype =
        coded[random->In(0, static_cast<uint32_t>(coded.size()) - 1)];
    return random->OneOf(3) ? KVEVICT_DTYPE_OPAQUE : dtype;
  };
  const kvevict_dtype k = draw();
  const kvevict_dtype v = random->OneOf(3) ? k : draw();
  const auto take = [](kvevict_dtype codes, uint32_t n, kvevict_dtype* dtype) {
    if (codes == KVEVICT_DTYPE_OPAQUE) return;
    if (n % InfoOf(static_cast<DType>(codes)).block_elements == 0) {
      *dtype = codes;
    }
  };
  for (kvevict_layer_geometry& layer : geometry->layers) {
    if (layer.cache != KVEVICT_LAYER_CACHE_FULL) continue;
    take(k, layer.k_head_dim, &layer.k_dtype);
    take(v, layer.v_head_dim, &layer.v_dtype);
  }
}

}  // namespace

ModelCase RandomCase(Random* random, const std::string& policy, Much much,
                     bool by_table) {
  ModelCase c = {DrawGeometry(random, much), {}};
  if (much == Much::kSelection) {  // pairs of so many tokens take too long
    c.policy =
        ParsePolicy(policy + ":budget=50,sink=4,scope=head,split=geometric");
    c.observes = false;
    return c;
  }
  c.policy = DrawPolicy(random, c.geometry.max_tokens, policy);
  const bool rounds_rows =
      c.policy.merge != KVEVICT_MERGE_NONE || c.policy.rotate != 0;
  if (!rounds_rows && random->OneOf(3)) DrawCodes(random, &c.geometry);
  if (c.policy.kind == ORACLE_KEYDIFF && HasScalarKeys(c.geometry)) {
    c.policy.kind = ORACLE_KNORM;
  }
  // With blocks, a token next to the cut decides who comes after it. Rounding may
  // change scores, which doors_check.cc tests.
  if (c.policy.kind == ORACLE_KEYDIFF) c.policy.block = 0;
  if (random->OneOf(3)) {
    c.policy.scope = KVEVICT_SCOPE_KV_HEAD;
    if (c.policy.split == ORACLE_SPLIT_SCORES) {
      c.policy.split = ORACLE_SPLIT_UNIFORM;
    }
    c.head_budgets = DrawHeadBudgets(random, c.geometry, c.policy);
  }
  if (c.head_budgets.empty() && random->OneOf(3)) {
    DrawHeadSplit(random, &c.policy);
  }
  if (random->OneOf(2)) DrawSecure(random, &c.policy);
  if (c.head_budgets.empty() && random->OneOf(3)) {
    DrawChance(random, HasPlainValues(c.geometry), &c.policy);
  }
  if (c.head_budgets.empty()) DrawBlocks(random, &c.policy);
  DrawSums(random, &c.policy);
  if (by_table) {  // whole blocks, whose rows do not change
    c.table_block = much == Much::kNothing ? random->Pick({1u, 3u, 4u, 8u}) : 1;
    c.policy.select_block = c.table_block * random->In(1, 2);
    c.policy.rotate = 0;
    c.policy.merge = KVEVICT_MERGE_NONE;
  }
  c.select_on_host = random->OneOf(6);
  c.debug = random->OneOf(8);
  c.observes = !random->OneOf(4);
  c.reports_mass = random->OneOf(3);
  return c;
}

RandomPlane PackedPlane(const kvevict_layer_geometry& g, uint32_t n_rows) {
  RandomPlane packed;
  packed.plane =
      kvevict_plane_token_major(nullptr, g.q_dtype, g.n_q_heads, g.k_head_dim);
  packed.n_bytes =
      uint64_t{n_rows} * static_cast<uint64_t>(packed.plane.token_stride_bytes);
  return packed;
}

RandomPlane DrawPlane(Random* random, kvevict_dtype dtype, uint32_t row_len,
                      uint32_t n_heads, uint32_t n_tokens, uint32_t n_blocks,
                      bool may_group, uint32_t block_align) {
  RandomPlane drawn;
  kvevict_plane& plane = drawn.plane;
  plane.dtype = dtype;
  const bool opaque = dtype == KVEVICT_DTYPE_OPAQUE;
  const DTypeInfo& info = InfoOf(static_cast<DType>(dtype));
  // The rows are bytes, or elements that are no bytes of their own.
  const bool whole = info.element_bytes == 0;
  (opaque ? plane.row_bytes : plane.head_dim) = row_len;
  struct Axis {
    uint32_t n;
    int64_t* stride;
  };
  std::vector<Axis> axes = {{n_heads, &plane.head_stride_bytes},
                            {n_tokens, &plane.token_stride_bytes},
                            {n_blocks, &plane.block_stride_bytes}};
  for (size_t i = axes.size(); i > 1; --i) {
    std::swap(axes[i - 1], axes[random->In(0, static_cast<uint32_t>(i) - 1)]);
  }
  const uint32_t element = !whole                      ? info.element_bytes
                           : info.block_elements == 32 ? 2
                                                       : 1;
  if (may_group && !whole)
    plane.group_elems = DrawGroup(random, row_len, element);
  const bool packed = whole || (plane.group_elems == 0 && !random->OneOf(4));
  uint64_t reach = opaque   ? row_len
                   : packed ? PackedBytes(info.dtype, row_len)
                            : element;
  if (plane.group_elems != 0) {
    axes.insert(axes.begin() + random->In(0, 2),
                {row_len / plane.group_elems, &plane.group_stride_bytes});
    reach = uint64_t{plane.group_elems} * element;
  } else if (!packed) {
    axes.insert(axes.begin() + random->In(0, 2),
                {row_len, &plane.element_stride_bytes});
  }
  const uint32_t align = opaque ? 1 : random->OneOf(2) ? 16 : element;
  for (const Axis& axis : axes) {
    uint64_t step = reach;
    if (random->OneOf(4)) step += random->In(0, 40);
    step = RoundUp(step, axis.stride == &plane.block_stride_bytes
                             ? std::max(align, block_align)
                             : align);
    const bool down = random->OneOf(8);
    *axis.stride = static_cast<int64_t>(down ? 0 - step : step);
    if (down) plane.data += step * (axis.n - 1);
    reach += step * (axis.n - 1);
  }
  drawn.n_bytes = reach;
  return drawn;
}

void WriteRandomElement(Random* random, kvevict_dtype dtype, bool special,
                        void* to) {
  if (!special || !random->OneOf(400)) {
    FillWithValues(random->Bits(), dtype, 1, to);
    return;
  }
  const bool nan = random->OneOf(2);
  const uint32_t sign = random->In(0, 1);
  if (ElementBytesOf(dtype) == 1) {  // codes have none of these
    const CodeNumbers& codes = InfoOf(static_cast<DType>(dtype)).codes;
    const bool infinite = codes.is_float() && !nan;
    const auto code =
        static_cast<uint8_t>(sign << 7 | (infinite ? codes.infinity : 0x7F));
    std::memcpy(to, &code, sizeof(code));
    return;
  }
  if (dtype == KVEVICT_DTYPE_F32) {
    const uint32_t bits = sign << 31 | (nan ? 0x7FC00000u : 0x7F800000u);
    std::memcpy(to, &bits, sizeof(bits));
    return;
  }
  const uint32_t infinity = dtype == KVEVICT_DTYPE_F16 ? 0x7C00u : 0x7F80u;
  const auto bits =
      static_cast<uint16_t>(sign << 15 | infinity | (nan ? 0x40u : 0u));
  std::memcpy(to, &bits, sizeof(bits));
}

}  // namespace kvevict::gpu
