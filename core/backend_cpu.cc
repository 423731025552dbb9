// The CPU filling of the table: work items over layers and heads, fixed by
// shape.
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/backend.h"
#include "core/backend_cpu_move.h"
#include "core/context.h"
#include "core/kernels/pool1d.h"
#include "core/kernels/topk.h"
#include "core/kernels/window_attention.h"
#include "core/policy.h"
#include "core/signals/signals.h"
#include "core/view.h"

namespace kvevict {
namespace {

constexpr size_t kCacheLine = 64;

Reduce ToReduce(kvevict_reduce reduce) {
  switch (reduce) {
    case KVEVICT_REDUCE_MAX:
      return Reduce::kMax;
    case KVEVICT_REDUCE_SUM:
      return Reduce::kSum;
    default:
      return Reduce::kMean;
  }
}

// ---- capture ----

void CaptureLayer(const CaptureArgs& args, const kvevict_plane& rows,
                  uint8_t* ring) {
  const uint32_t row_bytes = RowBytes(rows);
  const uint32_t element = row_bytes / rows.head_dim;
  const int64_t stride = ElementStride(rows);
  const uint8_t* base = reinterpret_cast<const uint8_t*>(rows.data);
  const uint32_t first =
      args.first_position +
      (args.position_address == nullptr ? 0 : *args.position_address);
  for (uint32_t r = 0; r < args.n_rows; ++r) {
    uint8_t* to =
        ring + uint64_t{(first + r) % args.window} * args.n_heads * row_bytes;
    for (uint32_t h = 0; h < args.n_heads; ++h, to += row_bytes) {
      const uint8_t* from =
          base + (int64_t{args.first_row} + r) * rows.token_stride_bytes +
          int64_t{h} * rows.head_stride_bytes;
      if (stride == element) {
        std::memcpy(to, from, row_bytes);
        continue;
      }
      for (uint32_t e = 0; e < rows.head_dim; ++e) {
        std::memcpy(to + uint64_t{e} * element, from + e * stride, element);
      }
    }
  }
}

Status CpuCapture(const Context&, Stream, const CaptureArgs& args) {
  uint8_t* ring = args.rings;
  for (const kvevict_plane& rows : args.layers) {
    CaptureLayer(args, rows, ring);
    ring += uint64_t{args.window} * args.n_heads * RowBytes(rows);
  }
  return Status();
}

// ---- score_window: an item is a layer and KV head ----

size_t GroupSize(const kvevict_geometry& g) {
  return g.n_q_heads / g.n_kv_heads;
}

// Rows [n_q_heads of the group + 1, max_tokens]: the group's weights, and one
// more to pool into.
CheckedSize GroupRowsBytes(const kvevict_geometry& g) {
  return (CheckedSize(GroupSize(g) + 1) * CheckedSize(g.max_tokens) *
          CheckedSize(sizeof(float)))
      .AlignUp(kCacheLine);
}

// i32 [obs_window]: the stored row of window row w.
CheckedSize WindowTableBytes(const kvevict_policy& policy) {
  return (CheckedSize(policy.obs_window) * CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

// Rows that begin with `first` and wrap around: a paged cache with one row per
// block.
RowSource Wrapped(const RowSource& rows, uint32_t first, uint32_t n_rows,
                  int32_t* table) {
  if (first == 0) return rows;
  for (uint32_t w = 0; w < n_rows; ++w) {
    table[w] = static_cast<int32_t>((first + w) % n_rows);
  }
  RowSource wrapped = rows;
  wrapped.block_size = 1;
  wrapped.block_table = table;
  wrapped.block_stride = rows.row_stride;
  return wrapped;
}

CheckedSize WorkerBytes(const kvevict_geometry& g,
                        const kvevict_policy& policy) {
  // SIZE_MAX, which says that it does not fit, overflows here.
  return (GroupRowsBytes(g) + WindowTableBytes(policy) +
          CheckedSize(WindowAttentionScratchBytes(
              g.max_tokens, std::min(policy.obs_window, g.max_tokens),
              static_cast<uint32_t>(GroupSize(g)), g.k_head_dim)))
      .AlignUp(kCacheLine);
}

// [group, n_tokens] weights to one row of scores. `rows` has one spare row at
// the end.
void ShapeScores(const kvevict_policy& policy, float* rows, uint32_t group,
                 uint32_t n_tokens, float* scores) {
  const uint32_t n = PooledTokens(policy, n_tokens);
  float* spare = rows + uint64_t{group} * n_tokens;
  const Reduce reduce = ToReduce(policy.group_reduce);
  const auto pool = [&](const float* in, float* out) {
    Pool1d(in, n, policy.pool_kernel,
           policy.pool == KVEVICT_POOL_MAX ? Pool::kMax : Pool::kAvg,
           policy.pool_edge == KVEVICT_POOL_EDGE_PAD ? PoolEdge::kPad
                                                     : PoolEdge::kShrink,
           out);
  };
  if (policy.pool == KVEVICT_POOL_NONE) {
    ReduceRows(rows, group, n_tokens, n, reduce, scores);
  } else if (policy.shaping_order == KVEVICT_SHAPING_REDUCE_THEN_POOL) {
    ReduceRows(rows, group, n_tokens, n, reduce, spare);
    pool(spare, scores);
  } else {
    // Each row is pooled into the place after it, last one first.
    for (uint32_t g = group; g-- > 0;) {
      pool(rows + uint64_t{g} * n_tokens, rows + uint64_t{g + 1} * n_tokens);
    }
    ReduceRows(rows + n_tokens, group, n_tokens, n, reduce, scores);
  }
  std::fill(scores + n, scores + n_tokens,
            std::numeric_limits<float>::infinity());
}

Status CpuScoreWindow(const Context& context, Stream,
                      const ScoreWindowArgs& args) {
  const kvevict_geometry& g = args.geometry;
  const uint32_t group = static_cast<uint32_t>(GroupSize(g));
  const uint32_t n_items =
      static_cast<uint32_t>(args.jobs.size() * g.n_kv_heads);
  const size_t worker_bytes = args.scratch.size() / context.n_workers();
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t worker) {
    const LayerJob& job = args.jobs[item / g.n_kv_heads];
    const uint32_t head = item % g.n_kv_heads;
    uint8_t* scratch = args.scratch.data() + worker * worker_bytes;
    float* rows = reinterpret_cast<float*>(scratch);
    scratch += GroupRowsBytes(g).value();
    int32_t* table = reinterpret_cast<int32_t*>(scratch);
    scratch += WindowTableBytes(args.policy).value();

    WindowAttention attention;
    attention.queries =
        Wrapped(job.queries, job.first_row, args.policy.obs_window, table);
    attention.queries.base += int64_t{head} * group * job.query_head_stride;
    attention.query_head_stride = job.query_head_stride;
    attention.keys = HeadRows(*job.view, job.view->k, head);
    attention.n_tokens = job.n_tokens;
    attention.window = args.policy.obs_window;
    attention.group = group;
    attention.head_dim = g.k_head_dim;
    attention.scale = args.softmax_scale;
    attention.out = rows;
    attention.scratch = scratch;
    ComputeWindowAttention(attention);

    if (args.policy.window_reduce == KVEVICT_REDUCE_MEAN) {
      const float scale = 1.0f / static_cast<float>(args.policy.obs_window);
      const uint64_t n = uint64_t{group} * job.n_tokens;
      for (uint64_t i = 0; i < n; ++i) rows[i] *= scale;
    }
    ShapeScores(args.policy, rows, group, job.n_tokens,
                job.scores + uint64_t{head} * job.n_tokens);
  });
  return Status();
}

// ---- score_random, score_caller ----

Status CpuScoreRandom(const Context& context, Stream,
                      const ScoreRandomArgs& args) {
  const uint32_t n_heads = args.geometry.n_kv_heads;
  const bool one_list = ListsPerLayer(args.geometry, args.policy) == 1;
  const uint32_t n_items = static_cast<uint32_t>(args.jobs.size() * n_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const LayerJob& job = args.jobs[item / n_heads];
    const uint32_t head = item % n_heads;
    float* scores = job.scores + uint64_t{head} * job.n_tokens;
    for (uint32_t slot = 0; slot < job.n_tokens; ++slot) {
      scores[slot] = RandomScore(args.policy.seed, job.layer, head,
                                 static_cast<uint32_t>(job.slots.PositionOf(
                                     one_list ? 0 : head, slot)));
    }
  });
  return Status();
}

Status CpuScoreCaller(const Context&, Stream, const ScoreCallerArgs& args) {
  for (const LayerJob& job : args.jobs) {
    for (uint32_t h = 0; h < args.geometry.n_kv_heads; ++h) {
      std::memcpy(job.scores + uint64_t{h} * job.n_tokens,
                  job.caller_scores + h * job.caller_head_stride,
                  job.n_tokens * sizeof(float));
    }
  }
  return Status();
}

// ---- select: an item is a keep list ----

// Gives what must stay the key that no score has.
void ForceKeys(const SelectArgs& args, const LayerJob& job, uint32_t list,
               uint32_t* keys) {
  std::fill_n(keys, args.forced.n_sink, kForcedKey);
  std::fill_n(keys + job.n_tokens - args.forced.n_recent, args.forced.n_recent,
              kForcedKey);
  for (int32_t position : args.forced.protect) {
    const int64_t slot = job.slots.SlotOf(list, position, job.n_tokens);
    if (slot >= 0) keys[slot] = kForcedKey;
  }
}

// Reduces [n_rows, n_tokens] scores that share a list into the first row of
// keys; by columns, so that the order of additions does not depend on the
// workers.
void ReduceShared(const Context& context, const SelectArgs& args,
                  const LayerJob& job, uint64_t n_rows) {
  constexpr uint32_t kColumns = 4096;
  const uint32_t n = job.n_tokens;
  float* out = reinterpret_cast<float*>(job.keys);
  context.ParallelFor((n + kColumns - 1) / kColumns, [&](uint32_t i, uint32_t) {
    const uint32_t begin = i * kColumns;
    ReduceRows(job.scores + begin, n_rows, n, std::min(kColumns, n - begin),
               ToReduce(args.policy.scope_reduce), out + begin);
  });
}

Status CpuSelect(const Context& context, Stream, const SelectArgs& args) {
  const kvevict_scope scope = EffectiveScope(args.policy);
  const bool ranked = RanksTokens(SignalOf(args.policy));
  const uint32_t n_lists = ListsPerLayer(args.geometry, args.policy);
  const Tie tie = args.policy.tie == KVEVICT_TIE_LOWER_POSITION ? Tie::kLower
                                                                : Tie::kHigher;
  const std::span<const LayerJob> jobs =
      scope == KVEVICT_SCOPE_MODEL ? args.jobs.first(1) : args.jobs;
  const uint64_t n_rows =
      uint64_t{args.geometry.n_kv_heads} * args.n_shared_layers;
  const bool shared = ranked && scope != KVEVICT_SCOPE_KV_HEAD;
  if (shared) {
    for (const LayerJob& job : jobs) ReduceShared(context, args, job, n_rows);
  }
  const uint32_t n_items = static_cast<uint32_t>(jobs.size() * n_lists);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const LayerJob& job = jobs[item / n_lists];
    const uint32_t list = item % n_lists;
    const uint64_t row = uint64_t{list} * job.n_tokens;
    uint32_t* keys = job.keys + row;
    if (ranked) {
      ScoresToKeys(
          shared ? reinterpret_cast<const float*>(keys) : job.scores + row,
          job.n_tokens, keys);
    } else {
      std::fill_n(keys, job.n_tokens, kNanKey);
    }
    ForceKeys(args, job, list, keys);
    SelectTopK(keys, job.n_tokens, job.n_keep, tie,
               job.keep + uint64_t{list} * job.n_keep);
  });
  for (const LayerJob& job : jobs) {
    for (uint32_t list = n_lists; list < args.n_lists; ++list) {
      std::copy_n(job.keep, job.n_keep, job.keep + uint64_t{list} * job.n_keep);
    }
  }
  return Status();
}

