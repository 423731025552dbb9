// kvevict_rotate(): rotates keys without a sequence.
#include "core/doors/checks.h"
#include "core/doors/doors.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

Status CheckOffsets(const PlanLayer& layer, const RotateRequest& request) {
  const uint32_t n_heads = layer.geometry.n_kv_heads;
  const uint32_t n_lists = request.n_lists;
  if (n_lists != 1 && n_lists != n_heads) {
    return InvalidArgument("n_lists %u is not 1 or n_kv_heads %u", n_lists,
                           n_heads);
  }
  if (request.offsets.size() == uint64_t{n_lists} * request.n_tokens) {
    return Status();
  }
  return InvalidArgument("offsets_len %zu is not n_lists %u * n_tokens %u",
                         request.offsets.size(), n_lists, request.n_tokens);
}

Status CheckRequest(const Plan& plan, const RotateRequest& request,
                    RotateJob* out) {
  const PlanLayer& layer = plan.layer(request.layer);
  const bool on_host = plan.context().backend().on_host;
  KV_RETURN_IF_ERROR(
      CheckTokenCount(request.n_tokens, 1, plan.max_tokens(), "max_tokens"));
  out->tokens = {request.n_tokens, request.token_counts};
  KV_RETURN_IF_ERROR(CheckCounts(plan.context(), "token_counts", out->tokens,
                                 layer.geometry.n_kv_heads));
  KV_RETURN_IF_ERROR(plan.CheckCanRotate(layer));
  Status status = ValidateView(request.view, out->tokens, on_host);
  if (status.ok()) status = MatchGeometry(request.view, layer.geometry);
  if (status.ok() && !IsPresent(request.view.k)) {
    status = InvalidArgument("k.data is 0: no keys to rotate");
  }
  if (status.ok()) status = CheckNotShared(request.view, 0);
  if (!status.ok()) return Prefixed(status, "view: ");
  out->view = &request.view;
  KV_RETURN_IF_ERROR(CheckOffsets(layer, request));
  out->offsets = request.offsets.data();
  out->n_lists = request.n_lists;
  return Status();
}

}  // namespace

Status Rotate(const Plan& plan, std::span<const RotateRequest> requests,
              Stream stream) {
  RotateJob jobs[kMaxJobs];
  LayerCache caches[kMaxJobs];
  const auto n = static_cast<uint32_t>(requests.size());
  const bool on_host = plan.context().backend().on_host;
  for (uint32_t i = 0; i < n; ++i) {
    const RotateRequest& request = requests[i];
    if (Status status = CheckRequest(plan, request, &jobs[i]); !status.ok()) {
      return n == 1 ? status : Prefixed(status, "rotations[%u]: ", i);
    }
    caches[i] = CacheOf(request.view, i, jobs[i].tokens, on_host);
  }
  KV_RETURN_IF_ERROR(CheckDistinct("rotations", std::span(caches).first(n)));
  const Backend& backend = plan.context().backend();
  const Jobs<RotateJob> all(std::span<const RotateJob>(jobs, n));
  const RotateArgs args{all, plan.rope()};
  KV_RETURN_IF_ERROR(backend.rotate.check(plan.context(), stream, args));
  return backend.rotate(plan.context(), stream, args);
}

}  // namespace kvevict
