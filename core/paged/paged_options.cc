#include "core/paged/paged_options.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/dtype_name.h"
#include "core/plan/plan.h"
#include "core/view/view.h"
#include "core/view/view_roles.h"
#include "kvevict/paged.h"

namespace kvevict {
namespace {

constexpr uint32_t kMostBlockSize = 65536;

// Checks that rows of a layer may be quantized by groups, or later than they
// come.
Status CheckLayer(const PlanLayer& layer,
                  const kvevict_paged_cache_options& options) {
  const kvevict_layer_geometry& g = layer.geometry;
  const DTypeInfo& k = InfoOf(static_cast<DType>(g.k_dtype));
  const DTypeInfo& v = InfoOf(static_cast<DType>(g.v_dtype));
  if (options.group_tokens != 0 && !k.takes_minimum) {
    return InvalidArgument(
        "group_tokens %u is not 0, but k_dtype of layer %u is %s, whose rows "
        "have no minimum",
        options.group_tokens, layer.number, k.name);
  }
  if (k.is_quantized() && (!HasValues(g) || v.is_quantized())) return Status();
  return InvalidArgument(
      "group_tokens %u, recent_tokens %u: one is not 0, but %s_dtype of layer "
      "%u is %s, not quantized",
      options.group_tokens, options.recent_tokens, k.is_quantized() ? "v" : "k",
      layer.number, k.is_quantized() ? v.name : k.name);
}

// Checks options for rows that are not quantized one by one as they come.
Status CheckRecent(const Plan& plan,
                   const kvevict_paged_cache_options& options) {
  const DTypeInfo* const recent = FindDType(options.recent_dtype);
  if (options.recent_dtype != 0 && (recent == nullptr || !recent->is_plain())) {
    return InvalidArgument("recent_dtype %s is not f32, f16, bf16 or 0",
                           DTypeName(options.recent_dtype).text);
  }
  if (RowsStandAlone(options)) {
    if (options.recent_dtype == 0) return Status();
    return InvalidArgument(
        "recent_dtype %s, but group_tokens and recent_tokens are 0",
        DTypeName(options.recent_dtype).text);
  }
  const uint32_t block_size = BlockSizeOf(options);
  if (options.group_tokens > kMostGroupTokens) {
    return InvalidArgument("group_tokens %u > %u", options.group_tokens,
                           kMostGroupTokens);
  }
  if (options.group_tokens != 0 && block_size % options.group_tokens != 0) {
    return InvalidArgument("group_tokens %u does not divide block_size %u",
                           options.group_tokens, block_size);
  }
  if (options.recent_tokens > plan.max_tokens()) {
    return InvalidArgument("recent_tokens %u > max_tokens %u",
                           options.recent_tokens, plan.max_tokens());
  }
  for (const PlanLayer& layer : plan.layers()) {
    KV_RETURN_IF_ERROR(CheckLayer(layer, options));
  }
  return Status();
}

}  // namespace

bool RowsStandAlone(const kvevict_paged_cache_options& options) {
  return options.group_tokens == 0 && options.recent_tokens == 0;
}

uint32_t BlockSizeOf(const kvevict_paged_cache_options& options) {
  if (options.block_size != 0) return options.block_size;
  return options.group_tokens != 0 ? options.group_tokens : 16;
}

uint32_t MostRecent(const Plan& plan,
                    const kvevict_paged_cache_options& options) {
  if (RowsStandAlone(options)) return 0;
  return std::min(options.recent_tokens + BlockSizeOf(options) - 1,
                  plan.max_tokens());
}

Status CheckPagedOptions(const Plan& plan,
                         const kvevict_paged_cache_options& options) {
  if (options.n_blocks < 1) return InvalidArgument("n_blocks 0 < 1");
  if (options.block_size > kMostBlockSize) {
    return InvalidArgument("block_size %u > %u", options.block_size,
                           kMostBlockSize);
  }
  if (options.layout != KVEVICT_BLOCK_LAYOUT_HEAD_MAJOR &&
      options.layout != KVEVICT_BLOCK_LAYOUT_TOKEN_MAJOR) {
    return InvalidArgument("layout %d is no layout of blocks",
                           static_cast<int>(options.layout));
  }
  const DTypeInfo* const numbers = FindDType(options.number_dtype);
  if (options.number_dtype != 0 &&
      (numbers == nullptr || !numbers->is_plain())) {
    return InvalidArgument("number_dtype %s is not f32, f16, bf16 or 0",
                           DTypeName(options.number_dtype).text);
  }
  if (options.memory == nullptr && options.memory_bytes != 0) {
    return InvalidArgument("memory is NULL, but memory_bytes is %zu",
                           options.memory_bytes);
  }
  for (const PlanLayer& layer : plan.layers()) {
    const kvevict_layer_geometry& g = layer.geometry;
    if (g.k_dtype == KVEVICT_DTYPE_OPAQUE ||
        (HasValues(g) && g.v_dtype == KVEVICT_DTYPE_OPAQUE)) {
      return Unsupported("layer %u has opaque rows, whose bytes are unknown",
                         layer.number);
    }
  }
  return CheckRecent(plan, options);
}

}  // namespace kvevict