// ---- Positions and lengths ----

Status CpuMapPositions(const Context&, Stream, const MapPositionsArgs& args) {
  for (const LayerJob& job : args.jobs) {
    int32_t* out = job.new_positions;
    for (uint32_t list = 0; list < args.n_lists; ++list) {
      const int32_t* keep = job.keep == nullptr
                                ? nullptr
                                : job.keep + uint64_t{list} * job.n_keep;
      for (uint32_t i = 0; i < job.n_keep; ++i) {
        *out++ = job.slots.PositionOf(list, keep == nullptr ? i : keep[i]);
      }
    }
  }
  return Status();
}

Status CpuSetLengths(const Context&, Stream, const SetLengthsArgs& args) {
  for (size_t l = 0; l < args.stored.size(); ++l) {
    args.lengths[2 * l] = args.stored[l];
    args.lengths[2 * l + 1] = args.logical;
  }
  return Status();
}

Status CpuAdvanceLengths(const Context&, Stream,
                         const AdvanceLengthsArgs& args) {
  for (uint32_t i = 0; i < 2 * args.n_layers; ++i) {
    args.lengths[i] += args.n_tokens;
  }
  return Status();
}

// ---- The table ----

Status CpuCheck() { return Status(); }

Status CpuOpen(const Context&, const kvevict_context_options&,
               DeviceState** out) {
  *out = nullptr;
  return Status();
}

