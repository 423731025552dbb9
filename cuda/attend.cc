// Attention: one launch for the splits of jobs with the same layout, one that
// joins them, and another for sums.
#include <algorithm>

#include "core/dtype.h"
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/device_state.h"
#include "cuda/kernels/attention.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr float kLog2E = 1.44269504088896340736f;

const kvevict_view kPlain = KVEVICT_VIEW_INIT;

uint32_t BlocksOf(const AttendJob& job) {
  return BlocksFor(uint64_t{job.n_queries} * job.group(), kAttendRows);
}
uint32_t MostSplitsOf(const AttendJob& job) {
  return MostSplits(uint64_t{job.view.n_kv_heads} * BlocksOf(job));
}
uint32_t SplitsOf(const AttendJob& job) {
  return cuda::SplitsOf(job.tokens.most, MostSplitsOf(job));
}

// Bytes of the states of a block of rows, for all KV heads.
CheckedSize BlockBytes(const AttendJob& job, uint32_t n_splits) {
  return CheckedSize(job.view.n_kv_heads) * CheckedSize(n_splits) *
         CheckedSize(kAttendRows) *
         CheckedSize(AttendStateFloats(job.v_head_dim)) *
         CheckedSize(sizeof(float));
}

bool WantsSums(const AttendJob& job) {
  return IsPresent(job.attention_sums) && job.n_queries > 0 &&
         job.tokens.most > 0;
}

// Bytes of the log-sum-exps that sums need, if the caller wants none.
CheckedSize LseBytes(const AttendJob& job) {
  if (!WantsSums(job) || IsPresent(job.row_lse)) return CheckedSize(0);
  return (CheckedSize(job.n_q_heads) * CheckedSize(job.n_queries) *
          CheckedSize(sizeof(float)))
      .AlignUp(kAlignment);
}

bool SameRows(const kvevict_plane& a, const kvevict_plane& b) {
  return a.dtype == b.dtype && a.head_dim == b.head_dim &&
         ReadAlike(kPlain, a, kPlain, b);
}

bool AttendTogether(const AttendJob& a, const AttendJob& b) {
  const kvevict_view& x = a.view;
  const kvevict_view& y = b.view;
  const auto same = [&](const kvevict_plane& p, const kvevict_plane& q) {
    return p.dtype == q.dtype && p.head_dim == q.head_dim &&
           ReadAlike(x, p, y, q);
  };
  return x.n_kv_heads == y.n_kv_heads && same(x.k, y.k) &&
         same(a.values(), b.values()) && SameRows(a.queries, b.queries) &&
         SameRows(a.out, b.out) && SameRows(a.row_lse, b.row_lse) &&
         SameRows(a.attention_sums, b.attention_sums) &&
         InOneTable(a.tokens, b.tokens) && a.n_q_heads == b.n_q_heads &&
         a.n_queries == b.n_queries && a.v_head_dim == b.v_head_dim &&
         a.window == b.window && a.non_causal == b.non_causal &&
         a.n_sum_heads == b.n_sum_heads && a.softmax_scale == b.softmax_scale &&
         a.logit_softcap == b.logit_softcap &&
         LseBytes(a).value() == LseBytes(b).value();
}

ModuleKey ReaderOf(const Context& context, ModuleId module,
                   const AttendJob& job) {
  return ReaderOf(context, module,
                  KindsOf(RowsOf(kPlain, job.queries)) |
                      KindsOf(RowsOf(job.view, job.view.k)) |
                      KindsOf(RowsOf(job.view, job.values())));
}

// From sm_80 on there is enough shared memory for two blocks.
bool TakeFew(const Context& context, const AttendParams& p) {
  return DeviceOf(context).sm() >= 80 && TakeFew(p);
}

