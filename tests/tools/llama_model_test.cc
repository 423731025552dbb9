// The forward pass against a double-precision oracle and llama.cpp's outputs.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/paths.h"
#include "tests/tools/llama_oracle.h"
#include "tests/tools/llama_synthetic.h"
#include "tests/tools/llama_test_util.h"
#include "tools/llama/llama_gguf.h"
#include "tools/llama/log_softmax.h"
#include "tools/llama/model.h"
#include "tools/llama/model_file.h"

namespace kvevict::tools {
namespace {

std::string Shared(const std::string& name) {
  return std::string(test_shared_dir) + "/models/" + name;
}

// Logits of all tokens, [n, vocab_size], fed in chunks of at most `chunk`.
std::vector<float> AllLogits(LlamaModel& model, const std::vector<int32_t>& ids,
                             kvevict_dtype dtype, size_t chunk) {
  const size_t n_vocab = model.config().vocab_size;
  std::vector<float> logits(ids.size() * n_vocab);
  KvCache cache(model.CacheShape(dtype, static_cast<uint32_t>(ids.size())));
  for (size_t at = 0; at < ids.size(); at += chunk) {
    const size_t n = std::min(chunk, ids.size() - at);
    model.Forward(std::span(ids).subspan(at, n), static_cast<uint32_t>(at),
                  cache, std::span(logits).subspan(at * n_vocab, n * n_vocab));
  }
  return logits;
}

double MaxDifference(std::span<const float> a, std::span<const float> b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  }
  return worst;
}

LlamaWeights Synthetic(const SyntheticShape& shape) {
  const TempFile temp(SyntheticModel(GgmlType::kF32, shape).Build());
  return ReadGgufModel(GgufFile(temp.path()));
}

std::vector<int32_t> RandomIds(size_t n, uint64_t n_vocab) {
  TestRandom random(7);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(n_vocab));
  return ids;
}

// Relative to the logits' size. A logit passes through some 10 products of at
// most 96 terms; 32 * 2^-24 leaves room for their rounding, not for a wrong
// term.
constexpr double kOracleTolerance = 32 * 0x1p-24;

Test(llama_model, equals_the_oracle) {
  ThreadPool pool(2);
  const SyntheticShape shapes[] = {
      {},
      {.n_kv_heads = 4},                                // No grouping.
      {.n_kv_heads = 1, .rope_dims = 8, .tied = true},  // Partial RoPE.
      {.n_layers = 1,
       .d_model = 32,
       .d_ff = 32,
       .n_q_heads = 1,
       .n_kv_heads = 1,
       .rope_dims = 32},
  };
  for (const SyntheticShape& shape : shapes) {
    LlamaModel model(Synthetic(shape), pool);
    const LlamaWeights weights = Synthetic(shape);
    const std::vector<int32_t> ids = RandomIds(40, shape.vocab_size);
    const std::vector<float> logits =
        AllLogits(model, ids, KVEVICT_DTYPE_F32, 16);
    LlamaOracle oracle(weights);
    double worst = 0;
    double largest = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const LlamaOracle::Row expected = oracle.Step(ids[i]);
      for (size_t t = 0; t < expected.size(); ++t) {
        worst = std::max(
            worst, std::abs(logits[i * expected.size() + t] - expected[t]));
        largest = std::max(largest, std::abs(expected[t]));
      }
    }
    cr_expect(worst <= kOracleTolerance * largest,
              "logits up to %g are off by up to %g", largest, worst);
  }
}

Test(llama_model, threads_do_not_change_a_bit) {
  const std::vector<int32_t> ids = RandomIds(300, 300);
  std::vector<float> expected;
  for (const uint32_t n_threads : {1, 2, 5}) {
    ThreadPool pool(n_threads);
    LlamaModel model(Synthetic({}), pool);
    const std::vector<float> logits =
        AllLogits(model, ids, KVEVICT_DTYPE_F32, 128);
    if (expected.empty()) expected = logits;
    cr_expect(logits == expected, "%u threads: off by %g", n_threads,
              MaxDifference(logits, expected));
  }
}

