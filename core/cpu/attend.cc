// Attention. A work item is some KV heads of a job and a block of its queries;
// if queries are few, also a span of the slots. A second pass computes the
// attention sums: its items are a KV head and some slots.
#include <algorithm>
#include <cstring>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/attention.h"
#include "core/kernels/attention_weights.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

// Rows of a head that are multiplied with its keys together: enough to pay for
// loading a tile.
constexpr uint32_t kBlockRows = 128;
// With more queries than this, blocks make enough items.
constexpr uint32_t kMostSplitQueries = 16;
// Rows whose queries and results stay in the L1 cache while adjacent heads'
// rows are read together.
constexpr uint32_t kRowsSideBySide = 32;
// Bytes of keys and values in a span: enough to outweigh joining it to others.
constexpr uint64_t kSpanBytes = uint64_t{4} << 20;

// Slots of an item that adds up weights.
constexpr uint32_t kSumSlots = 8 * kAttentionTile;

constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Whether the rows of a slot's heads are nearer to each other than to those of
// the next slot.
bool AreSideBySide(const kvevict_plane& plane) {
  const auto size = [](int64_t stride) {
    return stride < 0 ? -stride : stride;
  };
  return size(plane.head_stride_bytes) < size(plane.token_stride_bytes);
}

// How a job is cut into items. Only its shape decides.
struct Cut {
  uint32_t n_heads = 1;    // KV heads of an item
  uint32_t n_queries = 1;  // queries of a block
  uint32_t n_blocks = 0;
  uint32_t n_head_units = 0;
  uint32_t span_slots = 0;
  uint32_t n_spans = 1;

  uint32_t n_units() const { return n_head_units * n_blocks; }

  explicit Cut(const AttendJob& job) {
    const kvevict_view& view = job.view;
    const uint32_t group = job.group();
    n_queries = std::min(job.n_queries, std::max(1u, kBlockRows / group));
    n_queries = std::max(1u, n_queries);
    n_blocks = CeilDiv(job.n_queries, n_queries);
    const uint32_t n_rows = n_queries * group;
    if (UsesDots(n_rows) && n_blocks == 1 && job.tokens.each == nullptr &&
        view.block_table_head_stride == 0 && AreSideBySide(view.k) &&
        AreSideBySide(job.values())) {
      n_heads = std::clamp(kRowsSideBySide / n_rows, 1u, view.n_kv_heads);
    }
    n_head_units = CeilDiv(view.n_kv_heads, n_heads);
    span_slots = std::max(1u, job.tokens.most);
    if (job.n_queries > kMostSplitQueries) return;
    const uint64_t slot_bytes =
        uint64_t{n_heads} *
        (RowBytes(view.k) + (IsPresent(view.v) ? RowBytes(view.v) : 0));
    uint64_t slots = kAttentionTile;
    while (slots * 2 * slot_bytes <= kSpanBytes) slots *= 2;
    span_slots = static_cast<uint32_t>(std::min<uint64_t>(slots, 1u << 30));
    n_spans = std::max(1u, CeilDiv(job.tokens.most, span_slots));
  }

  SlotSpan SpanAt(uint32_t i) const {
    const uint64_t begin = uint64_t{i} * span_slots;
    return {static_cast<uint32_t>(begin),
            static_cast<uint32_t>(
                std::min<uint64_t>(begin + span_slots, UINT32_MAX))};
  }
};

// The arguments for a unit of a job: some KV heads and a block of queries.
Attention AttentionOf(const AttendJob& job, const Cut& cut, uint32_t unit) {
  const kvevict_view& view = job.view;
  const kvevict_view contiguous = KVEVICT_VIEW_INIT;
  const uint32_t head = unit % cut.n_head_units * cut.n_heads;
  // The last block sees the most slots, so it comes first.
  const uint32_t block = cut.n_blocks - 1 - unit / cut.n_head_units;
  Attention args;
  args.group = job.group();
  args.queries = HeadRows(contiguous, job.queries, head * args.group);
  args.query_head_stride = job.queries.head_stride_bytes;
  args.keys = HeadRows(view, view.k, head);
  args.key_head_stride = view.k.head_stride_bytes;
  args.values = HeadRows(view, job.values(), head);
  args.value_head_stride = job.values().head_stride_bytes;
  args.values_are_keys = !IsPresent(view.v);
  args.biases = HeadBiases(view, head);
  args.bias_head_stride = HeadBiases(view, head + 1).base - args.biases.base;
  args.n_heads = std::min(cut.n_heads, view.n_kv_heads - head);
  args.k_dim = view.k.head_dim;
  args.v_dim = job.v_head_dim;
  args.first_query = block * cut.n_queries;
  args.n_queries = std::min(cut.n_queries, job.n_queries - args.first_query);
  args.n_tokens = job.tokens.Of(head);
  args.slot_of_0 = int64_t{args.n_tokens} - job.n_queries;
  args.window = job.window;
  args.non_causal = job.non_causal != 0;
  args.scale = job.softmax_scale;
  args.softcap = job.logit_softcap;
  return args;
}