// The parameters that the jobs of a batch have in common. States and blocks are
// set later.
AttendParams ParamsOf(Jobs<AttendJob> batch, uint64_t lse) {
  const AttendJob& first = batch.front();
  const kvevict_view& view = first.view;
  const Counts tokens(first.tokens);
  const bool caps = first.logit_softcap != 0.0f;
  AttendParams p{};
  p.queries = RowsOf(kPlain, first.queries);
  p.keys = RowsOf(view, view.k);
  p.values = RowsOf(view, first.values());
  p.values.head_dim = first.v_head_dim;
  if (first.v_head_dim % PerLoad(static_cast<int>(p.values.dtype)) != 0) {
    p.values.wide = 0;
  }
  p.out_row_stride = first.out.token_stride_bytes;
  p.out_head_stride = first.out.head_stride_bytes;
  p.out_element_stride = ElementStride(first.out);
  p.lse_row_stride = first.row_lse.token_stride_bytes;
  p.lse_head_stride = first.row_lse.head_stride_bytes;
  const size_t lse_bytes = LseBytes(first).value();
  if (lse_bytes > 0) {
    p.lse_row_stride = sizeof(float);
    p.lse_head_stride = int64_t{first.n_queries} * int64_t{sizeof(float)};
  }
  p.sum_slot_stride = first.attention_sums.token_stride_bytes;
  p.sum_head_stride = first.attention_sums.head_stride_bytes;
  p.tokens = tokens.table();
  p.out_dtype = static_cast<uint32_t>(first.out.dtype);
  p.n_queries = first.n_queries;
  p.group = first.group();
  p.most_splits = MostSplitsOf(first);
  p.window = first.window;
  p.non_causal = first.non_causal;
  p.sums_are_shared = first.n_sum_heads == view.n_kv_heads ? 1 : 0;
  p.query_scale = caps ? first.softmax_scale / first.logit_softcap
                       : first.softmax_scale * kLog2E;
  p.cap = first.logit_softcap * kLog2E;
  for (size_t i = 0; i < batch.size(); ++i) {
    const AttendJob& job = batch[i];
    p.layers[i] = {job.queries.data,
                   BaseOf(job.view.k),
                   BaseOf(job.values()),
                   AddressOf(job.view.block_table),
                   AddressOf(job.sink_logits),
                   job.out.data,
                   lse_bytes > 0 ? lse + i * lse_bytes : job.row_lse.data,
                   job.attention_sums.data,
                   job.tokens.most,
                   tokens.FirstOf(job.tokens)};
    p.n_splits = std::max(p.n_splits, SplitsOf(job));
  }
  return p;
}

// Takes as many blocks of rows at a time as there is room for their states.
Status RunBatch(const Context& context, Stream stream, Jobs<AttendJob> batch,
                uint64_t lse, std::span<uint8_t> states) {
  const AttendJob& first = batch.front();
  AttendParams p = ParamsOf(batch, lse);
  p.states = AddressOf(states.data());
  const ModuleKey reader = ReaderOf(context, ModuleId::attention, first);
  const ModuleKey few = ReaderOf(context, ModuleId::attention_few, first);
  const uint32_t n_heads = first.view.n_kv_heads;
  const uint32_t n_layers = Size(batch);
  const uint32_t n_blocks = BlocksOf(first);
  const size_t bytes = BlockBytes(first, p.n_splits).value() * batch.size();
  const auto most =
      static_cast<uint32_t>(std::min<size_t>(states.size() / bytes, n_blocks));
  for (; p.first_block < n_blocks; p.first_block += most) {
    p.n_blocks = std::min(most, n_blocks - p.first_block);
    const uint32_t n_chunks = BlocksFor(first.v_head_dim, kAttendValues);
    if (TakeFew(context, p)) {
      KV_RETURN_IF_ERROR(Launch(context, stream, few, KernelId::attend_few,
                                {p.n_splits, n_heads, n_layers, kAttendThreads},
                                p));
    } else {
      KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::attend_split,
                                {p.n_splits * p.n_blocks * n_chunks, n_heads,
                                 n_layers, kAttendThreads},
                                p));
    }
    KV_RETURN_IF_ERROR(Launch(
        context, stream, reader, KernelId::attend_finish,
        {p.n_blocks * kAttendRows, n_heads, n_layers, kAttendFinishThreads},
        p));
  }
  if (!WantsSums(first)) return Status();
  return Launch(context, stream, reader, KernelId::attend_sums,
                {BlocksFor(LongestOf(batch), kAttendSlots), n_heads, n_layers,
                 kAttendThreads},
                p);
}

