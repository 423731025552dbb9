#include "tools/recall/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace kvevict::tools {
namespace {

// Long enough that every thread has several blocks of queries.
constexpr uint32_t kChunkTokens = 1024;

constexpr QueryShape kQueryShape = {.n_q_heads = kQHeads};

// The prompt and one question.
uint32_t Capacity(const Workload& workload) {
  return static_cast<uint32_t>(workload.tokens.size()) + 1;
}

}  // namespace

RecallExperiment::RecallExperiment(const Workload& workload,
                                   kvevict_dtype dtype,
                                   std::span<const kvevict_policy> policies,
                                   ThreadPool& pool, const char* simd_target)
    : workload_(workload),
      model_(Capacity(workload), pool),
      full_(RecallModel::CacheShape(dtype, Capacity(workload))),
      evicted_(full_.shape()),
      statistics_(full_.shape(), kQueryShape, RecallModel::RopeOfHeads(),
                  policies, pool, simd_target) {
  for (const kvevict_policy& policy : policies) {
    evictors_.emplace_back(full_.shape(), kQueryShape, policy, pool,
                           simd_target, RecallModel::RopeOfHeads());
  }
}

void RecallExperiment::Prefill(const std::function<void(uint32_t)>& progress) {
  const std::span<const int32_t> tokens = workload_.tokens;
  std::vector<int32_t> predictions;
  for (uint32_t done = 0; done < tokens.size();) {
    const auto chunk = tokens.subspan(
        done, std::min<size_t>(kChunkTokens, tokens.size() - done));
    const auto show_queries = [&](uint32_t layer, const float* queries,
                                  uint32_t n_rows) {
      for (Evictor& evictor : evictors_) {
        evictor.Observe(layer, queries, n_rows, done);
      }
      statistics_.Observe(layer, full_, queries, n_rows, done);
    };
    const std::vector<int32_t> next =
        model_.Forward(chunk, done, full_, show_queries);
    predictions.insert(predictions.end(), next.begin(), next.end());
    done += static_cast<uint32_t>(chunk.size());
    for (Evictor& evictor : evictors_) {
      evictor.Append(static_cast<uint32_t>(chunk.size()));
    }
    if (progress) progress(done);
  }
  inputs_ = statistics_.Inputs();
  CheckAnswers(predictions);
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

// A branch: the key follows the prompt, and is forgotten again.
int32_t RecallExperiment::Ask(int32_t key) {
  uint32_t lengths[kLayers];
  for (uint32_t l = 0; l < kLayers; ++l) lengths[l] = evicted_.length(l);
  const uint32_t position = static_cast<uint32_t>(workload_.tokens.size());
  const int32_t answer =
      model_.Forward(std::span(&key, 1), position, evicted_).front();
  for (uint32_t l = 0; l < kLayers; ++l) evicted_.set_length(l, lengths[l]);
  return answer;
}

RecallResult RecallExperiment::Evaluate(size_t i) {
  evicted_.CopyFrom(full_);
  RecallResult result;
  result.eviction = evictors_[i].Evict(evicted_, inputs_);

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
