#include "core/sequence.h"

#include "capi/guard.h"
#include "core/evict.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

Status CheckLayer(const Sequence& sequence, uint32_t layer) {
  const uint32_t n_layers = sequence.plan().geometry().n_layers;
  if (layer < n_layers) return Status();
  return InvalidArgument("layer %u >= n_layers %u", layer, n_layers);
}

// A question about a layer and KV head of a sequence.
Status CheckQuestion(const kvevict_sequence* sequence, uint32_t layer,
                     uint32_t kv_head, const char* out_name, const void* out) {
  KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
  KV_RETURN_IF_ERROR(CheckNotNull(out_name, out));
  KV_RETURN_IF_ERROR(CheckLayer(Core(sequence), layer));
  const uint32_t n_kv_heads = Core(sequence).plan().geometry().n_kv_heads;
  if (kv_head < n_kv_heads) return Status();
  return InvalidArgument("kv_head %u >= n_kv_heads %u", kv_head, n_kv_heads);
}

// An array with an element per layer.
Status CheckLayerCount(const Sequence& sequence, const char* name,
                       const void* array, size_t len) {
  const uint32_t n_layers = sequence.plan().geometry().n_layers;
  if (len != n_layers) {
    return InvalidArgument("%s_len %zu is not n_layers %u", name, len,
                           n_layers);
  }
  return CheckNotNull(name, array);
}

Status CopyViews(const Sequence& sequence, const kvevict_view* views,
                 size_t views_len) {
  KV_RETURN_IF_ERROR(CheckLayerCount(sequence, "views", views, views_len));
  return ForEachStruct("views", views, views_len,
                       [&](size_t l, const kvevict_view* in) {
                         kvevict_view& view = sequence.views()[l];
                         view = KVEVICT_VIEW_INIT;
                         return CopyIn("view", in, &view);
                       });
}

// What the caller wants in a report.
Status CopyReport(const kvevict_evict_report* in, kvevict_evict_report* out) {
  KV_RETURN_IF_ERROR(CheckOut("report", in));
  const uint32_t size = in->struct_size;
  std::memcpy(out, in, std::min<size_t>(size, sizeof(*out)));
  return Status();
}

}  // namespace

extern "C" {

kvevict_status kvevict_sequence_create(
    const kvevict_plan* plan, kvevict_sequence** out_sequence) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckNotNull("out_sequence", out_sequence));
    Sequence* sequence = nullptr;
    KV_RETURN_IF_ERROR(Sequence::Create(Core(plan), &sequence));
    *out_sequence = reinterpret_cast<kvevict_sequence*>(sequence);
    return Status();
  });
}

void kvevict_sequence_destroy(kvevict_sequence* sequence) noexcept {
  if (sequence != nullptr) Core(sequence).Destroy();
}

kvevict_status kvevict_sequence_reset(kvevict_sequence* sequence) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).Reset();
  });
}

kvevict_status kvevict_sequence_set_stream(kvevict_sequence* sequence,
                                           kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    Core(sequence).set_stream(stream);
    return Status();
  });
}

kvevict_status kvevict_sequence_begin_observing(kvevict_sequence* sequence,
                                                void* memory,
                                                size_t memory_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).BeginObserving(memory, memory_bytes);
  });
}

kvevict_status kvevict_sequence_end_observing(
    kvevict_sequence* sequence) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    Core(sequence).EndObserving();
    return Status();
  });
}

kvevict_status kvevict_sequence_observe(kvevict_sequence* sequence,
                                        uint32_t layer,
                                        const kvevict_plane* queries,
                                        uint32_t n_rows,
                                        uint32_t first_position) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckLayer(Core(sequence), layer));
    KV_RETURN_IF_ERROR(CheckNotNull("queries", queries));
    return Core(sequence).Observe(layer, {queries, 1}, n_rows, first_position);
  });
}

kvevict_status kvevict_sequence_observe_layers(
    kvevict_sequence* sequence, const kvevict_plane* queries,
    size_t queries_len, uint32_t n_rows, uint32_t first_position) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(
        CheckLayerCount(Core(sequence), "queries", queries, queries_len));
    return Core(sequence).Observe(0, {queries, queries_len}, n_rows,
                                  first_position);
  });
}

kvevict_status kvevict_sequence_observe_lse(kvevict_sequence* sequence,
                                            uint32_t layer,
                                            const kvevict_plane* row_lse,
                                            uint32_t n_rows,
                                            uint32_t first_position) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckLayer(Core(sequence), layer));
    KV_RETURN_IF_ERROR(CheckNotNull("row_lse", row_lse));
    return Core(sequence).ObserveLse(layer, *row_lse, n_rows, first_position);
  });
}

kvevict_status kvevict_sequence_append(kvevict_sequence* sequence,
                                       uint32_t n_tokens) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).Append(n_tokens);
  });
}

kvevict_status kvevict_sequence_replayed(kvevict_sequence* sequence,
                                         uint32_t n_tokens) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).Replayed(n_tokens);
  });
}