void CpuClose(DeviceState*) {}

Status CpuPrepare(const Context&, const kvevict_geometry*,
                  const kvevict_policy*) {
  return Status();
}

Status CpuCheckCapture(const Context&, Stream, const kvevict_policy&) {
  return Status();
}

constexpr size_t kMemoryAlignment = 256;

Status CpuAllocate(const Context& context, const char* what, size_t n_bytes,
                   void** out) {
  *out = context.Allocate(n_bytes, kMemoryAlignment);
  if (*out == nullptr) return OutOfMemory("%s: no %zu bytes", what, n_bytes);
  std::memset(*out, 0, n_bytes);
  return Status();
}

void CpuFree(const Context& context, void* memory, size_t n_bytes) {
  context.Free(memory, n_bytes, kMemoryAlignment);
}

Status CpuRead(const Context&, Stream, const void* device, size_t n_bytes,
               void* host) {
  std::memcpy(host, device, n_bytes);
  return Status();
}

Status CpuWrite(const Context&, Stream, const void* host, size_t n_bytes,
                void* device) {
  std::memcpy(device, host, n_bytes);
  return Status();
}

CheckedSize CpuScoreScratchBytes(const Context& context,
                                 const kvevict_geometry& geometry,
                                 const kvevict_policy& policy, uint32_t) {
  return WorkerBytes(geometry, policy) * CheckedSize(context.n_workers());
}

