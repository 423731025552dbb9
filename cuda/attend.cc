// Attention: one launch for the splits of jobs with the same layout, one that
// joins them, and another for sums. The splits have three forms: for a few rows,
// by tensor cores, and by plain multiply-adds.
#include <algorithm>

#include "core/dtype.h"
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/device_state.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/attention_mma.h"
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

bool TakesMma(const Context& context, const AttendJob& job) {
  return CanAttendMma(job.view.k.dtype, job.values().dtype, job.view.k.head_dim,
                      job.v_head_dim,
                      static_cast<uint32_t>(DeviceOf(context).sm()));
}

// Blocks of rows that a thread block takes.
uint32_t RowWarpsOf(const Context& context, const AttendJob& job) {
  if (!TakesMma(context, job)) return 1;
  return AttendRowWarps(job.queries.dtype, job.view.k.dtype, job.values().dtype,
                        AttendPadded(job.view.k.head_dim),
                        AttendPadded(job.v_head_dim),
                        uint64_t{job.n_queries} * job.group());
}

uint32_t MostSplitsOf(const Context& context, const AttendJob& job) {
  return MostSplits(uint64_t{job.view.n_kv_heads} *
                    BlocksFor(BlocksOf(job), RowWarpsOf(context, job)));
}
uint32_t SplitsOf(const Context& context, const AttendJob& job) {
  return cuda::SplitsOf(job.tokens.most, MostSplitsOf(context, job));
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
         SameRows(a.attention_sums, b.attention_sums) && HaveLikeBiases(x, y) &&
         InOneTable(a.tokens, b.tokens) && a.n_q_heads == b.n_q_heads &&
         a.n_queries == b.n_queries && a.v_head_dim == b.v_head_dim &&
         a.window == b.window && a.non_causal == b.non_causal &&
         a.n_sum_heads == b.n_sum_heads && a.softmax_scale == b.softmax_scale &&
         a.logit_softcap == b.logit_softcap &&
         LseBytes(a).value() == LseBytes(b).value();
}

ModuleKey ReaderOf(const Context& context, ModuleId module,
                   const AttendJob& job) {
  ModuleKey key = ReaderOf(context, module,
                           KindsOf(RowsOf(kPlain, job.queries)) |
                               KindsOf(RowsOf(job.view, job.view.k)) |
                               KindsOf(RowsOf(job.view, job.values())));
  if (BiasesOf(job.view) != nullptr) key.Add("KV_BIAS", 1);
  return key;
}

ModuleKey KeyOfMma(const Context& context, const AttendJob& job) {
  const auto q_dtype = job.queries.dtype;
  const auto k_dtype = job.view.k.dtype;
  const auto v_dtype = job.values().dtype;
  const uint32_t k_dim = job.view.k.head_dim;
  const uint32_t row_warps = RowWarpsOf(context, job);
  ModuleKey key;
  key.module = ModuleId::attention_mma;
  key.Add("KV_Q_DTYPE", q_dtype);
  key.Add("KV_K_DTYPE", k_dtype);
  key.Add("KV_V_DTYPE", v_dtype);
  key.Add("KV_HEAD_DIM", AttendPadded(k_dim));
  key.Add("KV_V_DIM", AttendPadded(job.v_head_dim));
  key.Add("KV_ROW_WARPS", row_warps);
  const RowKinds kinds = KindsOf(RowsOf(job.view, job.view.k)) |
                         KindsOf(RowsOf(job.view, job.values()));
  if (kinds.token_groups) key.Add("KV_TOKEN_GROUPS", 1);
  if (BiasesOf(job.view) != nullptr) key.Add("KV_BIAS", 1);
  key.dynamic_shared_bytes =
      ShapeAttendMma(q_dtype, k_dtype, v_dtype, AttendPadded(k_dim),
                     AttendPadded(job.v_head_dim), row_warps)
          .shared_bytes;
  return key;
}

// How the splits of a job are computed.
enum class Form { kFew, kMma, kPlain };

Form FormOf(const Context& context, const AttendJob& job,
            const AttendParams& p) {
  // Two blocks of a few rows need the shared memory of sm_80 or later.
  if (DeviceOf(context).sm() >= 80 && TakeFew(p)) return Form::kFew;
  return TakesMma(context, job) ? Form::kMma : Form::kPlain;
}

ModuleKey SplitterOf(const Context& context, const AttendJob& job, Form form) {
  if (form == Form::kMma) return KeyOfMma(context, job);
  return ReaderOf(
      context,
      form == Form::kFew ? ModuleId::attention_few : ModuleId::attention, job);
}