kvevict_status kvevict_sequence_trim(kvevict_sequence* sequence,
                                     uint32_t n_tokens) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).Trim(n_tokens);
  });
}

kvevict_status kvevict_evict_options_init(kvevict_evict_options* out,
                                          size_t struct_size) noexcept {
  return Init<kvevict_evict_options>(KVEVICT_EVICT_OPTIONS_INIT, out,
                                     struct_size);
}

kvevict_status kvevict_sequence_evict(kvevict_sequence* sequence,
                                      const kvevict_view* views,
                                      size_t views_len,
                                      const kvevict_evict_options* options,
                                      void* workspace, size_t workspace_bytes,
                                      kvevict_evict_report* report) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CopyViews(Core(sequence), views, views_len));
    kvevict_evict_options o = KVEVICT_EVICT_OPTIONS_INIT;
    if (options != nullptr) KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    kvevict_evict_report filled = KVEVICT_EVICT_REPORT_INIT;
    if (report != nullptr) KV_RETURN_IF_ERROR(CopyReport(report, &filled));
    KV_RETURN_IF_ERROR(
        Evict(&Core(sequence), o, workspace, workspace_bytes, &filled));
    if (report != nullptr) CopyOut(filled, report);
    return Status();
  });
}

kvevict_status kvevict_sequence_memory_of(
    const kvevict_sequence* sequence, uint32_t layer,
    kvevict_sequence_memory* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckQuestion(sequence, layer, 0, "out", out));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    const Sequence& s = Core(sequence);
    const SlotPositions positions = s.slots().DevicePositions(layer);
    kvevict_sequence_memory memory{};
    memory.lengths = reinterpret_cast<uintptr_t>(s.slots().lengths());
    memory.positions = reinterpret_cast<uintptr_t>(positions.kept);
    memory.listed_counts = reinterpret_cast<uintptr_t>(positions.n_kept.each);
    memory.n_listed = positions.n_kept.most;
    memory.n_lists = s.plan().n_lists();
    CopyOut(memory, out);
    return Status();
  });
}

kvevict_status kvevict_sequence_stored_length(const kvevict_sequence* sequence,
                                              uint32_t layer, uint32_t kv_head,
                                              uint32_t* out_length) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(
        CheckQuestion(sequence, layer, kv_head, "out_length", out_length));
    *out_length = Core(sequence).Stored(layer, kv_head);
    return Status();
  });
}

kvevict_status kvevict_sequence_logical_length(const kvevict_sequence* sequence,
                                               uint32_t* out_length) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckQuestion(sequence, 0, 0, "out_length", out_length));
    *out_length = Core(sequence).logical_length();
    return Status();
  });
}

kvevict_status kvevict_sequence_position_of_slot(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t slot, int32_t* out_position) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(
        CheckQuestion(sequence, layer, kv_head, "out_position", out_position));
    const Sequence& s = Core(sequence);
    const uint32_t stored = s.Stored(layer, kv_head);
    if (slot >= stored) {
      return InvalidArgument("slot %u >= stored length %u", slot, stored);
    }
    SlotPositions positions;
    KV_RETURN_IF_ERROR(s.HostPositions(layer, &positions));
    *out_position = positions.PositionOf(s.ListOf(kv_head), slot);
    return Status();
  });
}

kvevict_status kvevict_sequence_slot_of_position(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t position, int32_t* out_slot) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(
        CheckQuestion(sequence, layer, kv_head, "out_slot", out_slot));
    const Sequence& s = Core(sequence);
    if (position >= s.logical_length()) {
      return InvalidArgument("position %u >= logical length %u", position,
                             s.logical_length());
    }
    SlotPositions positions;
    KV_RETURN_IF_ERROR(s.HostPositions(layer, &positions));
    *out_slot = static_cast<int32_t>(
        positions.SlotOf(s.ListOf(kv_head), static_cast<int32_t>(position),
                         s.Stored(layer, kv_head)));
    return Status();
  });
}

kvevict_status kvevict_sequence_keep_positions(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    int32_t* positions, size_t positions_capacity,
    size_t* out_positions_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckQuestion(sequence, layer, kv_head,
                                     "out_positions_len", out_positions_len));
    const Sequence& s = Core(sequence);
    const uint32_t stored = s.Stored(layer, kv_head);
    if (positions_capacity < stored) {
      return InvalidArgument("positions_capacity %zu < stored length %u",
                             positions_capacity, stored);
    }
    if (stored > 0) KV_RETURN_IF_ERROR(CheckNotNull("positions", positions));
    SlotPositions host;
    KV_RETURN_IF_ERROR(s.HostPositions(layer, &host));
    for (uint32_t slot = 0; slot < stored; ++slot) {
      positions[slot] = host.PositionOf(s.ListOf(kv_head), slot);
    }
    *out_positions_len = stored;
    return Status();
  });
}

}  // extern "C"
