#include "windows.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "kept.h"
#include "tools/llama/log_softmax.h"

namespace kvevict::llama_cli::eval {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Rows of logits after following[0] .. following[n - 2].
class Predictions {
 public:
  Predictions(std::vector<float> logits, std::span<const llama_token> following,
              size_t n_vocab)
      : logits_(std::move(logits)), following_(following), n_vocab_(n_vocab) {}

  size_t size() const { return following_.size() - 1; }
  std::span<const float> row(size_t i) const {
    return std::span(logits_).subspan(i * n_vocab_, n_vocab_);
  }
  // The mean of -log p of the tokens that follow, in nats.
  double Nll() const {
    double sum = 0;
    for (size_t i = 0; i < size(); ++i) {
      sum -= tools::LogSoftmax(row(i), following_[i + 1]);
    }
    return sum / static_cast<double>(size());
  }

 private:
  std::vector<float> logits_;
  std::span<const llama_token> following_;
  size_t n_vocab_;
};

void AddDifference(const Predictions& full, const Predictions& evicted,
                   json& row) {
  double kl = 0, agree = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    kl += tools::KlDivergence(full.row(i), evicted.row(i));
    agree +=
        tools::ArgMax(full.row(i)) == tools::ArgMax(evicted.row(i)) ? 1 : 0;
  }
  row["kl"] = kl / static_cast<double>(full.size());
  row["agree"] = agree / static_cast<double>(full.size());
}

// Tokens per second of decoding one by one, by the median step.
double DecodeSpeed(SharedPrefill& prefill,
                   std::span<const llama_token> tokens) {
  prefill.TakeBackContinued();
  std::vector<double> seconds;
  for (const llama_token& token : tokens) {
    const auto start = Clock::now();
    prefill.Continue({&token, 1}, 0);
    seconds.push_back(SecondsSince(start));
  }
  const auto middle =
      seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return 1 / *middle;
}

}  // namespace

Measured MeasureWindow(SharedPrefill& prefill,
                       std::span<const Candidate> candidates,
                       std::span<const llama_token> window, uint32_t n_prompt,
                       uint32_t n_decode) {
  Measured measured;
  const auto following = window.subspan(n_prompt);
  const auto inputs = following.first(following.size() - 1);
  const auto decoded =
      following.first(std::min<size_t>(n_decode, following.size()));
  const auto start = Clock::now();
  prefill.Read(window.first(n_prompt));
  measured.timings["prefill_s"] = SecondsSince(start);

  const auto predict = [&] {
    return Predictions(prefill.Continue(inputs, 0), following,
                       prefill.n_vocab());
  };
  kvevict_llama_report report = prefill.Evict(candidates.size());
  const Predictions full = predict();
  measured.results["full"] = {{"nll", full.Nll()},
                              {"cells", report.cells_after},
                              {"bytes", report.bytes_after}};
  if (!decoded.empty()) {
    measured.timings["full_tokens_per_s"] = DecodeSpeed(prefill, decoded);
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    report = prefill.Evict(i);
    const json kept =
        decoded.empty() ? json() : KeptRows(prefill.Evicted(), n_prompt);
    const Predictions evicted = predict();
    json row = {{"policy", candidates[i].policy},
                {"share", candidates[i].share},
                {"cells", report.cells_after},
                {"bytes", report.bytes_after},
                {"nll", evicted.Nll()}};
    if (!kept.is_null()) row["kept"] = kept;
    row["mass"] =
        std::isnan(report.mass_kept) ? json() : json(report.mass_kept);
    AddDifference(full, evicted, row);
    json time = {{"policy", candidates[i].policy},
                 {"share", candidates[i].share},
                 {"evict_ms", report.total_ms},
                 {"kvevict_ms", report.evict_ms}};
    if (!decoded.empty()) {
      time["tokens_per_s"] = DecodeSpeed(prefill, decoded);
    }
    measured.results["evicted"].push_back(row);
    measured.timings["evicted"].push_back(time);
  }
  return measured;
}

}  // namespace kvevict::llama_cli::eval
