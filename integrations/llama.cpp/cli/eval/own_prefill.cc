#include "own_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "tools/engine/evictor.h"
#include "tools/engine/policies.h"
#include "tools/engine/query_statistics.h"

namespace kvevict::llama_cli::eval {
namespace {

using tools::Evictor;
using tools::KvCache;
using tools::LlamaModel;

void SetLengths(KvCache& cache, uint32_t n_slots) {
  for (uint32_t l = 0; l < cache.shape().n_layers; ++l) {
    cache.set_length(l, n_slots);
  }
}

// The norms of V Wo that weigh tokens, and planes of them, per layer.
struct TokenWeights {
  TokenWeights(const LlamaModel& model, const KvCache& cache)
      : norms(cache.shape().n_layers), planes(norms.size()) {
    for (uint32_t l = 0; l < norms.size(); ++l) {
      const uint32_t n = cache.length(l);
      norms[l] =
          model.ProjectedNorms(l, static_cast<const float*>(cache.v(l)), n);
      planes[l] = KVEVICT_PLANE_INIT;
      planes[l].data = reinterpret_cast<uintptr_t>(norms[l].data());
      planes[l].dtype = KVEVICT_DTYPE_F32;
      planes[l].head_dim = 1;
      planes[l].token_stride_bytes = sizeof(float);
      planes[l].head_stride_bytes = int64_t{n} * sizeof(float);
    }
  }
  std::vector<std::vector<float>> norms;
  std::vector<kvevict_plane> planes;
};

}  // namespace

OwnPrefill::OwnPrefill(LlamaModel& model, std::span<const Candidate> candidates,
                       std::span<const llama_token> question,
                       tools::ThreadPool& pool, uint32_t n_prompt,
                       uint32_t n_behind, Progress progress)
    : model_(model),
      pool_(pool),
      progress_(std::move(progress)),
      question_(question.begin(), question.end()),
      full_(model.CacheShape(
          KVEVICT_DTYPE_F32,
          n_prompt + n_behind + static_cast<uint32_t>(question.size()))),
      evicted_(full_.shape()),
      queries_(full_.shape().n_layers) {
  for (const Candidate& c : candidates) {
    policies_.emplace_back(c.text);
    if (policies_.back().Number("reference") <= double(question.size())) {
      continue;
    }
    throw std::runtime_error(fmt::format(
        "policy \"{}\": reference {} > {} tokens of --question", c.text,
        policies_.back().Get("reference"), question.size()));
  }
}

std::vector<std::vector<float>> OwnPrefill::ReferenceQueries(uint32_t n_rows) {
  const size_t n =
      size_t{n_rows} * model_.config().n_q_heads * model_.config().head_dim;
  std::vector<std::vector<float>> rows(queries_.size());
  if (n_rows == 0) return rows;
  const auto observe = [&](uint32_t layer, const float* queries,
                           uint32_t n_tokens, uint32_t) {
    rows[layer].insert(rows[layer].end(), queries,
                       queries + n / n_rows * n_tokens);
  };
  Feed(full_, question_, length_, question_.size(), observe);
  SetLengths(full_, length_);
  for (std::vector<float>& of_layer : rows) {
    of_layer.erase(of_layer.begin(),
                   of_layer.end() - static_cast<std::ptrdiff_t>(n));
  }
  return rows;
}

std::vector<float> OwnPrefill::Feed(KvCache& cache,
                                    std::span<const llama_token> tokens,
                                    uint32_t at, size_t first,
                                    const tools::QueryObserver& observe) {
  std::vector<float> logits;
  for (size_t done = 0; done < tokens.size();) {
    const bool wanted = done >= first;
    const size_t end = wanted ? tokens.size() : std::min(first, tokens.size());
    const size_t n = std::min<size_t>(LlamaModel::kMaxChunk, end - done);
    const size_t n_before = logits.size();
    logits.resize(n_before + (wanted ? n * n_vocab() : 0));
    model_.Forward(tokens.subspan(done, n), static_cast<uint32_t>(at + done),
                   cache, std::span(logits).subspan(n_before), observe);
    done += n;
    if (progress_) progress_(n);
  }
  return logits;
}

void OwnPrefill::Read(std::span<const llama_token> prompt) {
  TakeBack(0);
  ReadOn(prompt, prompt.size());
}

std::vector<float> OwnPrefill::ReadOn(std::span<const llama_token> tokens,
                                      size_t first) {
  const size_t row =
      size_t{model_.config().n_q_heads} * model_.config().head_dim;
  const auto observe = [&](uint32_t layer, const float* queries,
                           uint32_t n_rows, uint32_t) {
    queries_[layer].insert(queries_[layer].end(), queries,
                           queries + n_rows * row);
  };
  std::vector<float> logits = Feed(full_, tokens, length_, first, observe);
  length_ += static_cast<uint32_t>(tokens.size());
  return logits;
}

void OwnPrefill::TakeBack(uint32_t length) {
  const size_t row =
      size_t{model_.config().n_q_heads} * model_.config().head_dim;
  for (std::vector<float>& queries : queries_) queries.resize(length * row);
  SetLengths(full_, length);
  length_ = length;
}

kvevict_llama_report OwnPrefill::EvictBy(const tools::Policy& policy) {
  Evictor& evictor = evictor_.emplace(full_.shape(), model_.HeadShape(), policy,
                                      pool_, nullptr, model_.RopeOfHeads(),
                                      /*reports_mass=*/true);
  tools::QueryStatistics statistics(full_.shape(), model_.HeadShape(),
                                    model_.RopeOfHeads(), {&policy, 1}, pool_);
  for (uint32_t l = 0; l < queries_.size(); ++l) {
    evictor.Observe(l, queries_[l].data(), length_, 0);
    statistics.Observe(l, full_, queries_[l].data(), length_, 0);
  }
  evictor.Append(length_);
  const auto found = statistics.Inputs();
  std::vector<kvevict_signal_inputs> inputs(found.begin(), found.end());
  std::optional<TokenWeights> weights;
  if (tools::WeighsTokens(policy)) {
    weights.emplace(model_, full_);
    for (size_t l = 0; l < inputs.size(); ++l) {
      inputs[l].token_weights = &weights->planes[l];
    }
  }
  const auto n_reference = static_cast<uint32_t>(policy.Number("reference"));
  const std::vector<std::vector<float>> reference =
      ReferenceQueries(n_reference);
  std::vector<kvevict_plane> planes(inputs.size(), KVEVICT_PLANE_INIT);
  for (size_t l = 0; n_reference > 0 && l < inputs.size(); ++l) {
    planes[l] = kvevict_plane_token_major(
        reference[l].data(), KVEVICT_DTYPE_F32, model_.config().n_q_heads,
        model_.config().head_dim);
    inputs[l].n_reference_rows = n_reference;
    inputs[l].reference_queries = &planes[l];
  }
  const Evictor::Report done = evictor.Evict(evicted_, inputs);
  kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
  report.evicted = done.evicted ? 1 : 0;
  report.bytes_before = done.bytes_before;
  report.total_ms = report.evict_ms = done.milliseconds;
  report.mass_kept = done.evicted ? evictor.MassKept() : 1;
  return report;
}

kvevict_llama_report OwnPrefill::Evict(size_t candidate) {
  const bool has_biases = candidate < policies_.size() &&
                          policies_[candidate].Get("fit") == "bias-values";
  if (has_biases != evicted_.shape().has_biases) {
    tools::KvShape shape = full_.shape();
    shape.has_biases = has_biases;
    evicted_ = KvCache(shape);
  }
  evicted_.CopyFrom(full_);
  evicted_at_ = evicted_length_ = length_;
  kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
  if (candidate < policies_.size()) report = EvictBy(policies_[candidate]);
  report.cells_before = length_;
  report.bytes_after = evicted_.bytes_in_use();
  slots_.clear();
  for (uint32_t l = 0; l < queries_.size(); ++l) {
    slots_.push_back(evicted_.length(l));
    report.cells_after = std::max(report.cells_after, slots_.back());
  }
  return report;
}

const kvevict_sequence* OwnPrefill::Evicted() const {
  return evictor_->sequence();
}

std::vector<float> OwnPrefill::Continue(std::span<const llama_token> tokens,
                                        size_t first) {
  std::vector<float> logits =
      Feed(evicted_, tokens, evicted_length_, first, nullptr);
  evicted_length_ += static_cast<uint32_t>(tokens.size());
  return logits;
}

void OwnPrefill::TakeBackContinued() {
  for (uint32_t l = 0; l < slots_.size(); ++l) {
    evicted_.set_length(l, slots_[l]);
  }
  evicted_length_ = evicted_at_;
}

}  // namespace kvevict::llama_cli::eval
