#include "core/evict/undo.h"

#include "core/evict/eviction.h"
#include "core/evict/saved_rows.h"

namespace kvevict {
namespace {

SavedLayer SavedOf(const Sequence& sequence, uint32_t layer, uint32_t n_rows) {
  const LayerCache& cache = sequence.caches()[layer];
  return {cache.view, cache.shared_companions,
          sequence.plan().layer(layer).n_lists, sequence.plan().IsRagged(),
          n_rows};
}

Status UndoOverflows() {
  return InvalidArgument("undo: more bytes than a size_t can say");
}

// Of n layers saved_of(i) is what is saved, if it has rows; calls add(i, entry) for the
// place of each one's, and run(entries) for some of them at a time.
template <typename SavedOfLayer, typename Add, typename Run>
Status ForEachSaved(void* memory, size_t n, const SavedOfLayer& saved_of,
                    const Add& add, const Run& run) {
  SavedRows rows(static_cast<uint8_t*>(memory));
  for (uint32_t i = 0; i < n; ++i) {
    const SavedLayer layer = saved_of(i);
    if (layer.n_rows == 0) continue;
    SavedRows::Entry* entry = rows.Add(layer);
    if (entry == nullptr) {
      KV_RETURN_IF_ERROR(run(rows.entries()));
      rows.Clear();
      entry = rows.Add(layer);
    }
    add(i, entry);
  }
  return rows.entries().empty() ? Status() : run(rows.entries());
}

}  // namespace

// ---- Before an eviction ----

uint32_t Eviction::MostEvicted(const LayerOutcome& layer) const {
  const ListCounts held = slots_.HostTokens(layer.layer);
  const ListCounts kept = slots_.HostNext(layer.layer, layer.n_keep);
  uint32_t most = 0;
  for (uint32_t list = 0; list < plan_.layer(layer.layer).n_lists; ++list) {
    most = std::max(most, held.Of(list) - kept.Of(list));
  }
  return most;
}

Status Eviction::CheckCanUndo() const {
  if (plan_.merge().Merges()) {
    return Unsupported("undo: the policy merges rows into others, which stay");
  }
  if (policy_.rotate != 0) {
    return Unsupported("undo: the policy turns keys that stay");
  }
  return Status();
}

// Where scores decide how many tokens a list keeps, it may be none.
CheckedSize Eviction::UndoBytes() const {
  CheckedSize bytes(0);
  for (const LayerEviction& layer : active_) {
    const uint32_t n_rows =
        CountsByScore(policy_) ? layer.n_tokens : MostEvicted(layer);
    bytes = bytes + SavedBytes(SavedOf(sequence_, layer.layer, n_rows));
  }
  return bytes;
}

Status Eviction::CheckUndo() const {
  KV_RETURN_IF_ERROR(CheckCanUndo());
  const CheckedSize bytes = UndoBytes();
  if (!bytes.ok()) return UndoOverflows();
  return CheckMemory("undo", context_, options_.undo, options_.undo_bytes,
                     bytes.value());
}

Status Eviction::FindUndoBytes(size_t* out) {
  KV_RETURN_IF_ERROR(FindBudgets());
  if (HasWork()) KV_RETURN_IF_ERROR(CheckCanUndo());
  const CheckedSize bytes = UndoBytes();
  if (!bytes.ok()) return UndoOverflows();
  *out = bytes.value();
  return Status();
}

Status UndoBytes(Sequence* sequence, size_t* out) {
  const Plan& plan = sequence->plan();
  if (TouchesNothing(plan.policy()) ||
      !sequence->prompt().IsDue(sequence->logical_length())) {
    KV_RETURN_IF_ERROR(FindCaches(*sequence));
    *out = 0;
    return Status();
  }
  const kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  const uint32_t n_tokens = std::max(1u, sequence->slots().Longest());
  return Eviction(sequence, options, nullptr, EvictWorkspace(), n_tokens)
      .FindUndoBytes(out);
}

// ---- Within it ----

Status Eviction::SaveRows() const {
  return ForEachSaved(
      options_.undo, active_.size(),
      [&](uint32_t i) {
        return SavedOf(sequence_, active_[i].layer, MostEvicted(active_[i]));
      },
      [&](uint32_t i, SavedRows::Entry* entry) {
        const LayerEviction& layer = active_[i];
        entry->move.tokens = layer.move.tokens;
        entry->list.tokens = layer.move.tokens;
        entry->list.keep = layer.keep;
      },
      [&](std::span<const SavedRows::Entry> entries) {
        const Backend& backend = context_.backend();
        KV_RETURN_IF_ERROR(backend.list_evicted(
            context_, sequence_.stream(),
            {Jobs<EvictedJob>(entries, &SavedRows::Entry::list)}));
        return backend.compact(
            context_, sequence_.stream(),
            {Jobs<MoveJob>(entries, &SavedRows::Entry::move), {}});
      });
}

// ---- And after it ----

namespace {

// Layers whose rows are saved: those that lost tokens, and are no other's.
SavedLayer SavedBefore(const Sequence& sequence, uint32_t layer) {
  const SlotTable& slots = sequence.slots();
  const bool is_owner = slots.OwnerBefore(layer) == layer;
  return SavedOf(sequence, layer, is_owner ? slots.EvictedOf(layer) : 0);
}

Status CheckLayers(const Sequence& sequence) {
  const Plan& plan = sequence.plan();
  const SlotTable& slots = sequence.slots();
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    if (slots[l].stored > plan.max_tokens()) {
      return InvalidArgument("layer %u: %u slots in the end > max_tokens %u",
                             plan.layer(l).number, slots[l].stored,
                             plan.max_tokens());
    }
  }
  KV_RETURN_IF_ERROR(FindCaches(sequence));
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    if (sequence.caches()[l].owner == slots.OwnerBefore(l)) continue;
    return InvalidArgument(
        "views[%u] is the cache of views[%u], at the eviction it was that of "
        "views[%u]",
        plan.layer(l).number, plan.layer(sequence.caches()[l].owner).number,
        plan.layer(slots.OwnerBefore(l)).number);
  }
  return CheckApart("views", sequence.caches());
}

