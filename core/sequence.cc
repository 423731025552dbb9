#include "core/sequence.h"

#include <algorithm>

#include "core/policy.h"

namespace kvevict {

Status Sequence::Create(const Plan& plan, Sequence** out) {
  Sequence* sequence = NewObject<Sequence>(plan.context(), plan);
  if (sequence == nullptr) {
    return OutOfMemory("sequence: no %zu bytes", sizeof(Sequence));
  }
  if (Status status = sequence->Allocate(); !status.ok()) {
    sequence->Destroy();
    return status;
  }
  *out = sequence;
  return Status();
}

Sequence::Sequence(const Plan& plan)
    : plan_(plan),
      slots_(plan),
      ring_(plan),
      prompt_slots_(plan.context()),
      views_(plan.context()),
      inputs_(plan.context()),
      caches_(plan.context()),
      outcomes_(plan.context()),
      evictions_(plan.context()),
      host_jobs_(plan.context()),
      budgets_(plan.context()),
      measures_(plan.context()),
      host_scores_(plan.context()),
      host_keep_(plan.context()),
      list_reports_(plan.context()) {}

void Sequence::Destroy() { DeleteObject(plan().context(), this); }

Status Sequence::Allocate() {
  const CheckedSize n_layers(plan().n_layers());
  KV_RETURN_IF_ERROR(slots_.Allocate());
  KV_RETURN_IF_ERROR(ring_.Allocate());
  KV_RETURN_IF_ERROR(prompt_slots_.Allocate("slots of the prompt", n_layers));
  KV_RETURN_IF_ERROR(views_.Allocate("views of the layers", n_layers));
  KV_RETURN_IF_ERROR(inputs_.Allocate("inputs of the layers", n_layers));
  KV_RETURN_IF_ERROR(caches_.Allocate("caches of the layers", n_layers));
  KV_RETURN_IF_ERROR(
      list_reports_.Allocate("report", CheckedSize(plan().n_lists())));
  if (TouchesNothing(plan().policy())) return Status();
  KV_RETURN_IF_ERROR(budgets_.Allocate("budgets of the layers", n_layers));
  KV_RETURN_IF_ERROR(outcomes_.Allocate("outcomes of the layers", n_layers));
  KV_RETURN_IF_ERROR(evictions_.Allocate("evictions of the layers", n_layers));
  if (SplitsByScore(plan().policy())) {
    KV_RETURN_IF_ERROR(measures_.Allocate("measures of the layers",
                                          n_layers * CheckedSize(2)));
  }
  if (plan().context().options().select_on_host == 0) return Status();
  KV_RETURN_IF_ERROR(host_jobs_.Allocate("jobs on the host", n_layers));
  KV_RETURN_IF_ERROR(host_scores_.AllocateUncleared(
      "scores on the host", CheckedSize(plan().n_scores())));
  return host_keep_.AllocateUncleared("keep lists on the host",
                                      plan().keep_capacity());
}

Status Sequence::Reset() {
  KV_RETURN_IF_ERROR(slots_.Reset(stream_));
  ring_.Reset();
  has_prompt_ = false;
  n_prompt_ = round_ = 0;
  std::fill(prompt_slots_.begin(), prompt_slots_.end(), 0);
  ClearReport();
  return Status();
}

void Sequence::ClearReport() {
  report_ = KVEVICT_EVICT_REPORT_INIT;
  std::fill(list_reports_.begin(), list_reports_.end(), ListReport());
}

Status Sequence::Append(uint32_t n_tokens) {
  return slots_.Append(stream_, n_tokens);
}

Status Sequence::Replayed(uint32_t n_tokens) {
  // Graphs are CUDA's. Elsewhere nothing has run that observed or appended.
  if (plan().context().backend().on_host) {
    return Unsupported(
        "replayed: the context is on the CPU, where no graphs run");
  }
  KV_RETURN_IF_ERROR(slots_.CheckAppend(n_tokens));
  ring_.Replayed(logical_length(), n_tokens);
  slots_.CountAppended(n_tokens);
  return Status();
}

Status Sequence::Trim(uint32_t n_tokens) {
  KV_RETURN_IF_ERROR(slots_.Trim(stream_, n_tokens));
  ring_.Cut(n_tokens);
  n_prompt_ = std::min(n_prompt_, n_tokens);
  round_ = std::min(round_, RoundOf(BehindPrompt()));
  for (uint32_t l = 0; l < prompt_slots_.size(); ++l) {
    prompt_slots_[l] = std::min(prompt_slots_[l], slots_[l].stored);
  }
  return Status();
}

// ---- The prompt ----

Status Sequence::EndPrompt() {
  if (has_prompt_) {
    return InvalidArgument("the prompt has ended before, at %u tokens",
                           n_prompt_);
  }
  has_prompt_ = true;
  n_prompt_ = logical_length();
  round_ = 0;
  for (uint32_t l = 0; l < prompt_slots_.size(); ++l) {
    prompt_slots_[l] = slots_[l].stored;
  }
  return Status();
}

uint32_t Sequence::RoundOf(uint32_t n) const {
  return n / std::max(1u, plan().policy().every);
}

bool Sequence::IsDue() const {
  const kvevict_policy& policy = plan().policy();
  if (!has_prompt_) return policy.prompt == KVEVICT_PROMPT_INSIDE;
  return policy.every <= 1 || RoundOf(BehindPrompt()) > round_;
}

// ---- Query rows ----

QueryChunk Sequence::ChunkOf(uint32_t n_rows, uint32_t first_position) const {
  if (first_position != KVEVICT_POSITION_NEXT) {
    return {n_rows, first_position, nullptr};
  }
  const uint32_t* lengths = slots_.lengths();
  return {n_rows, logical_length(), lengths == nullptr ? nullptr : lengths + 1};
}

Status Sequence::CheckQueries(uint32_t layer, uint32_t n_rows,
                              const LayerInputs& inputs) const {
  const bool observed = inputs.queries == nullptr;
  const char* name = plan().ObservesQueries()   ? "window"
                     : inputs.n_query_rows == 0 ? "n_query_rows 0, all slots:"
                                                : "n_query_rows";
  const uint32_t number = plan().layer(layer).number;
  const LayerSlots& slots = slots_[layer];
  const ListCounts tokens = slots_.HostTokens(layer);
  for (uint32_t list = 0; list < plan().layer(layer).n_lists; ++list) {
    if (n_rows <= tokens.Of(list)) continue;
    return InvalidArgument("layer %u: %s %u > %u stored tokens", number, name,
                           n_rows, tokens.Of(list));
  }
  if (observed) KV_RETURN_IF_ERROR(ring_.CheckWindow(layer, logical_length()));
  if (slots.stored - slots.n_kept + slots.n_kept_in_row >= n_rows) {
    return Status();
  }
  SlotPositions positions;
  KV_RETURN_IF_ERROR(HostPositions(layer, &positions));
  bool whole = true;
  for (uint32_t list = 0; list < plan().layer(layer).n_lists; ++list) {
    // Positions ascend, so this one in place means that all after it are.
    whole = whole && positions.PositionOf(list, tokens.Of(list) - n_rows) ==
                         static_cast<int32_t>(logical_length() - n_rows);
  }
  if (whole) return Status();
  return Unsupported(
      "layer %u: tokens of the last %s %u positions were evicted", number, name,
      n_rows);
}

std::span<LayerInputs> Sequence::inputs() const {
  return {inputs_.data(), inputs_.size()};
}

std::span<ListReport> Sequence::list_reports() const {
  return {list_reports_.data(), list_reports_.size()};
}

std::span<kvevict_view> Sequence::views() const {
  return {views_.data(), views_.size()};
}

std::span<LayerCache> Sequence::caches() const {
  return {caches_.data(), caches_.size()};
}

std::span<LayerOutcome> Sequence::outcomes() const {
  return {outcomes_.data(), outcomes_.size()};
}

std::span<LayerEviction> Sequence::evictions() const {
  return {evictions_.data(), evictions_.size()};
}

std::span<uint32_t> Sequence::budgets() const {
  return {budgets_.data(), budgets_.size()};
}

std::span<LayerMeasure> Sequence::read_measures() const {
  return {measures_.data(), measures_.size() / 2};
}

std::span<LayerMeasure> Sequence::measures() const {
  return {measures_.data() + measures_.size() / 2, measures_.size() / 2};
}

HostCopy Sequence::host_copy() const {
  return {host_scores_.data(),
          host_keep_.data(),
          {host_jobs_.data(), host_jobs_.size()}};
}

}  // namespace kvevict
