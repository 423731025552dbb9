// Decoding goes on from a compacted cache as if the evicted tokens had been
// hidden.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>

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

// A head's K and V in a slot.
std::vector<float> RowOf(const KvCache& cache, uint32_t layer, uint32_t kv_head,
                         uint32_t slot) {
  const uint32_t dim = cache.shape().k_head_dim;
  const size_t at = (size_t{slot} * cache.shape().n_kv_heads + kv_head) * dim;
  std::vector<float> row;
  for (const void* plane : {cache.k(layer), cache.v(layer)}) {
    const auto* from = static_cast<const float*>(plane) + at;
    row.insert(row.end(), from, from + dim);
  }
  return row;
}

// Every row that was made, [layer][head][position].
using Rows = std::vector<std::vector<std::vector<std::vector<float>>>>;

// Adds the rows of the last n slots.
void AddRows(const KvCache& cache, uint32_t n, Rows& all) {
  all.resize(cache.shape().n_layers);
  for (uint32_t l = 0; l < all.size(); ++l) {
    all[l].resize(cache.shape().n_kv_heads);
    for (uint32_t h = 0; h < all[l].size(); ++h) {
      for (uint32_t i = cache.length(l) - n; i < cache.length(l); ++i) {
        all[l][h].push_back(RowOf(cache, l, h, i));
      }
    }
  }
}

// Finds out from the rows alone which positions a head still holds, hides the others
// from the oracle, and returns how many are hidden in all layers and heads.
size_t HideEvicted(const Rows& all, const KvCache& evicted,
                   LlamaOracle& oracle) {
  size_t n_hidden = 0;
  for (uint32_t l = 0; l < all.size(); ++l) {
    for (uint32_t h = 0; h < all[l].size(); ++h) {
      uint32_t slot = 0;
      for (uint32_t position = 0; position < all[l][h].size(); ++position) {
        if (slot < evicted.length(l) &&
            RowOf(evicted, l, h, slot) == all[l][h][position]) {
          ++slot;
        } else {
          oracle.Hide(l, h, position);
          ++n_hidden;
        }
      }
      cr_assert(slot == evicted.length(l),
                "layer %u, head %u: slot %u holds no row that was made", l, h,
                slot);
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

// A second eviction works on what the first one left.
Test(llama_evict, decoding_goes_on_as_if_tokens_were_hidden) {
  ThreadPool pool(2);
  LlamaModel model(Synthetic(), pool);
  const LlamaWeights weights = Synthetic();
  const std::vector<int32_t> ids = RandomIds(120, kSyntheticVocab);
  for (const char* policy : kPolicies) {
    LlamaOracle oracle(weights);
    Request request(model, policy, 20, 120, KVEVICT_DTYPE_F32, pool);
    Rows all;
    size_t at = 0;
    for (const size_t end : {80, 100}) {
      const size_t n = end - at;
      const std::vector<float> logits =
          request.Feed(std::span(ids).subspan(at, n));
      LlamaOracle::Row expected;
      while (at < end) expected = oracle.Step(ids[at++]);
      const double error =
          Error(std::span(logits).last(expected.size()), expected);
      cr_assert(error <= kTolerance, "%s, prompt of %zu: off by %g", policy,
                end, error);
      AddRows(request.cache(), static_cast<uint32_t>(n), all);
      const Evictor::Report report = request.Evict();
      cr_assert(report.evicted && report.bytes_before / report.bytes_after ==
                                      (end == 80 ? 4 : 2));
      cr_assert(HideEvicted(all, request.cache(), oracle) == 2 * 2 * (end - 20),
                "%s", policy);
    }
    for (; at < ids.size(); ++at) {
      const double error =
          Error(request.Feed({&ids[at], 1}), oracle.Step(ids[at]));
      cr_assert(error <= kTolerance, "%s, position %zu: off by %g", policy, at,
                error);
    }
    cr_assert(request.evictor().logical_length() == ids.size());
  }
}

}  // namespace
}  // namespace kvevict::tools
