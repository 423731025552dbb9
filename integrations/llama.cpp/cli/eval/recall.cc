#include "recall.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "arguments.h"
#include "tools/llama/log_softmax.h"

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;
using Tokens = std::vector<llama_token>;

// Stands where the context ends and the question begins.
const char kMark = '\x01';

// A user's message as the model's template has it, after a system message
// unless that is empty; "" without a template.
std::string Chat(const llama_model* model, const std::string& system,
                 const std::string& message) {
  const char* chat_template = llama_model_chat_template(model, nullptr);
  if (chat_template == nullptr) return "";
  std::vector<llama_chat_message> messages = {{"user", message.c_str()}};
  if (!system.empty()) {
    messages.insert(messages.begin(), {"system", system.c_str()});
  }
  std::string text((system.size() + message.size()) * 2 + 1024, '\0');
  const int32_t n = llama_chat_apply_template(
      chat_template, messages.data(), messages.size(), true, text.data(),
      static_cast<int32_t>(text.size()));
  if (n < 0 || static_cast<size_t>(n) > text.size()) return "";
  text.resize(static_cast<size_t>(n));
  return text;
}

Tokens Joined(const Tokens& a, const Tokens& b) {
  Tokens tokens = a;
  tokens.insert(tokens.end(), b.begin(), b.end());
  return tokens;
}

struct Score {
  bool exact = true;  // every token of the answer is the most likely one
  double lp = 0;      // log probability per token of the answer
};

// `logits` are those before each token of the answer.
Score ScoreOf(std::span<const float> logits, const Tokens& answer) {
  const size_t n_vocab = logits.size() / answer.size();
  Score score;
  for (size_t i = 0; i < answer.size(); ++i) {
    const auto row = logits.subspan(i * n_vocab, n_vocab);
    score.exact = score.exact && tools::ArgMax(row) == answer[i];
    score.lp +=
        tools::LogSoftmax(row, answer[i]) / static_cast<double>(answer.size());
  }
  return score;
}

// The mean of KL(full || evicted) over the tokens of an answer, in nats.
double MeanKl(std::span<const float> full, std::span<const float> evicted,
              size_t n_tokens) {
  const size_t n_vocab = full.size() / n_tokens;
  double sum = 0;
  for (size_t i = 0; i < full.size(); i += n_vocab) {
    sum += tools::KlDivergence(full.subspan(i, n_vocab),
                               evicted.subspan(i, n_vocab));
  }
  return sum / static_cast<double>(n_tokens);
}

// Feeds `before` and the answer behind what was evicted. `full` has the logits
// of the full cache; where it is empty they become these.
void Answer(SharedPrefill& prefill, const Tokens& before, const Tokens& answer,
            std::vector<float>& full, json& scores) {
  Tokens tokens = Joined(before, answer);
  tokens.pop_back();
  std::vector<float> logits = prefill.Continue(tokens, before.size() - 1);
  prefill.TakeBackContinued();
  const Score score = ScoreOf(logits, answer);
  scores["exact"].push_back(score.exact ? 1 : 0);
  scores["lp"].push_back(score.lp);
  if (full.empty()) {
    full = std::move(logits);
  } else {
    scores["kl"].push_back(MeanKl(full, logits, answer.size()));
  }
}

}  // namespace

uint32_t TokenizedTask::Behind() const {
  size_t n = 0;
  for (const Item& item : questions) {
    n = std::max(n, item.ask.size() + item.prefix.size() + item.answer.size());
  }
  return static_cast<uint32_t>(n);
}

std::vector<llama_token> TokenizeQuestion(const llama_model* model,
                                          const std::string& question) {
  std::string text = Chat(model, "", kMark + question);
  if (text.empty()) text = kMark + question + "\n";
  return Tokenize(llama_model_get_vocab(model),
                  text.substr(text.find(kMark) + 1), false, true);
}

TokenizedTask TokenizeTask(const llama_model* model, const Task& task) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  TokenizedTask tokenized;
  for (const Question& q : task.questions) {
    std::string text = Chat(model, task.system, task.context + kMark + q.ask);
    if (text.empty()) text = task.context + kMark + q.ask + "\n";
    const size_t mark = text.find(kMark);
    if (mark == std::string::npos) {
      throw std::runtime_error("the chat template drops a part of a message");
    }
    tokenized.context = Tokenize(vocab, text.substr(0, mark), true, true);
    tokenized.questions.push_back(
        {Tokenize(vocab, text.substr(mark + 1), false, true),
         Tokenize(vocab, q.prefix, false, false),
         Tokenize(vocab, q.answer, false, false)});
  }
  return tokenized;
}

Measured MeasureTask(SharedPrefill& prefill,
                     std::span<const Candidate> candidates,
                     const TokenizedTask& task) {
  Measured measured;
  const auto start = std::chrono::steady_clock::now();
  prefill.Read(task.context);
  // The last row is the full cache, which the others are compared with.
  std::vector<json> rows(candidates.size() + 1);
  std::vector<std::vector<float>> full(task.questions.size());
  for (size_t i = rows.size(); i-- > 0;) {
    prefill.Evict(i);
    for (size_t q = 0; q < full.size(); ++q) {
      const auto& [ask, prefix, answer] = task.questions[q];
      Answer(prefill, Joined(ask, prefix), answer, full[q], rows[i]["unseen"]);
    }
  }
  for (const auto& [ask, prefix, answer] : task.questions) {
    prefill.ReadOn(ask, ask.size());
    std::vector<float> with_question;
    for (size_t i = rows.size(); i-- > 0;) {
      prefill.Evict(i);
      Answer(prefill, prefix, answer, with_question, rows[i]["seen"]);
    }
    prefill.TakeBack(static_cast<uint32_t>(task.context.size()));
  }
  measured.results["tokens"] = task.context.size();
  measured.results["full"] = rows.back();
  measured.results["evicted"] = json::array();
  for (size_t i = 0; i < candidates.size(); ++i) {
    rows[i]["policy"] = candidates[i].policy;
    rows[i]["share"] = candidates[i].share;
    measured.results["evicted"].push_back(rows[i]);
  }
  measured.timings["s"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  return measured;
}

}  // namespace kvevict::llama_cli::eval
