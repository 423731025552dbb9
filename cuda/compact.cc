// Compaction, in place or to other caches: one launch for planes with the same
// layout, of any layer.
#include <bit>
#include <limits>

#include "cuda/check_keep.h"
#include "cuda/kernels/gather_rows.h"
#include "cuda/kernels/params.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/plane_batch.h"

namespace kvevict::cuda {
namespace {

constexpr uint64_t kAnyBytes = std::numeric_limits<uint64_t>::max();

// The entries of gather_rows.cu.
KernelId ByColumns(uint32_t unit) {
  return unit == 16  ? KernelId::gather_columns_16
         : unit == 4 ? KernelId::gather_columns_4
                     : KernelId::gather_columns_1;
}

// Indexed by the logarithm of their unit.
constexpr KernelId kByChunks[] = {
    KernelId::gather_chunks_1, KernelId::gather_chunks_2,
    KernelId::gather_chunks_4, KernelId::gather_chunks_8,
    KernelId::gather_chunks_16};

bool GoesByColumns(const GatherParams& p) {
  return GatherByColumns(p, GatherUnit(p));
}

CheckedSize TicketBytes(const GatherParams& p, uint32_t longest) {
  return CheckedSize(sizeof(uint32_t)) *
         CheckedSize(ChunkTickets(ChunkBlocks(p, GatherUnit(p), longest)));
}

Status LaunchByColumns(const Context& context, Stream stream,
                       const GatherParams& p) {
  const uint32_t unit = ColumnUnit(GatherUnit(p));
  return Launch(context, stream, ByColumns(unit),
                {ColumnBlocks(p, unit), p.n_planes, 1, kColumnThreads}, p);
}

Status LaunchByChunks(const Context& context, Stream stream,
                      std::span<uint8_t> scratch, PlaneBatch& batch) {
  GatherParams& p = batch.params;
  const uint32_t unit = GatherUnit(p);
  DealChunks(&p, unit);
  p.scratch = AddressOf(scratch.data());
  KV_RETURN_IF_ERROR(
      Clear(context, stream, p.scratch, TicketBytes(p, batch.longest).value()));
  const uint64_t n_blocks = ChunkBlocks(p, unit, batch.longest);
  return Launch(context, stream, kByChunks[std::countr_zero(unit)],
                {static_cast<uint32_t>(n_blocks), 1, 1, kChunkThreads}, p);
}

// The entries of copy_rows.cu.
Status LaunchCopy(const Context& context, Stream stream, PlaneBatch& batch) {
  GatherParams& p = batch.params;
  const uint32_t unit = ColumnUnit(GatherUnit(p));
  DealChunks(&p, unit);
  const KernelId kernel = unit == 16  ? KernelId::copy_rows_16
                          : unit == 4 ? KernelId::copy_rows_4
                                      : KernelId::copy_rows_1;
  const uint64_t n_blocks = ChunkBlocks(p, unit, batch.longest);
  return Launch(context, stream, kernel,
                {static_cast<uint32_t>(n_blocks), 1, 1, kChunkThreads}, p);
}

ScratchNeeds CompactScratchBytes(const Context&, const Jobs<MoveJob>& jobs) {
  CheckedSize most(0);
  (void)ForEachPlaneBatch(jobs, kAnyBytes, [&](PlaneBatch& batch) {
    if (!batch.in_place) return Status();
    if (GoesByColumns(batch.params)) return Status();
    const CheckedSize bytes = TicketBytes(batch.params, batch.longest);
    if (bytes.value() > most.value()) most = bytes;
    return Status();
  });
  return most;
}

Status RunCompact(const Context& context, Stream stream,
                  const CompactArgs& args) {
  for (const MoveJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(Require(context, stream,
                               job.destination == nullptr
                                   ? ModuleId::gather_rows
                                   : ModuleId::copy_rows));
  }
  for (const MoveJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(
        CheckKeepLists(context, stream, job, KeepOrder::kAscending, "keep"));
  }
  return ForEachPlaneBatch(args.jobs, kAnyBytes, [&](PlaneBatch& batch) {
    if (!batch.in_place) return LaunchCopy(context, stream, batch);
    const bool has_tickets =
        TicketBytes(batch.params, batch.longest).value() <= args.scratch.size();
    return has_tickets && !GoesByColumns(batch.params)
               ? LaunchByChunks(context, stream, args.scratch, batch)
               : LaunchByColumns(context, stream, batch.params);
  });
}

}  // namespace

const Op<CompactArgs> kOp_compact = {RunCompact, CompactScratchBytes};

}  // namespace kvevict::cuda
