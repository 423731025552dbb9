#include "capi/sequence.h"

#include <algorithm>
#include <limits>

#include "core/evict/evict.h"
#include "core/evict/undo.h"
#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

// Checks a query about a KV head of a layer with a full cache. *out_layer
// becomes its index in the plan.
Status CheckQuestion(const kvevict_sequence* sequence, uint32_t layer,
                     uint32_t kv_head, const char* out_name, const void* out,
                     uint32_t* out_layer) {
  KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
  KV_RETURN_IF_ERROR(CheckNotNull(out_name, out));
  const Plan& plan = Core(sequence).plan();
  KV_RETURN_IF_ERROR(FindLayer(plan, layer, out_layer));
  const uint32_t n_kv_heads = plan.layer(*out_layer).geometry.n_kv_heads;
  if (kv_head < n_kv_heads) return Status();
  return InvalidArgument("kv_head %u >= n_kv_heads %u", kv_head, n_kv_heads);
}

}  // namespace

namespace kvevict::capi {

Status CopyObservations(const Sequence& sequence,
                        const kvevict_observation* observations, size_t n,
                        size_t* out_n) {
  const Plan& plan = sequence.plan();
  int64_t last = -1;
  *out_n = 0;
  KV_RETURN_IF_ERROR(CheckArray("observations", observations, n));
  return ForEachStruct(
      "observations", observations, n,
      [&](size_t, const kvevict_observation* in) {
        kvevict_observation observation = KVEVICT_OBSERVATION_INIT;
        KV_RETURN_IF_ERROR(CopyIn("observation", in, &observation));
        KV_RETURN_IF_ERROR(CheckLayer(plan, observation.layer));
        if (observation.layer <= last) {
          return InvalidArgument(
              "layer %u after layer %lld: layers must ascend",
              observation.layer, static_cast<long long>(last));
        }
        last = observation.layer;
        const int32_t place = plan.Find(observation.layer);
        if (place < 0) return Status();
        LayerInputs inputs;
        KV_RETURN_IF_ERROR(CopyIn(observation.inputs, &inputs));
        if (inputs.queries == nullptr && inputs.row_lse == nullptr &&
            inputs.attention_sums == nullptr && inputs.scores == nullptr) {
          return InvalidArgument(
              "inputs has none of queries, row_lse, attention_sums and "
              "scores");
        }
        inputs.layer = static_cast<uint32_t>(place);
        sequence.call().inputs()[(*out_n)++] = inputs;
        return Status();
      });
}

namespace {

Status CopyViews(const Plan& plan, const char* name, const kvevict_view* views,
                 size_t views_len, std::span<kvevict_view> out) {
  return CopyLayers(plan, name, views, views_len,
                    [&](const kvevict_view* in, uint32_t l) {
                      out[l] = KVEVICT_VIEW_INIT;
                      KV_RETURN_IF_ERROR(CopyIn("view", in, &out[l]));
                      FillFrom(plan.layer(l).geometry, &out[l]);
                      return Status();
                    });
}
}  // namespace

Status CopyViews(const Sequence& sequence, const kvevict_view* views,
                 size_t views_len) {
  return CopyViews(sequence.plan(), "views", views, views_len,
                   sequence.call().views());
}

namespace {

Status CopyDestinations(const Sequence& sequence,
                        const kvevict_evict_options& options) {
  if (options.destinations == nullptr) {
    return CheckArray("destinations", options.destinations,
                      options.destinations_len);
  }
  const Plan& plan = sequence.plan();
  if (!plan.HasDestinations()) {
    return InvalidArgument(
        "destinations is not NULL, but has_destinations of the plan is 0");
  }
  return CopyViews(plan, "destinations", options.destinations,
                   options.destinations_len, sequence.call().destinations());
}

Status CopyInputs(const Sequence& sequence,
                  const kvevict_evict_options& options) {
  const std::span<LayerInputs> inputs = sequence.call().inputs();
  std::fill(inputs.begin(), inputs.end(), LayerInputs());
  if (options.inputs == nullptr) {
    return CheckArray("inputs", options.inputs, options.inputs_len);
  }
  return CopyLayers(sequence.plan(), "inputs", options.inputs,
                    options.inputs_len,
                    [&](const kvevict_signal_inputs* in, uint32_t l) {
                      return CopyIn(in, &inputs[l]);
                    });
}

}  // namespace

Status CopyEviction(const Sequence& sequence, const kvevict_view* views,
                    size_t views_len, const kvevict_evict_options* options,
                    kvevict_evict_options* out) {
  KV_RETURN_IF_ERROR(CopyViews(sequence, views, views_len));
  return CopyOptions(sequence, options, out);
}

Status CopyOptions(const Sequence& sequence,
                   const kvevict_evict_options* options,
                   kvevict_evict_options* out) {
  if (options != nullptr) KV_RETURN_IF_ERROR(CopyIn("options", options, out));
  sequence.call().ranges = TokenRanges();
  KV_RETURN_IF_ERROR(
      CopyIn(out->ranges, out->ranges_len, &sequence.call().ranges));
  KV_RETURN_IF_ERROR(CopyDestinations(sequence, *out));
  return CopyInputs(sequence, *out);
}

}  // namespace kvevict::capi

