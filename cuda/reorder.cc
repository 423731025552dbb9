// Reorders rows: two launches for planes of a layer with the same layout, as
// many as the staged rows have room for.
#include <algorithm>

#include "core/view/view.h"
#include "cuda/check_keep.h"
#include "cuda/kernels/gather_rows.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/plane_batch.h"

namespace kvevict::cuda {
namespace {

// Bytes of rows staged at a time, or one plane if it is larger. Two launches
// more take little time then.
constexpr size_t kStagedBytes = size_t{32} << 20;

struct Steps {
  KernelId stage;
  KernelId place;
};

// The entries of reorder_rows.cu.
Steps StepsOf(uint32_t unit) {
  if (unit == 16) {
    return {KernelId::reorder_stage_16, KernelId::reorder_place_16};
  }
  if (unit == 4) {
    return {KernelId::reorder_stage_4, KernelId::reorder_place_4};
  }
  return {KernelId::reorder_stage_1, KernelId::reorder_place_1};
}

CheckedSize BytesOf(const MoveJob& job, uint64_t row_bytes) {
  return CheckedSize(job.keep.count.most) * CheckedSize(row_bytes);
}

// Grows with the list, so that scratch for a longer list serves a shorter one.
ScratchNeeds ReorderScratchBytes(const Context&, const MoveJob& job) {
  uint64_t widest = 0, all_planes = 0;
  ForEachPlane(*job.view, [&](const kvevict_plane& plane) {
    const uint64_t bytes = uint64_t{job.view->n_kv_heads} * RowBytes(plane);
    widest = std::max(widest, bytes);
    all_planes += bytes;
  });
  const CheckedSize all = BytesOf(job, all_planes);
  if (all.ok() && all.value() <= kStagedBytes) return all;
  const CheckedSize one_plane = BytesOf(job, widest);
  return one_plane.ok() && one_plane.value() <= kStagedBytes ? kStagedBytes
                                                             : one_plane;
}

Status Reorder(const Context& context, Stream stream, const MoveJob& job,
               std::span<uint8_t> scratch) {
  return ForEachPlaneBatch(
      Jobs<MoveJob>(job), scratch.size(), [&](PlaneBatch& batch) {
        GatherParams& p = batch.params;
        const uint32_t unit = ColumnUnit(GatherUnit(p));
        DealChunks(&p, unit);
        p.scratch = AddressOf(scratch.data());
        const Steps steps = StepsOf(unit);
        const LaunchShape shape = {
            static_cast<uint32_t>(ChunkBlocks(p, unit, batch.longest)), 1, 1,
            kChunkThreads};
        KV_RETURN_IF_ERROR(Launch(context, stream, steps.stage, shape, p));
        return Launch(context, stream, steps.place, shape, p);
      });
}

Status RunReorder(const Context& context, Stream stream,
                  const ReorderArgs& args) {
  for (const MoveJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(
        CheckKeepLists(context, stream, job, KeepOrder::kAny, "keep"));
  }
  for (const MoveJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(Reorder(context, stream, job, args.scratch));
  }
  return Status();
}

}  // namespace

const Op<ReorderArgs> kOp_reorder = {RunReorder, ReorderScratchBytes};

}  // namespace kvevict::cuda
