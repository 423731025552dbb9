// Secures tokens by their attention mass: two launches.
#include "cuda/kernels/secure_mass.h"

#include "core/policy/policy.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

ScratchNeeds SecureScratchBytes(const Context&, const LayerSize& size) {
  return CheckedSize(size.n_layers) * CheckedSize(2 * sizeof(float));
}

Status CheckSecureMass(const Context& context, Stream stream,
                       const SecureMassArgs&) {
  return Require(context, stream, ModuleId::secure_mass);
}

Status RunSecureMass(const Context& context, Stream stream,
                     const SecureMassArgs& args) {
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::secure_mass));
  const auto together = [](const ShapeJob& a, const ShapeJob& b) {
    return InOneTable(a.scored->tokens, b.scored->tokens);
  };
  const auto run = [&](Jobs<ShapeJob> batch) {
    const Counts tokens(batch.front().scored->tokens);
    SecureParams p{};
    p.lists.tokens = tokens.table();
    p.lists.n_lists = args.layer.n_kv_heads;
    p.lists.n_recent = args.policy.window.count;
    p.input = kSelectScores;
    p.mass = static_cast<float>(args.policy.first_stage_mass);
    p.has_bias = args.policy.first_stage_bias == FirstStageBias::kPast;
    p.shared = AddressOf(args.scratch.data());
    for (size_t i = 0; i < batch.size(); ++i) {
      const ShapeJob& job = batch[i];
      p.layers[i] = {{AddressOf(job.scored->masses), 0, job.scored->tokens.most,
                      0, tokens.FirstOf(job.scored->tokens), 0},
                     AddressOf(job.scores),
                     job.share};
    }
    KV_RETURN_IF_ERROR(Launch(context, stream, KernelId::secure_shared,
                              {Size(batch), 1, 1, kSelectThreads}, p));
    return Launch(context, stream, KernelId::secure_mass,
                  {args.layer.n_kv_heads, Size(batch), 1, kSelectThreads}, p);
  };
  return ForEachBatch(args.jobs, SecureParams::kMaxLayers, together, run);
}

}  // namespace

const Op<SecureMassArgs> kOp_secure_mass = {RunSecureMass, SecureScratchBytes,
                                            CheckSecureMass};

}  // namespace kvevict::cuda
