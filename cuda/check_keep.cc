#include "cuda/check_keep.h"

#include "cuda/device_state.h"
#include "cuda/kernels/check_keep.h"
#include "cuda/launch.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

Status CheckKeepLists(const Context& context, Stream stream, const MoveJob& job,
                      KeepOrder order, const char* name) {
  if (!DeviceOf(context).debug() || job.keep.count.most == 0) return Status();
  if (job.keep.slots == nullptr) return Status();  // all slots are kept
  const bool any_order = order == KeepOrder::kAny;
  CheckKeepParams p{AddressOf(job.keep.slots),
                    DeviceOf(context).debug_word(),
                    Counts(job.keep.count).table(),
                    job.tokens.most,
                    job.keep.count.most,
                    any_order,
                    static_cast<uint32_t>(job.keep.stride),
                    job.destination == nullptr ? job.first_slot : 0,
                    0};
  KV_RETURN_IF_ERROR(Clear(context, stream, p.n_wrong, sizeof(uint32_t)));
  KV_RETURN_IF_ERROR(Launch(context, stream, KernelId::check_keep,
                            {BlocksFor(job.keep.count.most, kCheckKeepThreads),
                             job.keep.n_lists, 1, kCheckKeepThreads},
                            p));
  uint32_t n_wrong = 0;
  KV_RETURN_IF_ERROR(context.backend().read(
      context, stream, reinterpret_cast<const void*>(p.n_wrong),
      sizeof(n_wrong), &n_wrong));
  if (n_wrong == 0) return Status();
  if (any_order) {
    return InvalidArgument(
        "%s: %u of the slots listed are not below n_tokens %u", name, n_wrong,
        job.tokens.most);
  }
  if (p.first_slot == 0) {
    return InvalidArgument(
        "%s: %u of the slots listed do not ascend strictly below n_tokens %u",
        name, n_wrong, job.tokens.most);
  }
  return InvalidArgument(
      "%s: %u of the slots listed do not ascend strictly in [first_slot %u, "
      "n_tokens %u)",
      name, n_wrong, p.first_slot, job.tokens.most);
}

}  // namespace kvevict::cuda