namespace {

bool LosesTokens(const ListReport& list) {
  return list.tokens_after < list.tokens_before;
}

// The share of its mass that a list kept: all if its layer lost nothing.
// Nothing is known before the first eviction.
void CopyMass(const Sequence& sequence, const PlanLayer& layer, size_t list,
              std::span<const Mass> masses, kvevict_list_report* out) {
  const auto of_layer =
      sequence.list_reports().subspan(layer.first_list, layer.n_lists);
  const bool loses = std::any_of(of_layer.begin(), of_layer.end(), LosesTokens);
  Mass mass;
  if (!sequence.plan().ReportsMass() || !sequence.has_report()) {
    mass.all = std::numeric_limits<float>::quiet_NaN();
  } else if (loses) {
    mass = masses[list];
  }
  out->mass_kept = mass.ShareKept();
  out->largest_mass_evicted = mass.LargestEvicted();
}

// Writes the reports of lists, as far as the caller's structs know them.
Status CopyOutLists(const Sequence& sequence, kvevict_list_report* lists,
                    size_t lists_len) {
  if (lists_len == 0) return Status();
  const std::span<const ListReport> reports = sequence.list_reports();
  if (lists_len != reports.size()) {
    return InvalidArgument("lists_len %zu is not 0 or %zu, the keep lists",
                           lists_len, reports.size());
  }
  KV_RETURN_IF_ERROR(ForEachStruct("lists", lists, lists_len,
                                   [](size_t, kvevict_list_report* list) {
                                     return CheckOut("list", list);
                                   }));
  const Plan& plan = sequence.plan();
  std::span<const Mass> masses;
  if (std::any_of(reports.begin(), reports.end(), LosesTokens)) {
    KV_RETURN_IF_ERROR(sequence.HostMasses(&masses));
  }
  uint32_t l = 0;
  return ForEachStruct(
      "lists", lists, lists_len, [&](size_t i, kvevict_list_report* list) {
        if (i == plan.layer(l).first_list + plan.layer(l).n_lists) ++l;
        kvevict_list_report report = KVEVICT_LIST_REPORT_INIT;
        report.layer = plan.layer(l).number;
        report.tokens_before = reports[i].tokens_before;
        report.tokens_after = reports[i].tokens_after;
        CopyMass(sequence, plan.layer(l), i, masses, &report);
        CopyOut(report, list);
        return Status();
      });
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

kvevict_status kvevict_sequence_reset(kvevict_sequence* sequence,
                                      kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return OnStream(Core(sequence), stream,
                    [&] { return Core(sequence).Reset(); });
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
                                        const kvevict_observation* observations,
                                        size_t observations_len,
                                        uint32_t n_rows,
                                        uint32_t first_position,
                                        kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    size_t n = 0;
    KV_RETURN_IF_ERROR(
        CopyObservations(Core(sequence), observations, observations_len, &n));
    return OnStream(Core(sequence), stream, [&] {
      return Core(sequence).Observe(Core(sequence).call().inputs().first(n),
                                    n_rows, first_position);
    });
  });
}

kvevict_status kvevict_sequence_append(kvevict_sequence* sequence,
                                       uint32_t n_tokens,
                                       kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return OnStream(Core(sequence), stream,
                    [&] { return Core(sequence).Append(n_tokens); });
  });
}

