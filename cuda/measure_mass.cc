// Measures the mass that lists keep: one launch.
#include "cuda/kernels/mass.h"
#include "cuda/kernels/topk.h"
#include "cuda/launch.h"
#include "cuda/list_keys.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

Status RunMeasureMass(const Context& context, Stream stream,
                      const MeasureMassArgs& args) {
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::mass));
  return ForEachBatch(
      args.jobs, MassParams::kMaxLayers, SelectTogether,
      [&](Jobs<SelectJob> jobs) {
        SelectArgs select{};
        select.jobs = jobs;
        const SelectParams of = ParamsFor(select, jobs);
        MassParams p{};
        p.lists = of.lists;
        p.adds = args.adds;
        p.of_chunk = args.of_chunk;
        for (size_t i = 0; i < jobs.size(); ++i) {
          p.layers[i] = {of.layers[i], AddressOf(jobs[i].masses)};
        }
        return Launch(context, stream, KernelId::list_masses,
                      {p.lists.n_lists, Size(jobs), 1, kSelectThreads}, p);
      });
}

}  // namespace

const Op<MeasureMassArgs> kOp_measure_mass = {RunMeasureMass};

}  // namespace kvevict::cuda
