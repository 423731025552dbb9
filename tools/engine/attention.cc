#include "tools/engine/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tools/engine/attention_span.h"

namespace kvevict::tools {
namespace {

// Query rows that pass a tile of keys together: enough to pay for packing the tile,
// few enough that their scores stay in L2.
constexpr uint32_t kBlockRows = 256;

// Slots of one decode item: long enough to pay for the merge, short enough that an
// evicted cache keeps several threads busy. A multiple of the tile.
constexpr uint32_t kSpanSlots = 8 * kTileSlots;

uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// n_kv_heads heads from first_head on, all queries.
AttentionSpan HeadSpan(const AttentionArgs& args, uint32_t first_head,
                       uint32_t n_kv_heads) {
  const KvShape& shape = args.cache->shape();
  const size_t element_bytes = ElementBytes(shape.dtype);
  AttentionSpan span;
  span.n_kv_heads = n_kv_heads;
  span.n_queries = static_cast<uint32_t>(args.n_visible.size());
  span.group_size = args.n_q_heads / shape.n_kv_heads;
  span.queries =
      args.queries + size_t{first_head} * span.group_size * shape.k_head_dim;
  span.query_stride = size_t{args.n_q_heads} * shape.k_head_dim;
  span.n_visible = args.n_visible.data();
  span.scale = args.scale != 0.0f
                   ? args.scale
                   : 1.0f / std::sqrt(static_cast<float>(shape.k_head_dim));
  span.k = static_cast<const uint8_t*>(args.cache->k(args.layer)) +
           first_head * shape.k_head_dim * element_bytes;
  span.v = static_cast<const uint8_t*>(args.cache->v(args.layer)) +
           first_head * shape.v_head_dim * element_bytes;
  span.k_stride_bytes = args.cache->k_row_bytes();
  span.v_stride_bytes = args.cache->v_row_bytes();
  span.k_head_dim = shape.k_head_dim;
  span.v_head_dim = shape.v_head_dim;
  span.dtype = shape.dtype;
  return span;
}

// Softmax state of several rows.
struct Partial {
  Partial(uint32_t n_rows, uint32_t head_dim)
      : max(n_rows), sum(n_rows), out(size_t{n_rows} * head_dim) {}

  void AttachTo(AttentionSpan& span) {
    span.max = max.data();
    span.sum = sum.data();
    span.out = out.data();
  }

  std::vector<float> max;
  std::vector<float> sum;
  std::vector<float> out;
};

// A head at a time: its queries share what is done to its keys.
void AttendByHead(const AttentionArgs& args, ThreadPool& pool) {
  const KvShape& shape = args.cache->shape();
  const uint32_t group_size = args.n_q_heads / shape.n_kv_heads;
  const uint32_t n_queries = static_cast<uint32_t>(args.n_visible.size());
  const uint32_t block = std::max(1u, kBlockRows / group_size);
  const uint32_t n_blocks = CeilDiv(n_queries, block);
  const uint32_t dim = shape.v_head_dim;
  std::vector<Partial> states(pool.n_threads(),
                              Partial(block * group_size, dim));
  std::vector<std::vector<uint32_t>> n_visible(pool.n_threads());
  pool.For(n_blocks * shape.n_kv_heads, [&](uint32_t item, uint32_t worker) {
    const uint32_t kv_head = item % shape.n_kv_heads;
    const uint32_t first = item / shape.n_kv_heads * block;
    const uint32_t n = std::min(block, n_queries - first);
    AttentionSpan span = HeadSpan(args, kv_head, 1);
    span.queries += first * span.query_stride;
    span.n_queries = n;
    // Of this head, which may be shorter than others.
    n_visible[worker].assign(span.n_visible + first,
                             span.n_visible + first + n);
    for (uint32_t& slots : n_visible[worker]) {
      slots -= args.cache->gap(args.layer, kv_head);
    }
    span.n_visible = n_visible[worker].data();
    span.last_slot = *std::max_element(span.n_visible, span.n_visible + n);
    states[worker].AttachTo(span);
    AttendSpan(span);
    for (uint32_t row = 0; row < span.n_rows(); ++row) {
      const size_t query = first + row / group_size;
      const size_t head = kv_head * group_size + row % group_size;
      const float* from = span.out + size_t{row} * dim;
      float* to = args.out + (query * args.n_q_heads + head) * dim;
      for (uint32_t e = 0; e < dim; ++e) to[e] = from[e] / span.sum[row];
    }
  });
}

// Joins the spans' states of one row, in order.
void Merge(const std::vector<Partial>& spans, uint32_t row, uint32_t dim,
           float* out) {
  float max = -std::numeric_limits<float>::infinity();
  for (const Partial& span : spans) max = std::max(max, span.max[row]);
  float sum = 0.0f;
  std::fill_n(out, dim, 0.0f);
  for (const Partial& span : spans) {
    const float weight = std::exp2(span.max[row] - max);
    sum += weight * span.sum[row];
    const float* from = span.out.data() + size_t{row} * dim;
    for (uint32_t e = 0; e < dim; ++e) out[e] += weight * from[e];
  }
  for (uint32_t e = 0; e < dim; ++e) out[e] /= sum;
}

// All heads of a slot are read together: they are one piece of memory. Of one length.
void AttendDecode(const AttentionArgs& args, ThreadPool& pool) {
  const KvShape& shape = args.cache->shape();
  const uint32_t dim = shape.v_head_dim;
  const uint32_t n_visible = args.n_visible[0];
  std::vector<Partial> spans(CeilDiv(n_visible, kSpanSlots),
                             Partial(args.n_q_heads, dim));
  const uint32_t n_spans = static_cast<uint32_t>(spans.size());
  pool.For(n_spans, [&](uint32_t index, uint32_t) {
    AttentionSpan span = HeadSpan(args, 0, shape.n_kv_heads);
    span.first_slot = index * kSpanSlots;
    span.last_slot = std::min(n_visible, span.first_slot + kSpanSlots);
    spans[index].AttachTo(span);
    AttendSpan(span);
  });
  for (uint32_t head = 0; head < args.n_q_heads; ++head) {
    Merge(spans, head, dim, args.out + size_t{head} * dim);
  }
}

}  // namespace

void Attend(const AttentionArgs& args, ThreadPool& pool) {
  if (args.n_visible.size() == 1 && !args.cache->is_ragged(args.layer)) {
    AttendDecode(args, pool);
  } else if (!args.n_visible.empty()) {
    AttendByHead(args, pool);
  }
}

}  // namespace kvevict::tools
