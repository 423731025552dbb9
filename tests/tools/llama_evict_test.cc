// Decoding goes on from a compacted cache as if the evicted tokens had been
// hidden.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/tools/llama_oracle.h"
#include "tests/tools/llama_synthetic.h"
#include "tools/engine/evictor.h"
#include "tools/engine/policies.h"
#include "tools/llama/model.h"

namespace kvevict::tools {
namespace {

constexpr const char* kPolicies[] = {
    "streaming-llm",
    "snapkv:window=8",
    "pyramidkv:window=8",
    "random:sink=0,recent=8,seed=5",
    "snapkv:window=8,scope=layer",
};

// A request in an engine, step by step.
class Request {
 public:
  Request(LlamaModel& model, const std::string& policy, double budget,
          uint32_t capacity, kvevict_dtype dtype, ThreadPool& pool)
      : model_(model),
        cache_(model.CacheShape(dtype, capacity)),
        evictor_(cache_.shape(), {.n_q_heads = model.config().n_q_heads},
                 ParsePolicy(policy, budget), pool) {}

  // Logits of every token fed.
  std::vector<float> Feed(std::span<const int32_t> ids) {
    std::vector<float> logits(ids.size() * model_.config().vocab_size);
    model_.Forward(ids, evictor_.logical_length(), cache_, logits,
                   [this](uint32_t layer, const float* queries, uint32_t n_rows,
                          uint32_t first_position) {
                     evictor_.Observe(layer, queries, n_rows, first_position);
                   });
    evictor_.Append(static_cast<uint32_t>(ids.size()));
    return logits;
  }

  Evictor::Report Evict() { return evictor_.Evict(cache_); }

  KvCache& cache() { return cache_; }
  const Evictor& evictor() const { return evictor_; }

