#include "core/sequence/layer_positions.h"

#include <algorithm>

#include "core/doors/checks.h"

namespace kvevict {

PositionList LayerPositions::Listed(uint32_t list) const {
  const PositionList all = lists[list];
  return all.first(
      std::lower_bound(all.begin(), all.end(), int64_t{tail_position}) -
      all.begin());
}

Status Positions::Allocate(const Plan& plan) {
  KV_RETURN_IF_ERROR(layers_.Allocate("positions of the layers",
                                      CheckedSize(plan.n_layers())));
  KV_RETURN_IF_ERROR(
      lists_.Allocate("positions of the lists", CheckedSize(plan.n_lists())));
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    layers_[l].lists = {lists_.data() + plan.layer(l).first_list,
                        plan.layer(l).n_lists};
  }
  return Status();
}

uint32_t CountInRow(PositionList list, uint32_t end) {
  uint32_t n = 0;
  while (n < list.size() && list[list.size() - 1 - n] == int64_t{end} - 1 - n)
    ++n;
  return n;
}

uint32_t FindTail(const LayerPositions& layer, uint32_t logical) {
  uint32_t tail = 0;
  for (const PositionList list : layer.lists) {
    const uint32_t in_row = CountInRow(list, logical);
    uint32_t first = logical - in_row;
    if (first > 0 && in_row == list.size()) ++first;
    tail = std::max(tail, std::min(first, logical));
  }
  return tail;
}

namespace {

Status CheckList(const Plan& plan, const LayerPositions& layer, uint32_t list,
                 uint32_t logical) {
  const size_t n_listed = layer.Listed(list).size();
  if (n_listed == 0 && layer.tail_position > 0) {
    return InvalidArgument("it has no token");
  }
  const uint64_t n_slots = uint64_t{n_listed} + logical - layer.tail_position;
  if (n_slots > plan.max_tokens()) {
    return InvalidArgument("%llu slots > max_tokens %u",
                           static_cast<unsigned long long>(n_slots),
                           plan.max_tokens());
  }
  const size_t n_first = layer.Listed(0).size();
  if (n_listed == n_first || plan.IsRagged()) return Status();
  return InvalidArgument(
      "%zu slots before position %u, but list 0 has %zu: lengths differ only "
      "with head_budgets or heads that are not equal",
      n_listed, layer.tail_position, n_first);
}

Status CheckLayer(const Plan& plan, const LayerPositions& layer,
                  uint32_t logical) {
  for (uint32_t i = 0; i < layer.lists.size(); ++i) {
    Status status = CheckAscending(layer.lists[i], logical);
    if (!status.ok()) return Prefixed(status, "list %u: positions", i);
  }
  for (uint32_t i = 0; i < layer.lists.size(); ++i) {
    Status status = CheckList(plan, layer, i, logical);
    if (!status.ok()) return Prefixed(status, "list %u: ", i);
  }
  return Status();
}

bool AreEqual(const LayerPositions& a, const LayerPositions& b) {
  const PositionList listed = a.Listed(0);
  const std::span<const int32_t> other = b.Listed(0);
  return a.tail_position == b.tail_position &&
         std::equal(listed.begin(), listed.end(), other.begin(), other.end());
}

}  // namespace

Status CheckPositions(const Plan& plan, std::span<const LayerPositions> layers,
                      uint32_t logical) {
  for (uint32_t l = 0; l < layers.size(); ++l) {
    const PlanLayer& layer = plan.layer(l);
    Status status = CheckLayer(plan, layers[l], logical);
    if (!status.ok()) return Prefixed(status, "layer %u: ", layer.number);
    if (plan.scope() != KVEVICT_SCOPE_MODEL || AreEqual(layers[l], layers[0]))
      continue;
    return InvalidArgument(
        "scope model: positions of layer %u are not layer %u's; scope layer "
        "would work",
        layer.number, plan.layer(0).number);
  }
  return Status();
}

}  // namespace kvevict
