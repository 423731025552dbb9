#include "tools/recall/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "tools/engine/policies.h"

namespace kvevict::tools {
namespace {

// Long enough to give every thread several blocks of queries.
constexpr uint32_t kChunkTokens = 1024;

constexpr QueryShape kQueryShape = {.n_q_heads = kQHeads};

// Slots for the prompt and one question.
uint32_t Capacity(const Workload& workload) {
  return static_cast<uint32_t>(workload.tokens.size()) + 1;
}

KvShape CacheShape(kvevict_dtype dtype, uint32_t n_slots,
                   const KvLayout& layout) {
  KvShape shape = RecallModel::CacheShape(dtype, n_slots);
  shape.layout = layout;
  return shape;
}

bool HasReference(const Policy& policy) {
  return policy.Number("reference") > 0;
}

}  // namespace

RecallExperiment::RecallExperiment(const Workload& workload,
                                   kvevict_dtype dtype,
                                   std::span<const Policy> policies,
                                   ThreadPool& pool, const char* simd_target,
                                   uint32_t n_decoded, const KvLayout& layout)
    : workload_(workload),
      n_prompt_(static_cast<uint32_t>(workload.tokens.size()) - n_decoded),
      decodes_(n_decoded > 0),
      policies_(policies.begin(), policies.end()),
      model_(Capacity(workload), pool, simd_target),
      full_(CacheShape(dtype, Capacity(workload), layout)),
      evicted_(full_.shape()),
      statistics_(full_.shape(), kQueryShape, RecallModel::RopeOfHeads(),
                  policies, pool, simd_target) {
  for (const Policy& policy : policies) {
    evictors_.emplace_back(full_.shape(), kQueryShape, policy, pool,
                           simd_target, RecallModel::RopeOfHeads());
    window_ = std::max(window_, WindowOf(policy));
  }
  last_queries_.resize(full_.shape().n_layers);
  if (std::none_of(policies.begin(), policies.end(), WeighsTokens)) return;
  weights_.assign(kLayers, std::vector<float>(size_t{kKvHeads} * n_prompt_));
  for (const std::vector<float>& weights : weights_) {
    kvevict_plane plane = {};
    plane.data = reinterpret_cast<uintptr_t>(weights.data());
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = 1;
    plane.token_stride_bytes = sizeof(float);
    plane.head_stride_bytes = int64_t{n_prompt_} * plane.token_stride_bytes;
    weight_planes_.push_back(plane);
  }
}

void RecallExperiment::ObserveValues(uint32_t layer, const float* values,
                                     uint32_t n_rows, uint32_t first) {
  if (weights_.empty()) return;
  const std::vector<float> norms = model_.ProjectedNorms(layer, values, n_rows);
  for (size_t i = 0; i < norms.size(); ++i) {
    weights_[layer][i % kKvHeads * n_prompt_ + first + i / kKvHeads] = norms[i];
  }
}

void RecallExperiment::Prefill(const std::function<void(uint32_t)>& progress) {
  const std::span<const int32_t> tokens = workload_.tokens;
  const size_t row = size_t{kQHeads} * full_.shape().k_head_dim;
  std::vector<int32_t> predictions;
  for (uint32_t done = 0; done < tokens.size();) {
    const bool in_prompt = done < n_prompt_;
    const auto chunk = tokens.subspan(
        done, std::min<size_t>(kChunkTokens,
                               (in_prompt ? n_prompt_ : tokens.size()) - done));
    const auto show_queries = [&](uint32_t layer, const float* queries,
                                  const float* values, uint32_t n_rows) {
      ObserveValues(layer, values, n_rows, done);
      statistics_.Observe(layer, full_, queries, n_rows, done);
      for (size_t i = 0; i < evictors_.size(); ++i) {
        evictors_[i].Observe(layer, queries, n_rows, done);
        if (!decodes_ || !WantsSums(policies_[i])) continue;
        evictors_[i].ObserveSums(layer, statistics_.LastSums(layer), n_rows,
                                 done);
      }
      std::vector<float>& last = last_queries_[layer];
      last.insert(last.end(), queries, queries + n_rows * row);
      const size_t n = std::min(last.size(), window_ * row);
      last.erase(last.begin(), last.end() - static_cast<std::ptrdiff_t>(n));
    };
    // Tokens that are decoded later are read here too, for their answers.
    const std::vector<int32_t> next = model_.Forward(
        chunk, done, full_,
        in_prompt ? RecallModel::QueryObserver(show_queries) : nullptr);
    predictions.insert(predictions.end(), next.begin(), next.end());
    done += static_cast<uint32_t>(chunk.size());
    for (Evictor& evictor : evictors_) {
      if (in_prompt) evictor.Append(static_cast<uint32_t>(chunk.size()));
    }
    if (progress) progress(done);
  }
  for (uint32_t l = 0; l < kLayers; ++l) full_.set_length(l, n_prompt_);
  const std::span<const kvevict_signal_inputs> inputs = statistics_.Inputs();
  inputs_.assign(inputs.begin(), inputs.end());
  for (size_t l = 0; l < weights_.size(); ++l) {
    inputs_[l].token_weights = &weight_planes_[l];
  }
  CheckAnswers(predictions);
  AskAhead();
}

void RecallExperiment::AskAhead() {
  if (std::none_of(policies_.begin(), policies_.end(), HasReference)) return;
  const size_t row = size_t{kQHeads} * full_.shape().k_head_dim;
  reference_.resize(kLayers);
  reference_planes_.resize(kLayers);
  const auto keep_queries = [&](uint32_t layer, const float* queries,
                                const float*, uint32_t n_rows) {
    reference_[layer].insert(reference_[layer].end(), queries,
                             queries + n_rows * row);
  };
  const auto position = static_cast<uint32_t>(workload_.tokens.size());
  for (const Needle& needle : workload_.needles) {
    if (needle.asked) continue;
    model_.Forward(std::span(&needle.key, 1), position, full_, keep_queries);
    for (uint32_t l = 0; l < kLayers; ++l) full_.set_length(l, n_prompt_);
  }
  for (uint32_t l = 0; l < kLayers; ++l) {
    reference_planes_[l] =
        kvevict_plane_token_major(reference_[l].data(), KVEVICT_DTYPE_F32,
                                  kQHeads, full_.shape().k_head_dim);
  }
}

void RecallExperiment::GiveReference(size_t i,
                                     std::span<kvevict_signal_inputs> inputs) {
  if (!HasReference(policies_[i])) return;
  for (uint32_t l = 0; l < kLayers; ++l) {
    inputs[l].n_reference_rows =
        static_cast<uint32_t>(policies_[i].Number("reference"));
    inputs[l].reference_queries = &reference_planes_[l];
  }
}

void RecallExperiment::CheckAnswers(
    std::span<const int32_t> predictions) const {
  for (uint32_t i = 0; i < kQuestions; ++i) {
    const Needle& needle = workload_.needles[workload_.questions[i]];
    const int32_t answer = predictions[workload_.QuestionPosition(i)];
    if (answer != needle.value) {
      throw std::runtime_error(
          fmt::format("the full cache answers key {} with {} instead of {}",
                      needle.key, answer, needle.value));
    }
  }
}

// Asks in a branch: the key follows the prompt, and is then forgotten again.
int32_t RecallExperiment::Ask(int32_t key) {
  uint32_t lengths[kLayers];
  for (uint32_t l = 0; l < kLayers; ++l) lengths[l] = evicted_.length(l);
  const uint32_t position = static_cast<uint32_t>(workload_.tokens.size());
  const int32_t answer =
      model_.Forward(std::span(&key, 1), position, evicted_).front();
  for (uint32_t l = 0; l < kLayers; ++l) evicted_.set_length(l, lengths[l]);
  return answer;
}

void RecallExperiment::Decode(size_t i, RecallResult* result) {
  Evictor& evictor = evictors_[i];
  evictor.EndPrompt();
  std::vector<kvevict_signal_inputs> inputs(inputs_.begin(), inputs_.end());
  for (kvevict_signal_inputs& layer : inputs) layer.attention_sums = nullptr;
  GiveReference(i, inputs);
  for (uint32_t t = n_prompt_; t < workload_.tokens.size(); ++t) {
    const auto show_queries = [&](uint32_t layer, const float* queries,
                                  const float*, uint32_t n_rows) {
      evictor.Observe(layer, queries, n_rows, t);
      if (!WantsSums(policies_[i])) return;
      evictor.ObserveSums(layer,
                          statistics_.SumsOf(layer, evicted_, queries, n_rows),
                          n_rows, t);
    };
    model_.Forward(std::span(&workload_.tokens[t], 1), t, evicted_,
                   show_queries);
    evictor.Append(1);
    const Evictor::Report report = evictor.Evict(evicted_, inputs);
    if (!report.evicted) continue;
    ++result->evictions.n;
    result->evictions.milliseconds += report.milliseconds;
  }
  result->evictions.bytes_at_end = evicted_.bytes_in_use();
}

uint32_t RecallExperiment::BudgetForMass(size_t i, double mass) {
  std::vector<kvevict_signal_inputs> inputs(inputs_.begin(), inputs_.end());
  std::vector<kvevict_plane> windows(inputs.size());
  const uint32_t window = WindowOf(policies_[i]);
  const int64_t head_bytes = full_.shape().k_head_dim * int64_t{sizeof(float)};
  for (size_t l = 0; l < inputs.size(); ++l) {
    if (!WantsAllQueries(policies_[i])) inputs[l].queries = nullptr;
    if (window == 0) continue;
    const std::vector<float>& rows = last_queries_[l];
    windows[l].token_stride_bytes = head_bytes * kQHeads;
    windows[l].head_stride_bytes = head_bytes;
    windows[l].data =
        reinterpret_cast<uintptr_t>(rows.data()) + rows.size() * sizeof(float) -
        static_cast<uint64_t>(window * windows[l].token_stride_bytes);
    windows[l].dtype = KVEVICT_DTYPE_F32;
    windows[l].head_dim = full_.shape().k_head_dim;
    inputs[l].queries = &windows[l];
  }
  GiveReference(i, inputs);
  return evictors_[i].BudgetForMass(mass, full_, inputs);
}

RecallResult RecallExperiment::Evaluate(size_t i) {
  evicted_.CopyFrom(full_);
  RecallResult result;
  result.evictions.to_f32 = evicted_.times_smaller_than_f32();
  std::vector<kvevict_signal_inputs> inputs(inputs_.begin(), inputs_.end());
  GiveReference(i, inputs);
  result.evictions.of_prompt = evictors_[i].Evict(evicted_, inputs);
  if (decodes_) Decode(i, &result);

  uint32_t found_asked = 0;
  uint32_t found_unasked = 0;
  const auto start = std::chrono::steady_clock::now();
  for (const Needle& needle : workload_.needles) {
    if (Ask(needle.key) != needle.value) continue;
    ++(needle.asked ? found_asked : found_unasked);
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  result.asked = static_cast<double>(found_asked) / kQuestions;
  result.unasked = static_cast<double>(found_unasked) / (kNeedles - kQuestions);
  result.decode_tokens_per_s = kNeedles / seconds.count();
  return result;
}

}  // namespace kvevict::tools