 private:
  LlamaModel& model_;
  KvCache cache_;
  Evictor evictor_;
};

std::span<const uint8_t> Row(const KvCache& cache, bool values, uint32_t layer,
                             uint32_t kv_head, uint32_t slot) {
  const KvShape& shape = cache.shape();
  const void* base = values ? cache.v(layer) : cache.k(layer);
  const size_t row_bytes = values ? cache.v_row_bytes() : cache.k_row_bytes();
  const size_t head_bytes = row_bytes / shape.n_kv_heads;
  return {static_cast<const uint8_t*>(base) + slot * row_bytes +
              kv_head * head_bytes,
          head_bytes};
}

bool SameRow(const KvCache& a, uint32_t a_slot, const KvCache& b,
             uint32_t b_slot, uint32_t layer, uint32_t kv_head) {
  for (const bool values : {false, true}) {
    if (!std::ranges::equal(Row(a, values, layer, kv_head, a_slot),
                            Row(b, values, layer, kv_head, b_slot))) {
      return false;
    }
  }
  return true;
}

// Finds out from the bytes alone which positions a head still holds, hides the
// others from the oracle, and returns how many there are in all layers and
// heads. `full` never evicts, so there slot equals position.
size_t HideEvicted(const KvCache& full, const KvCache& evicted,
                   LlamaOracle& oracle) {
  size_t n_hidden = 0;
  for (uint32_t l = 0; l < full.shape().n_layers; ++l) {
    for (uint32_t h = 0; h < full.shape().n_kv_heads; ++h) {
      uint32_t slot = 0;
      for (uint32_t position = 0; position < full.length(l); ++position) {
        if (slot < evicted.length(l) &&
            SameRow(evicted, slot, full, position, l, h)) {
          ++slot;
        } else {
          oracle.Hide(l, h, position);
          ++n_hidden;
        }
      }
      cr_assert(slot == evicted.length(l),
                "layer %u, head %u: slot %u holds no row of the full cache", l,
                h, slot);
    }
  }
  return n_hidden;
}

// The largest difference, relative to the largest logit.
double Error(std::span<const float> logits, const LlamaOracle::Row& expected) {
  double worst = 0;
  double largest = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    worst = std::max(worst, std::abs(logits[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

// llama_model_test.cc derives it.
constexpr double kTolerance = 32 * 0x1p-24;

Test(llama_evict, a_budget_for_all_changes_no_byte) {
  ThreadPool pool(2);
  LlamaModel model(Synthetic(), pool);
  const std::vector<int32_t> ids = RandomIds(80, kSyntheticVocab);
  const auto prompt = std::span(ids).first(64);
  for (const kvevict_dtype dtype :
       {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16, KVEVICT_DTYPE_BF16}) {
    Request full(model, "none", 1.0, 80, dtype, pool);
    full.Feed(prompt);
    const std::vector<float> expected = full.Feed(std::span(ids).subspan(64));
    for (const char* policy : kPolicies) {
      for (const double budget : {1.0, 64.0, 1000.0}) {
        Request request(model, policy, budget, 80, dtype, pool);
        request.Feed(prompt);
        const Evictor::Report report = request.Evict();
        cr_expect(!report.evicted && report.bytes_after == report.bytes_before);
        const std::vector<float> logits =
            request.Feed(std::span(ids).subspan(64));
        cr_expect(logits == expected, "%s, budget %g", policy, budget);
        for (uint32_t l = 0; l < 2; ++l) {
          cr_assert(request.cache().length(l) == 80);
          const size_t k_bytes = 80 * full.cache().k_row_bytes();
          const size_t v_bytes = 80 * full.cache().v_row_bytes();
          cr_expect(
              !std::memcmp(request.cache().k(l), full.cache().k(l), k_bytes) &&
                  !std::memcmp(request.cache().v(l), full.cache().v(l),
                               v_bytes),
              "%s, budget %g", policy, budget);
        }
      }
    }
  }
}

Test(llama_evict, decoding_goes_on_as_if_tokens_were_hidden) {
  ThreadPool pool(2);
  LlamaModel model(Synthetic(), pool);
  const LlamaWeights weights = Synthetic();
  const std::vector<int32_t> ids = RandomIds(96, kSyntheticVocab);
  const auto prompt = std::span(ids).first(80);
  Request full(model, "none", 1.0, 96, KVEVICT_DTYPE_F32, pool);
  full.Feed(prompt);
  for (const char* policy : kPolicies) {
    LlamaOracle oracle(weights);
    for (const int32_t id : prompt) oracle.Step(id);
    Request request(model, policy, 20, 96, KVEVICT_DTYPE_F32, pool);
    request.Feed(prompt);
    const Evictor::Report report = request.Evict();
    cr_assert(report.evicted);
    const size_t n_hidden = HideEvicted(full.cache(), request.cache(), oracle);
    cr_assert(n_hidden == 2 * 2 * (80 - 20), "%s: %zu", policy, n_hidden);
    cr_assert(report.bytes_before == 4 * report.bytes_after);

    for (uint32_t i = 80; i < 96; ++i) {
      const std::vector<float> logits = request.Feed({&ids[i], 1});
      const double error = Error(logits, oracle.Step(ids[i]));
      cr_assert(error <= kTolerance, "%s, position %u: off by %g", policy, i,
                error);
    }
    cr_assert(request.evictor().logical_length() == 96);
  }
}

// The test above would fail if an engine took the slot for the position.
Test(llama_evict, a_wrong_position_would_show) {
  ThreadPool pool(2);
  LlamaModel model(Synthetic(), pool);
  const LlamaWeights weights = Synthetic();
  const std::vector<int32_t> ids = RandomIds(81, kSyntheticVocab);
  const auto prompt = std::span(ids).first(80);
  LlamaOracle oracle(weights);
  for (const int32_t id : prompt) oracle.Step(id);
  Request full(model, "none", 1.0, 81, KVEVICT_DTYPE_F32, pool);
  full.Feed(prompt);
  Request request(model, "snapkv:window=8", 20, 81, KVEVICT_DTYPE_F32, pool);
  request.Feed(prompt);
  request.Evict();
  HideEvicted(full.cache(), request.cache(), oracle);
  const LlamaOracle::Row expected = oracle.Step(ids[80]);
  for (const uint32_t position : {20u, 79u, 81u}) {
    std::vector<float> logits(model.config().vocab_size);
    KvCache copy(request.cache().shape());
    copy.CopyFrom(request.cache());
    model.Forward({&ids[80], 1}, position, copy, logits);
    const double error = Error(logits, expected);
    cr_expect(error > 1000 * kTolerance, "position %u: off by only %g",
              position, error);
  }
}

Test(llama_evict, a_second_eviction_works_on_the_first) {
  ThreadPool pool(2);
  LlamaModel model(Synthetic(), pool);
  const LlamaWeights weights = Synthetic();
  const std::vector<int32_t> ids = RandomIds(120, kSyntheticVocab);
  for (const char* policy : {"snapkv:window=8", "pyramidkv:window=8"}) {
    LlamaOracle oracle(weights);
    Request request(model, policy, 24, 120, KVEVICT_DTYPE_F32, pool);
    // Holds every row ever made, so that HideEvicted can name them: rows
    // written after the first eviction differ from those of a run without one.
    KvCache all(request.cache().shape());
    size_t at = 0;
    for (const size_t end : {60, 100}) {
      const uint32_t before[] = {request.cache().length(0),
                                 request.cache().length(1)};
      const size_t n = end - at;
      request.Feed(std::span(ids).subspan(at, n));
      while (at < end) oracle.Step(ids[at++]);
      for (uint32_t l = 0; l < 2; ++l) {
        const auto* k = static_cast<const float*>(request.cache().k(l));
        const auto* v = static_cast<const float*>(request.cache().v(l));
        const size_t width = request.cache().k_row_bytes() / sizeof(float);
        all.Append(l, static_cast<uint32_t>(n), k + before[l] * width, width,
                   v + before[l] * width, width);
      }
      cr_assert(request.Evict().evicted);
      HideEvicted(all, request.cache(), oracle);
    }
    for (uint32_t i = 100; i < 120; ++i) {
      const double error =
          Error(request.Feed({&ids[i], 1}), oracle.Step(ids[i]));
      cr_assert(error <= kTolerance, "%s, position %u: off by %g", policy, i,
                error);
    }
  }
}

}  // namespace
}  // namespace kvevict::tools