AttentionResult ResultOf(const AttendJob& job, const kvevict_plane& lse,
                         const Cut& cut, uint32_t unit) {
  const uint32_t head = unit % cut.n_head_units * cut.n_heads * job.group();
  AttentionResult result;
  if (job.sink_logits != nullptr) result.sinks = job.sink_logits + head;
  result.out = HeadRows(KVEVICT_VIEW_INIT, job.out, head);
  result.out_head_stride = job.out.head_stride_bytes;
  if (!IsPresent(lse)) return result;
  result.lse = reinterpret_cast<uint8_t*>(lse.data) +
               int64_t{head} * lse.head_stride_bytes;
  result.lse_row_stride = lse.token_stride_bytes;
  result.lse_head_stride = lse.head_stride_bytes;
  return result;
}

bool Sees(const Attention& args, SlotSpan span) {
  const SlotSpan seen = args.Seen();
  return seen.begin < span.end && span.begin < seen.end;
}

// The arguments for the largest unit of a job.
Attention LargestOf(const AttendJob& job, const Cut& cut) {
  Attention args;
  args.n_heads = cut.n_heads;
  args.group = job.group();
  args.n_queries = cut.n_queries;
  args.k_dim = job.view.k.head_dim;
  args.v_dim = job.v_head_dim;
  return args;
}

// Floats of a unit's state, in whole cache lines.
size_t StateFloats(const AttendJob& job, const Cut& cut) {
  return AttentionState::Floats(LargestOf(job, cut).n_rows(), job.v_head_dim);
}

bool WantsSums(const AttendJob& job) {
  return IsPresent(job.attention_sums) && job.n_queries > 0;
}

// Bytes of the log-sum-exps that sums need, if the caller wants none.
CheckedSize LseBytes(const AttendJob& job) {
  if (!WantsSums(job) || IsPresent(job.row_lse)) return CheckedSize(0);
  return (CheckedSize(job.n_q_heads) * CheckedSize(job.n_queries) *
          CheckedSize(sizeof(float)))
      .AlignUp(kCacheLine);
}

CheckedSize LseBytes(Jobs<AttendJob> jobs) {
  CheckedSize bytes(0);
  for (const AttendJob& job : jobs) bytes = bytes + LseBytes(job);
  return bytes;
}

// The cut for sums, with each KV head by itself.
Cut SumCut(const AttendJob& job) {
  Cut cut(job);
  cut.n_heads = 1;
  cut.n_head_units = job.view.n_kv_heads;
  return cut;
}

// Floats for the sums of an item, a row per KV head or query head.
size_t SumFloats(const AttendJob& job) {
  return WantsSums(job)
             ? size_t{kSumSlots} * (job.n_sum_heads / job.view.n_kv_heads)
             : 0;
}

// Bytes for the states of all spans of a job; none if there is one span.
CheckedSize StateBytes(const AttendJob& job) {
  const Cut cut(job);
  if (cut.n_spans == 1) return CheckedSize(0);
  return CheckedSize(cut.n_units()) * CheckedSize(cut.n_spans) *
         CheckedSize(StateFloats(job, cut)) * CheckedSize(sizeof(float));
}

// Bytes of a worker: the kernel's scratch and two states.
size_t WorkerBytes(const AttendJob& job) {
  const Cut cut(job);
  if (cut.n_units() == 0) return 0;
  const size_t attending =
      2 * StateFloats(job, cut) + AttentionScratchFloats(LargestOf(job, cut));
  const size_t summing =
      SumFloats(job) + AttentionScratchFloats(LargestOf(job, SumCut(job)));
  return std::max(attending, summing) * sizeof(float);
}

size_t WorkerBytes(Jobs<AttendJob> jobs) {
  size_t bytes = 0;
  for (const AttendJob& job : jobs) bytes = std::max(bytes, WorkerBytes(job));
  return bytes;
}

class Attending {
 public:
  Attending(const Context& context, const AttendArgs& args)
      : context_(context),
        jobs_(args.jobs),
        shares_(args.scratch.first(
            SharesOf(context, WorkerBytes(args.jobs)).value())),
        lse_(args.scratch.subspan(shares_.size(), LseBytes(args.jobs).value())),
        states_(args.scratch.subspan(shares_.size() + lse_.size())) {}

