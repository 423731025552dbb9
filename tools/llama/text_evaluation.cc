#include "tools/llama/text_evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "tools/engine/policies.h"
#include "tools/llama/log_softmax.h"

namespace kvevict::tools {
namespace {

std::vector<uint32_t> Lengths(const KvCache& cache) {
  std::vector<uint32_t> lengths(cache.shape().n_layers);
  for (uint32_t l = 0; l < lengths.size(); ++l) lengths[l] = cache.length(l);
  return lengths;
}

// Forgets the rows that were appended since; earlier ones were not changed.
void Rewind(KvCache& cache, const std::vector<uint32_t>& lengths) {
  for (uint32_t l = 0; l < lengths.size(); ++l) {
    cache.set_length(l, lengths[l]);
  }
}

uint32_t Capacity(const TextTask& task, uint32_t n_greedy) {
  const size_t n_decoded =
      std::max<size_t>({task.following.size(), task.question.size(), n_greedy});
  return static_cast<uint32_t>(task.prompt.size() + n_decoded);
}

KvShape CacheShape(const LlamaModel& model, kvevict_dtype dtype,
                   uint32_t n_slots, const KvLayout& layout) {
  KvShape shape = model.CacheShape(dtype, n_slots);
  shape.layout = layout;
  return shape;
}

}  // namespace

TextEvaluation::TextEvaluation(LlamaModel& model, TextTask task,
                               kvevict_dtype dtype,
                               const std::vector<Policy>& policies,
                               uint32_t n_greedy, ThreadPool& pool,
                               const char* simd_target, const KvLayout& layout)
    : model_(model),
      task_(std::move(task)),
      n_greedy_(n_greedy),
      full_cache_(CacheShape(model, dtype, Capacity(task_, n_greedy), layout)),
      evicted_cache_(full_cache_.shape()),
      statistics_(full_cache_.shape(), model.HeadShape(), model.RopeOfHeads(),
                  policies, pool, simd_target) {
  for (const Policy& policy : policies) {
    evictors_.push_back(std::make_unique<Evictor>(
        full_cache_.shape(), model.HeadShape(), policy, pool, simd_target,
        model.RopeOfHeads()));
    add_sums_.push_back(task_.evicts_while_decoding && WantsSums(policy));
    n_reference_.push_back(static_cast<uint32_t>(policy.Number("reference")));
  }
}

void TextEvaluation::Prefill(const Progress& progress) {
  const QueryObserver observe = [this](uint32_t layer, const float* queries,
                                       uint32_t n_rows,
                                       uint32_t first_position) {
    for (auto& evictor : evictors_) {
      evictor->Observe(layer, queries, n_rows, first_position);
    }
    statistics_.Observe(layer, full_cache_, queries, n_rows, first_position);
    for (size_t i = 0; i < evictors_.size(); ++i) {
      if (!add_sums_[i]) continue;
      evictors_[i]->ObserveSums(layer, statistics_.LastSums(layer), n_rows,
                                first_position);
    }
  };
  prompt_logits_.resize(model_.config().vocab_size);
  const std::span<const int32_t> prompt = task_.prompt;
  for (size_t done = 0; done < prompt.size();) {
    const size_t n =
        std::min<size_t>(LlamaModel::kMaxChunk, prompt.size() - done);
    const bool last = done + n == prompt.size();
    model_.Forward(
        prompt.subspan(done, n), static_cast<uint32_t>(done), full_cache_,
        last ? std::span(prompt_logits_) : std::span<float>(), observe);
    for (auto& evictor : evictors_) {
      evictor->Append(static_cast<uint32_t>(n));
    }
    done += n;
    if (progress) progress(static_cast<uint32_t>(done));
  }
  inputs_ = statistics_.Inputs();
  decoding_inputs_.assign(inputs_.begin(), inputs_.end());
  for (kvevict_signal_inputs& layer : decoding_inputs_) {
    layer.attention_sums = nullptr;
  }
  AskQuestion();
  const std::vector<uint32_t> lengths = Lengths(full_cache_);
  full_ = Predict(full_cache_);
  Rewind(full_cache_, lengths);
}

void TextEvaluation::AskQuestion() {
  question_queries_.resize(full_cache_.shape().n_layers);
  const size_t row =
      size_t{model_.config().n_q_heads} * full_cache_.shape().k_head_dim;
  const QueryObserver observe = [&](uint32_t layer, const float* queries,
                                    uint32_t n_rows, uint32_t) {
    question_queries_[layer].insert(question_queries_[layer].end(), queries,
                                    queries + n_rows * row);
  };
  const std::vector<uint32_t> lengths = Lengths(full_cache_);
  uint32_t position = static_cast<uint32_t>(task_.prompt.size());
  for (const int32_t& token : task_.question) {
    model_.Forward({&token, 1}, position++, full_cache_, {}, observe);
  }
  Rewind(full_cache_, lengths);
}

std::vector<kvevict_signal_inputs> TextEvaluation::WithReference(
    size_t policy, std::span<const kvevict_signal_inputs> inputs) {
  std::vector<kvevict_signal_inputs> with(inputs.begin(), inputs.end());
  const uint32_t n_rows = n_reference_[policy];
  if (n_rows == 0) return with;
  const KvShape& shape = full_cache_.shape();
  with.resize(shape.n_layers, KVEVICT_SIGNAL_INPUTS_INIT);
  reference_planes_.resize(shape.n_layers);
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const std::vector<float>& rows = question_queries_[l];
    const size_t n =
        size_t{n_rows} * model_.config().n_q_heads * shape.k_head_dim;
    reference_planes_[l] =
        kvevict_plane_token_major(&rows[rows.size() - n], KVEVICT_DTYPE_F32,
                                  model_.config().n_q_heads, shape.k_head_dim);
    with[l].n_reference_rows = n_rows;
    with[l].reference_queries = &reference_planes_[l];
  }
  return with;
}

