#include <fmt/format.h>

#include <numeric>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/context.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/model.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

constexpr Shape kShape = {"",
                          1,
                          4,
                          2,
                          32,
                          120,
                          KVEVICT_DTYPE_BF16,
                          KVEVICT_DTYPE_BF16,
                          Layout::kTokenMajor};

struct Layer {
  Twin twin;
  Side side;
  Buffer memory;  // larger than any workspace here

  explicit Layer(const Gpu& gpu,
                 const kvevict_context_options* options = nullptr)
      : twin(gpu, kShape, 1),
        side(&gpu, &twin, "streaming-llm:budget=60", options),
        memory(gpu, 1 << 16) {}
};

void CheckDebugFindsBadSlots(const Gpu& gpu, Report* report) {
  kvevict_context_options options = gpu.ContextOptions();
  options.debug = 1;
  Layer e(gpu, &options);
  const std::vector<int32_t> slots = {119, 5, -1, 5, 120};
  const Buffer lists(gpu, slots.size() * sizeof(int32_t));
  lists.Write(slots.data(), lists.n_bytes());
  const OneMove move(e.twin.device_views()[0], 120, lists.pointer<int32_t>(),
                     slots.size(), 1);
  ExpectFailure(
      move.Reorder(e.side.context(), {e.memory.pointer<void>(),
                                      e.memory.n_bytes(), gpu.stream()}),
      KVEVICT_ERROR_INVALID_ARGUMENT, {"keep: 2 of", "n_tokens 120"}, report);
  e.twin.Fetch(0);
  report->FailIf(!e.twin.IsUntouched(0), "a byte moved");
}

// Compaction uses a workspace for tickets.
void CheckWorkspaceMeansChunks(const Gpu& gpu, Report* report) {
  Layer e(gpu);
  std::vector<int32_t> keep(60);
  std::iota(keep.begin(), keep.end(), 40);
  const auto n_launches = [&](bool with_workspace) {
    const uint64_t before = mock::Launches("gather_chunks_16");
    e.side.Compact(0, 120, keep, 1, with_workspace);
    return mock::Launches("gather_chunks_16") - before;
  };
  report->FailIf(n_launches(false) != 0, "chunks without tickets");
  report->FailIf(n_launches(true) == 0, "columns in spite of tickets");
  const Buffer lists(gpu, keep.size() * sizeof(int32_t));
  lists.Write(keep.data(), lists.n_bytes());
  const OneMove move(e.twin.device_views()[0], 120, lists.pointer<int32_t>(),
                     keep.size(), 1);
  const size_t bytes = move.CompactBytes(e.side.context());
  const auto compact = [&](void* workspace, size_t workspace_bytes) {
    return move.Compact(e.side.context(),
                        {workspace, workspace_bytes, gpu.stream()});
  };
  uint8_t* const memory = e.memory.pointer<uint8_t>();
  Check(compact(memory + 64, bytes - 1));  // too little is not touched
  ExpectFailure(compact(memory + 64, bytes), KVEVICT_ERROR_INVALID_ARGUMENT,
                {"workspace", "256"}, report);
  ExpectFailure(compact(nullptr, bytes), KVEVICT_ERROR_INVALID_ARGUMENT,
                {"workspace is NULL"}, report);
  gpu.Synchronize();
}

// Gives rows a dtype that nothing reads.
kvevict_plane Opaque(kvevict_plane plane) {
  const uint32_t element_bytes = plane.dtype == KVEVICT_DTYPE_F32 ? 4 : 2;
  plane.row_bytes = plane.head_dim * element_bytes;
  plane.head_dim = 0;
  plane.dtype = KVEVICT_DTYPE_OPAQUE;
  return plane;
}

