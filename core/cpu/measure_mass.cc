// Measures the mass that lists keep. A work item is a layer and list.
#include <algorithm>
#include <limits>

#include "core/cpu/cpu.h"
#include "core/kernels/mass.h"

namespace kvevict::cpu {
namespace {

Status RunMeasureMass(const Context& context, Stream,
                      const MeasureMassArgs& args) {
  const uint32_t n_lists = args.jobs.front().keep.n_lists;
  context.ParallelFor(
      static_cast<uint32_t>(args.jobs.size() * n_lists),
      [&](uint32_t item, uint32_t) {
        const SelectJob& job = args.jobs[item / n_lists];
        const uint32_t list = item % n_lists;
        const uint32_t n_tokens = job.tokens.Of(list);
        const uint32_t n_keep = std::min(job.keep.count.Of(list), n_tokens);
        const bool is_left_out = args.of_chunk && n_keep == n_tokens;
        const Mass mass =
            MeasureMass(job.scores + uint64_t{list} * job.tokens.most,
                        is_left_out ? 0 : n_tokens, job.slots.first,
                        job.keep.List(list), n_keep);
        Mass* const out = &job.masses[list];
        *out = args.adds ? *out + mass : mass;
      });
  return Status();
}

}  // namespace

const Op<MeasureMassArgs> kOp_measure_mass = {RunMeasureMass};

}  // namespace kvevict::cpu
