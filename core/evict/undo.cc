#include "core/evict/undo.h"

#include <algorithm>

#include "core/evict/call.h"
#include "core/evict/evict.h"
#include "core/evict/saved_rows.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// One part of what is saved. All layers' rows come first, then their sums.
struct SavedPart {
  uint32_t layer;
  bool is_sums;
};
SavedPart PartOf(const Plan& plan, uint32_t i) {
  return {i % plan.n_layers(), i >= plan.n_layers()};
}
uint32_t CountOfParts(const Plan& plan) {
  return plan.n_layers() * (plan.ObservesSums() ? 2 : 1);
}

// A shared cache is saved with its first layer, sums with each layer.
SavedLayer SavedOf(const Sequence& sequence, const SavedPart& part,
                   uint32_t owner, uint32_t n_rows) {
  const Plan& plan = sequence.plan();
  SavedLayer saved;
  saved.n_lists = plan.layer(part.layer).n_lists;
  saved.lists_differ = plan.IsRagged();
  if (part.is_sums) {
    saved.view = sequence.sums().ViewOf(part.layer);
    saved.n_rows = n_rows;
    return saved;
  }
  const LayerCache& cache = sequence.call().caches()[part.layer];
  saved.view = *cache.view;
  saved.shared_companions = cache.shared_companions;
  saved.n_rows = owner == part.layer ? n_rows : 0;
  return saved;
}

Status UndoOverflows() {
  return InvalidArgument("undo: more bytes than size_t holds");
}

// Visits all saved parts. saved_of(part) says what is saved; parts without rows
// are skipped. add(part, entry) is called for each, run(entries) for some of
// them at a time. Sums that are not `wanted` keep their place.
template <typename SavedOfPart, typename Wanted, typename Add, typename Run>
Status ForEachSaved(const Plan& plan, void* memory, const SavedOfPart& saved_of,
                    const Wanted& wanted, const Add& add, const Run& run) {
  SavedRows rows(static_cast<uint8_t*>(memory));
  for (uint32_t i = 0; i < CountOfParts(plan); ++i) {
    const SavedPart part = PartOf(plan, i);
    const SavedLayer saved = saved_of(part);
    if (saved.n_rows == 0) continue;
    if (part.is_sums && !wanted(part.layer)) {
      rows.Skip(saved);
      continue;
    }
    SavedRows::Entry* entry = rows.Add(saved);
    if (entry == nullptr) {
      KV_RETURN_IF_ERROR(run(rows.entries()));
      rows.Clear();
      entry = rows.Add(saved);
    }
    entry->layer = part.layer;
    entry->is_sums = part.is_sums;
    add(part.layer, entry);
  }
  return rows.entries().empty() ? Status() : run(rows.entries());
}

}  // namespace

// ---- Before an eviction ----

namespace {

uint32_t MostEvicted(const EvictCall& call, const LayerOutcome& layer) {
  const ListCounts held = call.slots.HostTokens(layer.layer);
  const ListCounts kept = call.slots.HostNext(layer.layer, layer.n_keep);
  uint32_t most = 0;
  for (uint32_t list = 0; list < call.plan.layer(layer.layer).n_lists; ++list) {
    most = std::max(most, held.Of(list) - kept.Of(list));
  }
  return most;
}

}  // namespace

Status CheckPolicyUndoes(const EvictCall& call) {
  if (call.plan.merge().Merges()) {
    return Unsupported("undo: the policy merges rows into rows that stay");
  }
  if (FitsValues(call.policy)) {
    return Unsupported("undo: fit=%s changes values that stay",
                       FitsBiases(call.policy) ? "bias-values" : "values");
  }
  if (call.policy.rotate != 0) {
    return Unsupported("undo: the policy rotates keys that stay");
  }
  return Status();
}

// An upper bound if scores decide how many tokens a list or a layer keeps.
CheckedSize UndoBytes(const EvictCall& call) {
  const bool may_lose_all =
      CountsByScore(call.policy) || LayersCompete(call.policy);
  CheckedSize bytes(0);
  for (uint32_t i = 0; i < CountOfParts(call.plan); ++i) {
    const SavedPart part = PartOf(call.plan, i);
    const LayerOutcome& layer = call.layers[part.layer];
    if (!layer.loses || (part.is_sums && !call.sequence.sums().has_memory())) {
      continue;
    }
    const uint32_t n_rows =
        may_lose_all ? layer.n_tokens : MostEvicted(call, layer);
    const SavedLayer saved = SavedOf(call.sequence, part, layer.owner, n_rows);
    if (saved.n_rows > 0) bytes = bytes + SavedBytes(saved);
  }
  return bytes;
}