kvevict_status kvevict_sequence_end_prompt(
    kvevict_sequence* sequence) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).EndPrompt();
  });
}

kvevict_status kvevict_sequence_replayed(kvevict_sequence* sequence,
                                         uint32_t n_tokens) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).Replayed(n_tokens);
  });
}

kvevict_status kvevict_sequence_trim_to(kvevict_sequence* sequence,
                                        uint32_t new_length,
                                        kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return OnStream(Core(sequence), stream,
                    [&] { return Core(sequence).Trim(new_length); });
  });
}

kvevict_status kvevict_sequence_evict(kvevict_sequence* sequence,
                                      const kvevict_view* views,
                                      size_t views_len,
                                      const kvevict_evict_options* options,
                                      void* workspace, size_t workspace_bytes,
                                      kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    kvevict_evict_options o = KVEVICT_EVICT_OPTIONS_INIT;
    KV_RETURN_IF_ERROR(
        CopyEviction(Core(sequence), views, views_len, options, &o));
    return OnStream(Core(sequence), stream, [&] {
      KV_RETURN_IF_ERROR(
          CheckEvict(&Core(sequence).call(), o, workspace, workspace_bytes));
      return RunEvict(&Core(sequence).call());
    });
  });
}

kvevict_status kvevict_sequence_kept_slots(kvevict_sequence* sequence,
                                           const kvevict_view* views,
                                           size_t views_len, uint32_t* slots,
                                           size_t slots_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CopyViews(Core(sequence), views, views_len));
    const Plan& plan = Core(sequence).plan();
    if (slots_len != plan.n_model_layers()) {
      return InvalidArgument("slots_len %zu is not n_layers %u", slots_len,
                             plan.n_model_layers());
    }
    KV_RETURN_IF_ERROR(CheckNotNull("slots", slots));
    const std::span<uint32_t> kept(slots, plan.n_layers());
    KV_RETURN_IF_ERROR(KeptSlots(&Core(sequence).call(), kept));
    for (uint32_t l = plan.n_model_layers(); l-- > 0;) {
      const int32_t place = plan.Find(l);
      slots[l] = place < 0 ? 0 : slots[place];
    }
    return Status();
  });
}

kvevict_status kvevict_sequence_undo_bytes(kvevict_sequence* sequence,
                                           const kvevict_view* views,
                                           size_t views_len,
                                           size_t* out_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    KV_RETURN_IF_ERROR(CopyViews(Core(sequence), views, views_len));
    return FindUndoBytes(&Core(sequence).call(), out_bytes);
  });
}

kvevict_status kvevict_sequence_undo(kvevict_sequence* sequence,
                                     const kvevict_view* views,
                                     size_t views_len, const void* undo,
                                     size_t undo_bytes,
                                     kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("undo", undo));
    KV_RETURN_IF_ERROR(CopyViews(Core(sequence), views, views_len));
    return OnStream(Core(sequence), stream,
                    [&] { return Undo(&Core(sequence), undo, undo_bytes); });
  });
}

kvevict_status kvevict_sequence_report(const kvevict_sequence* sequence,
                                       kvevict_evict_report* out,
                                       kvevict_list_report* lists,
                                       size_t lists_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    if (out != nullptr) KV_RETURN_IF_ERROR(CheckOut("out", out));
    KV_RETURN_IF_ERROR(CheckArray("lists", lists, lists_len));
    KV_RETURN_IF_ERROR(CopyOutLists(Core(sequence), lists, lists_len));
    if (out != nullptr) CopyOut(Core(sequence).report(), out);
    return Status();
  });
}

