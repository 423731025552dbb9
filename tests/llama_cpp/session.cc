#include "tests/llama_cpp/session.h"
#include "tests/paths.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>
#include <stdexcept>

namespace kvevict::tests {

using llama_cli::Batch;

namespace {

// Logs errors only, to the test's output if it asks for them.
void Log(ggml_log_level level, const char* text, void*) {
  static const bool wanted = std::getenv("KVEVICT_LLAMA_LOG") != nullptr;
  if (wanted && level >= GGML_LOG_LEVEL_INFO) std::fputs(text, stderr);
}

}  // namespace

ModelHandle LoadModel(const std::string& path) {
  return llama_cli::LoadModel(path, test_llama_libraries, &Log);
}

ModelHandle LoadRandomModel(const RandomModel& shape) {
  const std::string path = WriteRandomModel(shape);
  ModelHandle model = LoadModel(path);
  unlink(path.c_str());
  return model;
}

ModelHandle LoadRandomModel(const char* arch) {
  RandomModel shape;
  shape.arch = arch;
  shape.n_layers = 7;
  return LoadRandomModel(shape);
}

Session::Session(llama_model* model, const char* policy,
                 const SessionOptions& options)
    : n_vocab_(static_cast<uint32_t>(
          llama_vocab_n_tokens(llama_model_get_vocab(model)))),
      last_logits_only_(options.last_logits_only) {
  llama_cli::ContextOptions all;
  all.n_ctx = all.n_batch = options.n_ctx;
  all.n_ubatch = options.n_ubatch;
  all.n_seq = options.n_seq;
  all.unified = options.unified;
  all.type_k = options.type_k;
  all.type_v = options.type_v;
  all.flash = options.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                            : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  all.swa_full = options.swa_full;
  all.query_rows = options.query_rows;
  all.calibration = options.calibration;
  all.callback = options.callback;
  all.callback_data = options.callback_data;
  context_ = llama_cli::OpenContext(
      model, policy, all, [&](llama_context_params& params, kvevict_llama* kv) {
        if (options.observing_s == nullptr) return;
        timed_ = {kv, options.observing_s};
        params.cb_eval = &TimedEval;
        params.cb_eval_user_data = &timed_;
      });
}

bool Session::TimedEval(ggml_tensor* tensor, bool ask, void* timed) {
  using Clock = std::chrono::steady_clock;
  const auto& t = *static_cast<Timed*>(timed);
  const auto start = Clock::now();
  const bool result = kvevict_llama_eval(tensor, ask, t.kv);
  *t.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

std::vector<float> Session::Decode(std::span<const llama_token> tokens,
                                   llama_seq_id seq) {
  const llama_pos next = llama_memory_seq_pos_max(memory(), seq) + 1;
  Batch batch(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch.Add(tokens[i], next + static_cast<llama_pos>(i), seq,
              !last_logits_only_ || i + 1 == tokens.size());
  }
  batch.Decode(context_);
  const float* logits = llama_get_logits(ctx());
  const size_t n = last_logits_only_ ? 1 : tokens.size();
  return {logits, logits + n * n_vocab_};
}

void Session::DecodeTogether(
    const std::vector<std::vector<llama_token>>& sequences) {
  size_t total = 0, longest = 0;
  for (const auto& tokens : sequences) {
    total += tokens.size();
    longest = std::max(longest, tokens.size());
  }
  Batch batch(total);
  std::vector<llama_pos> next;
  for (size_t s = 0; s < sequences.size(); ++s) {
    next.push_back(llama_memory_seq_pos_max(memory(), s) + 1);
  }
  for (size_t i = 0; i < longest; ++i) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (i < sequences[s].size())
        batch.Add(sequences[s][i], next[s]++, s, true);
    }
  }
  batch.Decode(context_);
}

kvevict_llama_report Session::Evict(llama_seq_id seq, kvevict_llama_way way,
                                    Session* target,
                                    const kvevict_evict_options* evict) {
  kvevict_llama_evict_options options = KVEVICT_LLAMA_EVICT_OPTIONS_INIT;
  options.way = way;
  options.target = target == nullptr ? nullptr : target->kv();
  options.evict = evict;
  kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
  Check(kvevict_llama_evict(kv(), seq, &options, &report));
  return report;
}

std::string Session::EvictRefused(kvevict_llama_way way, llama_seq_id seq,
                                  Session* target) {
  try {
    Evict(seq, way, target);
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

std::vector<uint8_t> Session::Save(llama_seq_id seq) {
  size_t n = 0;
  Check(kvevict_llama_save_data(kv(), seq, nullptr, 0, nullptr, 0, &n));
  std::vector<uint8_t> saved(n);
  Check(kvevict_llama_save_data(kv(), seq, nullptr, 0, saved.data(), n, &n));
  return saved;
}

kvevict_status Session::Load(const std::vector<uint8_t>& saved,
                             llama_seq_id seq) {
  return kvevict_llama_load_data(kv(), seq, saved.data(), saved.size(), nullptr,
                                 0, nullptr);
}

const kvevict_sequence* Session::sequence(llama_seq_id seq) {
  const kvevict_sequence* sequence = nullptr;
  Check(kvevict_llama_sequence(kv(), seq, &sequence));
  return sequence;
}

const kvevict_calibration* Session::Calibrate(bool has_covariances) {
  Decode(RandomTokens(1, n_vocab_));
  const kvevict_calibration* calibration = nullptr;
  Check(kvevict_llama_calibrate(kv(), has_covariances ? 1 : 0, &calibration));
  llama_memory_clear(memory(), true);
  return calibration;
}

std::vector<int32_t> Session::Positions(uint32_t layer, uint32_t head,
                                        llama_seq_id seq) {
  uint32_t n = 0;
  kvevict_sequence_stored_length(sequence(seq), layer, head, &n);
  std::vector<int32_t> positions(n);
  size_t written = 0;
  if (kvevict_sequence_keep_positions(sequence(seq), layer, head,
                                      positions.data(), n,
                                      &written) != KVEVICT_OK) {
    throw std::runtime_error(kvevict_last_error_message());
  }
  return positions;
}

std::string SaveCalibration(const kvevict_calibration* calibration) {
  size_t n = 0;
  std::string bytes;
  if (kvevict_calibration_save(calibration, nullptr, 0, &n) == KVEVICT_OK) {
    bytes.resize(n);
    if (kvevict_calibration_save(calibration, bytes.data(), n, nullptr) ==
        KVEVICT_OK) {
      return bytes;
    }
  }
  throw std::runtime_error(kvevict_last_error_message());
}

std::vector<llama_token> RandomTokens(size_t n, uint32_t n_vocab,
                                      uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<llama_token> tokens(n);
  for (llama_token& token : tokens) {
    token = static_cast<llama_token>(random() % n_vocab);
  }
  return tokens;
}

void RemoveOthers(Session& session, std::span<const int32_t> kept, int32_t n,
                  llama_seq_id seq) {
  int32_t from = 0;
  for (size_t i = 0; i <= kept.size(); ++i) {
    const int32_t to = i < kept.size() ? kept[i] : n;
    if (to > from && !llama_memory_seq_rm(session.memory(), seq, from, to)) {
      throw std::runtime_error("llama_memory_seq_rm() failed");
    }
    from = to + 1;
  }
}

double MaxDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(double{a[i]} - b[i]);
    if (!(d <= most)) most = d;
  }
  return most;
}

}  // namespace kvevict::tests