Test(llama_model, chunks_do_not_matter) {
  const std::vector<int32_t> ids = RandomIds(300, 300);
  ThreadPool pool(2);
  LlamaModel model(Synthetic({}), pool);
  const std::vector<float> expected =
      AllLogits(model, ids, KVEVICT_DTYPE_F32, 256);
  float largest = 0;
  for (const float x : expected) largest = std::max(largest, std::abs(x));
  for (const size_t chunk : {64, 7, 1}) {
    const double worst = MaxDifference(
        AllLogits(model, ids, KVEVICT_DTYPE_F32, chunk), expected);
    cr_expect(worst <= kOracleTolerance * double{largest},
              "chunk %zu: off by %g", chunk, worst);
  }
}

// Both files hold the same weights.
void CheckFormatsAgree(const std::string& name) {
  ThreadPool pool(2);
  const std::vector<int32_t> ids = RandomIds(100, 512);
  std::vector<float> logits[2];
  for (const int i : {0, 1}) {
    ModelFile file = ReadModelFile(Shared(name + (i ? ".gguf" : ".bin")), "");
    LlamaModel model(std::move(file.weights), pool);
    logits[i] = AllLogits(model, ids, KVEVICT_DTYPE_F32, 100);
  }
  cr_expect(logits[0] == logits[1], "%s: off by %g", name.c_str(),
            MaxDifference(logits[0], logits[1]));
}

Test(llama_model, formats_agree) {
  KV_SHARED_FILE(path, "models/stories260K.gguf");
  CheckFormatsAgree("stories260K");
  CheckFormatsAgree("english800k");
}

Test(llama_model, logits_match_llama_cpp) {
  KV_SHARED_FILE(path, "models/reference/stories260k_logits_chunk0.f32");
  const std::string bytes = ReadFile(path);
  std::vector<float> expected(bytes.size() / sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  const auto chunks = nlohmann::json::parse(
      ReadFile(Shared("reference/stories260k_chunks.json")));
  const std::vector<int32_t> ids = chunks["chunks"][0]["ids"];
  cr_assert(expected.size() == ids.size() * 512);

  ThreadPool pool(2);
  ModelFile file = ReadModelFile(Shared("stories260K.gguf"), "");
  LlamaModel model(std::move(file.weights), pool);
  const std::vector<float> logits =
      AllLogits(model, ids, KVEVICT_DTYPE_F32, LlamaModel::kMaxChunk);
  // Two other f32 implementations were 8.4e-5 apart.
  const double worst = MaxDifference(logits, expected);
  printf("stories260K: logits within %.1e of llama.cpp's\n", worst);
  cr_expect(worst < 2e-4, "off by %g", worst);
}

// -log p of every id after the first.
std::vector<double> Nll(LlamaModel& model, const std::vector<int32_t>& ids,
                        kvevict_dtype dtype) {
  const std::vector<float> logits =
      AllLogits(model, ids, dtype, LlamaModel::kMaxChunk);
  const size_t n_vocab = model.config().vocab_size;
  std::vector<double> nll;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    nll.push_back(-LogSoftmax(std::span(logits).subspan(i * n_vocab, n_vocab),
                              ids[i + 1]));
  }
  return nll;
}

// The differences between two runs' NLLs.
struct Deviation {
  double worst = 0;
  double rms = 0;
  double mean = 0;
};

Deviation Deviate(const std::vector<double>& a, const std::vector<double>& b) {
  Deviation d;
  for (size_t i = 0; i < a.size(); ++i) {
    d.worst = std::max(d.worst, std::abs(a[i] - b[i]));
    d.rms += (a[i] - b[i]) * (a[i] - b[i]);
    d.mean += a[i] - b[i];
  }
  d.rms = std::sqrt(d.rms / static_cast<double>(a.size()));
  d.mean /= static_cast<double>(a.size());
  return d;
}

