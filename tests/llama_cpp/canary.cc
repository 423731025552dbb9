// canary MODEL BACKENDS: four sequences in a unified cache, as in llama.cpp's server, are
// decoded by llama_process() and evicted one by one; one of them is a copy. The reference
// is llama.cpp removing the same tokens. For versions that have llama_batch_ext.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "upstream.h"

namespace {

using kvevict::llama_cli::Check;
using kvevict::llama_cli::Context;
using kvevict::llama_cli::ContextOptions;
using kvevict::llama_cli::LoadModel;
using kvevict::llama_cli::OpenContext;

constexpr int kSequences = 4;

struct FreeBatch {
  void operator()(llama_batch_ext* p) const { llama_batch_ext_free(p); }
};

void Must(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

class Server {
 public:
  Server(llama_model* model, const char* policy) {
    ContextOptions options;
    options.n_ctx = 2048;
    options.n_seq = kSequences;
    options.unified = true;
    options.type_k = options.type_v = GGML_TYPE_F32;
    options.flash = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_ = OpenContext(model, policy, options);
  }

  // Decodes n tokens of each sequence in turn; returns the last logits of each, end to
  // end.
  std::vector<float> Decode(std::vector<llama_seq_id> of, int n, int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const llama_vocab* vocab = llama_model_get_vocab(llama_get_model(ctx()));
    const int n_vocab = llama_vocab_n_tokens(vocab);
    const std::unique_ptr<llama_batch_ext, FreeBatch> batch(
        llama_batch_ext_init(ctx()));
    std::vector<llama_seq_id> seqs;
    std::vector<llama_pos> positions;
    std::vector<int32_t> last;
    for (int i = 0; i < n; ++i) {
      for (const llama_seq_id seq : of) {
        const llama_pos position =
            llama_memory_seq_pos_max(memory(), seq) + 1 + i;
        const int32_t at = llama_batch_ext_add_token(
            batch.get(), seq, static_cast<llama_token>(random() % n_vocab));
        Must(at >= 0 && llama_batch_ext_set_pos(batch.get(), at, &position) &&
                 llama_batch_ext_set_output_logits(batch.get(), at, i == n - 1),
             "llama_batch_ext is not as it was");
        if (i == n - 1) last.push_back(at);
        seqs.push_back(seq);
        positions.push_back(position);
      }
    }
    if (kv() != nullptr) {
      Check(kvevict_llama_tokens(kv(), seqs.data(), positions.data(),
                                 seqs.size()));
    }
    Must(llama_process(ctx(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0,
         "llama_process() failed");
    std::vector<float> logits;
    for (const int32_t at : last) {
      const float* row = llama_get_logits_ith(ctx(), at);
      logits.insert(logits.end(), row, row + n_vocab);
    }
    return logits;
  }

  // Evicts and returns the positions that stay.
  std::vector<int32_t> Evict(llama_seq_id seq) {
    Check(kvevict_llama_evict(kv(), seq, nullptr, nullptr));
    const kvevict_sequence* sequence = nullptr;
    Check(kvevict_llama_sequence(kv(), seq, &sequence));
    uint32_t n = 0;
    size_t written = 0;
    kvevict_sequence_stored_length(sequence, 0, 0, &n);
    std::vector<int32_t> kept(n);
    kvevict_sequence_keep_positions(sequence, 0, 0, kept.data(), n, &written);
    return kept;
  }
  void RemoveOthers(llama_seq_id seq, const std::vector<int32_t>& kept) {
    for (llama_pos p = 0; p < kept.back(); ++p) {
      if (std::find(kept.begin(), kept.end(), p) == kept.end()) {
        llama_memory_seq_rm(memory(), seq, p, p + 1);
      }
    }
  }

  llama_context* ctx() { return context_.ctx.get(); }
  kvevict_llama* kv() { return context_.kv.get(); }
  llama_memory_t memory() { return llama_get_memory(ctx()); }

 private:
  Context context_;
};

void Run(const char* path, const char* backends) {
  const auto model =
      LoadModel(path, backends, [](ggml_log_level, const char*, void*) {});
  Server evicted(model.get(), "snapkv:budget=48,window=16,scope=model");
  Server removed(model.get(), nullptr);
  for (Server* server : {&evicted, &removed}) {
    server->Decode({0, 1, 2}, 90, 1);
  }
  Check(kvevict_llama_copy(evicted.kv(), 0, 3));
  llama_memory_seq_cp(removed.memory(), 0, 3, -1, -1);
  for (int round = 0; round < 3; ++round) {
    for (const llama_seq_id seq : {1, 0, 3}) {
      const auto kept = evicted.Evict(seq);
      Must(kept.size() == 48, "an eviction has not kept 48 tokens");
      removed.RemoveOthers(seq, kept);
    }
    const auto a = evicted.Decode({0, 1, 2, 3}, 20, 2 + round);
    const auto b = removed.Decode({0, 1, 2, 3}, 20, 2 + round);
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max(most, std::fabs(double{a[i]} - b[i]));
    }
    std::printf("4 sequences, unified, round %d: logits differ by %.2g\n",
                round, most);
    Must(most < 1e-3, "logits of evicted sequences are others");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Must(argc == 3, "usage: canary MODEL BACKENDS");
    Run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "canary: %s\n", error.what());
    return 1;
  }
}