CheckedSize NoScratch(const Context&, const kvevict_geometry&,
                      const kvevict_policy&, uint32_t) {
  return CheckedSize(0);
}

CheckedSize NoViewScratch(const Context&, const LayerJob&) {
  return CheckedSize(0);
}

}  // namespace

const Backend kCpuBackend = {
    .name = "cpu",
    .workspace_alignment = kCacheLine,
    .on_host = true,
    .check = CpuCheck,
    .gpu_at = nullptr,
    .open = CpuOpen,
    .close = CpuClose,
    .prepare = CpuPrepare,
    .check_capture = CpuCheckCapture,
    .allocate = CpuAllocate,
    .free = CpuFree,
    .read = CpuRead,
    .write = CpuWrite,
    .score_scratch_bytes = CpuScoreScratchBytes,
    .select_scratch_bytes = NoScratch,
    .compact_view_scratch_bytes = NoViewScratch,
    .reorder_scratch_bytes = CpuReorderScratchBytes,
    .capture = CpuCapture,
    .score_window = CpuScoreWindow,
    .score_random = CpuScoreRandom,
    .score_caller = CpuScoreCaller,
    .select = CpuSelect,
    .compact = CpuCompact,
    .reorder = CpuReorder,
    .map_positions = CpuMapPositions,
    .set_lengths = CpuSetLengths,
    .advance_lengths = CpuAdvanceLengths,
};

}  // namespace kvevict