Status CheckUndo(const EvictCall& call) {
  KV_RETURN_IF_ERROR(CheckMoveByRow(call, "undo"));
  const CheckedSize bytes = UndoBytes(call);
  if (!bytes.ok()) return UndoOverflows();
  KV_RETURN_IF_ERROR(CheckMemory("undo", call.context, call.options.undo,
                                 call.options.undo_bytes, bytes.value()));
  const auto undo = reinterpret_cast<uintptr_t>(call.options.undo);
  const auto workspace = reinterpret_cast<uintptr_t>(call.workspace);
  if (undo < workspace + call.layout.bytes &&
      workspace < undo + bytes.value()) {
    return InvalidArgument("undo %p overlaps the workspace %p",
                           call.options.undo,
                           static_cast<void*>(call.workspace));
  }
  KV_RETURN_IF_ERROR(CheckApartFrom("undo", call.options.undo, bytes.value(),
                                    "views", call.caches()));
  // With no jobs this only checks that the operation can run, before anything
  // is queued.
  return call.backend().list_evicted(call.context, call.stream(), {});
}

Status CheckUndoApart(const EvictCall& a, const EvictCall& b) {
  if (!a.is_begun || !a.Saves()) return Status();
  const uint64_t n_bytes = UndoBytes(a).value();
  const bool has_destinations = b.is_begun && b.HasDestinations();
  KV_RETURN_IF_ERROR(
      CheckApartFrom("undo", a.options.undo, n_bytes, "views",
                     has_destinations ? b.both_caches() : b.caches()));
  if (!b.is_begun || !b.Saves()) return Status();
  const auto begin = reinterpret_cast<uintptr_t>(a.options.undo);
  const auto others = reinterpret_cast<uintptr_t>(b.options.undo);
  if (begin >= others + UndoBytes(b).value() || others >= begin + n_bytes) {
    return Status();
  }
  return InvalidArgument("undo %p overlaps undo %p", a.options.undo,
                         b.options.undo);
}

Status FindUndoBytes(EvictCall* call, size_t* out) {
  KV_RETURN_IF_ERROR(CheckPolicyUndoes(*call));
  if (TouchesNothing(call->policy) ||
      !call->sequence.prompt().IsDue(call->sequence.logical_length())) {
    KV_RETURN_IF_ERROR(FindCaches(*call));
    *out = 0;
    return Status();
  }
  const kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  call->Begin(options, nullptr, EvictWorkspace(),
              std::max(1u, call->slots.Longest()));
  Status status = FindBudgets(*call);
  call->End();
  if (status.ok() && call->LosesTokens())
    status = CheckMoveByRow(*call, "undo");
  if (!status.ok()) return status;
  const CheckedSize bytes = UndoBytes(*call);
  if (!bytes.ok()) return UndoOverflows();
  *out = bytes.value();
  return Status();
}

// ---- During an eviction ----

Status SaveRows(const EvictCall& call) {
  const bool has_sums = call.sequence.sums().has_memory();
  return ForEachSaved(
      call.plan, call.options.undo,
      [&](const SavedPart& part) {
        const LayerOutcome& layer = call.layers[part.layer];
        return SavedOf(call.sequence, part, layer.owner,
                       layer.loses && (!part.is_sums || has_sums)
                           ? MostEvicted(call, layer)
                           : 0);
      },
      [&](uint32_t l) { return call.sequence.sums().Has(l); },
      [&](uint32_t l, SavedRows::Entry* entry) {
        entry->move.tokens = entry->list.tokens = call.slots.DeviceTokens(l);
        entry->list.keep = call.layers[call.layers[l].owner].keep;
      },
      [&](std::span<const SavedRows::Entry> entries) {
        const Backend& backend = call.backend();
        KV_RETURN_IF_ERROR(backend.list_evicted(
            call.context, call.stream(),
            {Jobs<EvictedJob>(entries, &SavedRows::Entry::list)}));
        return backend.compact(
            call.context, call.stream(),
            {Jobs<MoveJob>(entries, &SavedRows::Entry::move), {}});
      });
}

// ---- After an eviction ----

namespace {

SavedLayer SavedBefore(const Sequence& sequence, const SavedPart& part) {
  const SlotTable& slots = sequence.slots();
  const bool is_saved = !part.is_sums || sequence.saved_sums();
  return SavedOf(sequence, part, slots.OwnerBefore(part.layer),
                 is_saved ? slots.EvictedOf(part.layer) : 0);
}

Status CheckLayers(const Sequence& sequence) {
  const Plan& plan = sequence.plan();
  const SlotTable& slots = sequence.slots();
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    if (slots[l].stored > plan.max_tokens()) {
      return InvalidArgument(
          "layer %u: %u slots after the undo > max_tokens %u",
          plan.layer(l).number, slots[l].stored, plan.max_tokens());
    }
  }
  KV_RETURN_IF_ERROR(FindCaches(sequence.call()));
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    if (slots.EvictedOf(l) == 0) continue;
    if (Status status = CheckNotShared(sequence.call().views()[l], 0);
        !status.ok()) {
      return Prefixed(status, "views[%u]: ", plan.layer(l).number);
    }
  }
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    if (sequence.call().caches()[l].owner == slots.OwnerBefore(l)) continue;
    return InvalidArgument(
        "views[%u] is the cache of views[%u], but at the eviction it was that "
        "of views[%u]",
        plan.layer(l).number,
        plan.layer(sequence.call().caches()[l].owner).number,
        plan.layer(slots.OwnerBefore(l)).number);
  }
  return CheckApart("views", sequence.call().caches());
}