CheckedSize LseBytes(Jobs<AttendJob> jobs) {
  CheckedSize bytes(0);
  for (const AttendJob& job : jobs) bytes = bytes + LseBytes(job);
  return bytes;
}

ScratchNeeds AttendScratchBytes(const Context&, const Jobs<AttendJob>& jobs) {
  ScratchNeeds needs;
  uint32_t n_splits = 1;
  for (const AttendJob& job : jobs) {
    n_splits = std::max(n_splits, SplitsOf(job));
  }
  size_t one = 0;
  for (const AttendJob& job : jobs) {
    const CheckedSize block = BlockBytes(job, SplitsOf(job));
    if (!block.ok()) return block;
    one = std::max(one, block.value());
    needs.best =
        needs.best + BlockBytes(job, n_splits) * CheckedSize(BlocksOf(job));
  }
  const CheckedSize lse = LseBytes(jobs);
  needs.least = lse + CheckedSize(one);
  needs.best = lse + needs.best;
  if (needs.best.value() < needs.least.value()) needs.best = needs.least;
  return needs;
}

Status CheckAttend(const Context& context, Stream stream,
                   const AttendArgs& args) {
  for (const AttendJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(CheckRowsAligned("keys", job.view, job.view.k));
    KV_RETURN_IF_ERROR(CheckRowsAligned("values", job.view, job.values()));
    for (const kvevict_plane* plane : {&job.queries, &job.out}) {
      KV_RETURN_IF_ERROR(
          CheckAligned(plane == &job.out ? "out" : "queries", plane->data,
                       {job.n_queries > 1 ? plane->token_stride_bytes : 0,
                        job.n_q_heads > 1 ? plane->head_stride_bytes : 0,
                        plane->element_stride_bytes},
                       ElementBytes(static_cast<DType>(plane->dtype))));
    }
    KV_RETURN_IF_ERROR(
        Require(context, stream, ReaderOf(context, ModuleId::attention, job)));
    if (TakeFew(context, ParamsOf(Jobs<AttendJob>(job), 0))) {
      KV_RETURN_IF_ERROR(Require(
          context, stream, ReaderOf(context, ModuleId::attention_few, job)));
    }
  }
  return Status();
}

Status RunAttend(const Context& context, Stream stream,
                 const AttendArgs& args) {
  uint64_t lse = AddressOf(args.scratch.data());
  const std::span<uint8_t> states =
      args.scratch.subspan(LseBytes(args.jobs).value());
  Jobs<AttendJob> jobs = args.jobs;
  while (!jobs.empty()) {
    // Adjacent jobs with the same layout, as long as a block of each has room.
    size_t n = 1;
    uint32_t n_splits = SplitsOf(jobs[0]);
    while (n < jobs.size() && n < AttendParams::kMaxLayers &&
           AttendTogether(jobs[0], jobs[n])) {
      n_splits = std::max(n_splits, SplitsOf(jobs[n]));
      if (BlockBytes(jobs[0], n_splits).value() * (n + 1) > states.size())
        break;
      ++n;
    }
    const Jobs<AttendJob> batch = jobs.first(n);
    if (batch.front().n_queries > 0) {
      KV_RETURN_IF_ERROR(RunBatch(context, stream, batch, lse, states));
    }
    lse += LseBytes(batch).value();
    jobs = jobs.subspan(n);
  }
  return Status();
}

}  // namespace

const Op<AttendArgs> kOp_attend = {RunAttend, AttendScratchBytes, CheckAttend};

}  // namespace kvevict::cuda
