// An instruction model of 135M parameters on English text shows what the random
// models show. Its weights are quantized, so a changed last bit in attention
// changes how activations are rounded. Answers are compared by their KL divergence:
// below 1e-3 for that, 0.04 to 0.1 when rows of another sequence were lost.
#include <criterion/criterion.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/llama_cpp/session.h"
#include "tests/paths.h"
#include "tools/llama/log_softmax.h"

namespace {

using kvevict::tests::LoadModel;
using kvevict::tests::ModelHandle;
using kvevict::tests::RemoveOthers;
using kvevict::tests::Session;
using kvevict::tests::SessionOptions;
using kvevict::tools::KlDivergence;

constexpr size_t kPrompt = 360, kNext = 12;
constexpr double kMostKl = 1e-3;

const std::string kModel =
    std::string(test_shared_dir) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
const std::string kText = std::string(test_shared_dir) + "/texts/alice29.txt";

ModelHandle Instruct() {
  if (!std::filesystem::exists(kModel)) {
    cr_skip_test("skipped: no %s", kModel.c_str());
  }
  return LoadModel(kModel);
}

// The tokens at the text's beginning.
std::vector<llama_token> Tokens(const llama_model* model, size_t n) {
  std::ifstream file(kText);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  cr_assert(text.size() > 8 * n);
  std::vector<llama_token> tokens(8 * n);
  const int32_t found = llama_tokenize(
      llama_model_get_vocab(model), text.data(), static_cast<int32_t>(8 * n),
      tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
  cr_assert(found >= static_cast<int32_t>(n));
  tokens.resize(n);
  return tokens;
}

SessionOptions Options(bool unified, uint32_t n_seq = 2) {
  SessionOptions options;
  options.n_seq = n_seq;
  options.unified = unified;
  options.flash = true;
  options.n_ubatch = 512;
  options.n_ctx = 2048;
  options.last_logits_only = true;
  return options;
}

// Two sequences share a prompt, and the first one is evicted.
Test(llama_instruct, a_shared_prompt_is_evicted_for_one) {
  const ModelHandle model = Instruct();
  const auto text = Tokens(model.get(), kPrompt + kNext);
  const auto prompt = std::span(text).first(kPrompt);
  const auto next = std::span(text).subspan(kPrompt);
  for (const bool unified : {true, false}) {
    Session evicted(model.get(), "snapkv:budget=128,scope=model",
                    Options(unified));
    Session removed(model.get(), nullptr, Options(unified));
    for (Session* session : {&evicted, &removed}) session->Decode(prompt);
    cr_assert(kvevict_llama_copy(evicted.kv(), 0, 1) == KVEVICT_OK, "%s",
              kvevict_llama_last_error_message());
    llama_memory_seq_cp(removed.memory(), 0, 1, -1, -1);
    // If each has a stream, the next graph copies rows.
    for (Session* session : {&evicted, &removed}) {
      session->Decode(next.first(1), 1);
    }
    cr_expect(evicted.Evict(0).cells_after == 128);
    RemoveOthers(removed, evicted.Positions(), kPrompt);
    for (const llama_seq_id seq : {1, 0}) {
      const auto answer = evicted.Decode(next.subspan(1), seq);
      const double kl =
          KlDivergence(removed.Decode(next.subspan(1), seq), answer);
      cr_expect(kl < kMostKl, "unified %d seq %d: KL %g", unified, seq, kl);
    }
  }
}

// Drafts after an eviction are taken back.
Test(llama_instruct, a_trim_leaves_no_trace) {
  const ModelHandle model = Instruct();
  const auto text = Tokens(model.get(), kPrompt + kNext + 4);
  const auto prompt = std::span(text).first(kPrompt);
  const auto next = std::span(text).subspan(kPrompt, kNext);
  const auto drafts = std::span(text).last(4);
  std::vector<float> answers[2];
  for (const bool rejects : {false, true}) {
    Session session(model.get(), "snapkv:budget=128", Options(false, 1));
    session.Decode(prompt);
    session.Evict();
    if (rejects) {
      session.Decode(drafts);
      cr_assert(kvevict_llama_trim_to(session.kv(), 0, kPrompt) == KVEVICT_OK,
                "%s", kvevict_llama_last_error_message());
    }
    answers[rejects] = session.Decode(next);
  }
  const double kl = KlDivergence(answers[0], answers[1]);
  cr_expect(kl < kMostKl, "KL %g", kl);
}

// llama.cpp would not take the state of a context with another flash setting. The
// context keeps what it has.
Test(llama_instruct, a_target_that_does_not_fit_keeps_its_tokens) {
  const ModelHandle model = Instruct();
  const auto text = Tokens(model.get(), kPrompt);
  Session source(model.get(), "snapkv:budget=128", Options(false, 1));
  source.Decode(text);
  SessionOptions other = Options(false, 1);
  other.flash = false;
  Session target(model.get(), "snapkv:budget=128", other);
  target.Decode(std::span(text).first(40));
  try {
    source.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target);
    cr_expect_fail("not refused");
  } catch (const std::runtime_error& error) {
    cr_expect(std::string(error.what()).find("flash") != std::string::npos,
              "%s", error.what());
  }
  cr_expect(llama_memory_seq_pos_max(target.memory(), 0) == 39);
  cr_expect(source.Evict().cells_after == 128);
}

}  // namespace
