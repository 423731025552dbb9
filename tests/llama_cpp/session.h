// A llama_context with an adapter, and the tests' questions about both.
#ifndef KVEVICT_TESTS_LLAMA_CPP_SESSION_H_
#define KVEVICT_TESTS_LLAMA_CPP_SESSION_H_

#include <kvevict-llama.h>
#include <kvevict/calibration.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/llama_cpp/random_model.h"
#include "upstream.h"

namespace kvevict::tests {

using ModelHandle = llama_cli::Model;
using llama_cli::Check;  // throws the adapter's sentence

// Loads a model file once for all contexts.
ModelHandle LoadModel(const std::string& path);
// A model of this shape with random weights. One of gemma3's seven layers has no
// window.
ModelHandle LoadRandomModel(const RandomModel& shape);
ModelHandle LoadRandomModel(const char* arch);

struct SessionOptions {
  ggml_type type_k = GGML_TYPE_F32;
  ggml_type type_v = GGML_TYPE_F32;
  bool flash = false;
  uint32_t n_ctx = 1024;
  uint32_t n_seq = 1;
  bool unified = false;
  uint32_t n_ubatch = 64;
  uint32_t query_rows = 0;
  std::span<const char> calibration;
  bool swa_full = false;
  bool last_logits_only = false;                        // of each Decode()
  ggml_backend_sched_eval_callback callback = nullptr;  // the application's
  void* callback_data = nullptr;
  double* observing_s = nullptr;  // receives the time spent in the adapter
};

class Session {
 public:
  using Report = kvevict_llama_report;

  // policy nullptr: there is no adapter.
  Session(llama_model* model, const char* policy,
          const SessionOptions& options);

  // Decodes tokens of a sequence from its next position on; returns the logits of
  // each token, end to end.
  std::vector<float> Decode(std::span<const llama_token> tokens,
                            llama_seq_id seq = 0);
  // Decodes one batch of several sequences, whose tokens take turns.
  void DecodeTogether(const std::vector<std::vector<llama_token>>& sequences);

  // Throws with the adapter's sentence.
  kvevict_llama_report Evict(llama_seq_id seq = 0,
                             kvevict_llama_way way = KVEVICT_LLAMA_WAY_AUTO,
                             Session* target = nullptr,
                             const kvevict_evict_options* evict = nullptr);
  // The message with which an eviction is refused; "" if it is not.
  std::string EvictRefused(kvevict_llama_way way = KVEVICT_LLAMA_WAY_AUTO,
                           llama_seq_id seq = 0, Session* target = nullptr);

  std::vector<uint8_t> Save(llama_seq_id seq = 0);
  kvevict_status Load(const std::vector<uint8_t>& saved, llama_seq_id seq = 0);

  // Begins to calibrate; the session then has no token.
  const kvevict_calibration* Calibrate(bool has_covariances);

  std::vector<int32_t> Positions(uint32_t layer = 0, uint32_t head = 0,
                                 llama_seq_id seq = 0);
  const kvevict_sequence* sequence(llama_seq_id seq = 0);
  uint32_t n_vocab() const { return n_vocab_; }
  llama_context* ctx() { return context_.ctx.get(); }
  kvevict_llama* kv() { return context_.kv.get(); }
  llama_memory_t memory() { return llama_get_memory(ctx()); }

 private:
  struct Timed {
    kvevict_llama* kv;
    double* seconds;
  };
  static bool TimedEval(ggml_tensor* tensor, bool ask, void* timed);

  uint32_t n_vocab_;
  bool last_logits_only_;
  Timed timed_{};
  llama_cli::Context context_;
};

// The bytes of a calibration.
std::string SaveCalibration(const kvevict_calibration* calibration);

// n tokens below n_vocab, the same for equal seeds.
std::vector<llama_token> RandomTokens(size_t n, uint32_t n_vocab,
                                      uint32_t seed = 1);

// Removes the tokens of a sequence of n tokens that are not kept from llama.cpp's own
// cache.
void RemoveOthers(Session& session, std::span<const int32_t> kept, int32_t n,
                  llama_seq_id seq = 0);

double MaxDifference(std::span<const float> a, std::span<const float> b);

}  // namespace kvevict::tests

#endif  // KVEVICT_TESTS_LLAMA_CPP_SESSION_H_
