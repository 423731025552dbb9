#include "core/sum_table.h"

#include <algorithm>

namespace kvevict {
namespace {

// Jobs on the stack: layers that are added, or moved, at a time.
constexpr size_t kAddedAtOnce = 64;
constexpr size_t kMovedAtOnce = 16;

}  // namespace

SumTable::SumTable(const Plan& plan)
    : plan_(plan), observed_(plan.context()), memory_(plan.context()) {}

Status SumTable::Allocate() {
  if (!plan_.ObservesSums()) return Status();
  return observed_.Allocate("observed ranges", CheckedSize(plan_.n_layers()));
}

Status SumTable::Begin(void* memory, size_t memory_bytes) {
  if (!plan_.ObservesSums()) return Status();
  return memory_.Begin(memory, memory_bytes, plan_.SumMemory());
}

void SumTable::End() {
  Reset();
  memory_.End();
}

bool SumTable::IsLike(const SumTable& other) const {
  const kvevict_policy& a = plan_.policy();
  const kvevict_policy& b = other.plan_.policy();
  return plan_.ObservesSums() && other.plan_.ObservesSums() &&
         plan_.max_tokens() == other.plan_.max_tokens() &&
         a.sum_rows == b.sum_rows && a.sum_pool == b.sum_pool &&
         a.group_reduce == b.group_reduce;
}

Status SumTable::CopyFrom(Stream stream, const SumTable& other) {
  if (!has_memory()) return Status();
  const Context& context = plan_.context();
  KV_RETURN_IF_ERROR(
      context.backend().copy(context, stream, other.memory_.data(),
                             plan_.SumMemory().value(), memory_.data()));
  std::copy(other.observed_.begin(), other.observed_.end(), observed_.begin());
  return Status();
}

void SumTable::Reset() {
  std::fill(observed_.begin(), observed_.end(), ObservedRange());
}

void SumTable::Cut(uint32_t position) {
  for (ObservedRange& range : observed_) range.Cut(position);
}

void SumTable::Replayed(uint32_t first_position, uint32_t n_rows) {
  for (ObservedRange& range : observed_) {
    if (!range.empty() && range.end == first_position) range.end += n_rows;
  }
}

float* SumTable::RowsOf(uint32_t layer) const {
  return reinterpret_cast<float*>(PlaneOf(layer).data);
}

// ---- Sums that come in ----

// Slots are told by the rows' positions, since these may have been appended or not.
Status SumTable::FindJob(const SlotTable& slots, const LayerInputs& inputs,
                         const QueryChunk& chunk, AddSumsJob* out) const {
  const uint32_t l = inputs.layer;
  const PlanLayer& layer = plan_.layer(l);
  const ObservedRange& known = observed_[l];
  const uint32_t end = chunk.first_position + chunk.n_rows;
  if (!known.empty() && known.end != chunk.first_position) {
    return InvalidArgument(
        "sums are of the queries of positions [%u, %u): rows from %u on do not "
        "follow",
        known.begin, known.end, chunk.first_position);
  }
  if (end < slots[l].tail_position) {
    return InvalidArgument(
        "rows up to position %u end before the last eviction, at %u", end,
        slots[l].tail_position);
  }
  const int64_t n_slots =
      int64_t{slots[l].stored} + end - slots.logical_length();
  if (n_slots > plan_.max_tokens()) {
    return InvalidArgument("sums of %lld slots > max_tokens %u",
                           static_cast<long long>(n_slots), plan_.max_tokens());
  }
  KV_RETURN_IF_ERROR(FindChunkSums(plan_, layer, static_cast<uint32_t>(n_slots),
                                   inputs, &out->from, &out->n_from));
  out->sums = RowsOf(l);
  out->n_rows = plan_.SumRowsOf(layer);
  out->n_lists = layer.n_lists;
  // Modulo 2^32, like the counts to which it is added.
  const uint32_t ahead = chunk.first_position - slots.logical_length();
  out->tokens = chunk.position_address == nullptr
                    ? slots.DeviceTokens(l)
                    : ListCounts(slots[l].stored, slots.LengthsOf(l), 2);
  out->tokens.most += ahead;
  out->tokens.more = ahead;
  out->begins = known.empty() && out->tokens.most != 0;
  return Status();
}

Status SumTable::CheckAdd(const SlotTable& slots,
                          std::span<const LayerInputs> layers,
                          const QueryChunk& chunk) const {
  if (!plan_.ObservesSums() || chunk.n_rows == 0) return Status();
  KV_RETURN_IF_ERROR(CheckPositions(chunk));
  for (const LayerInputs& inputs : layers) {
    if (inputs.attention_sums == nullptr) continue;
    KV_RETURN_IF_ERROR(memory_.CheckIsThere());
    AddSumsJob job;
    if (Status status = FindJob(slots, inputs, chunk, &job); !status.ok()) {
      return Prefixed(status, "layer %u: ", plan_.layer(inputs.layer).number);
    }
  }
  return Status();
}

Status SumTable::Add(Stream stream, const SlotTable& slots,
                     std::span<const LayerInputs> layers,
                     const QueryChunk& chunk) {
  KV_RETURN_IF_ERROR(CheckAdd(slots, layers, chunk));
  if (!plan_.ObservesSums() || chunk.n_rows == 0) return Status();
  AddSumsJob jobs[kAddedAtOnce];
  const Context& context = plan_.context();
  const kvevict_policy& policy = plan_.policy();
  AddSumsArgs args;
  args.n_new = chunk.n_rows;
  args.stride = plan_.max_tokens();
  args.pool = policy.sum_pool;
  args.reduce = policy.sum_rows == KVEVICT_SUM_ROWS_LAYER ? KVEVICT_REDUCE_SUM
                                                          : policy.group_reduce;
  size_t n = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].attention_sums != nullptr) {
      KV_RETURN_IF_ERROR(FindJob(slots, layers[i], chunk, &jobs[n++]));
    }
    if (n == 0 || (n < kAddedAtOnce && i + 1 < layers.size())) continue;
    args.jobs = std::span<const AddSumsJob>(jobs, n);
    KV_RETURN_IF_ERROR(context.backend().add_sums(context, stream, args));
    n = 0;
  }
  for (const LayerInputs& inputs : layers) {
    if (inputs.attention_sums == nullptr) continue;
    observed_[inputs.layer].Add(chunk.first_position, chunk.n_rows, INT32_MAX);
  }
  return Status();
}

