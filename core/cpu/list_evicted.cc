// Lists the slots that are not in keep lists.
#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

Status RunListEvicted(const Context&, Stream, const ListEvictedArgs& args) {
  for (const EvictedJob& job : args.jobs) {
    for (uint32_t list = 0; list < job.keep.n_lists; ++list) {
      const int32_t* keep = job.keep.List(list);
      const int32_t* const keep_end = keep + job.keep.count.Of(list);
      const auto n_tokens = static_cast<int32_t>(job.tokens.Of(list));
      int32_t* const first = job.slots + uint64_t{list} * job.stride;
      int32_t* out = first;
      for (int32_t slot = 0; slot < n_tokens; ++slot) {
        if (keep < keep_end && *keep == slot) {
          ++keep;
        } else {
          *out++ = slot;
        }
      }
      *out = n_tokens;
      if (job.counts != nullptr) {
        job.counts[list] = static_cast<uint32_t>(out - first);
      }
    }
  }
  return Status();
}

}  // namespace

const Op<ListEvictedArgs> kOp_list_evicted = {RunListEvicted};

}  // namespace kvevict::cpu
