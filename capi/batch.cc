// Entry points that take many sequences.
#include "capi/batch.h"
#include "kvevict/batch.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

// Checks that no sequence moves rows of another one.
Status CheckCachesApart(const Batch<kvevict_sequence_eviction>& batch,
                        size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const Sequence& moving = batch.SequenceOf(i);
    if (!IsToEvict(moving.call())) continue;
    for (size_t j = 0; j < n; ++j) {
      const Sequence& other = batch.SequenceOf(j);
      if (j == i || (j < i && IsToEvict(other.call()))) continue;
      Status status = CheckCachesApart(moving.call(), other.call());
      if (!status.ok()) return Prefixed(status, "items[%zu] and [%zu]: ", i, j);
    }
  }
  return Status();
}

// Checks that no sequence writes over what another one saves for an undo.
Status CheckUndosApart(const Batch<kvevict_sequence_eviction>& batch,
                       size_t n) {
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      if (j == i) continue;
      Status status = CheckUndoApart(batch.SequenceOf(i).call(),
                                     batch.SequenceOf(j).call());
      if (!status.ok()) return Prefixed(status, "items[%zu] and [%zu]: ", i, j);
    }
  }
  return Status();
}

}  // namespace

extern "C" {

kvevict_status kvevict_sequences_append(const kvevict_sequence_tokens* items,
                                        size_t items_len,
                                        kvevict_stream stream) noexcept {
  return Guard([&] {
    return Batch(items, items_len, stream)
        .Do(
            [](const kvevict_sequence_tokens& item) {
              return Core(item.sequence).CheckAppend(item.n_tokens);
            },
            [](const kvevict_sequence_tokens& item) {
              return Core(item.sequence).Append(item.n_tokens);
            });
  });
}

kvevict_status kvevict_sequences_trim_to(const kvevict_sequence_length* items,
                                         size_t items_len,
                                         kvevict_stream stream) noexcept {
  return Guard([&] {
    return Batch(items, items_len, stream)
        .Do(
            [](const kvevict_sequence_length& item) {
              return Core(item.sequence).CheckTrim(item.new_length);
            },
            [](const kvevict_sequence_length& item) {
              return Core(item.sequence).Trim(item.new_length);
            });
  });
}

kvevict_status kvevict_sequences_observe(
    const kvevict_sequence_observations* items, size_t items_len,
    kvevict_stream stream) noexcept {
  return Guard([&] {
    const auto observe = [](const kvevict_sequence_observations& item,
                            const auto& act) {
      Sequence& sequence = Core(item.sequence);
      size_t n = 0;
      KV_RETURN_IF_ERROR(CopyObservations(sequence, item.observations,
                                          item.observations_len, &n));
      return (sequence.*act)(sequence.call().inputs().first(n), item.n_rows,
                             item.first_position);
    };
    return Batch(items, items_len, stream)
        .Do(
            [&](const kvevict_sequence_observations& item) {
              return observe(item, &Sequence::CheckObserve);
            },
            [&](const kvevict_sequence_observations& item) {
              return observe(item, &Sequence::Observe);
            });
  });
}

kvevict_status kvevict_sequences_workspace(
    const kvevict_sequence_eviction* items, size_t items_len,
    kvevict_workspace* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    KV_RETURN_IF_ERROR(CheckArray("items", items, items_len));
    WorkspaceNeeds most;
    const Context* context = nullptr;
    KV_RETURN_IF_ERROR(ForEachStruct(
        "items", items, items_len,
        [&](size_t, const kvevict_sequence_eviction* in) {
          kvevict_sequence_eviction item = KVEVICT_SEQUENCE_EVICTION_INIT;
          KV_RETURN_IF_ERROR(CopyIn("item", in, &item));
          KV_RETURN_IF_ERROR(CheckItem(item));
          const Sequence& sequence = Core(item.sequence);
          context = &sequence.plan().context();
          most.GrowTo(NeedsToEvict(sequence.call()));
          return Status();
        }));
    if (context != nullptr) return CopyOut(*context, most, out);
    CopyOut(kvevict_workspace{0, 1, 0, 0}, out);
    return Status();
  });
}

kvevict_status kvevict_sequences_evict(const kvevict_sequence_eviction* items,
                                       size_t items_len, void* workspace,
                                       size_t workspace_bytes,
                                       kvevict_stream stream) noexcept {
  return Guard([&] {
    Batch batch(items, items_len, stream);
    return batch.Do(
        [&](const kvevict_sequence_eviction& item) {
          Sequence& sequence = Core(item.sequence);
          kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
          KV_RETURN_IF_ERROR(CopyEviction(sequence, item.views, item.views_len,
                                          item.options, &options));
          return CheckEvict(&sequence.call(), options, workspace,
                            workspace_bytes);
        },
        [&] {
          KV_RETURN_IF_ERROR(CheckCachesApart(batch, items_len));
          KV_RETURN_IF_ERROR(CheckWorkspaceApart(batch, items_len, workspace));
          return CheckUndosApart(batch, items_len);
        },
        [](const kvevict_sequence_eviction& item) {
          return RunEvict(&Core(item.sequence).call());
        });
  });
}

}  // extern "C"
