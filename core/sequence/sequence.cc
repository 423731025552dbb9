#include "core/sequence/sequence.h"

#include <algorithm>

#include "core/evict/call.h"
#include "core/policy/policy.h"
#include "core/sequence/handover.h"

namespace kvevict {

Status Sequence::Create(const Plan& plan, Sequence** out) {
  Sequence* sequence = NewObject<Sequence>(plan.context(), plan);
  if (sequence == nullptr) {
    return OutOfMemory("sequence: no memory for %zu bytes", sizeof(Sequence));
  }
  if (Status status = sequence->Allocate(); !status.ok()) {
    sequence->Destroy();
    return status;
  }
  *out = sequence;
  return Status();
}

// Memory comes first because queued work needs it.
Status Sequence::Fork(const Sequence& from, const Plan& plan, void* memory,
                      size_t memory_bytes, Stream stream, Sequence** out) {
  Sequence* sequence = nullptr;
  KV_RETURN_IF_ERROR(Create(plan, &sequence));
  sequence->set_stream(stream);
  Status status;
  if ((from.ring_.has_memory() && sequence->ring_.IsLike(from.ring_)) ||
      (from.sums_.has_memory() && sequence->sums_.IsLike(from.sums_))) {
    status = sequence->BeginObserving(memory, memory_bytes);
  }
  if (status.ok()) {
    status = &plan == &from.plan() ? sequence->CopyFrom(from)
                                   : sequence->TakeOver(from);
  }
  if (status.ok()) status = sequence->ring_.CopyFrom(stream, from.ring_);
  if (status.ok()) status = sequence->sums_.CopyFrom(stream, from.sums_);
  if (!status.ok()) {
    sequence->Destroy();
    return status;
  }
  *out = sequence;
  return Status();
}

// `other` has the same plan.
Status Sequence::CopyFrom(const Sequence& other) {
  KV_RETURN_IF_ERROR(slots_.MakeRoomFor(other.slots_));
  prompt_.CopyFrom(other.prompt_);
  return slots_.CopyFrom(stream_, other.slots_);
}

Status Sequence::TakeOver(const Sequence& other) {
  Positions positions(plan().context());
  KV_RETURN_IF_ERROR(positions.Allocate(plan()));
  KV_RETURN_IF_ERROR(HandOver(other, plan(), positions.layers()));
  KV_RETURN_IF_ERROR(Restore(positions.layers(), other.logical_length(),
                             other.slots().edited_from()));
  RestorePrompt(positions.layers(), other.prompt().n_tokens(),
                other.prompt().RoundFor(plan().policy()));
  return Status();
}

Sequence::Sequence(const Plan& plan)
    : plan_(plan),
      slots_(plan),
      ring_(plan),
      sums_(plan),
      prompt_(plan),
      list_reports_(plan.context()),
      masses_(plan.context()),
      host_masses_(plan.context()) {}

Sequence::~Sequence() {
  if (call_ != nullptr) DeleteObject(plan().context(), call_);
}

void Sequence::Destroy() { DeleteObject(plan().context(), this); }

Status Sequence::Allocate() {
  KV_RETURN_IF_ERROR(slots_.Allocate());
  KV_RETURN_IF_ERROR(ring_.Allocate());
  KV_RETURN_IF_ERROR(sums_.Allocate());
  KV_RETURN_IF_ERROR(prompt_.Allocate());
  KV_RETURN_IF_ERROR(
      list_reports_.Allocate("report", CheckedSize(plan().n_lists())));
  if (plan().ReportsMass()) {
    const CheckedSize n_lists(plan().n_lists());
    KV_RETURN_IF_ERROR(masses_.Allocate("masses of the lists", n_lists));
    if (!plan().context().backend().on_host) {
      KV_RETURN_IF_ERROR(host_masses_.Allocate("masses of the lists", n_lists));
    }
  }
  call_ = NewObject<EvictCall>(plan().context(), *this);
  if (call_ == nullptr) {
    return OutOfMemory("eviction: no memory for %zu bytes", sizeof(EvictCall));
  }
  return call_->Allocate();
}

Status Sequence::Reset() {
  KV_RETURN_IF_ERROR(slots_.Restart(stream_, 0));
  ring_.Reset();
  sums_.Reset();
  prompt_.Reset();
  ClearReport();
  return Status();
}

Status Sequence::Start(uint32_t n_tokens) {
  KV_RETURN_IF_ERROR(CheckEmpty());
  if (n_tokens > plan().max_tokens()) {
    return InvalidArgument("n_tokens %u > max_tokens %u", n_tokens,
                           plan().max_tokens());
  }
  KV_RETURN_IF_ERROR(slots_.Restart(stream_, n_tokens));
  sums_.Reset();
  return Status();
}

Status Sequence::Start(std::span<LayerPositions> layers, uint32_t n_tokens) {
  KV_RETURN_IF_ERROR(CheckEmpty());
  if (n_tokens > INT32_MAX) {
    return InvalidArgument("n_tokens %u > %d", n_tokens, INT32_MAX);
  }
  for (LayerPositions& layer : layers) {
    layer.tail_position = FindTail(layer, n_tokens);
  }
  KV_RETURN_IF_ERROR(CheckPositions(plan(), layers, n_tokens));
  KV_RETURN_IF_ERROR(slots_.Fill(stream_, layers, n_tokens));
  sums_.Reset();
  return Status();
}

Status Sequence::CheckEmpty() const {
  if (logical_length() == 0) return Status();
  return InvalidArgument("the sequence holds %u tokens: reset it first",
                         logical_length());
}

Status Sequence::Restore(std::span<const LayerPositions> layers,
                         uint32_t n_tokens, uint32_t edited_from) {
  KV_RETURN_IF_ERROR(CheckPositions(plan(), layers, n_tokens));
  KV_RETURN_IF_ERROR(slots_.Fill(stream_, layers, n_tokens, edited_from));
  ring_.Reset();
  sums_.Reset();
  prompt_.Reset();
  ClearReport();
  return Status();
}

void Sequence::RestorePrompt(std::span<const LayerPositions> layers,
                             uint32_t n_tokens, uint32_t round) {
  prompt_.Restore(n_tokens, round);
  for (uint32_t l = 0; l < layers.size(); ++l) {
    prompt_.RestoreSlots(l, layers[l].prompt_slots);
  }
  prompt_.Trim(slots_);
}

void Sequence::ClearReport() {
  report_ = KVEVICT_EVICT_REPORT_INIT;
  std::fill(list_reports_.begin(), list_reports_.end(), ListReport());
  has_report_ = false;
}

void Sequence::BeginReport() {
  report_ = KVEVICT_EVICT_REPORT_INIT;
  if (prompt_.IsAwaited()) report_.reason = KVEVICT_REASON_OPEN_PROMPT;
  has_report_ = true;
}

Status Sequence::Append(uint32_t n_tokens) {
  return slots_.Append(stream_, n_tokens);
}

Status Sequence::Replayed(uint32_t n_tokens) {
  // Only CUDA has graphs. On the CPU nothing can have been replayed.
  if (plan().context().backend().on_host) {
    return Unsupported(
        "replayed: the context is on the CPU, which runs no graphs");
  }
  KV_RETURN_IF_ERROR(slots_.CheckAppend(n_tokens));
  ring_.Replayed(logical_length(), n_tokens);
  sums_.Replayed(logical_length(), n_tokens);
  slots_.CountAppended(n_tokens);
  return Status();
}

Status Sequence::Trim(uint32_t new_length) {
  KV_RETURN_IF_ERROR(slots_.Trim(stream_, new_length));
  ring_.Cut(new_length);
  prompt_.Trim(slots_);
  return sums_.Cut(stream_, new_length);
}

void Sequence::Remember() {
  slots_.Remember(call_->outcomes());
  prompt_before_ = prompt_.mark();
  saved_sums_ = sums_.has_memory();
}

Status Sequence::TakeBack() {
  slots_.Forget();
  prompt_.TakeBack(prompt_before_, slots_);
  for (uint32_t l = 0; l < plan().n_layers(); ++l) {
    if (slots_.EvictedOf(l) == 0) continue;
    ForgetLse(l);
    sums_.TakeBack(l, slots_.length_before());
  }
  ClearReport();
  return slots_.SendExchanged(stream_);
}

// ---- Observing ----

Status Sequence::BeginObserving(void* memory, size_t memory_bytes) {
  if (memory == nullptr && memory_bytes != 0) {
    return InvalidArgument("memory is NULL, but memory_bytes is %zu",
                           memory_bytes);
  }
  KV_RETURN_IF_ERROR(ring_.Begin(memory, memory_bytes));
  return sums_.Begin(memory, memory_bytes);
}

Status Sequence::CheckObserve(std::span<const LayerInputs> layers,
                              uint32_t n_rows, uint32_t first_position) const {
  const QueryChunk chunk = ChunkOf(n_rows, first_position);
  KV_RETURN_IF_ERROR(ring_.CheckObserve(layers, chunk));
  return sums_.CheckAdd(slots_, layers, chunk);
}

Status Sequence::Observe(std::span<const LayerInputs> layers, uint32_t n_rows,
                         uint32_t first_position) {
  const QueryChunk chunk = ChunkOf(n_rows, first_position);
  KV_RETURN_IF_ERROR(ring_.Observe(stream_, layers, chunk));
  return sums_.Add(stream_, slots_, layers, chunk);
}

QueryChunk Sequence::ChunkOf(uint32_t n_rows, uint32_t first_position) const {
  if (first_position != KVEVICT_POSITION_NEXT) {
    return {n_rows, first_position, nullptr};
  }
  const uint32_t* lengths = slots_.lengths();
  return {n_rows, logical_length(), lengths == nullptr ? nullptr : lengths + 1};
}

Status Sequence::CheckStored(uint32_t layer, const char* name,
                             uint32_t n_tokens) const {
  const ListCounts tokens = slots_.HostTokens(layer);
  for (uint32_t list = 0; list < plan().layer(layer).n_lists; ++list) {
    if (n_tokens <= tokens.Of(list)) continue;
    return InvalidArgument("layer %u: %s %u > %u stored tokens",
                           plan().layer(layer).number, name, n_tokens,
                           tokens.Of(list));
  }
  return Status();
}

Status Sequence::CheckQueries(uint32_t layer, uint32_t n_rows,
                              const LayerInputs& inputs) const {
  const bool observed = inputs.queries == nullptr;
  const char* name = plan().ObservesQueries()   ? "window"
                     : inputs.n_query_rows == 0 ? "n_query_rows 0, all slots:"
                                                : "n_query_rows";
  const uint32_t number = plan().layer(layer).number;
  const ListCounts tokens = slots_.HostTokens(layer);
  KV_RETURN_IF_ERROR(CheckStored(layer, name, n_rows));
  if (observed) KV_RETURN_IF_ERROR(ring_.CheckWindow(layer, logical_length()));
  if (slots_.CountInRow(layer) >= n_rows) return Status();
  SlotPositions positions;
  KV_RETURN_IF_ERROR(HostPositions(layer, &positions));
  bool whole = true;
  for (uint32_t list = 0; list < plan().layer(layer).n_lists; ++list) {
    // Positions ascend, so if this one is in place all after it are.
    whole = whole && positions.PositionOf(list, tokens.Of(list) - n_rows) ==
                         static_cast<int32_t>(logical_length() - n_rows);
  }
  if (whole) return Status();
  return Unsupported(
      "layer %u: tokens of the last %s %u positions were evicted", number, name,
      n_rows);
}

std::span<ListReport> Sequence::list_reports() const {
  return {list_reports_.data(), list_reports_.size()};
}

Mass* Sequence::DeviceMasses(uint32_t layer) const {
  return masses_.data() == nullptr
             ? nullptr
             : masses_.data() + plan().layer(layer).first_list;
}

Status Sequence::HostMasses(std::span<const Mass>* out) const {
  const size_t n_lists = plan().ReportsMass() ? plan().n_lists() : 0;
  *out = {masses_.data(), n_lists};
  if (n_lists == 0 || plan().context().backend().on_host) return Status();
  *out = {host_masses_.data(), n_lists};
  return plan().context().backend().read(plan().context(), stream_,
                                         masses_.data(), n_lists * sizeof(Mass),
                                         host_masses_.data());
}

}  // namespace kvevict
