#include "core/sequence/handover.h"

#include <algorithm>

#include "core/dtype_name.h"

namespace kvevict {
namespace {

Status CheckAlike(uint32_t number, const kvevict_layer_geometry& from,
                  const kvevict_layer_geometry& to) {
  const struct {
    const char* name;
    int64_t from, to;
  } fields[] = {{"n_q_heads", from.n_q_heads, to.n_q_heads},
                {"n_kv_heads", from.n_kv_heads, to.n_kv_heads},
                {"k_head_dim", from.k_head_dim, to.k_head_dim},
                {"v_head_dim", from.v_head_dim, to.v_head_dim}};
  for (const auto& field : fields) {
    if (field.from == field.to) continue;
    return InvalidArgument("plan: layer %u: %s %lld is not the sequence's %lld",
                           number, field.name, static_cast<long long>(field.to),
                           static_cast<long long>(field.from));
  }
  if (from.q_dtype == to.q_dtype) return Status();
  return InvalidArgument("plan: layer %u: q_dtype %s is not the sequence's %s",
                         number, DTypeName(to.q_dtype).text,
                         DTypeName(from.q_dtype).text);
}

Status CheckSameLayers(const Plan& from, const Plan& to) {
  if (&from.context() != &to.context()) {
    return InvalidArgument("plan: its context is not the sequence's");
  }
  if (from.n_model_layers() != to.n_model_layers()) {
    return InvalidArgument("plan: n_layers %u is not the sequence's %u",
                           to.n_model_layers(), from.n_model_layers());
  }
  for (uint32_t number = 0; number < to.n_model_layers(); ++number) {
    if (from.CacheKindOf(number) != to.CacheKindOf(number)) {
      return InvalidArgument(
          "plan: layer %u: cache %d is not the sequence's %d", number,
          static_cast<int>(to.CacheKindOf(number)),
          static_cast<int>(from.CacheKindOf(number)));
    }
  }
  for (uint32_t l = 0; l < to.n_layers(); ++l) {
    KV_RETURN_IF_ERROR(CheckAlike(to.layer(l).number, from.layer(l).geometry,
                                  to.layer(l).geometry));
  }
  return Status();
}

// If tokens were evicted, keys are rotated either to their slots or to their
// positions. Both policies must agree.
Status CheckRotation(const Sequence& from, const Plan& to) {
  const uint32_t rotates = from.plan().policy().rotate;
  if ((rotates != 0) == (to.policy().rotate != 0)) return Status();
  for (uint32_t l = 0; l < to.n_layers(); ++l) {
    const ListCounts tokens = from.slots().HostTokens(l);
    for (uint32_t i = 0; i < from.plan().layer(l).n_lists; ++i) {
      if (tokens.Of(i) == from.logical_length()) continue;
      return InvalidArgument(
          "plan: rotate is %u, but layer %u has lost tokens and its keys are "
          "rotated to their %s",
          to.policy().rotate, to.layer(l).number,
          rotates != 0 ? "slots" : "positions");
    }
  }
  return Status();
}

// Lists that become one must be equal.
Status CheckOneList(const Plan& to, const PlanLayer& layer,
                    std::span<const PositionList> lists) {
  for (uint32_t head = 1; head < lists.size(); ++head) {
    if (std::equal(lists[0].begin(), lists[0].end(), lists[head].begin(),
                   lists[head].end())) {
      continue;
    }
    return InvalidArgument(
        "layer %u: KV heads 0 and %u hold different tokens, but the plan has "
        "one list for both: %s would work",
        layer.number, head,
        to.signal().Ranks() ? "scope head" : "head_budgets");
  }
  return Status();
}

Status CheckOneLength(const PlanLayer& layer,
                      std::span<const PositionList> lists, uint32_t n_tail) {
  for (uint32_t head = 1; head < lists.size(); ++head) {
    if (lists[head].size() == lists[0].size()) continue;
    return InvalidArgument(
        "layer %u: KV heads 0 and %u hold %zu and %zu tokens: a plan with "
        "head_budgets or heads that are not equal would work",
        layer.number, head, lists[0].size() + n_tail,
        lists[head].size() + n_tail);
  }
  return Status();
}

// The prompt's tokens that a list still holds.
uint32_t CountOfPrompt(PositionList listed, uint32_t tail, uint32_t n_prompt) {
  const auto end =
      std::lower_bound(listed.begin(), listed.end(), int64_t{n_prompt});
  return static_cast<uint32_t>(end - listed.begin()) +
         (n_prompt > tail ? n_prompt - tail : 0);
}

}  // namespace

Status HandOver(const Sequence& from, const Plan& plan,
                std::span<LayerPositions> out) {
  KV_RETURN_IF_ERROR(CheckSameLayers(from.plan(), plan));
  KV_RETURN_IF_ERROR(CheckRotation(from, plan));
  const Prompt& prompt = from.prompt();
  Array<PositionList> lists(plan.context());
  uint32_t most_lists = 0;
  for (const PlanLayer& layer : from.plan().layers()) {
    most_lists = std::max(most_lists, layer.n_lists);
  }
  KV_RETURN_IF_ERROR(lists.Allocate("lists of a layer", most_lists));
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    const PlanLayer& layer = plan.layer(l);
    const LayerSlots& slots = from.slots()[l];
    const std::span<PositionList> held(lists.data(),
                                       from.plan().layer(l).n_lists);
    SlotPositions positions;
    KV_RETURN_IF_ERROR(from.HostPositions(l, &positions));
    LayerPositions& to = out[l];
    to.tail_position = slots.tail_position;
    to.is_merged = slots.is_merged;
    for (uint32_t i = 0; i < held.size(); ++i) {
      held[i] = {positions.kept + uint64_t{i} * positions.n_kept.most,
                 positions.n_kept.Of(i)};
      if (!prompt.has_ended()) continue;
      to.prompt_slots =
          std::max(to.prompt_slots,
                   CountOfPrompt(held[i], to.tail_position, prompt.n_tokens()));
    }
    if (to.lists.size() == 1) {
      KV_RETURN_IF_ERROR(CheckOneList(plan, layer, held));
    } else if (!plan.IsRagged()) {
      KV_RETURN_IF_ERROR(CheckOneLength(
          layer, held, from.logical_length() - to.tail_position));
    }
    for (uint32_t i = 0; i < to.lists.size(); ++i) {
      to.lists[i] = held[held.size() == 1 ? 0 : i];
    }
  }
  return Status();
}

}  // namespace kvevict