kvevict_status kvevict_sequence_memory_of(
    const kvevict_sequence* sequence, uint32_t layer,
    kvevict_sequence_memory* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    const Plan& plan = Core(sequence).plan();
    KV_RETURN_IF_ERROR(CheckLayer(plan, layer));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    kvevict_sequence_memory memory{};
    if (const int32_t l = plan.Find(layer); l >= 0) {
      const SlotTable& slots = Core(sequence).slots();
      const auto place = static_cast<uint32_t>(l);
      const SlotPositions positions = slots.DevicePositions(place);
      memory.lengths = reinterpret_cast<uintptr_t>(slots.LengthsOf(place));
      memory.positions = reinterpret_cast<uintptr_t>(positions.kept);
      memory.listed_counts = reinterpret_cast<uintptr_t>(positions.n_kept.each);
      memory.n_listed = positions.n_kept.most;
      memory.n_lists = plan.layer(place).n_lists;
      const SumTable& sums = Core(sequence).sums();
      if (sums.has_memory() && !sums.KeepsCalls()) {
        memory.n_sum_heads = plan.SumRowsOf(plan.layer(place));
        memory.sums = sums.PlaneOf(place).data;
        memory.sum_stride = plan.max_tokens();
      }
    }
    CopyOut(memory, out);
    return Status();
  });
}

kvevict_status kvevict_sequence_stored_length(const kvevict_sequence* sequence,
                                              uint32_t layer, uint32_t kv_head,
                                              uint32_t* out_length) noexcept {
  return Guard([&] {
    uint32_t l = 0;
    KV_RETURN_IF_ERROR(
        CheckQuestion(sequence, layer, kv_head, "out_length", out_length, &l));
    *out_length = Core(sequence).Stored(l, kv_head);
    return Status();
  });
}

kvevict_status kvevict_sequence_logical_length(const kvevict_sequence* sequence,
                                               uint32_t* out_length) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("out_length", out_length));
    *out_length = Core(sequence).logical_length();
    return Status();
  });
}

kvevict_status kvevict_sequence_exact_prefix(const kvevict_sequence* sequence,
                                             uint32_t* out_length) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("out_length", out_length));
    return Core(sequence).ExactPrefix(out_length);
  });
}

kvevict_status kvevict_sequence_position_of_slot(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t slot, int32_t* out_position) noexcept {
  return Guard([&] {
    uint32_t l = 0;
    KV_RETURN_IF_ERROR(CheckQuestion(sequence, layer, kv_head, "out_position",
                                     out_position, &l));
    const Sequence& s = Core(sequence);
    const uint32_t stored = s.Stored(l, kv_head);
    if (slot >= stored) {
      return InvalidArgument("slot %u >= stored length %u", slot, stored);
    }
    SlotPositions positions;
    KV_RETURN_IF_ERROR(s.HostPositions(l, &positions));
    *out_position = positions.PositionOf(s.ListOf(l, kv_head), slot);
    return Status();
  });
}

kvevict_status kvevict_sequence_slot_of_position(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    uint32_t position, int32_t* out_slot) noexcept {
  return Guard([&] {
    uint32_t l = 0;
    KV_RETURN_IF_ERROR(
        CheckQuestion(sequence, layer, kv_head, "out_slot", out_slot, &l));
    const Sequence& s = Core(sequence);
    if (position >= s.logical_length()) {
      return InvalidArgument("position %u >= logical length %u", position,
                             s.logical_length());
    }
    SlotPositions positions;
    KV_RETURN_IF_ERROR(s.HostPositions(l, &positions));
    *out_slot = static_cast<int32_t>(
        positions.SlotOf(s.ListOf(l, kv_head), static_cast<int32_t>(position),
                         s.Stored(l, kv_head)));
    return Status();
  });
}

kvevict_status kvevict_sequence_keep_positions(
    const kvevict_sequence* sequence, uint32_t layer, uint32_t kv_head,
    int32_t* positions, size_t positions_capacity,
    size_t* out_positions_len) noexcept {
  return Guard([&] {
    uint32_t l = 0;
    KV_RETURN_IF_ERROR(CheckQuestion(
        sequence, layer, kv_head, "out_positions_len", out_positions_len, &l));
    const Sequence& s = Core(sequence);
    const uint32_t stored = s.Stored(l, kv_head);
    if (positions_capacity < stored) {
      return InvalidArgument("positions_capacity %zu < stored length %u",
                             positions_capacity, stored);
    }
    if (stored > 0) KV_RETURN_IF_ERROR(CheckNotNull("positions", positions));
    SlotPositions host;
    KV_RETURN_IF_ERROR(s.HostPositions(l, &host));
    for (uint32_t slot = 0; slot < stored; ++slot) {
      positions[slot] = host.PositionOf(s.ListOf(l, kv_head), slot);
    }
    *out_positions_len = stored;
    return Status();
  });
}

}  // extern "C"
