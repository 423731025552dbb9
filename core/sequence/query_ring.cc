#include "core/sequence/query_ring.h"

#include "core/dtype.h"
#include "core/view/view.h"

namespace kvevict {

void ObservedRange::Add(uint32_t first, uint32_t n_rows, uint32_t ring_rows) {
  if (n_rows == 0) return;
  if (first > end || first < begin) {
    begin = first;
    pushed_out = false;
  }
  end = first + n_rows;
  if (end - begin <= ring_rows) return;
  begin = end - ring_rows;
  pushed_out = true;
}

Status CheckPositions(const QueryChunk& chunk) {
  if (chunk.n_rows > INT32_MAX ||
      chunk.first_position > INT32_MAX - chunk.n_rows) {
    return InvalidArgument("first_position %u + n_rows %u > %d",
                           chunk.first_position, chunk.n_rows, INT32_MAX);
  }
  return Status();
}

QueryRing::QueryRing(const Plan& plan)
    : plan_(plan),
      observed_(plan.context()),
      observed_lse_(plan.context()),
      memory_(plan.context()) {}

Status QueryRing::Allocate() {
  if (!plan_.ObservesQueries()) return Status();
  const CheckedSize n_layers(plan_.n_layers());
  KV_RETURN_IF_ERROR(observed_.Allocate("observed ranges", n_layers));
  if (!plan_.ReadsLse()) return Status();
  return observed_lse_.Allocate("observed ranges", n_layers);
}

// ---- Memory ----

Status QueryRing::Begin(void* memory, size_t memory_bytes) {
  if (!plan_.ObservesQueries()) return Status();
  CheckedSize lse_offset(0);
  const CheckedSize needed = plan_.QueryMemory(&lse_offset);
  KV_RETURN_IF_ERROR(memory_.Begin(memory, memory_bytes, needed));
  if (plan_.ReadsLse()) lse_ = memory_.data() + lse_offset.value();
  return Status();
}

void QueryRing::End() {
  Reset();
  memory_.End();
  lse_ = nullptr;
}

Status QueryRing::CopyFrom(Stream stream, const QueryRing& other) {
  if (!has_memory()) return Status();
  const Context& context = plan_.context();
  CheckedSize lse_offset(0);
  const size_t n_bytes = plan_.QueryMemory(&lse_offset).value();
  if (n_bytes > 0) {
    KV_RETURN_IF_ERROR(context.backend().copy(
        context, stream, other.memory_.data(), n_bytes, memory_.data()));
  }
  std::copy(other.observed_.begin(), other.observed_.end(), observed_.begin());
  std::copy(other.observed_lse_.begin(), other.observed_lse_.end(),
            observed_lse_.begin());
  return Status();
}

void QueryRing::Reset() {
  std::fill(observed_.begin(), observed_.end(), ObservedRange());
  std::fill(observed_lse_.begin(), observed_lse_.end(), ObservedRange());
}

void QueryRing::Cut(uint32_t position) {
  for (ObservedRange& range : observed_) range.Cut(position);
  for (ObservedRange& range : observed_lse_) range.Cut(position);
}

void QueryRing::ForgetSpan(uint32_t first, uint32_t end) {
  for (ObservedRange& range : observed_) range.Forget(first, end);
}

void QueryRing::Forget(uint32_t layer) {
  if (observed_.size() > 0) observed_[layer] = ObservedRange();
  ForgetLse(layer);
}

void QueryRing::ForgetLse(uint32_t layer) {
  if (observed_lse_.size() > 0) observed_lse_[layer] = ObservedRange();
}

void QueryRing::Replayed(uint32_t first_position, uint32_t n_rows) {
  if (!has_memory()) return;
  for (ObservedRange& range : observed_) {
    range.Add(first_position, n_rows, ring_rows());
  }
}

// ---- Storing rows ----

Status QueryRing::CheckRows(const LayerInputs& inputs, uint32_t n_rows) const {
  const PlanLayer& layer = plan_.layer(inputs.layer);
  kvevict_layer_geometry shown = layer.geometry;
  Status status;
  if (inputs.queries != nullptr) {
    status = plan_.CheckCanScore(layer);
    // f32 is rounded on the way to the ring.
    if (inputs.queries->dtype == KVEVICT_DTYPE_F32) {
      shown.q_dtype = KVEVICT_DTYPE_F32;
    }
  }
  if (status.ok()) status = CheckQueryRows(shown, n_rows, inputs);
  return status.ok() ? status : Prefixed(status, "layer %u: ", layer.number);
}

// Stores the rows of a chunk that fit the rings of adjacent layers that are
// alike.
Status QueryRing::Store(Stream stream, std::span<const LayerInputs> layers,
                        Rows rows, const QueryChunk& chunk) const {
  const uint32_t first = layers.front().layer;
  ObserveArgs args;
  args.layers = Jobs<const kvevict_plane*>(layers, rows);
  const kvevict_layer_geometry& g = plan_.layer(first).geometry;
  const bool is_lse = rows == &LayerInputs::row_lse;
  args.dtype = is_lse ? DType::kF32 : static_cast<DType>(g.q_dtype);
  args.n_heads = g.n_q_heads;
  args.ring_rows = ring_rows();
  args.n_rows = std::min(chunk.n_rows, args.ring_rows);
  args.first_row = args.first_position = chunk.n_rows - args.n_rows;
  args.position_address = chunk.position_address;
  if (chunk.position_address == nullptr) {
    args.first_position += chunk.first_position;
  }
  args.rings = is_lse ? LseOf(first) : RowsOf(first);
  const Context& context = plan_.context();
  return context.backend().observe(context, stream, args);
}

Status QueryRing::StoreAll(Stream stream, std::span<const LayerInputs> layers,
                           Rows rows, const QueryChunk& chunk) const {
  size_t n = 0;
  for (size_t i = 0; i < layers.size(); i += std::max<size_t>(n, 1)) {
    const auto goes_along = [&](const LayerInputs& next) {
      return next.*rows != nullptr && next.layer == layers[i].layer + n &&
             (next.*rows)->dtype == (layers[i].*rows)->dtype &&
             AreAlike(plan_.layer(next.layer), plan_.layer(layers[i].layer));
    };
    n = 0;
    while (i + n < layers.size() && goes_along(layers[i + n])) ++n;
    if (n == 0) continue;
    KV_RETURN_IF_ERROR(Store(stream, layers.subspan(i, n), rows, chunk));
  }
  return Status();
}

Status QueryRing::CheckObserve(std::span<const LayerInputs> layers,
                               const QueryChunk& chunk) const {
  if (!plan_.ObservesQueries() || layers.empty()) return Status();
  KV_RETURN_IF_ERROR(memory_.CheckIsThere());
  for (const LayerInputs& layer : layers) {
    KV_RETURN_IF_ERROR(CheckRows(layer, chunk.n_rows));
  }
  return CheckPositions(chunk);
}

Status QueryRing::Observe(Stream stream, std::span<const LayerInputs> layers,
                          const QueryChunk& chunk) {
  KV_RETURN_IF_ERROR(CheckObserve(layers, chunk));
  if (!plan_.ObservesQueries() || layers.empty() || chunk.n_rows == 0) {
    return Status();
  }
  KV_RETURN_IF_ERROR(StoreAll(stream, layers, &LayerInputs::queries, chunk));
  if (plan_.ReadsLse()) {
    KV_RETURN_IF_ERROR(StoreAll(stream, layers, &LayerInputs::row_lse, chunk));
  }
  for (const LayerInputs& layer : layers) {
    const auto add_to = [&](Array<ObservedRange>& ranges) {
      ranges[layer.layer].Add(chunk.first_position, chunk.n_rows, ring_rows());
    };
    if (layer.queries != nullptr) add_to(observed_);
    if (!plan_.ReadsLse()) continue;
    // The log-sum-exps of replaced rows are stale.
    if (layer.queries != nullptr) {
      observed_lse_[layer.layer].Cut(chunk.first_position);
    }
    if (layer.row_lse != nullptr) add_to(observed_lse_);
  }
  return Status();
}

// ---- Reading rows ----

uint8_t* QueryRing::RowsOf(uint32_t layer) const {
  return memory_.data() + ring_rows() * plan_.layer(layer).query_bytes_before;
}

uint8_t* QueryRing::LseOf(uint32_t layer) const {
  return lse_ + ring_rows() * plan_.layer(layer).q_heads_before * sizeof(float);
}

Status QueryRing::CheckWindow(uint32_t layer, uint32_t logical) const {
  if (Status status = memory_.CheckIsThere(); !status.ok()) {
    return Prefixed(status, "layer %u: ", plan_.layer(layer).number);
  }
  const ObservedRange& known = observed_[layer];
  if (known.Covers(logical - window(), logical)) return Status();
  Status status = InvalidArgument(
      "observed queries are of positions [%u, %u), but window %u needs [%u, "
      "%u)",
      known.begin, known.end, window(), logical - window(), logical);
  if (known.pushed_out && known.end == logical) {
    status = Prefixed(
        status,
        "more tokens were taken back than draft_tokens %u of the plan: ",
        ring_rows() - window());
  }
  return Prefixed(status, "layer %u: ", plan_.layer(layer).number);
}

QueryRows QueryRing::WindowOf(uint32_t layer, uint32_t logical) const {
  const kvevict_layer_geometry& g = plan_.layer(layer).geometry;
  const DType dtype = static_cast<DType>(g.q_dtype);
  QueryRows queries;
  queries.n_rows = window();
  queries.rows.base = RowsOf(layer);
  queries.rows.row_stride =
      static_cast<int64_t>(plan_.layer(layer).query_bytes());
  queries.rows.element_stride = ElementBytes(dtype);
  queries.rows.dtype = dtype;
  queries.head_stride = int64_t{g.k_head_dim} * ElementBytes(dtype);
  queries.ring_rows = ring_rows();
  queries.first_row = (logical - window()) % ring_rows();
  if (observed_lse_.size() > 0 &&
      observed_lse_[layer].Covers(logical - window(), logical)) {
    queries.lse = reinterpret_cast<const float*>(LseOf(layer));
    queries.lse_row_stride = int64_t{g.n_q_heads} * int64_t{sizeof(float)};
    queries.lse_head_stride = sizeof(float);
  }
  return queries;
}

}  // namespace kvevict
