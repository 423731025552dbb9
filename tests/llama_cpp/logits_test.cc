// The engine of `eval --own-engine` has llama.cpp's logits: with live llama.cpp for
// random models of every kind of weight and for each model of ../shared/models.
#include <criterion/criterion.h>
#include <ggml.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ggml_weights.h"
#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/session.h"
#include "tests/paths.h"
#include "tests/tools/llama_synthetic.h"
#include "tools/engine/thread_pool.h"
#include "tools/llama/log_softmax.h"

namespace kvevict::tests {
namespace {

using kvevict::tools::AllLogits;
using kvevict::tools::KlDivergence;
using kvevict::tools::KvCache;
using kvevict::tools::LlamaModel;
using kvevict::tools::LlamaWeights;
using kvevict::tools::LogSumExp;
using kvevict::tools::ThreadPool;

std::string Shared(const std::string& name) {
  return std::string(test_shared_dir) + "/models/" + name;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

LlamaWeights Weights(const std::string& path) {
  return kvevict::llama_cli::ReadWeights(LoadModel(path).get(), path);
}

// How far the engine's logits are from llama.cpp's on the same file.
struct Distance {
  double worst = 0;    // of a logit
  double largest = 0;  // logit
  double kl = 0;       // mean over the tokens
};

Distance Compare(const std::string& path, const std::vector<int32_t>& ids) {
  const ModelHandle upstream = LoadModel(path);
  ThreadPool pool(1);
  LlamaModel model(kvevict::llama_cli::ReadWeights(upstream.get(), path), pool);
  const std::vector<float> ours =
      AllLogits(model, ids, KVEVICT_DTYPE_F32, LlamaModel::kMaxChunk);
  Session session(upstream.get(), nullptr, {});
  const std::vector<float> theirs = session.Decode(ids);
  cr_assert(ours.size() == theirs.size());
  Distance d;
  d.worst = MaxDifference(ours, theirs);
  const size_t n_vocab = model.config().vocab_size;
  for (size_t at = 0; at < ours.size(); at += n_vocab) {
    const auto theirs_row = std::span(theirs).subspan(at, n_vocab);
    d.kl += KlDivergence(theirs_row, std::span(ours).subspan(at, n_vocab)) /
            static_cast<double>(ids.size());
    for (const float x : theirs_row) {
      d.largest = std::max(d.largest, std::abs(double{x}));
    }
  }
  std::printf("%s: logits up to %.3g, off by up to %.2g, mean KL %.2g\n",
              path.c_str(), d.largest, d.worst, d.kl);
  return d;
}

// Two orders of f32 sums, through 3 layers of products of at most 128 terms.
constexpr double kRoundings = 64 * 0x1p-24;
// llama.cpp rounds what it multiplies with quantized weights to 8 bits, which the
// engine does not. After four prompts of SmolLM2 its recorded logits have a KL of
// 0.001 to 0.011 from those of dequantized weights.
constexpr double kMostKlOfQuantized = 0.011;

struct RandomFile {
  explicit RandomFile(const RandomModel& shape)
      : path(WriteRandomModel(shape)) {}
  ~RandomFile() { unlink(path.c_str()); }
  std::string path;
};

Test(llama_logits, random_models_have_those_of_llama_cpp) {
  RandomModel wide, narrow;  // heads that are wider than n_embd, and not
  narrow.head_dim = 16;
  narrow.n_kv_heads = 4;
  narrow.has_characters = true;  // and an output matrix
  for (const RandomModel& shape : {wide, narrow}) {
    const RandomFile file(shape);
    const Distance d = Compare(file.path, RandomTokens(150, shape.n_vocab));
    cr_expect(d.worst < kRoundings * d.largest, "%g", d.worst);
  }
}

// Quantized rows are whole blocks of 256.
Test(llama_logits, every_type_of_weight_is_decoded) {
  RandomModel shape;
  shape.n_layers = 1;
  shape.n_embd = shape.n_ff = 256;
  shape.n_heads = 2;
  shape.head_dim = 128;
  const RandomFile exact(shape);
  const auto ids = RandomTokens(40, shape.n_vocab);
  ThreadPool pool(1);
  LlamaModel unquantized(Weights(exact.path), pool);
  const std::vector<float> expected =
      AllLogits(unquantized, ids, KVEVICT_DTYPE_F32, 40);
  for (const ggml_type type :
       {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
        GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K,
        GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS}) {
    shape.type = type;
    const RandomFile file(shape);
    const Distance d = Compare(file.path, ids);
    cr_expect(d.kl < kMostKlOfQuantized, "%s: %g", ggml_type_name(type), d.kl);
    // What rounding the weights changes is more than that.
    LlamaModel model(Weights(file.path), pool);
    const double rounded =
        MaxDifference(AllLogits(model, ids, KVEVICT_DTYPE_F32, 40), expected);
    cr_expect(rounded > 0 && (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
                              rounded > d.worst),
              "%s: %g, %g", ggml_type_name(type), rounded, d.worst);
  }
}

Test(llama_logits, other_models_are_refused) {
  const auto refusal = [](const RandomModel& shape) {
    const RandomFile file(shape);
    try {
      Weights(file.path);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  RandomModel other, stretched;
  other.arch = "qwen3";
  stretched.long_rope = 64;
  std::string why = refusal(other);
  ExpectPart(why, "its architecture is 'qwen3'");
  why = refusal(stretched);
  ExpectPart(why, "no RoPE scaling 'longrope'");
}

// Some 200 tokens of English.
std::vector<int32_t> Text(const std::string& path) {
  const char text[] =
      "Once upon a time there was a little girl. She had a red ball, and she "
      "liked to play with it in the garden. One day the ball went over the "
      "wall. "
      "She was sad, but a kind man gave it back to her. ";
  const ModelHandle model = LoadModel(path);
  std::vector<int32_t> ids(400);
  const int32_t n = llama_tokenize(llama_model_get_vocab(model.get()), text,
                                   static_cast<int32_t>(strlen(text)),
                                   ids.data(), 400, true, false);
  cr_assert(n > 40);
  ids.resize(static_cast<size_t>(n));
  return ids;
}

Test(llama_logits, shared_models_have_those_of_llama_cpp) {
  // Trained weights make larger sums that cancel: f32 implementations differ by up
  // to 4e-4 on english800k.
  const struct {
    const char* name;
    double worst, kl;
  } models[] = {
      {"stories260K.gguf", 2e-4, 1e-6},
      {"english800k.gguf", 6e-4, 1e-6},
      {"SmolLM2-135M-Instruct.Q4_1.gguf", 2, kMostKlOfQuantized},
  };
  size_t n_compared = 0;
  for (const auto& model : models) {
    if (!std::filesystem::exists(Shared(model.name))) {
      std::printf("skipped: no %s\n", Shared(model.name).c_str());
      continue;
    }
    const Distance d = Compare(Shared(model.name), Text(Shared(model.name)));
    cr_expect(d.worst < model.worst && d.kl < model.kl, "%s: %g, KL %g",
              model.name, d.worst, d.kl);
    ++n_compared;
  }
  if (n_compared == 0) cr_skip_test("skipped: none of the models is here");
}

// An instruction model with weights of 4 and 8 bits, whose texts are cut into tokens
// elsewhere: the logits after its prompts are those of its weights in f32, which
// another f32 implementation meets within 2.3e-4.
Test(llama_logits, quantized_weights_give_the_logits_of_dequantized_ones) {
  const std::string path = Shared("reference/smollm2_greedy.json");
  if (!std::filesystem::exists(path)) {
    cr_skip_test("skipped: no %s", path.c_str());
  }
  ThreadPool pool(2);
  LlamaModel model(Weights(Shared("SmolLM2-135M-Instruct.Q4_1.gguf")), pool);
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

}  // namespace
}  // namespace kvevict::tests
