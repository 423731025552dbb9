#include "core/sum_table.h"

#include <algorithm>
#include <utility>

namespace kvevict {
namespace {

// Jobs on the stack: layers that are added, or moved, at a time.
constexpr size_t kAddedAtOnce = 64;
constexpr size_t kMovedAtOnce = 16;

}  // namespace

SumTable::SumTable(const Plan& plan)
    : plan_(plan),
      observed_(plan.context()),
      calls_(plan.context()),
      ends_(plan.context()),
      memory_(plan.context()) {}

Status SumTable::Allocate() {
  if (!plan_.ObservesSums()) return Status();
  const CheckedSize n(plan_.n_layers());
  KV_RETURN_IF_ERROR(observed_.Allocate("observed ranges", n));
  if (!KeepsCalls()) return Status();
  KV_RETURN_IF_ERROR(calls_.Allocate("observed calls", n));
  return ends_.Allocate("observed calls",
                        n * CheckedSize(plan_.policy().sum_last));
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
         a.sum_last == b.sum_last && a.group_reduce == b.group_reduce;
}

Status SumTable::CopyFrom(Stream stream, const SumTable& other) {
  if (!has_memory()) return Status();
  const Context& context = plan_.context();
  KV_RETURN_IF_ERROR(
      context.backend().copy(context, stream, other.memory_.data(),
                             plan_.SumMemory().value(), memory_.data()));
  std::copy(other.observed_.begin(), other.observed_.end(), observed_.begin());
  std::copy(other.calls_.begin(), other.calls_.end(), calls_.begin());
  std::copy(other.ends_.begin(), other.ends_.end(), ends_.begin());
  return Status();
}

void SumTable::Reset() {
  std::fill(observed_.begin(), observed_.end(), ObservedRange());
  std::fill(calls_.begin(), calls_.end(), Calls());
}

void SumTable::Forget(uint32_t layer) {
  if (observed_.size() == 0) return;
  observed_[layer] = ObservedRange();
  if (KeepsCalls()) calls_[layer].n_rows = calls_[layer].next = 0;
}

void SumTable::Cut(uint32_t position) {
  for (uint32_t l = 0; l < observed_.size(); ++l) {
    observed_[l].Cut(position);
    if (KeepsCalls()) CutCalls(l, position);
  }
}

std::span<uint32_t> SumTable::EndsOf(uint32_t layer) {
  const uint32_t n = plan_.policy().sum_last;
  return {ends_.data() + uint64_t{layer} * n, n};
}

// From the last call back. Of rows between others one that was taken back is written
// over with the next call, or with zeros.
void SumTable::CutCalls(uint32_t layer, uint32_t position) {
  Calls& calls = calls_[layer];
  const std::span<uint32_t> ends = EndsOf(layer);
  while (calls.n_rows > 0) {
    const uint32_t last =
        (calls.next == 0 ? static_cast<uint32_t>(ends.size()) : calls.next) - 1;
    if (ends[last] <= position) break;
    ends[last] = 0;
    calls.next = last;
    --calls.n_ever;
    if (last + 1 == calls.n_rows) --calls.n_rows;
  }
  const auto rows = ends.first(calls.n_rows);
  if (std::any_of(rows.begin(), rows.end(), [](uint32_t e) { return e > 0; })) {
    return;
  }
  Forget(layer);
}

void SumTable::Replayed(uint32_t first_position, uint32_t n_rows) {
  if (KeepsCalls()) return;
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
  if (KeepsCalls()) {  // a list has the length that the host knows
    out->sums = RowOfCall(l, calls_[l].next);
    out->tokens = ListCounts(static_cast<uint32_t>(n_slots) - chunk.n_rows);
    out->begins = true;
  }
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
  args.pool = KeepsCalls() ? 1 : policy.sum_pool;
  args.clears = KeepsCalls();
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
    if (!KeepsCalls()) continue;
    Calls& calls = calls_[inputs.layer];
    EndsOf(inputs.layer)[calls.next] = chunk.first_position + chunk.n_rows;
    calls.n_rows = std::max(calls.n_rows, calls.next + 1);
    calls.next = RowAfter(calls.next);
    ++calls.n_ever;
  }
  return Status();
}

// Of each layer all rows are reduced to the first one, pooled or not.
Status SumTable::SumCalls(Stream stream, const SlotTable& slots,
                          Jobs<uint32_t> layers) const {
  const Context& context = plan_.context();
  const kvevict_policy& policy = plan_.policy();
  AddSumsJob jobs[kAddedAtOnce];
  AddSumsArgs args;
  args.n_new = 0;
  args.stride = plan_.max_tokens();
  args.reduce = KVEVICT_REDUCE_SUM;
  const auto add = [&](uint32_t pool, bool clears, size_t* n) {
    args.jobs = std::span<const AddSumsJob>(jobs, *n);
    args.pool = pool;
    args.clears = clears;
    const size_t n_jobs = std::exchange(*n, 0);
    return n_jobs == 0 ? Status()
                       : context.backend().add_sums(context, stream, args);
  };
  size_t n = 0;
  const auto job_of = [&](uint32_t l) {
    AddSumsJob& job = jobs[n++];
    job = AddSumsJob();
    job.from = {RowOfCall(l, 0), plan_.max_tokens()};
    job.n_rows = 1;
    job.begins = true;
    return &job;
  };
  for (const uint32_t l : layers) {  // rows that count no more
    const uint32_t* const ends = ends_.data() + uint64_t{l} * policy.sum_last;
    for (uint32_t row = 0; row < calls_[l].n_rows; ++row) {
      if (ends[row] != 0) continue;
      AddSumsJob* const job = job_of(l);
      job->n_from = 1;
      job->sums = RowOfCall(l, row);
      if (n == kAddedAtOnce) KV_RETURN_IF_ERROR(add(1, true, &n));
    }
  }
  KV_RETURN_IF_ERROR(add(1, true, &n));
  for (const bool raw : {true, false}) {
    const uint32_t pool = raw ? 1 : policy.sum_pool;
    for (const uint32_t l : layers) {
      const Calls& calls = calls_[l];
      if ((policy.sum_raw_first != 0 && calls.n_ever == 1) != raw) continue;
      AddSumsJob* const job = job_of(l);
      job->n_from = calls.n_rows;
      job->sums = RowsOf(l);
      job->tokens = ListCounts(slots[l].stored);
      if (n == kAddedAtOnce) KV_RETURN_IF_ERROR(add(pool, false, &n));
    }
    KV_RETURN_IF_ERROR(add(pool, false, &n));
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
  plane.data = reinterpret_cast<uintptr_t>(memory_.data()) +
               plan_.layer(layer).sum_rows_before * plan_.RowsPerSum() *
                   plan_.max_tokens() * sizeof(float);
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
      if (KeepsCalls() || observed_[l].end != slots.logical_length()) {
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