// ---- Sums that are there ----

Status SumTable::CheckNotAhead(uint32_t logical) const {
  for (uint32_t l = 0; l < observed_.size(); ++l) {
    if (!Has(l) || observed_[l].end <= logical) continue;
    return InvalidArgument(
        "layer %u: sums are of the queries of positions [%u, %u), but %u "
        "tokens "
        "have been seen: append the others first",
        plan_.layer(l).number, observed_[l].begin, observed_[l].end, logical);
  }
  return Status();
}

Status SumTable::CheckUpTo(uint32_t layer, uint32_t logical) const {
  const ObservedRange& known = observed_[layer];
  if (known.end == logical) return Status();
  return InvalidArgument(
      "layer %u: sums are of the queries of positions [%u, %u), but %u tokens "
      "have been seen",
      plan_.layer(layer).number, known.begin, known.end, logical);
}

kvevict_plane SumTable::PlaneOf(uint32_t layer) const {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data =
      reinterpret_cast<uintptr_t>(memory_.data()) +
      plan_.layer(layer).sum_rows_before * plan_.max_tokens() * sizeof(float);
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  plane.token_stride_bytes = sizeof(float);
  plane.head_stride_bytes = int64_t{plan_.max_tokens()} * sizeof(float);
  return plane;
}

kvevict_view SumTable::ViewOf(uint32_t l) const {
  const PlanLayer& layer = plan_.layer(l);
  const uint32_t n_rows = plan_.SumRowsOf(layer);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = std::min(n_rows, layer.geometry.n_kv_heads);
  view.k = PlaneOf(l);
  view.k.head_dim = n_rows / view.n_kv_heads;
  view.k.element_stride_bytes = view.k.head_stride_bytes;
  view.k.head_stride_bytes *= view.k.head_dim;
  return view;
}

Status SumTable::Move(Stream stream, const SlotTable& slots,
                      std::span<const LayerOutcome> layers,
                      std::span<uint8_t> scratch) {
  const Context& context = plan_.context();
  kvevict_view views[kMovedAtOnce];
  MoveJob jobs[kMovedAtOnce];
  size_t n = 0;
  for (uint32_t l = 0; l < layers.size(); ++l) {
    if (layers[l].loses && Has(l)) {
      if (observed_[l].end != slots.logical_length()) {
        Forget(l);
        continue;
      }
      views[n] = ViewOf(l);
      jobs[n] = MoveJob();
      jobs[n].view = &views[n];
      jobs[n].tokens = slots.DeviceTokens(l);
      jobs[n].keep = layers[layers[l].owner].keep;
      ++n;
    }
    if (n == 0 || (n < kMovedAtOnce && l + 1 < layers.size())) continue;
    KV_RETURN_IF_ERROR(context.backend().compact(
        context, stream, {std::span<const MoveJob>(jobs, n), scratch}));
    n = 0;
  }
  return Status();
}

}  // namespace kvevict