// With the lengths that will be.
Status CheckUndo(const Sequence& sequence, const void* memory,
                 size_t memory_bytes) {
  KV_RETURN_IF_ERROR(CheckLayers(sequence));
  CheckedSize bytes(0);
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    const SavedLayer layer = SavedBefore(sequence, l);
    if (layer.n_rows > 0) bytes = bytes + SavedBytes(layer);
  }
  if (!bytes.ok()) return UndoOverflows();
  return CheckMemory("undo", sequence.plan().context(), memory, memory_bytes,
                     bytes.value());
}

Status PutBack(const Sequence& sequence, const void* memory) {
  const Context& context = sequence.plan().context();
  const SlotTable& slots = sequence.slots();
  const uint32_t n_appended = sequence.logical_length() - slots.length_before();
  return ForEachSaved(
      const_cast<void*>(memory), sequence.plan().n_layers(),
      [&](uint32_t l) { return SavedBefore(sequence, l); },
      [&](uint32_t l, SavedRows::Entry* entry) {
        entry->move.tokens = slots.DeviceTokens(l);
        entry->move.first_slot = n_appended;
      },
      [&](std::span<const SavedRows::Entry> entries) {
        return context.backend().restore(
            context, sequence.stream(),
            {Jobs<MoveJob>(entries, &SavedRows::Entry::move)});
      });
}

}  // namespace

Status Undo(Sequence* sequence, const void* memory, size_t memory_bytes) {
  SlotTable& slots = sequence->slots();
  if (!slots.remembers()) {
    return InvalidArgument(
        "nothing to undo: no eviction had memory for it, or it was the last "
        "but one, or the sequence was reset, loaded or trimmed since");
  }
  slots.Exchange();
  if (Status status = CheckUndo(*sequence, memory, memory_bytes);
      !status.ok()) {
    slots.Exchange();
    return status;
  }
  KV_RETURN_IF_ERROR(PutBack(*sequence, memory));
  return sequence->TakeBack();
}

}  // namespace kvevict