// Calls run(entries) for the rows to put back, some of them at a time.
template <typename Run>
Status ForEachRestored(const Sequence& sequence, const void* memory,
                       const Run& run) {
  const SlotTable& slots = sequence.slots();
  const uint32_t n_appended = sequence.logical_length() - slots.length_before();
  return ForEachSaved(
      sequence.plan(), const_cast<void*>(memory),
      [&](const SavedPart& part) { return SavedBefore(sequence, part); },
      [&](uint32_t l) {
        return sequence.sums().ComeBack(l, slots.length_before());
      },
      [&](uint32_t l, SavedRows::Entry* entry) {
        entry->move.tokens = slots.DeviceTokens(l);
        entry->move.first_slot = n_appended;
        entry->list.tokens = slots.HostTokens(l);
      },
      run);
}

// Checks that an eviction can have left these slots. The number that each list
// held follows its slots.
Status CheckSlots(std::span<const SavedRows::Entry> entries) {
  for (const SavedRows::Entry& entry : entries) {
    const KeepLists& evicted = entry.move.keep;
    for (uint32_t list = 0; list < evicted.n_lists; ++list) {
      const int64_t n_held =
          int64_t{entry.list.tokens.Of(list)} - entry.move.first_slot;
      const uint32_t n = evicted.count.Of(list);
      const int32_t* const slots = evicted.List(list);
      bool fits = n < entry.list.stride && slots[n] == n_held;
      for (uint32_t i = 0; fits && i < n; ++i) {
        fits = slots[i] >= 0 && slots[i] < slots[i + 1];
      }
      if (fits) continue;
      return InvalidArgument(
          "undo is not as the eviction left it: it must have %u ascending "
          "slots below %lld",
          n, static_cast<long long>(n_held));
    }
  }
  return Status();
}

// Checks an undo. Slot counts are already those after it.
Status CheckTakeBack(const Sequence& sequence, const void* memory,
                     size_t memory_bytes) {
  KV_RETURN_IF_ERROR(CheckLayers(sequence));
  CheckedSize bytes(0);
  const Plan& plan = sequence.plan();
  for (uint32_t i = 0; i < CountOfParts(plan); ++i) {
    const SavedLayer saved = SavedBefore(sequence, PartOf(plan, i));
    if (saved.n_rows > 0) bytes = bytes + SavedBytes(saved);
  }
  if (!bytes.ok()) return UndoOverflows();
  KV_RETURN_IF_ERROR(
      CheckMemory("undo", plan.context(), memory, memory_bytes, bytes.value()));
  if (plan.context().backend().on_host) {
    KV_RETURN_IF_ERROR(ForEachRestored(sequence, memory, CheckSlots));
  }
  return plan.context().backend().restore(plan.context(), sequence.stream(),
                                          {});
}

Status PutBack(const Sequence& sequence, const void* memory) {
  const Context& context = sequence.plan().context();
  return ForEachRestored(
      sequence, memory, [&](std::span<const SavedRows::Entry> entries) {
        const SumTable& sums = sequence.sums();
        const auto are_calls = [&](const SavedRows::Entry& entry) {
          return entry.is_sums && sums.KeepsCalls();
        };
        const auto calls =
            std::find_if(entries.begin(), entries.end(), are_calls);
        const size_t n_others = calls - entries.begin();
        KV_RETURN_IF_ERROR(context.backend().restore(
            context, sequence.stream(),
            {Jobs<MoveJob>(entries.first(n_others), &SavedRows::Entry::move)}));
        for (const SavedRows::Entry& entry : entries.subspan(n_others)) {
          KV_RETURN_IF_ERROR(
              sums.PutBackCalls(sequence.stream(), entry.layer, entry.move));
        }
        return Status();
      });
}

}  // namespace

Status Undo(Sequence* sequence, const void* memory, size_t memory_bytes) {
  SlotTable& slots = sequence->slots();
  if (!slots.remembers()) {
    return InvalidArgument(
        "nothing to undo: the last eviction had no undo memory, or the "
        "sequence was reset, loaded or trimmed since");
  }
  KV_RETURN_IF_ERROR(
      sequence->sums().CheckNotAhead(sequence->logical_length()));
  slots.Exchange();
  if (Status status = CheckTakeBack(*sequence, memory, memory_bytes);
      !status.ok()) {
    slots.Exchange();
    return status;
  }
  KV_RETURN_IF_ERROR(PutBack(*sequence, memory));
  return sequence->TakeBack();
}

}  // namespace kvevict