TextResult TextEvaluation::Evaluate(size_t index) {
  evicted_cache_.CopyFrom(full_cache_);
  TextResult result;
  result.evictions.to_f32 = evicted_cache_.times_smaller_than_f32();
  result.evictions.of_prompt =
      evictors_[index]->Evict(evicted_cache_, WithReference(index, inputs_));

  const std::vector<uint32_t> lengths = Lengths(evicted_cache_);
  result.greedy = ContinueGreedily(evicted_cache_);
  Rewind(evicted_cache_, lengths);
  std::optional<size_t> evictor;
  if (task_.evicts_while_decoding) {
    evictor = index;
    evictors_[index]->EndPrompt();
  }
  const Predictions predictions = Predict(evicted_cache_, &result, evictor);
  result.decode_tokens_per_s = n_predictions() / predictions.seconds;
  result.evictions.bytes_at_end = evicted_cache_.bytes_in_use();
  Compare(predictions.logits, result);
  return result;
}

// Decodes after an eviction: the position continues from the prompt's length,
// and the slot is the next one in the layer.
TextEvaluation::Predictions TextEvaluation::Predict(
    KvCache& cache, TextResult* result, std::optional<size_t> index) {
  Evictor* const evictor = index ? evictors_[*index].get() : nullptr;
  std::vector<kvevict_signal_inputs> inputs;
  if (index) inputs = WithReference(*index, decoding_inputs_);
  const QueryObserver observe = [&](uint32_t layer, const float* queries,
                                    uint32_t n_rows, uint32_t first_position) {
    evictor->Observe(layer, queries, n_rows, first_position);
    if (!add_sums_[*index]) return;
    evictor->ObserveSums(layer,
                         statistics_.SumsOf(layer, cache, queries, n_rows),
                         n_rows, first_position);
  };
  const size_t vocab_size = model_.config().vocab_size;
  Predictions predictions;
  predictions.logits.resize(n_predictions() * vocab_size);
  const std::span<float> logits = predictions.logits;
  uint32_t position = static_cast<uint32_t>(task_.prompt.size());

  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < n_predictions(); ++i) {
    model_.Forward({&task_.following[i], 1}, position++, cache,
                   logits.subspan(i * vocab_size, vocab_size),
                   evictor == nullptr ? nullptr : observe);
    if (evictor == nullptr) continue;
    evictor->Append(1);
    const Evictor::Report report = evictor->Evict(cache, inputs);
    if (!report.evicted) continue;
    ++result->evictions.n;
    result->evictions.milliseconds += report.milliseconds;
  }
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - start;
  predictions.seconds = elapsed.count();
  return predictions;
}

std::vector<int32_t> TextEvaluation::ContinueGreedily(KvCache& cache) {
  std::vector<float> logits = prompt_logits_;
  std::vector<int32_t> ids;
  uint32_t position = static_cast<uint32_t>(task_.prompt.size());
  while (ids.size() < n_greedy_) {
    ids.push_back(ArgMax(logits));
    if (ids.size() == n_greedy_) break;
    model_.Forward({&ids.back(), 1}, position++, cache, logits);
  }
  return ids;
}

void TextEvaluation::Compare(const std::vector<float>& logits,
                             TextResult& result) const {
  const size_t vocab_size = model_.config().vocab_size;
  for (size_t i = 0; i < n_predictions(); ++i) {
    const auto full =
        std::span(full_.logits).subspan(i * vocab_size, vocab_size);
    const auto evicted = std::span(logits).subspan(i * vocab_size, vocab_size);
    result.kl += KlDivergence(full, evicted);
    result.agreement += ArgMax(full) == ArgMax(evicted) ? 1 : 0;
    result.nll -= LogSoftmax(evicted, task_.following[i + 1]);
  }
  result.kl /= n_predictions();
  result.agreement /= n_predictions();
  result.nll /= n_predictions();
}

}  // namespace kvevict::tools
