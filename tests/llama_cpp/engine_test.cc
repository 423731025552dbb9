// llama.cpp with the adapter and the engine of `eval --own-engine` keep the same
// tokens of the same file, text and policy, and predict the same.
#include <criterion/criterion.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ggml_weights.h"
#include "tests/llama_cpp/session.h"
#include "tests/paths.h"
#include "tools/engine/evictor.h"
#include "tools/engine/policies.h"
#include "tools/engine/thread_pool.h"
#include "tools/llama/log_softmax.h"
#include "tools/llama/model.h"

namespace kvevict::tests {
namespace {

using kvevict::tools::ArgMax;
using kvevict::tools::Evictor;
using kvevict::tools::KlDivergence;
using kvevict::tools::KvCache;
using kvevict::tools::LlamaModel;

const std::string kModel =
    std::string(test_shared_dir) + "/models/english800k.gguf";
const std::string kText = std::string(test_shared_dir) + "/texts/alice29.txt";
constexpr uint32_t kPrompt = 600, kFollowing = 24, kBudget = 150;

using Logits = std::vector<std::vector<float>>;

class Engine {
 public:
  Engine(LlamaModel& model, const std::string& policy,
         kvevict::tools::ThreadPool& pool)
      : model_(model),
        cache_(model.CacheShape(KVEVICT_DTYPE_F32, kPrompt + kFollowing)),
        evictor_(cache_.shape(), model.HeadShape(),
                 kvevict::tools::ParsePolicy(policy, kBudget), pool, nullptr,
                 model.RopeOfHeads()) {}

  std::vector<float> Feed(std::span<const int32_t> tokens) {
    std::vector<float> logits(model_.config().vocab_size);
    for (size_t done = 0; done < tokens.size();) {
      const size_t n =
          std::min<size_t>(LlamaModel::kMaxChunk, tokens.size() - done);
      model_.Forward(tokens.subspan(done, n), evictor_.logical_length(), cache_,
                     logits,
                     [this](uint32_t layer, const float* queries,
                            uint32_t n_rows, uint32_t first_position) {
                       evictor_.Observe(layer, queries, n_rows, first_position);
                     });
      evictor_.Append(static_cast<uint32_t>(n));
      done += n;
    }
    return logits;
  }

  // Evicts; returns what stays of each layer and head, found by its keys.
  std::vector<std::vector<int32_t>> Evict() {
    std::vector<std::vector<uint8_t>> before = AllKeys();
    evictor_.Evict(cache_);
    const std::vector<std::vector<uint8_t>> after = AllKeys();
    const size_t n_bytes = HeadBytes();
    std::vector<std::vector<int32_t>> kept(before.size());
    for (size_t i = 0; i < before.size(); ++i) {
      int32_t position = 0;
      for (size_t slot = 0; slot < after[i].size() / n_bytes; ++slot) {
        while (std::memcmp(&before[i][position * n_bytes],
                           &after[i][slot * n_bytes], n_bytes) != 0) {
          cr_assert(++position < static_cast<int32_t>(kPrompt));
        }
        kept[i].push_back(position++);
      }
    }
    return kept;
  }

 private:
  size_t HeadBytes() const {
    return cache_.k_row_bytes() / cache_.shape().n_kv_heads;
  }
  std::vector<std::vector<uint8_t>> AllKeys() const {
    const size_t n_bytes = HeadBytes();
    std::vector<std::vector<uint8_t>> keys;
    for (uint32_t l = 0; l < cache_.shape().n_layers; ++l) {
      const auto* base = static_cast<const uint8_t*>(cache_.k(l));
      for (uint32_t h = 0; h < cache_.shape().n_kv_heads; ++h) {
        auto& rows = keys.emplace_back();
        for (uint32_t t = 0; t < evictor_.stored_length(l, h); ++t) {
          const uint8_t* row = base + t * cache_.k_row_bytes() + h * n_bytes;
          rows.insert(rows.end(), row, row + n_bytes);
        }
      }
    }
    return keys;
  }

  LlamaModel& model_;
  KvCache cache_;
  Evictor evictor_;
};

size_t CountDiffering(const std::vector<int32_t>& a,
                      const std::vector<int32_t>& b) {
  std::vector<int32_t> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(),
                        std::back_inserter(common));
  return a.size() - common.size();
}

Test(llama_engine, keeps_and_predicts_as_the_own_engine_does) {
  if (!std::filesystem::exists(kModel)) {
    cr_skip_test("skipped: no %s", kModel.c_str());
  }
  kvevict::tools::ThreadPool pool(1);
  const ModelHandle upstream = LoadModel(kModel);
  LlamaModel model(kvevict::llama_cli::ReadWeights(upstream.get(), kModel),
                   pool);
  std::ifstream stream(kText, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  std::vector<int32_t> tokens(8000);
  tokens.resize(static_cast<size_t>(
      llama_tokenize(llama_model_get_vocab(upstream.get()), text.data(), 8000,
                     tokens.data(), 8000, true, false)));
  cr_assert(tokens.size() >= kPrompt + kFollowing);
  const auto prompt = std::span(tokens).first(kPrompt);

  for (const char* policy :
       {"none", "snapkv:window=16", "tova", "keydiff:recent=1",
        "snapkv:window=16,scope=layer", "streaming-llm"}) {
    Engine engine(model, policy, pool);
    const std::string wanted =
        std::string(policy) +
        (std::strchr(policy, ':') == nullptr ? ":" : ",") +
        "budget=" + std::to_string(kBudget);
    const bool evicts = std::strcmp(policy, "none") != 0;
    Session session(upstream.get(), evicts ? wanted.c_str() : nullptr,
                    SessionOptions{.n_ubatch = 256});
    std::vector<float> ours = engine.Feed(prompt);
    const std::vector<float> all = session.Decode(prompt);
    std::vector<float> theirs(all.end() - session.n_vocab(), all.end());
    size_t differing = 0, n_kept = 0;
    if (evicts) {
      const auto kept = engine.Evict();
      session.Evict();
      const uint32_t n_kv_heads = model.config().n_kv_heads;
      for (uint32_t i = 0; i < kept.size(); ++i) {
        n_kept += kept[i].size();
        cr_assert(kept[i].size() == kBudget, "%s: %zu", policy, kept[i].size());
        differing += CountDiffering(
            kept[i], session.Positions(i / n_kv_heads, i % n_kv_heads));
      }
    }
    double kl = KlDivergence(ours, theirs);
    for (uint32_t i = 0; i < kFollowing; ++i) {
      const auto one = std::span(tokens).subspan(kPrompt + i, 1);
      ours = engine.Feed(one);
      theirs = session.Decode(one);
      kl = std::max(kl, KlDivergence(ours, theirs));
    }
    std::printf("%s: %zu of %zu tokens differ, KL up to %.2g\n", policy,
                differing, n_kept, kl);
    // Sums have another order, so scores that are nearly equal may change places.
    cr_expect(differing <= 1, "%s: %zu of %zu", policy, differing, n_kept);
    cr_expect(kl < (differing == 0 ? 1e-7 : 0.1), "%s: %g", policy, kl);
  }
}

}  // namespace
}  // namespace kvevict::tests
