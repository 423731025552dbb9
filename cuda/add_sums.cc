// Adds the attention of a chunk to the sums of a sequence.
#include <algorithm>

#include "cuda/device_state.h"
#include "cuda/kernels/attention_sums.h"
#include "cuda/kernels/params.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool HaveLikeSums(const AddSumsJob& a, const AddSumsJob& b) {
  return a.from.head_stride == b.from.head_stride && a.n_from == b.n_from &&
         a.n_rows == b.n_rows && a.n_lists == b.n_lists &&
         a.tokens.more == b.tokens.more && InOneTable(a.tokens, b.tokens);
}

// Refuses to begin sums in a captured graph, which would begin again with every
// run.
Status CheckBegin(const Context& context, Stream stream,
                  const AddSumsArgs& args) {
  bool begins = false;
  for (const AddSumsJob& job : args.jobs) begins = begins || job.begins;
  if (!begins || args.clears) return Status();
  const DeviceState& device = DeviceOf(context);
  ContextScope scope(device.driver());
  KV_RETURN_IF_ERROR(device.Enter(&scope));
  bool captured = false;
  KV_RETURN_IF_ERROR(
      IsCaptured(device.driver(), static_cast<CUstream>(stream), &captured));
  if (!captured) return Status();
  return Unsupported(
      "attention_sums: none were observed for the tokens before, but the "
      "stream is captured into a graph");
}

Status AddBatch(const Context& context, Stream stream, const AddSumsArgs& args,
                Jobs<AddSumsJob> batch) {
  const AddSumsJob& first = batch.front();
  const Counts tokens(first.tokens);
  AddSumsParams p{};
  p.head_stride = first.from.head_stride;
  p.stride = static_cast<uint32_t>(args.stride);
  p.tokens = tokens.table();
  p.n_lists = first.n_lists;
  p.rows_per_list = first.n_rows / first.n_lists;
  p.n_terms = first.n_from / first.n_rows;
  p.n_new = args.n_new;
  p.pool = args.pool;
  p.is_max = args.reduce == KVEVICT_REDUCE_MAX;
  p.scale = args.reduce == KVEVICT_REDUCE_MEAN
                ? 1.0f / static_cast<float>(p.n_terms)
                : 1.0f;
  p.more = first.tokens.more;
  p.clears = args.clears;
  p.only_new = args.only_new;
  p.from_ring = args.from_ring;
  p.sums_ring = args.sums_ring;
  uint32_t longest = args.clears ? p.stride : 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const AddSumsJob& job = batch[i];
    p.layers[i] = {AddressOf(job.from.data),
                   AddressOf(job.sums),
                   AddressOf(job.turn),
                   job.tokens.most,
                   tokens.FirstOf(job.tokens),
                   job.begins,
                   job.first_from};
    longest =
        std::max(longest, (args.only_new ? 0 : job.tokens.most) + args.n_new);
  }
  return Launch(context, stream, KernelId::add_sums,
                {BlocksFor(longest, kAddSumsThreads), first.n_rows, Size(batch),
                 kAddSumsThreads},
                p);
}

Status RunAddSums(const Context& context, Stream stream,
                  const AddSumsArgs& args) {
  KV_RETURN_IF_ERROR(CheckBegin(context, stream, args));
  return ForEachBatch(args.jobs, AddSumsParams::kMaxLayers, HaveLikeSums,
                      [&](Jobs<AddSumsJob> batch) {
                        return AddBatch(context, stream, args, batch);
                      });
}

}  // namespace

const Op<AddSumsArgs> kOp_add_sums = {RunAddSums};

}  // namespace kvevict::cuda
