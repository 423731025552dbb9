#include "core/query_ring.h"

#include "core/dtype.h"
#include "core/view.h"

namespace kvevict {

void ObservedRange::Add(uint32_t first, uint32_t n_rows, uint32_t window) {
  if (n_rows == 0) return;
  if (first > end || first < begin) begin = first;
  end = first + n_rows;
  begin = std::max(begin, end - std::min(end, window));
}

namespace {

// Of all heads.
uint64_t RowBytes(const Plan& plan) {
  const kvevict_geometry& g = plan.geometry();
  return uint64_t{g.n_q_heads} * g.k_head_dim *
         ElementBytes(static_cast<DType>(g.q_dtype));
}

uint64_t LseRowBytes(const Plan& plan) {
  return plan.geometry().n_q_heads * uint64_t{sizeof(float)};
}

CheckedSize RingBytes(const Plan& plan, uint64_t row_bytes) {
  return CheckedSize(plan.geometry().n_layers) *
         CheckedSize(plan.policy().obs_window) * CheckedSize(row_bytes);
}

// Log-sum-exps come after the rows.
CheckedSize RowsBytes(const Plan& plan) {
  return RingBytes(plan, RowBytes(plan))
      .AlignUp(plan.context().backend().workspace_alignment);
}

// Only a device reads log-sum-exps.
bool ReadsLse(const Plan& plan) { return !plan.context().backend().on_host; }

Status CheckPositions(const QueryChunk& chunk) {
  if (chunk.n_rows > INT32_MAX ||
      chunk.first_position > INT32_MAX - chunk.n_rows) {
    return InvalidArgument("first_position %u + n_rows %u > %d",
                           chunk.first_position, chunk.n_rows, INT32_MAX);
  }
  return Status();
}

}  // namespace

QueryRing::QueryRing(const Plan& plan)
    : plan_(plan), observed_(plan.context()), observed_lse_(plan.context()) {}

Status QueryRing::Allocate() {
  if (!plan_.ObservesQueries()) return Status();
  const CheckedSize n_layers(plan_.geometry().n_layers);
  KV_RETURN_IF_ERROR(observed_.Allocate("observed ranges", n_layers));
  if (!ReadsLse(plan_)) return Status();
  return observed_lse_.Allocate("observed ranges", n_layers);
}

// ---- Memory ----

CheckedSize QueryRing::MemoryBytes(const Plan& plan) {
  if (!plan.ObservesQueries()) return CheckedSize(0);
  CheckedSize bytes = RowsBytes(plan);
  if (ReadsLse(plan)) bytes = bytes + RingBytes(plan, LseRowBytes(plan));
  return bytes;
}

Status QueryRing::Begin(void* memory, size_t memory_bytes) {
  if (memory == nullptr && memory_bytes != 0) {
    return InvalidArgument("memory is NULL, but memory_bytes is %zu",
                           memory_bytes);
  }
  if (!plan_.ObservesQueries()) return Status();
  if (has_memory_) {
    return InvalidArgument(
        "the sequence has query memory already: call "
        "kvevict_sequence_end_observing() first");
  }
  const CheckedSize needed = MemoryBytes(plan_);
  if (!needed.ok()) {
    return InvalidArgument("query memory: more bytes than size_t holds");
  }
  if (memory != nullptr) {
    KV_RETURN_IF_ERROR(CheckMemory("memory", plan_.context(), memory,
                                   memory_bytes, needed.value()));
  } else if (needed.value() > 0) {
    const Context& context = plan_.context();
    KV_RETURN_IF_ERROR(context.query_memory().Take(context, "query memory",
                                                   needed.value(), &borrowed_));
    memory = borrowed_->memory;
  }
  rows_ = static_cast<uint8_t*>(memory);
  if (ReadsLse(plan_)) lse_ = rows_ + RowsBytes(plan_).value();
  has_memory_ = true;
  return Status();
}

void QueryRing::End() {
  Reset();
  has_memory_ = false;
  rows_ = lse_ = nullptr;
  if (borrowed_ == nullptr) return;
  plan_.context().query_memory().GiveBack(borrowed_);
  borrowed_ = nullptr;
}

Status QueryRing::CheckHasMemory() const {
  if (has_memory_) return Status();
  return InvalidArgument(
      "the sequence has no query memory: call "
      "kvevict_sequence_begin_observing() first");
}

void QueryRing::Reset() {
  std::fill(observed_.begin(), observed_.end(), ObservedRange());
  std::fill(observed_lse_.begin(), observed_lse_.end(), ObservedRange());
}

void QueryRing::Cut(uint32_t position) {
  for (ObservedRange& range : observed_) range.Cut(position);
  for (ObservedRange& range : observed_lse_) range.Cut(position);
}

void QueryRing::Replayed(uint32_t first_position, uint32_t n_rows) {
  if (!has_memory_) return;
  for (ObservedRange& range : observed_) {
    range.Add(first_position, n_rows, window());
  }
}

// ---- Rows that come in ----

Status QueryRing::CheckRows(size_t layer, const kvevict_plane& rows,
                            const char* name, kvevict_dtype dtype,
                            uint32_t n_elements, uint32_t n_rows) const {
  const Status status = ValidateRows(name, rows, dtype, n_elements,
                                     plan_.geometry().n_q_heads, n_rows);
  return status.ok() ? status : Prefixed(status, "layer %zu: ", layer);
}

Status QueryRing::Store(Stream stream, std::span<const kvevict_plane> layers,
                        const QueryChunk& chunk, uint8_t* rings) const {
  ObserveArgs args;
  args.layers = layers;
  args.n_heads = plan_.geometry().n_q_heads;
  args.window = window();
  args.n_rows = std::min(chunk.n_rows, args.window);
  args.first_row = args.first_position = chunk.n_rows - args.n_rows;
  args.position_address = chunk.position_address;
  if (chunk.position_address == nullptr) {
    args.first_position += chunk.first_position;
  }
  args.rings = rings;
  const Context& context = plan_.context();
  return context.backend().observe(context, stream, args);
}

Status QueryRing::Observe(Stream stream, uint32_t first_layer,
                          std::span<const kvevict_plane> queries,
                          const QueryChunk& chunk) {
  if (!plan_.ObservesQueries()) return Status();
  const kvevict_geometry& g = plan_.geometry();
  KV_RETURN_IF_ERROR(plan_.CheckCanScore());
  KV_RETURN_IF_ERROR(CheckHasMemory());
  for (size_t i = 0; i < queries.size(); ++i) {
    KV_RETURN_IF_ERROR(CheckRows(first_layer + i, queries[i], "queries",
                                 g.q_dtype, g.k_head_dim, chunk.n_rows));
  }
  KV_RETURN_IF_ERROR(CheckPositions(chunk));
  if (chunk.n_rows == 0) return Status();
  KV_RETURN_IF_ERROR(Store(stream, queries, chunk, RowsOf(first_layer)));
  for (size_t i = 0; i < queries.size(); ++i) {
    observed_[first_layer + i].Add(chunk.first_position, chunk.n_rows,
                                   window());
    if (observed_lse_.size() > 0) {  // those of replaced rows are old
      observed_lse_[first_layer + i].Cut(chunk.first_position);
    }
  }
  return Status();
}

Status QueryRing::ObserveLse(Stream stream, uint32_t layer,
                             const kvevict_plane& row_lse,
                             const QueryChunk& chunk) {
  if (!plan_.ObservesQueries()) return Status();
  KV_RETURN_IF_ERROR(CheckHasMemory());
  KV_RETURN_IF_ERROR(
      CheckRows(layer, row_lse, "row_lse", KVEVICT_DTYPE_F32, 1, chunk.n_rows));
  KV_RETURN_IF_ERROR(CheckPositions(chunk));
  if (chunk.n_rows == 0 || observed_lse_.size() == 0) return Status();
  KV_RETURN_IF_ERROR(Store(stream, {&row_lse, 1}, chunk, LseOf(layer)));
  observed_lse_[layer].Add(chunk.first_position, chunk.n_rows, window());
  return Status();
}

// ---- Rows that are there ----

uint8_t* QueryRing::RowsOf(uint32_t layer) const {
  return rows_ + uint64_t{layer} * window() * RowBytes(plan_);
}

uint8_t* QueryRing::LseOf(uint32_t layer) const {
  return lse_ + uint64_t{layer} * window() * LseRowBytes(plan_);
}

Status QueryRing::CheckWindow(uint32_t layer, uint32_t logical) const {
  if (Status status = CheckHasMemory(); !status.ok()) {
    return Prefixed(status, "layer %u: ", layer);
  }
  const ObservedRange& known = observed_[layer];
  if (known.Covers(logical - window(), logical)) return Status();
  return InvalidArgument(
      "layer %u: observed queries are of positions [%u, %u), window %u "
      "needs [%u, %u)",
      layer, known.begin, known.end, window(), logical - window(), logical);
}

QueryRows QueryRing::WindowOf(uint32_t layer, uint32_t logical) const {
  const kvevict_geometry& g = plan_.geometry();
  const DType dtype = static_cast<DType>(g.q_dtype);
  QueryRows queries;
  queries.rows.base = RowsOf(layer);
  queries.rows.row_stride = static_cast<int64_t>(RowBytes(plan_));
  queries.rows.element_stride = ElementBytes(dtype);
  queries.rows.dtype = dtype;
  queries.head_stride = int64_t{g.k_head_dim} * ElementBytes(dtype);
  queries.first_row = (logical - window()) % window();
  if (observed_lse_.size() > 0 &&
      observed_lse_[layer].Covers(logical - window(), logical)) {
    queries.lse = reinterpret_cast<const float*>(LseOf(layer));
    queries.lse_row_stride = static_cast<int64_t>(LseRowBytes(plan_));
    queries.lse_head_stride = sizeof(float);
  }
  return queries;
}

}  // namespace kvevict