// Narrow companions, which columns would move 4 bytes at a time, get tickets in
// every eviction: if K and V are opaque, and if they are so wide that they move
// by columns themselves.
void CheckEvictionHasTickets(const Gpu& gpu, const Shape& shape, bool opaque,
                             Report* report) {
  Twin twin(gpu, shape, 1);
  Geometry geometry = GeometryOf(shape);
  std::vector<kvevict_view> views = twin.device_views();
  if (opaque) {
    kvevict_layer_geometry& layer = geometry.layers[0];
    layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_OPAQUE;
    layer.k_head_dim = layer.v_head_dim = 0;
    for (kvevict_view& view : views) {
      view.k = Opaque(view.k);
      view.v = Opaque(view.v);
    }
  }
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const PlanHandle plan = CreatePlan(
      context.get(), geometry, ParsePolicy("streaming-llm:budget=30,sink=4"));
  const SequenceHandle sequence = CreateSequence(plan.get());
  Check(kvevict_sequence_append(sequence.get(), shape.n_tokens, gpu.stream()));
  const Buffer workspace(gpu,
                         WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT));
  const auto by_columns = [] {
    return mock::Launches("gather_columns_4") +
           mock::Launches("gather_columns_1");
  };
  const uint64_t columns = by_columns();
  const uint64_t chunks = mock::Launches("gather_chunks_4");
  Check(kvevict_sequence_evict(sequence.get(), views.data(), views.size(),
                               nullptr, workspace.pointer<void>(),
                               workspace.n_bytes(), gpu.stream()));
  gpu.Synchronize();
  report->FailIf(by_columns() != columns, "narrow rows went by columns");
  report->FailIf(mock::Launches("gather_chunks_4") == chunks,
                 "narrow rows did not go by chunks");
  std::vector<int32_t> positions(30);
  std::iota(positions.begin(), positions.begin() + 4, 0);
  std::iota(positions.begin() + 4, positions.end(),
            static_cast<int32_t>(shape.n_tokens) - 26);
  for (const uint32_t layer : {0u, shape.n_layers - 1}) {
    twin.Fetch(layer);
    report->Expect(
        twin.CompareWithPositions(layer, shape.n_kv_heads - 1, positions));
  }
}

// Makes the same move of each layer on the host and on the device.
struct LayerMoves {
  ContextHandle host = CreateContext(KVEVICT_CONTEXT_OPTIONS_INIT);
  std::vector<int32_t> slots;
  Buffer device_slots;
  kvevict_keep_lists host_keep = KVEVICT_KEEP_LISTS_INIT;
  kvevict_keep_lists device_keep = KVEVICT_KEEP_LISTS_INIT;
  std::vector<kvevict_move> host_moves, device_moves;

  // Moves to the caches of `to`; nullptr: in place.
  LayerMoves(const Gpu& gpu, const Twin& from, const Twin* to,
             std::vector<int32_t> keep, uint32_t first_slot)
      : slots(std::move(keep)),
        device_slots(gpu, slots.size() * sizeof(int32_t)) {
    device_slots.Write(slots.data(), device_slots.n_bytes());
    host_keep.n_lists = 1;
    host_keep.slots = slots.data();
    host_keep.slots_len = slots.size();
    host_keep.count = static_cast<uint32_t>(slots.size());
    device_keep = host_keep;
    device_keep.slots = device_slots.pointer<int32_t>();
    for (uint32_t l = 0; l < from.shape().n_layers; ++l) {
      kvevict_move move = KVEVICT_MOVE_INIT;
      move.n_tokens = from.shape().n_tokens;
      move.first_slot = first_slot;
      move.view = &from.host_views()[l];
      move.keep = &host_keep;
      if (to != nullptr) move.destination = &to->host_views()[l];
      host_moves.push_back(move);
      move.view = &from.device_views()[l];
      move.keep = &device_keep;
      if (to != nullptr) move.destination = &to->device_views()[l];
      device_moves.push_back(move);
    }
  }
  // Runs without a workspace.
  kvevict_status OnDevice(const kvevict_context* context,
                          kvevict_stream stream) const {
    return kvevict_compact(context, device_moves.data(), device_moves.size(),
                           nullptr, 0, stream);
  }
  void OnBoth(const kvevict_context* context, kvevict_stream stream) const {
    Check(kvevict_compact(host.get(), host_moves.data(), host_moves.size(),
                          nullptr, 0, nullptr));
    Check(OnDevice(context, stream));
  }
};

constexpr Layout kLayouts[] = {Layout::kTokenMajor, Layout::kHeadMajor,
                               Layout::kPaged};

// Tails of all layers move together, and what is before them stays.
void CheckTails(const Gpu& gpu, Report* report) {
  Shape shape = kShape;
  shape.n_layers = 3;
  for (const Layout layout : kLayouts) {
    shape.layout = layout;
    Twin twin(gpu, shape, 1);
    const ContextHandle context = CreateContext(gpu.ContextOptions());
    const LayerMoves moves(gpu, twin, nullptr, {104, 110, 111, 119}, 101);
    const uint64_t before = mock::Launches("gather_columns_16");
    moves.OnBoth(context.get(), gpu.stream());
    gpu.Synchronize();
    report->FailIf(mock::Launches("gather_columns_16") - before != 1,
                   "tails of three layers in several launches");
    for (uint32_t l = 0; l < shape.n_layers; ++l) {
      twin.Fetch(l);
      report->Expect(twin.CompareWithHost(l, 105));
      report->FailIf(!twin.IsUntouched(l, 120), "behind the tail");
    }
  }
}