// The parameters that the jobs of a batch have in common. States and blocks are
// set later.
AttendParams ParamsOf(const Context& context, Jobs<AttendJob> batch,
                      uint64_t lse) {
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
  p.most_splits = MostSplitsOf(context, first);
  p.window = first.window;
  p.non_causal = first.non_causal;
  p.sums_are_shared = first.n_sum_heads == view.n_kv_heads ? 1 : 0;
  p.query_scale = caps ? first.softmax_scale / first.logit_softcap
                       : first.softmax_scale * kLog2E;
  p.cap = first.logit_softcap * kLog2E;
  const kvevict_plane* const biases = BiasesOf(first.view);
  if (biases != nullptr) p.biases = LayoutOf(view, *biases);
  for (size_t i = 0; i < batch.size(); ++i) {
    const AttendJob& job = batch[i];
    if (biases != nullptr) p.bias_bases[i] = BaseOf(*BiasesOf(job.view));
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
    p.n_splits = std::max(p.n_splits, SplitsOf(context, job));
  }
  return p;
}

// The launch of the splits of p.n_blocks blocks of rows.
Status LaunchSplits(const Context& context, Stream stream, const AttendJob& job,
                    Form form, const AttendParams& p, uint32_t n_layers) {
  const uint32_t n_heads = job.view.n_kv_heads;
  const ModuleKey module = SplitterOf(context, job, form);
  if (form == Form::kFew) {
    return Launch(context, stream, module, KernelId::attend_few,
                  {p.n_splits, n_heads, n_layers, kAttendThreads}, p);
  }
  if (form == Form::kMma) {
    const uint32_t n_groups = BlocksFor(p.n_blocks, RowWarpsOf(context, job));
    return Launch(context, stream, module, KernelId::attend_mma,
                  {p.n_splits * n_groups, n_heads, n_layers, kAttendMmaThreads,
                   module.dynamic_shared_bytes},
                  p);
  }
  const uint32_t n_chunks = BlocksFor(job.v_head_dim, kAttendValues);
  return Launch(
      context, stream, module, KernelId::attend_split,
      {p.n_splits * p.n_blocks * n_chunks, n_heads, n_layers, kAttendThreads},
      p);
}

// Takes as many blocks of rows at a time as there is room for their states.
Status RunBatch(const Context& context, Stream stream, Jobs<AttendJob> batch,
                uint64_t lse, std::span<uint8_t> states) {
  const AttendJob& first = batch.front();
  AttendParams p = ParamsOf(context, batch, lse);
  p.states = AddressOf(states.data());
  const Form form = FormOf(context, first, p);
  const ModuleKey reader = ReaderOf(context, ModuleId::attention, first);
  const uint32_t n_heads = first.view.n_kv_heads;
  const uint32_t n_layers = Size(batch);
  const uint32_t n_blocks = BlocksOf(first);
  const size_t bytes = BlockBytes(first, p.n_splits).value() * batch.size();
  const auto most =
      static_cast<uint32_t>(std::min<size_t>(states.size() / bytes, n_blocks));
  for (; p.first_block < n_blocks; p.first_block += most) {
    p.n_blocks = std::min(most, n_blocks - p.first_block);
    KV_RETURN_IF_ERROR(LaunchSplits(context, stream, first, form, p, n_layers));
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

ScratchNeeds AttendScratchBytes(const Context& context,
                                const Jobs<AttendJob>& jobs) {
  ScratchNeeds needs;
  uint32_t n_splits = 1;
  for (const AttendJob& job : jobs) {
    n_splits = std::max(n_splits, SplitsOf(context, job));
  }
  size_t one = 0;
  for (const AttendJob& job : jobs) {
    const CheckedSize block = BlockBytes(job, SplitsOf(context, job));
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
    KV_RETURN_IF_ERROR(CheckBiasesAligned(job.view));
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
    const Form form =
        FormOf(context, job, ParamsOf(context, Jobs<AttendJob>(job), 0));
    KV_RETURN_IF_ERROR(
        Require(context, stream, SplitterOf(context, job, form)));
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
    uint32_t n_splits = SplitsOf(context, jobs[0]);
    while (n < jobs.size() && n < AttendParams::kMaxLayers &&
           AttendTogether(jobs[0], jobs[n])) {
      n_splits = std::max(n_splits, SplitsOf(context, jobs[n]));
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
