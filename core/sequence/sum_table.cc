#include "core/sequence/sum_table.h"

#include <algorithm>
#include <utility>

namespace kvevict {
namespace {

// Layers that are added to, or moved, at a time. Their jobs are on the stack.
constexpr size_t kAddedAtOnce = 64;
constexpr size_t kMovedAtOnce = 16;

}  // namespace

SumTable::SumTable(const Plan& plan)
    : plan_(plan),
      observed_(plan.context()),
      calls_(plan.context()),
      next_(plan.context()),
      ends_(plan.context()),
      device_next_(plan.context()),
      zeros_(plan.context()),
      memory_(plan.context()) {}

Status SumTable::Allocate() {
  if (!plan_.ObservesSums()) return Status();
  const CheckedSize n(plan_.n_layers());
  KV_RETURN_IF_ERROR(observed_.Allocate("observed ranges", n));
  if (!KeepsCalls()) return Status();
  KV_RETURN_IF_ERROR(calls_.Allocate("observed calls", n));
  KV_RETURN_IF_ERROR(next_.Allocate("observed calls", n));
  KV_RETURN_IF_ERROR(
      ends_.Allocate("observed calls", n * CheckedSize(n_ring())));
  KV_RETURN_IF_ERROR(zeros_.Allocate("observed calls", CheckedSize(n_ring())));
  if (plan_.context().backend().on_host) return Status();
  return device_next_.Allocate("observed calls", n);
}

Status SumTable::Begin(void* memory, size_t memory_bytes) {
  if (!plan_.ObservesSums()) return Status();
  return memory_.Begin(memory, memory_bytes, plan_.SumMemory());
}

void SumTable::End() {
  Reset();
  for (Calls& calls : calls_) calls.is_shown = false;
  memory_.End();
}

bool SumTable::IsLike(const SumTable& other) const {
  const Policy& a = plan_.policy();
  const Policy& b = other.plan_.policy();
  return plan_.ObservesSums() && other.plan_.ObservesSums() &&
         plan_.ObservesScores() == other.plan_.ObservesScores() &&
         plan_.max_tokens() == other.plan_.max_tokens() && a.sums == b.sums &&
         a.sum_pool == b.sum_pool && a.sum_last == b.sum_last &&
         a.group == b.group;
}

Status SumTable::CopyFrom(Stream stream, const SumTable& other) {
  if (!has_memory()) return Status();
  const Context& context = plan_.context();
  KV_RETURN_IF_ERROR(
      context.backend().copy(context, stream, other.memory_.data(),
                             plan_.SumMemory().value(), memory_.data()));
  std::copy(other.observed_.begin(), other.observed_.end(), observed_.begin());
  std::copy(other.calls_.begin(), other.calls_.end(), calls_.begin());
  std::copy(other.next_.begin(), other.next_.end(), next_.begin());
  std::copy(other.ends_.begin(), other.ends_.end(), ends_.begin());
  return SendNext(stream);
}

// Calls go on at the same row, because graphs count rows on the device.
void SumTable::Reset() {
  for (uint32_t l = 0; l < observed_.size(); ++l) {
    Forget(l);
    if (KeepsCalls()) calls_[l].n_ever = 0;
  }
}

void SumTable::Forget(uint32_t layer) {
  observed_[layer] = ObservedRange();
  if (KeepsCalls()) calls_[layer].n = calls_[layer].n_counted = 0;
}

Status SumTable::Cut(Stream stream, uint32_t position) {
  for (uint32_t l = 0; l < observed_.size(); ++l) {
    observed_[l].Cut(position);
    if (KeepsCalls()) CutCalls(l, position);
  }
  return SendNext(stream);
}

// Drops calls, the last first.
void SumTable::CutCalls(uint32_t layer, uint32_t position) {
  Calls& calls = calls_[layer];
  for (; calls.n > 0; --calls.n) {
    const uint32_t last = RowBack(layer, 1);
    if (EndOf(layer, last) <= position) break;
    next_[layer] = last;
    calls.n_counted -= std::min(calls.n_counted, 1u);
    --calls.n_ever;
  }
  if (calls.n_counted > 0) return;
  // These rows were shown together with rows that are gone.
  const ObservedRange shown = std::exchange(observed_[layer], ObservedRange());
  if (!calls.before.empty() && shown.begin == calls.before.end) {
    calls.before.end = shown.end;
  }
}

void SumTable::CountCall(uint32_t layer, uint32_t end) {
  Calls& calls = calls_[layer];
  EndOf(layer, next_[layer]) = end;
  next_[layer] = (next_[layer] + 1) % n_ring();
  calls.n = std::min(calls.n + 1, n_ring());
  calls.n_counted = std::min(calls.n_counted + 1, n_ring());
  ++calls.n_ever;
  calls.is_shown = true;
}

// Single calls may begin in a graph, like after an eviction.
void SumTable::Replayed(uint32_t first_position, uint32_t n_rows) {
  if (!has_memory() || n_rows == 0) return;
  for (uint32_t l = 0; l < observed_.size(); ++l) {
    ObservedRange& range = observed_[l];
    if (KeepsCalls() ? !calls_[l].is_shown : range.empty()) continue;
    if (KeepsCalls()) CountCall(l, first_position + n_rows);
    if (range.empty()) range.begin = range.end = first_position;
    if (range.end == first_position) range.end += n_rows;
  }
}

Status SumTable::SendNext(Stream stream) const {
  if (device_next_.data() == nullptr) return Status();
  const Context& context = plan_.context();
  return context.backend().set_counts(
      context, stream, {device_next_.data(), {next_.data(), next_.size()}});
}

// Advances layers that are given sums; adjacent ones share a launch.
Status SumTable::AdvanceNext(Stream stream,
                             std::span<const LayerInputs> layers) const {
  if (device_next_.data() == nullptr) return Status();
  const Context& context = plan_.context();
  size_t n = 0;
  for (size_t i = 0; i < layers.size(); i += std::max<size_t>(n, 1)) {
    const uint32_t first = layers[i].layer;
    for (n = 0; i + n < layers.size(); ++n) {
      const LayerInputs& next = layers[i + n];
      if (RowsIn(next) == nullptr || next.layer != first + n) break;
    }
    if (n == 0) continue;
    KV_RETURN_IF_ERROR(context.backend().advance_counts(
        context, stream,
        {device_next_.data() + first, static_cast<uint32_t>(n), 1}));
  }
  return Status();
}

float* SumTable::RowsOf(uint32_t layer) const {
  return reinterpret_cast<float*>(PlaneOf(layer).data);
}

// ---- Adding sums ----

Status SumTable::CheckFollows(const SlotTable& slots, uint32_t layer,
                              const QueryChunk& chunk) const {
  const ObservedRange& known = observed_[layer];
  const uint32_t first = chunk.first_position;
  const bool again = plan_.ObservesScores() && first < known.end;
  if (!known.empty() && known.end != first && !again) {
    return InvalidArgument(
        "%s of positions [%u, %u): rows from %u on do not follow", RowsName(),
        known.begin, known.end, first);
  }
  if (again) {
    const uint32_t n_in_row = slots.CountInRow(layer);
    if (int64_t{slots.logical_length()} - first <= n_in_row) return Status();
    return InvalidArgument(
        "scores from position %u on cannot be given again: only the last %u of "
        "%u tokens are sure to be held",
        first, n_in_row, slots.logical_length());
  }
  const uint32_t tail = slots[layer].tail_position;
  if (!plan_.ObservesScores()) {
    if (first + chunk.n_rows >= tail) return Status();
    return InvalidArgument(
        "rows up to position %u end before the last eviction, at %u",
        first + chunk.n_rows, tail);
  }
  // Every slot needs a score.
  if (!known.empty() || (first == 0 && tail == 0)) return Status();
  if (tail == 0) {
    return InvalidArgument(
        "rows from %u on: scores begin with the token of position 0", first);
  }
  return InvalidArgument(
      "tokens before position %u have no scores and some of them were evicted: "
      "scores can begin only where none was",
      tail);
}

// Slots are found by the rows' positions, since the rows' tokens may have been
// appended or not.
Status SumTable::FindJob(const SlotTable& slots, const LayerInputs& inputs,
                         const QueryChunk& chunk, AddSumsJob* out) const {
  const uint32_t l = inputs.layer;
  const PlanLayer& layer = plan_.layer(l);
  KV_RETURN_IF_ERROR(CheckFollows(slots, l, chunk));
  const int64_t n_slots = int64_t{slots[l].stored} + chunk.first_position +
                          chunk.n_rows - slots.logical_length();
  if (n_slots > plan_.max_tokens()) {
    return InvalidArgument("%s of %lld slots > max_tokens %u",
                           plan_.ObservesScores() ? "scores" : "sums",
                           static_cast<long long>(n_slots), plan_.max_tokens());
  }
  if (plan_.ObservesScores()) {
    out->n_from = layer.geometry.n_kv_heads;
    KV_RETURN_IF_ERROR(
        FindChunkScores(layer, chunk.n_rows, inputs, &out->from));
  } else {
    KV_RETURN_IF_ERROR(FindChunkSums(plan_, layer,
                                     static_cast<uint32_t>(n_slots), inputs,
                                     &out->from, &out->n_from));
  }
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
  out->begins = observed_[l].empty() && out->tokens.most != 0;
  if (!KeepsCalls()) return Status();
  out->begins = true;
  if (device_next_.data() == nullptr) {
    out->sums = RowOfCall(l, next_[l]);
  } else {
    out->sums = RowOfCall(l, 0);
    out->turn = device_next_.data() + l;
  }
  return Status();
}

Status SumTable::CheckAdd(const SlotTable& slots,
                          std::span<const LayerInputs> layers,
                          const QueryChunk& chunk) const {
  if (!plan_.ObservesSums() || chunk.n_rows == 0) return Status();
  KV_RETURN_IF_ERROR(CheckPositions(chunk));
  for (const LayerInputs& inputs : layers) {
    if (RowsIn(inputs) == nullptr) continue;
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
  const Policy& policy = plan_.policy();
  AddSumsArgs args;
  args.n_new = chunk.n_rows;
  args.stride = plan_.max_tokens();
  args.pool = KeepsCalls() ? 1 : policy.sum_pool;
  args.clears = KeepsCalls();
  args.only_new = plan_.ObservesScores();
  args.sums_ring = n_ring();
  args.reduce =
      policy.sums == SumRows::kLayer ? KVEVICT_REDUCE_SUM : policy.group;
  size_t n = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (RowsIn(layers[i]) != nullptr) {
      KV_RETURN_IF_ERROR(FindJob(slots, layers[i], chunk, &jobs[n++]));
    }
    if (n == 0 || (n < kAddedAtOnce && i + 1 < layers.size())) continue;
    args.jobs = std::span<const AddSumsJob>(jobs, n);
    KV_RETURN_IF_ERROR(context.backend().add_sums(context, stream, args));
    n = 0;
  }
  KV_RETURN_IF_ERROR(AdvanceNext(stream, layers));
  for (const LayerInputs& inputs : layers) {
    if (RowsIn(inputs) == nullptr) continue;
    ObservedRange& range = observed_[inputs.layer];
    const uint32_t end = range.end;
    range.Add(chunk.first_position, chunk.n_rows, INT32_MAX);
    // Scores that are given again leave those behind them.
    if (plan_.ObservesScores()) range.end = std::max(range.end, end);
    if (KeepsCalls()) {
      CountCall(inputs.layer, chunk.first_position + chunk.n_rows);
    }
  }
  return Status();
}

// Reduces the rows of each layer to one, pooled or not.
Status SumTable::SumCalls(Stream stream, const SlotTable& slots,
                          Jobs<uint32_t> layers) const {
  const Context& context = plan_.context();
  const Policy& policy = plan_.policy();
  AddSumsJob jobs[kAddedAtOnce];
  AddSumsArgs args;
  args.n_new = 0;
  args.stride = plan_.max_tokens();
  args.reduce = KVEVICT_REDUCE_SUM;
  args.from_ring = n_ring();
  size_t n = 0;
  const auto add = [&] {
    args.jobs = std::span<const AddSumsJob>(jobs, n);
    return std::exchange(n, 0) == 0
               ? Status()
               : context.backend().add_sums(context, stream, args);
  };
  for (const bool raw : {true, false}) {
    args.pool = raw ? 1 : policy.sum_pool;
    for (const uint32_t l : layers) {
      const Calls& calls = calls_[l];
      if ((policy.raw_first != 0 && calls.n_ever == 1) != raw) continue;
      AddSumsJob& job = jobs[n++] = AddSumsJob();
      job.from = {RowOfCall(l, 0), plan_.max_tokens()};
      job.n_from = calls.n_counted;
      job.first_from = RowBack(l, calls.n_counted);
      job.sums = RowsOf(l);
      job.n_rows = 1;
      job.tokens = ListCounts(slots[l].stored);
      job.begins = true;
      if (n == kAddedAtOnce) KV_RETURN_IF_ERROR(add());
    }
    KV_RETURN_IF_ERROR(add());
  }
  return Status();
}

// ---- Reading and moving sums ----

Status SumTable::CheckNotAhead(uint32_t logical) const {
  for (uint32_t l = 0; l < observed_.size(); ++l) {
    if (!Has(l) || observed_[l].end <= logical) continue;
    return InvalidArgument(
        "layer %u: %s of positions [%u, %u), but %u tokens have been seen: "
        "append the others first",
        plan_.layer(l).number, RowsName(), observed_[l].begin, observed_[l].end,
        logical);
  }
  return Status();
}

Status SumTable::CheckUpTo(uint32_t layer, uint32_t logical) const {
  const ObservedRange& known = observed_[layer];
  if (known.end == logical) return Status();
  return InvalidArgument(
      "layer %u: %s of positions [%u, %u), but %u tokens have been seen",
      plan_.layer(layer).number, RowsName(), known.begin, known.end, logical);
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
  if (KeepsCalls()) {
    view.k.data = reinterpret_cast<uintptr_t>(RowOfCall(l, 0));
    view.k.head_dim = n_ring();
  }
  view.k.element_stride_bytes = view.k.head_stride_bytes;
  view.k.head_stride_bytes *= view.k.head_dim;
  return view;
}

Status SumTable::Move(Stream stream, const SlotTable& slots,
                      std::span<const LayerOutcome> layers, bool are_saved,
                      std::span<uint8_t> scratch) {
  const Context& context = plan_.context();
  kvevict_view views[kMovedAtOnce];
  MoveJob jobs[kMovedAtOnce];
  size_t n = 0;
  for (uint32_t l = 0; l < layers.size(); ++l) {
    if (KeepsCalls()) {
      calls_[l].n = calls_[l].n_counted;
      calls_[l].before = ObservedRange();
    }
    if (layers[l].loses && Has(l)) {
      if (observed_[l].end != slots.logical_length() ||
          (KeepsCalls() && !are_saved)) {
        Forget(l);
        continue;
      }
      views[n] = ViewOf(l);
      jobs[n] = MoveJob();
      jobs[n].view = &views[n];
      jobs[n].tokens = slots.DeviceTokens(l);
      jobs[n].keep = layers[layers[l].owner].keep;
      ++n;
      if (KeepsCalls()) {
        calls_[l].before = std::exchange(observed_[l], ObservedRange());
        calls_[l].n_counted = 0;
      }
    }
    if (n == 0 || (n < kMovedAtOnce && l + 1 < layers.size())) continue;
    KV_RETURN_IF_ERROR(context.backend().compact(
        context, stream, {std::span<const MoveJob>(jobs, n), scratch}));
    n = 0;
  }
  return Status();
}

// ---- Saved scores ----

uint32_t SumTable::ScoresEnd(const SlotTable& slots, uint32_t layer) const {
  if (!plan_.ObservesScores() || !Has(layer)) return 0;
  return std::min(observed_[layer].end, slots.logical_length());
}

Status SumTable::ReadRow(Stream stream, uint32_t layer, uint32_t row,
                         uint32_t n, float* out) const {
  if (n == 0) return Status();
  const Context& context = plan_.context();
  return context.backend().read(
      context, stream, RowsOf(layer) + uint64_t{row} * plan_.max_tokens(),
      n * sizeof(float), out);
}

Status SumTable::WriteRow(Stream stream, uint32_t layer, uint32_t row,
                          uint32_t n, const float* scores) const {
  if (n == 0) return Status();
  const Context& context = plan_.context();
  return context.backend().write(
      context, stream, scores, n * sizeof(float),
      RowsOf(layer) + uint64_t{row} * plan_.max_tokens());
}

void SumTable::RestoreScores(uint32_t layer, uint32_t end) {
  observed_[layer] = ObservedRange();
  observed_[layer].end = end;
}

// ---- Edits ----

void SumTable::Renumber(uint32_t logical_before, uint32_t logical) {
  for (uint32_t l = 0; l < observed_.size(); ++l) {
    if (!Follows(l, logical_before)) {
      Forget(l);
      continue;
    }
    const uint32_t n = CountOf(l);
    observed_[l].end = logical;
    // Scores are of all tokens, new ones included.
    observed_[l].begin =
        plan_.ObservesScores() ? 0 : logical - std::min(n, logical);
  }
}

// ---- Restoring sums ----

Status SumTable::PutBackCalls(Stream stream, uint32_t layer,
                              const MoveJob& whole) const {
  constexpr uint32_t kMostRuns = 3;  // runs of calls in adjacent rows
  kvevict_view rows[kMostRuns];
  kvevict_view saved[kMostRuns];
  MoveJob jobs[kMostRuns];
  uint32_t n_runs = 0;
  const Calls& calls = calls_[layer];
  for (uint32_t left = calls.n; left > 0;) {
    const bool is_later = left <= calls.n_counted;
    const uint32_t first = RowBack(layer, left);
    const uint32_t n =
        std::min(is_later ? left : left - calls.n_counted, n_ring() - first);
    rows[n_runs] = *whole.view;
    rows[n_runs].k.data = reinterpret_cast<uintptr_t>(RowOfCall(layer, first));
    saved[n_runs] = *whole.destination;
    saved[n_runs].k.data += first * sizeof(float);
    if (is_later) {
      saved[n_runs].k.data = reinterpret_cast<uintptr_t>(zeros_.data());
      saved[n_runs].k.token_stride_bytes = 0;
    }
    rows[n_runs].k.head_dim = saved[n_runs].k.head_dim = n;
    MoveJob& job = jobs[n_runs] = whole;
    job.view = &rows[n_runs];
    job.destination = &saved[n_runs];
    if (!is_later) job.first_slot = 0;  // saved rows have no later tokens
    ++n_runs;
    left -= n;
  }
  const Context& context = plan_.context();
  return context.backend().restore(context, stream,
                                   {std::span<const MoveJob>(jobs, n_runs)});
}

void SumTable::TakeBack(uint32_t layer, uint32_t n_tokens) {
  if (observed_.size() == 0) return;
  if (!ComeBack(layer, n_tokens)) return Forget(layer);
  if (!KeepsCalls()) return;
  Calls& calls = calls_[layer];
  if (calls.before.empty()) return;
  ObservedRange& range = observed_[layer];
  if (range.empty()) range = calls.before;
  if (range.begin > calls.before.end) {  // rows in between were left out
    calls.n = calls.n_counted;
    return;
  }
  range.begin = calls.before.begin;
  calls.n_counted = calls.n;
}

}  // namespace kvevict
