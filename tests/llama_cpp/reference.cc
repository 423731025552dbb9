// reference MODEL BACKENDS POLICY N_CTX CACHE_TYPE UNIFIED [CALIBRATION]: what the adapter
// itself makes of prompts, for a comparison with programs that evict by preload. A line of
// stdin is a request:
//   new PIECE N_PREDICT TOKEN...    a sequence begins, PIECE tokens at once; 0: all
//   continue N_PREDICT TOKEN...     it goes on behind the last answer
//   trim LENGTH N_PREDICT TOKEN...  it goes on behind this length
//   reload                          it is saved and loaded into another one
// An answer is a line of stdout: the number of evictions, the least distance of a token's
// logit to that of the second best, the N_PREDICT tokens.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "upstream.h"

namespace kvevict::tests {
namespace {

using llama_cli::Batch;
using llama_cli::Check;
using llama_cli::Context;

// Uses a server's defaults: four slots, batches of 2,048.
Context Open(llama_model* model, char** argv) {
  llama_cli::ContextOptions options;
  options.n_ctx = static_cast<uint32_t>(std::stoul(argv[4]));
  options.n_batch = 2048;
  options.n_seq = 4;
  options.unified = argv[6] == std::string("1");
  const std::string type = argv[5];
  options.type_k = options.type_v = type == "q8_0"  ? GGML_TYPE_Q8_0
                                    : type == "f32" ? GGML_TYPE_F32
                                                    : GGML_TYPE_F16;
  if (type == "f32") options.flash = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  std::ostringstream calibration;
  if (argv[7] != nullptr) {
    calibration << std::ifstream(argv[7], std::ios::binary).rdbuf();
  }
  const std::string bytes = calibration.str();
  if (!bytes.empty()) options.calibration = bytes;
  return llama_cli::OpenContext(model, argv[3], options);
}

class Chat {
 public:
  Chat(llama_model* model, char** argv)
      : vocab_(llama_model_get_vocab(model)), context_(Open(model, argv)) {}

  std::string Answer(std::istringstream& request) {
    n_evictions_ = 0;
    margin_ = std::numeric_limits<float>::infinity();
    std::string kind;
    request >> kind;
    size_t piece = 0;
    std::vector<llama_token> tokens;
    if (kind == "new") {
      llama_memory_seq_rm(memory(), seq_, -1, -1);
      position_ = 0;
      request >> piece;
    } else if (kind == "continue") {
      tokens.push_back(last_);
    } else if (kind == "trim") {
      request >> position_;
      Check(
          kvevict_llama_trim_to(kv(), seq_, static_cast<uint32_t>(position_)));
    } else {
      Reload();
      return "0 0";
    }
    int n_predict = 0;
    request >> n_predict;
    for (llama_token token; request >> token;) tokens.push_back(token);

    std::ostringstream answer;
    for (int i = 0; i < n_predict; ++i) {
      Decode(tokens, piece);
      Evict();
      last_ = Best();
      tokens = {last_};
      answer << ' ' << last_;
    }
    return std::to_string(n_evictions_) + ' ' + std::to_string(margin_) +
           answer.str();
  }

 private:
  kvevict_llama* kv() { return context_.kv.get(); }
  llama_memory_t memory() { return llama_get_memory(context_.ctx.get()); }

  void Decode(std::span<const llama_token> tokens, size_t piece) {
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t left = tokens.size() - begin;
      const size_t n = piece == 0 ? left : std::min(piece, left);
      Batch batch(n);
      for (size_t i = 0; i < n; ++i) {
        batch.Add(tokens[begin + i], position_++, seq_, i + 1 == left);
      }
      batch.Decode(context_);
      begin += n;
    }
  }

  void Evict() {
    kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
    const kvevict_status status =
        kvevict_llama_evict(kv(), seq_, nullptr, &report);
    // After a load it needs queries first.
    if (status != KVEVICT_ERROR_INVALID_ARGUMENT) Check(status);
    n_evictions_ += report.evicted;
  }

  void Reload() {
    size_t n = 0;
    Check(kvevict_llama_save_data(kv(), seq_, nullptr, 0, nullptr, 0, &n));
    std::vector<uint8_t> bytes(n);
    Check(kvevict_llama_save_data(kv(), seq_, nullptr, 0, bytes.data(), n, &n));
    llama_memory_seq_rm(memory(), seq_, -1, -1);
    seq_ = (seq_ + 1) % 4;
    Check(kvevict_llama_load_data(kv(), seq_, bytes.data(), n, nullptr, 0,
                                  nullptr));
  }

  // Ignores the end of an answer, as servers can.
  llama_token Best() {
    const float* logits = llama_get_logits_ith(context_.ctx.get(), -1);
    llama_token best = -1;
    float first = -std::numeric_limits<float>::infinity(), second = first;
    for (llama_token t = 0; t < llama_vocab_n_tokens(vocab_); ++t) {
      if (llama_vocab_is_eog(vocab_, t)) continue;
      second = std::max(second, std::min(first, logits[t]));
      if (logits[t] > first) {
        first = logits[t];
        best = t;
      }
    }
    margin_ = std::min(margin_, first - second);
    return best;
  }

  const llama_vocab* vocab_;
  Context context_;
  llama_seq_id seq_ = 0;
  llama_pos position_ = 0;
  llama_token last_ = -1;
  uint32_t n_evictions_ = 0;
  float margin_ = 0;
};

void Run(char** argv) {
  const llama_cli::Model model = llama_cli::LoadModel(
      argv[1], argv[2], [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      });
  Chat chat(model.get(), argv);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream request(line);
    std::cout << chat.Answer(request) << std::endl;
  }
}

}  // namespace
}  // namespace kvevict::tests

int main(int, char** argv) {
  try {
    kvevict::tests::Run(argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