// llama.cpp also rounds the queries to the cache's 16-bit type, which this engine
// does not. So their noise cannot be compared token by token. But it must have one
// size, measured against the f32 figures, and the mean, where noise cancels, must
// not move.
void CheckNll(const std::string& name, const std::string& reference,
              double f32_tolerance) {
  ThreadPool pool(2);
  ModelFile file = ReadModelFile(Shared(name + ".gguf"), "");
  LlamaModel model(std::move(file.weights), pool);
  const auto json =
      nlohmann::json::parse(ReadFile(Shared("reference/" + reference)));
  for (const auto& chunk : json["chunks"]) {
    const std::vector<int32_t> ids = chunk["ids"];
    const std::vector<double> exact = chunk["kv_f32"]["nll"];
    const Deviation f32 = Deviate(Nll(model, ids, KVEVICT_DTYPE_F32), exact);
    printf("%s kv_f32: NLL within %.1e of llama.cpp's\n", name.c_str(),
           f32.worst);
    cr_expect(f32.worst < f32_tolerance, "%s: %g", name.c_str(), f32.worst);

    const std::pair<const char*, kvevict_dtype> kinds[] = {
        {"kv_f16", KVEVICT_DTYPE_F16}, {"kv_bf16", KVEVICT_DTYPE_BF16}};
    for (const auto& [key, dtype] : kinds) {
      const Deviation theirs = Deviate(chunk[key]["nll"], exact);
      const Deviation ours = Deviate(Nll(model, ids, dtype), exact);
      printf("%s %s: rms %.1e from f32 (llama.cpp: %.1e), mean %+.1e (%+.1e)\n",
             name.c_str(), key, ours.rms, theirs.rms, ours.mean, theirs.mean);
      cr_expect(ours.rms < 1.5 * theirs.rms && ours.rms > 0.5 * theirs.rms,
                "%s %s: %g, llama.cpp's %g", name.c_str(), key, ours.rms,
                theirs.rms);
      // Four standard errors of a mean without bias.
      const auto n = static_cast<double>(exact.size());
      cr_expect(std::abs(ours.mean) < 4 * ours.rms / std::sqrt(n), "%s %s: %g",
                name.c_str(), key, ours.mean);
    }
  }
}

Test(llama_model, stories_nll_matches_llama_cpp) {
  KV_SHARED_FILE(path, "models/reference/stories260k_chunks.json");
  CheckNll("stories260K", "stories260k_chunks.json", 1e-4);
}

// Its logits are less certain; another f32 implementation agreed to 4e-4.
Test(llama_model, english_nll_matches_llama_cpp) {
  KV_SHARED_FILE(path, "models/reference/english800k_chunks.json");
  CheckNll("english800k", "english800k_chunks.json", 6e-4);
}

// Top-20 logits after each prompt, then greedy decoding one token at a time.
void CheckGreedy(const std::string& name, const std::string& reference,
                 double tolerance) {
  ThreadPool pool(2);
  ModelFile file = ReadModelFile(Shared(name + ".gguf"), "");
  LlamaModel model(std::move(file.weights), pool);
  std::vector<float> logits(model.config().vocab_size);
  const auto json =
      nlohmann::json::parse(ReadFile(Shared("reference/" + reference)));
  for (const auto& prompt : json["prompts"]) {
    const std::vector<int32_t> ids = prompt["prompt_ids"];
    const std::vector<int32_t> greedy = prompt["greedy_ids"];
    KvCache cache(model.CacheShape(
        KVEVICT_DTYPE_F32, static_cast<uint32_t>(ids.size() + greedy.size())));
    uint32_t position = 0;
    for (size_t at = 0; at < ids.size(); at += LlamaModel::kMaxChunk) {
      const size_t n = std::min<size_t>(LlamaModel::kMaxChunk, ids.size() - at);
      model.Forward(std::span(ids).subspan(at, n), position, cache, logits);
      position += static_cast<uint32_t>(n);
    }
    for (const auto& entry : prompt["top20"]) {
      const double expected = entry[1];
      const double actual = logits[entry[0].get<size_t>()];
      cr_expect(std::abs(actual - expected) < tolerance, "%s: id %d %g %g",
                name.c_str(), entry[0].get<int>(), actual, expected);
    }
    cr_expect(std::abs(LogSumExp(logits) -
                       prompt["logits_logsumexp"].get<double>()) < tolerance);
    // If the winner's lead is within the tolerance, the ids prove nothing.
    if (prompt["greedy_min_top2_gap"].get<double>() < 2 * tolerance) continue;
    for (size_t i = 0; i < greedy.size(); ++i) {
      cr_assert(ArgMax(logits) == greedy[i], "%s: '%s' at %zu", name.c_str(),
                prompt["prompt"].get<std::string>().c_str(), i);
      model.Forward({&greedy[i], 1}, position++, cache, logits);
    }
  }
}

