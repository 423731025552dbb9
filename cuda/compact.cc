// Compaction in place: one launch for planes that lie alike, whatever their
// layer.
#include <algorithm>
#include <bit>

#include "core/budgets/budgets.h"
#include "core/dtype.h"
#include "core/policy.h"
#include "core/view.h"
#include "cuda/device_state.h"
#include "cuda/kernels/check_keep.h"
#include "cuda/kernels/gather_rows.h"
#include "cuda/kernels/params.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

// The entries of gather_rows.cu.
KernelId ByColumns(uint32_t unit) {
  return unit == 16  ? KernelId::gather_columns_16
         : unit == 4 ? KernelId::gather_columns_4
                     : KernelId::gather_columns_1;
}

// By the logarithm of their unit.
constexpr KernelId kByChunks[] = {
    KernelId::gather_chunks_1, KernelId::gather_chunks_2,
    KernelId::gather_chunks_4, KernelId::gather_chunks_8,
    KernelId::gather_chunks_16};

// The planes of one launch while they are collected.
class PlaneBatch {
 public:
  PlaneBatch(const Context& context, Stream stream, const CompactArgs& args)
      : context_(context), stream_(stream), args_(args) {}

  // Takes a plane, and launches what was collected before if it lies otherwise.
  Status Add(const LayerJob& job, const kvevict_plane& plane);
  Status Flush();

 private:
  Status LaunchByColumns(uint32_t unit) const;
  Status LaunchByChunks(uint32_t unit, uint64_t n_blocks);

  const Context& context_;
  const Stream stream_;
  const CompactArgs& args_;
  GatherParams p_{};
  uint32_t longest_ = 0;
};

Status PlaneBatch::Add(const LayerJob& job, const kvevict_plane& plane) {
  RowLayout rows = LayoutOf(*job.view, plane);
  uint32_t row_bytes = RowBytes(plane);
  uint32_t n_pieces = 1;
  if (plane.dtype == KVEVICT_DTYPE_OPAQUE ||
      rows.element_stride == int64_t{row_bytes / plane.head_dim}) {
    rows.element_stride = 0;  // packed
  } else {
    n_pieces = plane.head_dim;
    row_bytes /= plane.head_dim;
  }
  const bool alike = SameLayout(p_.rows, rows) && p_.row_bytes == row_bytes &&
                     p_.n_pieces == n_pieces;
  if (p_.n_planes > 0 && (!alike || p_.n_planes == GatherParams::kMaxPlanes)) {
    KV_RETURN_IF_ERROR(Flush());
  }
  p_.rows = rows;
  p_.row_bytes = row_bytes;
  p_.n_pieces = n_pieces;
  p_.n_heads = job.view->n_kv_heads;
  p_.n_lists = args_.n_lists;
  p_.planes[p_.n_planes++] = {plane.data, AddressOf(job.view->block_table),
                              AddressOf(job.keep), job.n_keep, 0};
  longest_ = std::max(longest_, job.n_keep);
  return Status();
}

Status PlaneBatch::Flush() {
  Status status;
  if (p_.n_planes > 0 && longest_ > 0) {
    const uint32_t unit = GatherUnit(p_);
    const uint64_t n_blocks = ChunkBlocks(p_, unit, longest_);
    const bool has_tickets =
        sizeof(uint32_t) * ChunkTickets(n_blocks) <= args_.scratch.size();
    status = GatherByColumns(p_, unit) || !has_tickets
                 ? LaunchByColumns(ColumnUnit(unit))
                 : LaunchByChunks(unit, n_blocks);
  }
  p_ = {};
  longest_ = 0;
  return status;
}

Status PlaneBatch::LaunchByColumns(uint32_t unit) const {
  return Launch(context_, stream_, ByColumns(unit),
                {ColumnBlocks(p_, unit), p_.n_planes, 1, kColumnThreads}, p_);
}

Status PlaneBatch::LaunchByChunks(uint32_t unit, uint64_t n_blocks) {
  p_.columns_per_block = ChunkColumns(p_, unit);
  p_.tickets = AddressOf(args_.scratch.data());
  KV_RETURN_IF_ERROR(Clear(context_, stream_, p_.tickets,
                           sizeof(uint32_t) * ChunkTickets(n_blocks)));
  return Launch(context_, stream_, kByChunks[std::countr_zero(unit)],
                {static_cast<uint32_t>(n_blocks), 1, 1, kChunkThreads}, p_);
}

