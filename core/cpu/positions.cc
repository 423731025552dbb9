// Updates positions of slots, lengths and counts.
#include <algorithm>

#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

Status RunMapPositions(const Context&, Stream, const MapPositionsArgs& args) {
  for (const MapJob& job : args.jobs) {
    const ListCounts& count = job.keep.count;
    for (uint32_t list = 0; list < job.keep.n_lists; ++list) {
      const int32_t* keep =
          job.keep.slots == nullptr ? nullptr : job.keep.List(list);
      int32_t* out = job.out + uint64_t{list} * count.most;
      for (uint32_t i = 0; i < count.Of(list); ++i) {
        out[i] = job.slots.PositionOf(list, keep == nullptr ? i : keep[i]);
      }
    }
  }
  return Status();
}

Status RunSetLengths(const Context&, Stream, const SetLengthsArgs& args) {
  for (size_t l = 0; l < args.stored.size(); ++l) {
    args.lengths[2 * l] = args.stored[l];
    args.lengths[2 * l + 1] = args.logical;
  }
  return Status();
}

Status RunAdvanceCounts(const Context&, Stream, const AdvanceCountsArgs& args) {
  for (uint32_t i = 0; i < args.n; ++i) args.counts[i] += args.more;
  return Status();
}

Status RunSetCounts(const Context&, Stream, const SetCountsArgs& args) {
  std::copy(args.values.begin(), args.values.end(), args.counts);
  return Status();
}

}  // namespace

const Op<MapPositionsArgs> kOp_map_positions = {RunMapPositions};

const Op<SetLengthsArgs> kOp_set_lengths = {RunSetLengths};

const Op<AdvanceCountsArgs> kOp_advance_counts = {RunAdvanceCounts};

const Op<SetCountsArgs> kOp_set_counts = {RunSetCounts};

}  // namespace kvevict::cpu
