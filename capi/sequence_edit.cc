// Entry points that edit a sequence in the middle.
#include "capi/sequence.h"
#include "core/evict/call.h"
#include "core/paged/cleared_biases.h"
#include "core/parts.h"
#include "core/sequence/edit.h"
#include "kvevict/edit.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

// Grows the paged rows for an edit, and owns those that it changes.
Status MakeRoom(PagedSequence& cached, const Sequence& sequence,
                const SequenceEdit& edit) {
  const Context& context = sequence.plan().context();
  const uint32_t n_layers = sequence.plan().n_layers();
  Array<PagedSequence::Room> rooms(context);
  KV_RETURN_IF_ERROR(rooms.Allocate("room for an edit", CheckedSize(n_layers)));
  for (uint32_t l = 0; l < n_layers; ++l) {
    rooms[l] = {edit.FirstChanged(l), edit.RoomOf(l)};
  }
  return cached.MakeRoom({rooms.data(), rooms.size()}, sequence.stream());
}

Status EditPaged(PagedSequence& cached, Sequence& sequence,
                 const kvevict_edit& edit) {
  if (!cached.cache().rows_stand_alone()) {
    return Unsupported("cached: %s", ReasonText(KVEVICT_REASON_TOKEN_GROUPS));
  }
  SequenceEdit run(sequence);
  KV_RETURN_IF_ERROR(run.Prepare(edit));
  KV_RETURN_IF_ERROR(MakeRoom(cached, sequence, run));
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    sequence.call().views()[l] = cached.View(l);
  }
  Status status = run.Ready();
  if (status.ok()) status = run.Run();
  FitRows(cached, sequence);
  if (!status.ok() || !kHasBiases) return status;
  ClearedBiases cleared(cached.cache(), sequence.stream());
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    const kvevict_view& view = sequence.call().views()[l];
    for (uint32_t h = 0; h < view.n_kv_heads; ++h) {
      KV_RETURN_IF_ERROR(cleared.Add(view, h, run.FirstNew(l, h), run.n_new()));
    }
  }
  return cleared.Run();
}

}  // namespace

extern "C" {

kvevict_status kvevict_sequence_edit(kvevict_sequence* sequence,
                                     const kvevict_view* views,
                                     size_t views_len, const kvevict_edit* edit,
                                     kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CopyViews(Core(sequence), views, views_len));
    kvevict_edit copied = KVEVICT_EDIT_INIT;
    KV_RETURN_IF_ERROR(CopyIn("edit", edit, &copied));
    return OnStream(Core(sequence), stream, [&] {
      SequenceEdit run(Core(sequence));
      KV_RETURN_IF_ERROR(run.Prepare(copied));
      KV_RETURN_IF_ERROR(run.Ready());
      return run.Run();
    });
  });
}

kvevict_status kvevict_paged_edit(kvevict_paged_sequence* cached,
                                  kvevict_sequence* sequence,
                                  const kvevict_edit* edit,
                                  kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("cached", cached));
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    kvevict_edit copied = KVEVICT_EDIT_INIT;
    KV_RETURN_IF_ERROR(CopyIn("edit", edit, &copied));
    KV_RETURN_IF_ERROR(CheckStoredIn(Core(cached), Core(sequence)));
    return OnStream(Core(sequence), stream, [&] {
      return EditPaged(Core(cached), Core(sequence), copied);
    });
  });
}

}  // extern "C"