// With debug set: keep lists must ascend below n_tokens.
Status CheckKeepLists(const Context& context, Stream stream,
                      const CompactArgs& args) {
  for (const LayerJob& job : args.jobs) {
    if (job.n_keep == 0) continue;
    CheckKeepParams p{AddressOf(job.keep), DeviceOf(context).debug_word(),
                      job.n_tokens, job.n_keep};
    KV_RETURN_IF_ERROR(Clear(context, stream, p.n_wrong, sizeof(uint32_t)));
    KV_RETURN_IF_ERROR(Launch(context, stream, KernelId::check_keep,
                              {BlocksFor(job.n_keep, kCheckKeepThreads),
                               args.n_lists, 1, kCheckKeepThreads},
                              p));
    uint32_t n_wrong = 0;
    KV_RETURN_IF_ERROR(context.backend().read(
        context, stream, reinterpret_cast<const void*>(p.n_wrong),
        sizeof(n_wrong), &n_wrong));
    if (n_wrong > 0) {
      return InvalidArgument(
          "keep: %u of layer %u's slots do not ascend strictly below n_tokens "
          "%u",
          n_wrong, job.layer, job.n_tokens);
    }
  }
  return Status();
}

}  // namespace

// As K and V of all layers lie in a usual cache. Others may need more, and do
// without.
CheckedSize CompactScratchBytes(const Context&, const kvevict_geometry& g,
                                const kvevict_policy& policy,
                                uint32_t n_layers) {
  const auto bytes_of = [&](kvevict_dtype dtype, uint32_t head_dim) {
    GatherParams p{};
    p.row_bytes = head_dim * ElementBytes(static_cast<DType>(dtype));
    if (p.row_bytes == 0) return CheckedSize(0);
    p.n_pieces = 1;
    p.n_heads = g.n_kv_heads;
    p.n_planes = std::min(n_layers, GatherParams::kMaxPlanes);
    const uint32_t unit = GatherUnit(p);
    if (GatherByColumns(p, unit)) return CheckedSize(0);
    const auto n_keep = static_cast<uint32_t>(std::min<size_t>(
        MaxTotalBudget(policy, g.max_tokens, 1), g.max_tokens));
    p.n_planes = std::min(2 * n_layers, GatherParams::kMaxPlanes);
    return CheckedSize(sizeof(uint32_t)) *
           CheckedSize(ChunkTickets(ChunkBlocks(p, unit, n_keep)));
  };
  const CheckedSize k = bytes_of(g.k_dtype, g.k_head_dim);
  const CheckedSize v = bytes_of(g.v_dtype, g.v_head_dim);
  return k.value() > v.value() ? k : v;
}

Status Run_compact(const Context& context, Stream stream,
                   const CompactArgs& args) {
  if (args.jobs.empty()) return Status();
  if (DeviceOf(context).debug()) {
    KV_RETURN_IF_ERROR(CheckKeepLists(context, stream, args));
  }
  PlaneBatch batch(context, stream, args);
  // Plane by plane over the layers, since the same plane lies alike in most.
  uint32_t n_companions = 0;
  for (const LayerJob& job : args.jobs) {
    n_companions = std::max(n_companions, job.view->n_companions);
  }
  for (uint32_t i = 0; i < 2 + n_companions; ++i) {
    for (const LayerJob& job : args.jobs) {
      const kvevict_view& view = *job.view;
      if (i >= 2 && i - 2 >= view.n_companions) continue;
      const kvevict_plane& plane = i == 0   ? view.k
                                   : i == 1 ? view.v
                                            : view.companions[i - 2];
      if (IsPresent(plane)) KV_RETURN_IF_ERROR(batch.Add(job, plane));
    }
  }
  return batch.Flush();
}

CheckedSize CompactViewScratchBytes(const Context&, const LayerJob&) {
  return CheckedSize(0);
}
CheckedSize ReorderScratchBytes(const Context&, const LayerJob&, uint32_t) {
  return CheckedSize(0);
}
Status Run_reorder(const Context&, Stream, const ReorderArgs&) {
  return Unsupported("reordering is not on CUDA yet");
}

}  // namespace kvevict::cuda
