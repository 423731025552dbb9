// Means over windows with their standard errors, a ranking and a verdict.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SUMMARY_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SUMMARY_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvevict::llama_cli::eval {

struct Mean {
  double mean = 0;
  // Standard error of the mean; none with one value.
  std::optional<double> error;
};
Mean MeanOf(const std::vector<double>& values);

// True if the mean of paired differences is within two standard errors of 0;
// false with one pair, which has no error.
bool AreClose(const std::vector<double>& a, const std::vector<double>& b);

struct Row {
  std::string policy;
  double share = 0;
  uint32_t cells = 0;
  uint64_t bytes = 0;
  Mean kl, agree, nll_difference;
  double perplexity = 0;
  std::optional<double> mass;  // of the policy's own scores
  double evict_ms = 0;
  double tokens_per_s = 0;  // 0: not measured
  uint32_t rank = 0;        // among the policies of this share
};

struct Summary {
  size_t n_windows = 0, n_predictions = 0;  // of all windows
  uint64_t full_bytes = 0;
  double full_perplexity = 0, full_tokens_per_s = 0;
  double prefill_s = 0;
  std::vector<double> shares;  // descending
  // By share, and then by rank: the sum of the places by KL and by agreement,
  // and by KL where these sums are equal.
  std::vector<Row> rows;
};
Summary Summarize(const nlohmann::json& document);

// Answers to the questions of all tasks, seen or unseen, at a share.
struct Recall {
  Mean right;  // the share right of what the full cache answers
  Mean lp;     // log probability per token of the answer less the full cache's
  Mean kl;     // KL(full || evicted) per token of the answer, in nats
  std::vector<double> lp_of_context;  // what lp is the mean of
};
struct TaskRow {
  std::string policy;
  double share = 0;
  Recall seen, unseen;
};
// How many questions of a kind the full cache answers, unseen and then asked.
struct Ceiling {
  std::string kind;
  size_t n_right = 0, n_asked = 0;
};
struct TaskSummary {
  size_t n_contexts = 0;
  std::vector<Ceiling> ceilings;
  std::vector<TaskRow> rows;  // by share, and then by unseen.lp
  // Policies and budgets without room in a context, which would be compared on
  // other contexts than the rest.
  std::vector<std::string> left_out;
};
// Errors are over contexts, since the questions of one depend on each other.
TaskSummary SummarizeTasks(const nlohmann::json& document);

// What the windows say, in sentences with uncertainties.
std::string Verdict(const nlohmann::json& document, const Summary& summary);
// The same of the tasks.
std::string TasksVerdict(const TaskSummary& summary);

// "0.042 ± 0.006", or without the error if there is none.
std::string WithError(const Mean& mean, int digits, double scale = 1);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_SUMMARY_H_