  // Attends as many jobs at once as there is room for the states of their
  // spans. If one job's do not fit, its spans run one after the other.
  void AttendAll() const {
    Jobs<AttendJob> jobs = jobs_;
    while (!jobs.empty()) {
      size_t n = 0;
      size_t bytes = 0;
      for (; n < jobs.size(); ++n) {
        const size_t more = StateBytes(jobs[n]).value();
        if (more > states_.size() - bytes) break;
        bytes += more;
      }
      if (n > 0) {
        AttendAtOnce(jobs.first(n));
      } else {
        AttendInTurn(jobs[0]);
        n = 1;
      }
      jobs = jobs.subspan(n);
    }
  }

  // Computes the sums of jobs that want them, once their log-sum-exps are
  // known.
  void SumAll() const {
    for (const AttendJob& job : jobs_) {
      if (!WantsSums(job)) continue;
      const uint32_t n_parts = CeilDiv(job.tokens.most, kSumSlots);
      context_.ParallelFor(
          job.view.n_kv_heads * n_parts, [&](uint32_t item, uint32_t worker) {
            Sum(job, item / n_parts, item % n_parts * kSumSlots, worker);
          });
    }
  }

 private:
  struct Worker {
    float* scratch;
    float* states[2];
  };
  Worker WorkerOf(uint32_t worker, const AttendJob& job, const Cut& cut) const {
    auto* const share =
        reinterpret_cast<float*>(ShareOf(context_, shares_, worker).data());
    const size_t n = StateFloats(job, cut);
    return {share + 2 * n, {share, share + n}};
  }

  void Finish(const AttendJob& job, const Cut& cut, uint32_t unit,
              const Attention& args, float* state) const {
    FinishAttention(context_.simd(), args,
                    AttentionState::At(state, args.n_rows()),
                    ResultOf(job, LseOf(job), cut, unit));
  }

  // The plane to which a job's log-sum-exps go.
  kvevict_plane LseOf(const AttendJob& job) const {
    if (LseBytes(job).value() == 0) return job.row_lse;
    const uint8_t* at = lse_.data();
    for (const AttendJob& other : jobs_) {
      if (&other == &job) break;
      at += LseBytes(other).value();
    }
    kvevict_plane lse = KVEVICT_PLANE_INIT;
    lse.data = reinterpret_cast<uintptr_t>(at);
    lse.token_stride_bytes = sizeof(float);
    lse.head_stride_bytes = int64_t{job.n_queries} * int64_t{sizeof(float)};
    return lse;
  }

  // Sums the attention that slots from `slot` on receive from a KV head's
  // queries, block after block.
  void Sum(const AttendJob& job, uint32_t head, uint32_t slot,
           uint32_t worker) const {
    auto* const sums =
        reinterpret_cast<float*>(ShareOf(context_, shares_, worker).data());
    const uint32_t n_rows = job.n_sum_heads / job.view.n_kv_heads;
    const uint32_t n = std::min(kSumSlots, job.tokens.most - slot);
    std::fill_n(sums, SumFloats(job), 0.0f);
    const Cut cut = SumCut(job);
    const kvevict_plane lse = LseOf(job);
    for (uint32_t block = 0; block < cut.n_blocks; ++block) {
      const uint32_t unit = block * cut.n_head_units + head;
      AttentionWeights weights;
      weights.rows = AttentionOf(job, cut, unit);
      const AttentionResult result = ResultOf(job, lse, cut, unit);
      weights.lse = {result.lse, result.lse_row_stride, result.lse_head_stride};
      weights.span = {slot, slot + n};
      weights.sums = sums;
      weights.head_stride = n_rows == job.group() ? kSumSlots : 0;
      weights.scratch = sums + SumFloats(job);
      AddAttentionWeights(context_.simd(), weights);
    }
    const kvevict_plane& out = job.attention_sums;
    for (uint32_t r = 0; r < n_rows; ++r) {
      auto* const row = reinterpret_cast<uint8_t*>(out.data) +
                        int64_t{head * n_rows + r} * out.head_stride_bytes;
      for (uint32_t i = 0; i < n; ++i) {
        std::memcpy(row + int64_t{slot + i} * out.token_stride_bytes,
                    sums + r * kSumSlots + i, sizeof(float));
      }
    }
  }

  // Joins the states of spans that a unit sees to that of the first span, in
  // order.
  void Join(const Cut& cut, const Attention& args, float* states,
            size_t n_floats) const {
    const AttentionState all = AttentionState::At(states, args.n_rows());
    for (uint32_t span = 1; span < cut.n_spans; ++span) {
      if (!Sees(args, cut.SpanAt(span))) continue;
      JoinAttention(context_.simd(), args.n_rows(), args.v_dim,
                    AttentionState::At(states + span * n_floats, args.n_rows()),
                    all);
    }
  }