// Copies of all layers move together, from any layout to any.
void CheckCopies(const Gpu& gpu, Report* report) {
  Shape shape = kShape;
  shape.n_layers = 3;
  for (const Layout from_layout : kLayouts) {
    for (const Layout to_layout : kLayouts) {
      shape.layout = from_layout;
      Twin from(gpu, shape, 1);
      shape.layout = to_layout;
      Twin to(gpu, shape, 2);
      const ContextHandle context = CreateContext(gpu.ContextOptions());
      const LayerMoves moves(gpu, from, &to, {3, 40, 41, 42, 77, 119}, 17);
      const uint64_t wide = mock::Launches("copy_rows_16");
      const uint64_t narrow = mock::Launches("copy_rows_4");
      const uint64_t waits = mock::Waits();
      moves.OnBoth(context.get(), gpu.stream());
      report->FailIf(mock::Waits() != waits, "copying waited");
      gpu.Synchronize();
      report->FailIf(mock::Launches("copy_rows_16") - wide != 1,
                     "K and V of three layers in several launches");
      report->FailIf(mock::Launches("copy_rows_4") - narrow != 1,
                     "companions of three layers in several launches");
      for (uint32_t l = 0; l < shape.n_layers; ++l) {
        from.Fetch(l);
        report->FailIf(!from.IsUntouched(l), "copied rows changed");
        to.Fetch(l);
        report->Expect(to.CompareWithHost(l, to.max_tokens()));
      }
    }
  }
}

void CheckDebugFindsSlotsBeforeTheTail(const Gpu& gpu, Report* report) {
  kvevict_context_options options = gpu.ContextOptions();
  options.debug = 1;
  Layer e(gpu, &options);
  const LayerMoves moves(gpu, e.twin, nullptr, {99, 110, 111, 119}, 100);
  ExpectFailure(moves.OnDevice(e.side.context(), gpu.stream()),
                KVEVICT_ERROR_INVALID_ARGUMENT,
                {"keep: 1 of", "[first_slot 100, n_tokens 120)"}, report);
  e.twin.Fetch(0);
  report->FailIf(!e.twin.IsUntouched(0), "a byte moved");
}

// With scratch for one plane, K and V are staged one after the other.
void CheckReorderInTurns(const Gpu& gpu, Report* report) {
  Layer e(gpu);
  const Context& context = *reinterpret_cast<const Context*>(e.side.context());
  std::vector<int32_t> slots(120);
  std::iota(slots.rbegin(), slots.rend(), 0);
  const Buffer lists(gpu, slots.size() * sizeof(int32_t));
  lists.Write(slots.data(), lists.n_bytes());
  const MoveJob job{.view = &e.twin.device_views()[0],
                    .tokens = 120,
                    .keep = {lists.pointer<int32_t>(), 1, 120},
                    .merge = {}};
  const size_t plane_bytes =
      size_t{120} * kShape.n_kv_heads * kShape.head_dim * sizeof(uint16_t);
  for (const size_t n_planes : {1, 2}) {
    e.twin.Restore();
    const Buffer scratch(gpu, n_planes * plane_bytes);
    const uint64_t before = mock::Launches("reorder_stage_16");
    const uint64_t waits = mock::Waits();
    Check(context.backend()
              .reorder(context, gpu.stream(),
                       {Jobs<MoveJob>(job),
                        {scratch.pointer<uint8_t>(), scratch.n_bytes()}})
              .code());
    report->FailIf(mock::Waits() != waits, "reordering waited");
    gpu.Synchronize();
    report->FailIf(mock::Launches("reorder_stage_16") - before != 3 - n_planes,
                   fmt::format("{} planes: {} launches", n_planes,
                               mock::Launches("reorder_stage_16") - before));
    e.twin.Fetch(0);
    report->Expect(e.twin.CompareWithPositions(0, 1, slots));
  }
}

}  // namespace

void CheckMovedRows(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("debug finds slots that are not there",
                [&] { CheckDebugFindsBadSlots(gpu, report); });
  report->Check("debug finds slots before the tail",
                [&] { CheckDebugFindsSlotsBeforeTheTail(gpu, report); });
  report->Check("tails of layers move in one launch",
                [&] { CheckTails(gpu, report); });
  report->Check("copies of layers go in one launch",
                [&] { CheckCopies(gpu, report); });
  report->Check("compaction makes tickets of a workspace",
                [&] { CheckWorkspaceMeansChunks(gpu, report); });
  report->Check("evictions of opaque rows have tickets",
                [&] { CheckEvictionHasTickets(gpu, kShape, true, report); });
  report->Check("evictions of wide rows have tickets", [&] {
    const Shape wide = {"",
                        64,
                        1,
                        1,
                        1024,
                        40,
                        KVEVICT_DTYPE_BF16,
                        KVEVICT_DTYPE_BF16,
                        Layout::kTokenMajor};
    CheckEvictionHasTickets(gpu, wide, false, report);
  });
  report->Check("reordering stages what it has memory for",
                [&] { CheckReorderInTurns(gpu, report); });
}

}  // namespace kvevict::gpu