Test(llama_model, stories_continue_as_in_llama_cpp) {
  KV_SHARED_FILE(path, "models/reference/stories260k_greedy.json");
  CheckGreedy("stories260K", "stories260k_greedy.json", 2e-4);
}

Test(llama_model, english_continues_as_in_llama_cpp) {
  KV_SHARED_FILE(path, "models/reference/english800k_greedy.json");
  CheckGreedy("english800k", "english800k_greedy.json", 5e-4);
}

// An instruction model with weights of 4 and 8 bits, whose texts are cut into tokens
// elsewhere: the logits after its prompts are those of its weights in f32, which
// another f32 implementation meets within 2.3e-4.
Test(llama_model, quantized_weights_give_the_logits_of_dequantized_ones) {
  KV_SHARED_FILE(path, "models/reference/smollm2_greedy.json");
  ThreadPool pool(2);
  LlamaModel model(
      ReadGgufModel(GgufFile(Shared("SmolLM2-135M-Instruct.Q4_1.gguf"))), pool);
  std::vector<float> logits(model.config().vocab_size);
  const auto json = nlohmann::json::parse(ReadFile(path));
  for (const auto& prompt : json["prompts"]) {
    const std::vector<int32_t> ids = prompt["prompt_ids"];
    if (ids.size() > LlamaModel::kMaxChunk) continue;
    KvCache cache(
        model.CacheShape(KVEVICT_DTYPE_F32, static_cast<uint32_t>(ids.size())));
    model.Forward(ids, 0, cache, logits);
    for (const auto& entry : prompt["dequantized"]["top20"]) {
      const double expected = entry[1];
      const double actual = logits[entry[0].get<size_t>()];
      cr_expect(std::abs(actual - expected) < 1e-3, "id %d: %g, not %g",
                entry[0].get<int>(), actual, expected);
    }
    cr_expect(std::abs(LogSumExp(logits) -
                       prompt["dequantized"]["logsumexp"].get<double>()) <
              1e-3);
  }
}

// The norms that weigh tokens, from Wo as it is in the file.
Test(llama_model, projected_norms_are_those_of_their_definition) {
  ThreadPool pool(2);
  const LlamaWeights weights = Synthetic({});
  LlamaModel model(Synthetic({}), pool);
  const LlamaConfig& c = model.config();
  TestRandom random(3);
  constexpr uint32_t kRows = 5;
  std::vector<float> values(size_t{kRows} * c.n_kv_heads * c.head_dim);
  for (float& v : values) {
    v = static_cast<float>(random.Below(2001)) / 1000 - 1;
  }
  const std::vector<float> norms =
      model.ProjectedNorms(1, values.data(), kRows);
  const uint32_t group = c.n_q_heads / c.n_kv_heads;
  cr_assert(norms.size() == size_t{c.n_kv_heads} * kRows);
  for (uint32_t head = 0; head < c.n_kv_heads; ++head) {
    for (uint32_t row = 0; row < kRows; ++row) {
      double expected = 0;
      for (uint32_t g = 0; g < group; ++g) {
        for (size_t o = 0; o < c.d_model; ++o) {
          double sum = 0;
          for (uint32_t i = 0; i < c.head_dim; ++i) {
            const size_t input = (head * group + g) * size_t{c.head_dim} + i;
            sum +=
                double{values[(row * c.n_kv_heads + head) * c.head_dim + i]} *
                weights.layers[1].wo.elems[input * c.d_model + o];
          }
          expected += std::abs(sum) / group;
        }
      }
      const double got = norms[head * kRows + row];
      cr_expect(std::abs(got - expected) <= 1e-5 * expected,
                "head %u, row %u: %g, not %g", head, row, got, expected);
    }
  }
}

}  // namespace
}  // namespace kvevict::tools
