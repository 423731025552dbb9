#include "cuda/list_rows.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/policy/policy.h"
#include "core/signals/signal_inputs.h"
#include "cuda/alignment.h"
#include "cuda/kernels/list_rows.h"
#include "cuda/launch.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(ListedJobs::kMaxLayers <= ListRowsParams::kMaxLayers);

uint64_t RowBytes(const kvevict_layer_geometry& g) {
  return uint64_t{g.k_head_dim} * ElementBytes(static_cast<DType>(g.q_dtype));
}

// The rows of kMaxLayers of n_layers.
CheckedSize BytesOfRows(const kvevict_layer_geometry& g, const Policy& policy,
                        uint32_t n_layers) {
  return (CheckedSize(std::min(n_layers, ListedJobs::kMaxLayers)) *
          CheckedSize(g.n_q_heads) * CheckedSize(ScoringRows(policy)) *
          CheckedSize(RowBytes(g)))
      .AlignUp(256);
}

ListedSource SourceOf(const QueryRows& queries) {
  return {queries.rows.row_stride, queries.head_stride,
          queries.rows.element_stride};
}

}  // namespace

bool ListTogether(const ScoreJob& a, const ScoreJob& b) {
  const ListedSource x = SourceOf(QueryRowsOf(*a.reference, 1)),
                     y = SourceOf(QueryRowsOf(*b.reference, 1));
  return x.row_stride == y.row_stride && x.head_stride == y.head_stride &&
         x.element_stride == y.element_stride &&
         a.slots.n_lists == b.slots.n_lists &&
         InOneTable(a.slots.n_kept, b.slots.n_kept);
}

CheckedSize ListedJobs::Bytes(const kvevict_layer_geometry& g,
                              const Policy& policy, uint32_t n_layers) {
  return BytesOfRows(g, policy, n_layers) +
         (CheckedSize(std::min(n_layers, kMaxLayers)) *
          CheckedSize(g.n_kv_heads) * CheckedSize(ScoringRows(policy)) *
          CheckedSize(sizeof(ListedRow)))
             .AlignUp(256);
}

ListedJobs::ListedJobs(const ScoreArgs& args, Jobs<ScoreJob> jobs,
                       uint64_t scratch)
    : args_(args),
      given_(jobs),
      rows_(scratch),
      list_(scratch +
            BytesOfRows(args.layer, args.policy, Size(args.jobs)).value()) {
  const kvevict_layer_geometry& g = args.layer;
  const auto dtype = static_cast<DType>(g.q_dtype);
  const uint32_t n_rows = ScoringRows(args.policy);
  const uint64_t head_bytes = n_rows * RowBytes(g);
  for (size_t i = 0; i < given_.size(); ++i) {
    jobs_[i] = given_[i];
    QueryRows& queries = jobs_[i].queries;
    queries = QueryRows();
    queries.rows.base =
        reinterpret_cast<const uint8_t*>(rows_ + i * g.n_q_heads * head_bytes);
    queries.rows.row_stride = static_cast<int64_t>(RowBytes(g));
    queries.rows.element_stride = ElementBytes(dtype);
    queries.rows.dtype = dtype;
    queries.head_stride = static_cast<int64_t>(head_bytes);
    queries.n_rows = n_rows;
  }
}

uint32_t ListedJobs::n_masked() const {
  const Policy& policy = args_.policy;
  for (const ScoreJob& job : given_) {
    if (job.reference_positions != nullptr) return UINT32_MAX;
  }
  if (policy.softmax == SoftmaxKeys::kPast) return policy.window.count;
  return WindowScores(policy) ? policy.window.count - 1 : 0;
}

Status ListedJobs::Check(const Context& context, Stream stream) const {
  const auto check = [&](const char* name, const QueryRows& rows) {
    return CheckAligned(name, AddressOf(rows.rows.base),
                        {rows.rows.row_stride, rows.rows.element_stride,
                         args_.layer.n_q_heads > 1 ? rows.head_stride : 0},
                        ElementBytes(rows.rows.dtype));
  };
  for (const ScoreJob& job : given_) {
    if (WindowScores(args_.policy)) {
      KV_RETURN_IF_ERROR(check("queries", job.queries));
    }
    KV_RETURN_IF_ERROR(
        check("reference_queries", QueryRowsOf(*job.reference, 1)));
  }
  return Require(context, stream, ModuleId::list_rows);
}

Status ListedJobs::Run(const Context& context, Stream stream) const {
  const kvevict_layer_geometry& g = args_.layer;
  const Policy& policy = args_.policy;
  const ScoreJob& first = given_.front();
  const Counts tokens(first.tokens);
  const kvevict::SlotPositions first_slots = ReferenceSlots(policy, first);
  const Counts kept(first_slots.n_kept);
  ListRowsParams p{};
  p.rows = rows_;
  p.list = list_;
  p.window = SourceOf(first.queries);
  p.reference = SourceOf(QueryRowsOf(*first.reference, 1));
  p.n_elements = g.k_head_dim;
  p.element_bytes = ElementBytes(static_cast<DType>(g.q_dtype));
  p.n_own = ScoringRows(policy) - policy.reference;
  p.first_row = first.queries.first_row;
  p.ring_rows = first.queries.ring_rows;
  p.group = g.n_q_heads / g.n_kv_heads;
  p.window_tokens = policy.window.count;
  p.past_only = policy.softmax == SoftmaxKeys::kPast;
  p.weigh_by_past = policy.row_weight == RowWeight::kPast;
  p.own_factor = static_cast<float>(RowFactor(policy, false));
  p.reference_factor = static_cast<float>(RowFactor(policy, true));
  p.slot_lists = first_slots.n_lists;
  p.tokens = tokens.table();
  p.kept = kept.table();
  for (size_t i = 0; i < given_.size(); ++i) {
    const ScoreJob& job = given_[i];
    p.layers[i] = {AddressOf(job.queries.rows.base),
                   job.reference->data,
                   AddressOf(job.reference_positions),
                   job.tokens.most,
                   tokens.FirstOf(job.tokens),
                   ParamsOf(ReferenceSlots(policy, job), kept)};
  }
  return Launch(
      context, stream, KernelId::list_rows,
      {ScoringRows(policy), g.n_q_heads, Size(given_), kListRowsThreads}, p);
}

}  // namespace kvevict::cuda
