// Layers whose tokens compete: how many stay of all, and of each.
#include <algorithm>

#include "core/evict/call.h"
#include "core/kernels/head_split.h"

namespace kvevict {
namespace {

// The winners of a layer whose lists begin at winners[first].
uint64_t WinnersOf(const EvictCall& call, const LayerOutcome& layer,
                   size_t first) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < call.plan.layer(layer.layer).n_lists; ++i) {
    n += call.winners()[first + i].count;
  }
  return n;
}

// Gives the lists of a layer equal numbers: its winners divided by its lists,
// rounded down. What is left goes, as long as it suffices, to the layers that
// lost most by rounding: one more for each of their lists.
void ShareEqually(const EvictCall& call) {
  const std::span<uint32_t> budgets = call.budgets();
  // A layer's part that is left, or 0 once it has been given more.
  const auto rest_of = [&](const LayerOutcome& layer, size_t first) {
    const uint64_t n_lists = call.plan.layer(layer.layer).n_lists;
    return WinnersOf(call, layer, first) -
           std::min(WinnersOf(call, layer, first),
                    n_lists * budgets[layer.layer]);
  };
  uint64_t n_left = 0;
  size_t first = 0;
  for (const LayerOutcome& layer : call.active) {
    const uint32_t n_lists = call.plan.layer(layer.layer).n_lists;
    const uint64_t n = WinnersOf(call, layer, first);
    budgets[layer.layer] = static_cast<uint32_t>(n / n_lists);
    n_left += n % n_lists;
    first += n_lists;
  }
  for (;;) {
    const LayerOutcome* best = nullptr;
    uint64_t best_rest = 0;
    first = 0;
    for (const LayerOutcome& layer : call.active) {
      const uint32_t n_lists = call.plan.layer(layer.layer).n_lists;
      const uint64_t rest = rest_of(layer, first);
      first += n_lists;
      if (rest == 0 || n_lists > n_left) continue;
      if (best == nullptr ||
          rest * call.plan.layer(best->layer).n_lists > best_rest * n_lists) {
        best = &layer;
        best_rest = rest;
      }
    }
    if (best == nullptr) return;
    ++budgets[best->layer];
    n_left -= call.plan.layer(best->layer).n_lists;
  }
}

}  // namespace

bool FindContest(EvictCall& call) {
  const Policy& policy = call.policy;
  uint64_t n_lists = 0;
  uint64_t n_held = 0;
  uint32_t n_context = 0;
  call.n_winners = 0;
  for (const LayerOutcome& layer : call.layers) {
    if (layer.owner != layer.layer) continue;
    const uint32_t n = call.plan.layer(layer.layer).n_lists;
    const ListCounts tokens = call.slots.HostTokens(layer.layer);
    n_context = ContextOf(call, layer);
    for (uint32_t list = 0; list < n; ++list) n_held += tokens.Of(list);
    n_lists += n;
    if (n_context > 0) {
      call.n_winners += uint64_t{n} * BudgetTokens(policy, n_context);
    }
  }
  // Without blocks all layers have the same context.
  if (policy.rounding == Rounding::kTogether && policy.select_block == 1 &&
      n_context > 0) {
    call.n_winners = BudgetTogether(policy, n_context, n_lists);
  }
  return n_held > call.n_winners + policy.margin * n_lists;
}

void LimitWinners(EvictCall& call) {
  uint64_t n_held = 0;
  for (const LayerOutcome& layer : call.active) {
    const ListCounts tokens = call.slots.HostTokens(layer.layer);
    for (uint32_t i = 0; i < call.plan.layer(layer.layer).n_lists; ++i) {
      n_held += tokens.Of(i);
    }
  }
  call.n_winners = std::min(call.n_winners, n_held);
}

Status ShareWinners(EvictCall& call) {
  const std::span<ListWinners> winners = call.winners();
  size_t n_lists = 0;
  for (const LayerOutcome& layer : call.active) {
    n_lists += call.plan.layer(layer.layer).n_lists;
  }
  uint64_t n_left = call.n_winners;
  KV_RETURN_IF_ERROR(call.backend().read(
      call.context, call.stream(), call.Part<ListWinners>(call.layout.winners),
      n_lists * sizeof(ListWinners), winners.data()));
  for (size_t i = 0; i < n_lists; ++i) n_left -= winners[i].count;
  DealTies(n_left, n_lists, {&winners[0].ties, 2}, {&winners[0].count, 2});
  if (!call.plan.IsRagged()) ShareEqually(call);
  size_t first = 0;
  for (LayerEviction& layer : call.active) {
    const uint32_t l = layer.layer;
    if (!call.plan.IsRagged()) {
      FindCounts(call, call.budgets()[l], &layer);
      layer.loses = layer.n_keep < layer.n_tokens;
      continue;
    }
    const ListCounts tokens = call.slots.HostTokens(l);
    const std::span<uint32_t> next = call.slots.NextCounts(l);
    layer.n_keep = 0;
    layer.loses = false;
    for (uint32_t list = 0; list < next.size(); ++list) {
      next[list] = winners[first + list].count;
      layer.n_keep = std::max(layer.n_keep, next[list]);
      layer.loses = layer.loses || next[list] < tokens.Of(list);
    }
    first += next.size();
  }
  LeaveOutWhole(call);
  return call.plan.IsRagged() ? call.slots.SendNextCounts(call.stream())
                              : Status();
}

}  // namespace kvevict