  void AttendInTurn(const AttendJob& job) const {
    const Cut cut(job);
    context_.ParallelFor(cut.n_units(), [&](uint32_t unit, uint32_t worker) {
      const Attention args = AttentionOf(job, cut, unit);
      const Worker w = WorkerOf(worker, job, cut);
      const AttentionState all = AttentionState::At(w.states[0], args.n_rows());
      const AttentionState one = AttentionState::At(w.states[1], args.n_rows());
      AttendSpan(context_.simd(), args, cut.SpanAt(0), all, w.scratch);
      for (uint32_t span = 1; span < cut.n_spans; ++span) {
        if (!Sees(args, cut.SpanAt(span))) continue;
        AttendSpan(context_.simd(), args, cut.SpanAt(span), one, w.scratch);
        JoinAttention(context_.simd(), args.n_rows(), args.v_dim, one, all);
      }
      Finish(job, cut, unit, args, w.states[0]);
    });
  }

  // Calls visit(job, cut, unit, span, its state) for item `item`. With `joins`
  // the items are the units of jobs with several spans.
  template <typename Visit>
  void FindItem(Jobs<AttendJob> jobs, uint32_t item, bool joins,
                const Visit& visit) const {
    auto* states = reinterpret_cast<float*>(states_.data());
    for (const AttendJob& job : jobs) {
      const Cut cut(job);
      const bool splits = cut.n_spans > 1;
      const uint32_t n_spans = joins ? (splits ? 1 : 0) : cut.n_spans;
      const uint32_t n_items = cut.n_units() * n_spans;
      const size_t n_floats = splits ? StateFloats(job, cut) : 0;
      if (item < n_items) {
        const uint32_t unit = item / n_spans;
        const uint32_t span = item % n_spans;
        return visit(job, cut, unit, span,
                     states + (size_t{unit} * cut.n_spans + span) * n_floats);
      }
      item -= n_items;
      states += size_t{cut.n_units()} * cut.n_spans * n_floats;
    }
  }

  void AttendAtOnce(Jobs<AttendJob> jobs) const {
    uint32_t n_items = 0;
    uint32_t n_joined = 0;
    for (const AttendJob& job : jobs) {
      const Cut cut(job);
      n_items += cut.n_units() * cut.n_spans;
      if (cut.n_spans > 1) n_joined += cut.n_units();
    }
    context_.ParallelFor(n_items, [&](uint32_t item, uint32_t worker) {
      FindItem(jobs, item, false,
               [&](const AttendJob& job, const Cut& cut, uint32_t unit,
                   uint32_t span, float* state) {
                 const Attention args = AttentionOf(job, cut, unit);
                 const Worker w = WorkerOf(worker, job, cut);
                 const bool ends = cut.n_spans == 1;
                 if (ends) state = w.states[0];
                 // The others are joined to the state of the first span.
                 if (span > 0 && !Sees(args, cut.SpanAt(span))) return;
                 AttendSpan(context_.simd(), args, cut.SpanAt(span),
                            AttentionState::At(state, args.n_rows()),
                            w.scratch);
                 if (ends) Finish(job, cut, unit, args, state);
               });
    });
    context_.ParallelFor(n_joined, [&](uint32_t item, uint32_t) {
      FindItem(jobs, item, true,
               [&](const AttendJob& job, const Cut& cut, uint32_t unit,
                   uint32_t, float* states) {
                 const Attention args = AttentionOf(job, cut, unit);
                 Join(cut, args, states, StateFloats(job, cut));
                 Finish(job, cut, unit, args, states);
               });
    });
  }

  const Context& context_;
  const Jobs<AttendJob> jobs_;
  const std::span<uint8_t> shares_;
  const std::span<uint8_t> lse_;
  const std::span<uint8_t> states_;
};

ScratchNeeds AttendScratchBytes(const Context& context,
                                const Jobs<AttendJob>& jobs) {
  ScratchNeeds needs(SharesOf(context, WorkerBytes(jobs)) + LseBytes(jobs));
  for (const AttendJob& job : jobs) needs.best = needs.best + StateBytes(job);
  return needs;
}

Status RunAttend(const Context& context, Stream, const AttendArgs& args) {
  const Attending attending(context, args);
  attending.AttendAll();
  attending.SumAll();
  return Status();
}

}  // namespace

const Op<AttendArgs> kOp_attend = {RunAttend, AttendScratchBytes};

}  // namespace kvevict::cpu
