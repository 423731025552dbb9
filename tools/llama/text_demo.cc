#include "tools/llama/text_demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/engine/platform.h"
#include "tools/engine/progress_bar.h"
#include "tools/engine/text_table.h"
#include "tools/engine/thread_pool.h"
#include "tools/llama/model.h"
#include "tools/llama/model_file.h"
#include "tools/llama/text_evaluation.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kMaxPredictions = 64;
constexpr uint32_t kGreedyTokens = 48;

// The observation window (32), the sinks (4) and some tokens to select. With
// less, the default policies would not fit a short prompt.
constexpr uint32_t kMinDefaultBudget = 48;

std::string ReadText(const std::string& path) {
  std::ifstream file(PathOf(path), std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return text;
}

// Prompt and predictions together fit the context, unless the user asks for a
// longer prompt: some files state less than is true.
TextTask CutText(const std::vector<int32_t>& ids, const DemoOptions& options,
                 uint32_t context_length) {
  const size_t n_predictions =
      options.decode.value_or(std::min(kMaxPredictions, context_length / 2));
  const size_t n_fitting = std::min<size_t>(ids.size(), context_length);
  const size_t n_prompt =
      options.tokens.value_or(n_fitting - std::min(n_fitting, n_predictions));
  if (n_prompt == 0 && !options.tokens && n_predictions >= context_length) {
    throw std::runtime_error(fmt::format(
        "{}: --decode {} leaves no room for a prompt in the context of {} that "
        "the file states; --tokens says how long the prompt is",
        options.model, n_predictions, context_length));
  }
  // A prediction needs a token to feed and one to compare with.
  if (n_prompt == 0 || n_prompt + 2 > ids.size()) {
    throw std::runtime_error(fmt::format(
        "{}: {} tokens are too few for a prompt of {} and a prediction",
        options.text, ids.size(), n_prompt));
  }
  const auto end = ids.begin() + n_prompt;
  TextTask task{
      {ids.begin(), end}, {end, ids.end()}, options.decode.has_value()};
  if (task.following.size() > n_predictions + 1) {
    task.following.resize(n_predictions + 1);
  }
  const size_t n_positions = n_prompt + task.following.size() - 1;
  if (n_positions > context_length) {
    fmt::print(stderr,
               "warning: {} positions, but {} states a context length of {}\n",
               n_positions, options.model, context_length);
  }
  return task;
}

uint32_t DefaultBudget(uint32_t n_prompt) {
  return std::min(std::max(n_prompt / 4, kMinDefaultBudget), n_prompt);
}

// The model's text up to its end token.
std::string GreedyText(const TextResult& result, const Tokenizer& tokenizer) {
  const auto ends = [&](int32_t id) {
    return id == tokenizer.options().bos_id || id == tokenizer.options().eos_id;
  };
  const auto end =
      std::find_if(result.greedy.begin(), result.greedy.end(), ends);
  return tokenizer.Decode({result.greedy.begin(), end});
}

// Line breaks would break the listing.
std::string OneLine(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ';
    if (!blank || !line.ends_with(' ')) line += blank ? ' ' : c;
  }
  return line;
}

std::string Table(const DemoOptions& options,
                  const std::vector<TextResult>& results,
                  const Tokenizer& tokenizer) {
  std::vector<TextTable::Column> columns =
      EvictionColumns(options.decode.has_value(), options.is_quantized());
  for (const char* title : {"KL nats", "agree %", "NLL nats", "tokens/s"}) {
    columns.push_back({title});
  }
  TextTable table(columns);
  for (size_t i = 0; i < results.size(); ++i) {
    const TextResult& r = results[i];
    std::vector<std::string> cells =
        EvictionCells(options.policies[i].label, r.evictions,
                      options.decode.has_value(), options.is_quantized(), 3);
    cells.push_back(fmt::format("{:.4f}", r.kl));
    cells.push_back(fmt::format("{:.1f}", 100 * r.agreement));
    cells.push_back(fmt::format("{:.3f}", r.nll));
    cells.push_back(fmt::format("{:.0f}", r.decode_tokens_per_s));
    table.AddRow(cells);
  }
  std::string text = table.ToString() + "\nThe prompt continued greedily:\n";
  for (size_t i = 0; i < results.size(); ++i) {
    text += fmt::format("  {:<14} {}\n", options.policies[i].label,
                        OneLine(GreedyText(results[i], tokenizer)));
  }
  return text;
}

std::string Json(const DemoOptions& options,
                 const std::vector<TextResult>& results,
                 const Tokenizer& tokenizer, const TextTask& task,
                 uint32_t budget) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    const TextResult& r = results[i];
    const Evictor::Report& prompt = r.evictions.of_prompt;
    rows.push_back({{"policy", options.policies[i].label},
                    {"kv_bytes_before", prompt.bytes_before},
                    {"kv_bytes_after", prompt.bytes_after},
                    {"shrink", r.evictions.Shrink()},
                    {"shrink_of_f32", r.evictions.ShrinkOfF32()},
                    {"evict_ms", prompt.milliseconds},
                    {"kv_bytes_at_end", r.evictions.bytes_at_end},
                    {"decode_evictions", r.evictions.n},
                    {"decode_evict_ms", r.evictions.MillisecondsEach()},
                    {"recall_asked", nullptr},
                    {"recall_unasked", nullptr},
                    {"decode_tokens_per_s", r.decode_tokens_per_s},
                    {"kl", r.kl},
                    {"agreement", r.agreement},
                    {"nll", r.nll},
                    {"text", GreedyText(r, tokenizer)}});
  }
  const nlohmann::ordered_json document = {
      {"n_tokens", task.prompt.size()},
      {"n_predictions", task.following.size() - 1},
      {"budget", budget},
      {"cache", options.cache},
      {"results", rows}};
  // Byte pieces can spell text that is not UTF-8.
  return document.dump(2, ' ', false,
                       nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace

std::string RunTextDemo(const DemoOptions& options) {
  ThreadPool pool(options.threads);
  ModelFile file = ReadModelFile(options.model, options.tokenizer);
  LlamaModel model(std::move(file.weights), pool, options.simd_target());
  TextTask task = CutText(file.tokenizer.Encode(ReadText(options.text)),
                          options, model.config().context_length);
  if (!options.question.empty()) {
    task.question = file.tokenizer.Encode(options.question);
  }
  const uint32_t n_prompt = static_cast<uint32_t>(task.prompt.size());
  const uint32_t budget = options.budget
                              ? BudgetTokens(*options.budget, n_prompt)
                              : DefaultBudget(n_prompt);
  const std::vector<Policy> policies = ParsePolicies(
      options.policies, budget, n_prompt, model.config().n_layers,
      /*has_weights=*/false, static_cast<uint32_t>(task.question.size()));
  if (options.decode) CheckDecoding(options.policies, policies);
  TextEvaluation evaluation(model, task, options.dtype, policies, kGreedyTokens,
                            pool, options.simd_target(), options.layout());
  {
    ProgressBar bar("prefill", n_prompt);
    evaluation.Prefill([&](uint32_t n_done) { bar.Update(n_done); });
  }
  std::vector<TextResult> results;
  for (size_t i = 0; i < policies.size(); ++i) {
    results.push_back(evaluation.Evaluate(i));
  }

  if (options.json) {
    return Json(options, results, file.tokenizer, task, budget);
  }
  return fmt::format(
      "{}: {} tokens, then {} predictions; budget {} tokens\n\n{}",
      options.model, n_prompt, task.following.size() - 1, budget,
      Table(options, results, file.tokenizer));
}

}  // namespace kvevict::tools
