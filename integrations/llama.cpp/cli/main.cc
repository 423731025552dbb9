// kvevict-llama-cli: what an eviction costs, frees and changes, on the user's
// own model and text; `kvevict-llama-cli eval`, see eval/command.h; and
// `kvevict-llama-cli calibrate`, see calibrate.h.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "arguments.h"
#include "calibrate.h"
#include "eval/command.h"
#include "kvevict/experimental.h"
#include "measure.h"
#include "policy.h"
#include "tools/commands/output.h"
#include "tools/engine/progress_bar.h"
#include "tools/engine/text_table.h"

namespace kvevict::llama_cli {
namespace {

using nlohmann::json;
using tools::TextTable;

struct Arguments : ModelArguments {
  std::string prompt_file;
  uint32_t n_prompt = 0;
  std::optional<uint32_t> n_predict, n_generate;
  bool as_json = false;
  Task task;
};

void AddOptions(CLI::App& app, Arguments& args) {
  AddModelOptions(app, args);
  app.add_option("-f,--file", args.prompt_file,
                 "Text: its first tokens are the prompt, those behind are "
                 "predicted")
      ->required();
  app.add_option("-p,--policy", args.task.policy,
                 "Policy, e.g. snapkv:budget=2048 (docs/policies.md; default: "
                 "snapkv with a quarter of the prompt)")
      ->check([](const std::string& text) {
        return text.empty() ? "a policy has a name, and \"\" has none"
                            : std::string();
      });
  app.add_option("--tokens", args.n_prompt,
                 "Length of the prompt (default: all of the text but what is "
                 "predicted, as far as the model was trained for)")
      ->check(CLI::Range(uint32_t{1}, kMostCells));
  app.add_option("--predict", args.n_predict,
                 "Tokens behind the prompt that are fed one by one, with and "
                 "without eviction: all but the first are predicted by both "
                 "caches (default: 64, or what fits)");
  app.add_option("--generate", args.n_generate,
                 "Tokens to continue the prompt with, greedily (default: 32, "
                 "or what fits)");
  app.add_flag("--in-place", args.task.in_place,
               "Evict the context itself; default: into a smaller one, which "
               "gives memory back");
  app.add_option("--query-rows", args.context.query_rows,
                 "Last queries that are kept of each layer: h2o scores by all "
                 "of them (default: the policy's window; for non-causal, and "
                 "at most, the prompt)");
  AddCalibrationOption(app, args);
  app.add_flag("--json", args.as_json, "One JSON document instead of tables");
}

std::string Text(const llama_vocab* vocab,
                 const std::vector<llama_token>& tokens) {
  std::string text(tokens.size() * 64 + 64, '\0');
  const int32_t n = llama_detokenize(
      vocab, tokens.data(), static_cast<int32_t>(tokens.size()), text.data(),
      static_cast<int32_t>(text.size()), false, true);
  text.resize(static_cast<size_t>(std::max(n, 0)));
  return text;
}

// The text in quotes, on one line.
std::string Quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// Cuts the text into the prompt and what follows. Lengths that the user left
// open are chosen to fit the model and the text.
void Cut(const llama_model* model, std::vector<llama_token> tokens,
         const Arguments& args, Task& task) {
  const auto trained = static_cast<size_t>(llama_model_n_ctx_train(model));
  task.n_trained = trained;
  const size_t most =
      args.n_prompt > 0 ? tokens.size() : std::min(tokens.size(), trained);
  const size_t beyond = most - std::min<size_t>(args.n_prompt, most);
  const auto fitting = [&](size_t n) {
    return static_cast<uint32_t>(std::min({n, most / 4, beyond}));
  };
  const uint32_t n_predict = args.n_predict.value_or(fitting(64));
  task.n_generate = args.n_generate.value_or(fitting(32));
  const size_t behind = std::max(n_predict, task.n_generate);
  const size_t most_behind = kMostCells - std::min(args.n_prompt, kMostCells);
  if (behind > most_behind) {
    throw std::runtime_error(fmt::format(
        "{} {} > {}, what a context of {} tokens leaves behind a prompt of {}",
        behind == task.n_generate ? "--generate" : "--predict", behind,
        most_behind, kMostCells, args.n_prompt));
  }
  size_t n = args.n_prompt;
  if (n == 0) n = most > behind ? most - behind : 0;
  if (n == 0 || tokens.size() < n + n_predict) {
    throw std::runtime_error(fmt::format(
        "{}: {} tokens < prompt of {} and {} to predict; see --tokens, "
        "--predict",
        args.prompt_file, tokens.size(), std::max<size_t>(n, 1), n_predict));
  }
  const auto split = tokens.begin() + static_cast<ptrdiff_t>(n);
  task.prompt.assign(tokens.begin(), split);
  task.following.assign(split, split + n_predict);
}

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// The bytes of cells that later tokens may use, and of memory that went back to
// the system.
uint64_t FreedBytes(const Outcome& o) {
  return o.in_place ? o.full.cache_bytes - o.evicted.cache_bytes : 0;
}
uint64_t ReturnedBytes(const Outcome& o) {
  const bool known = o.evicted.allocated_bytes > 0;
  return known && o.full.allocated_bytes > o.evicted.allocated_bytes
             ? o.full.allocated_bytes - o.evicted.allocated_bytes
             : 0;
}

std::string CacheTable(const Outcome& o, const Task& task) {
  using enum TextTable::Align;
  const bool has_speed = !task.following.empty();
  std::vector<TextTable::Column> columns = {{"cache", kLeft},
                                            {"cells"},
                                            {"KV MiB"},
                                            {"allocated MiB"},
                                            {"process MiB"}};
  if (has_speed) columns.push_back({"tokens/s"});
  if (o.n_predictions > 0) columns.push_back({"nats/token"});
  TextTable table(columns);
  for (const auto& [name, side] :
       {std::pair("full", &o.full), std::pair("evicted", &o.evicted)}) {
    std::vector<std::string> row = {
        name, fmt::format("{}", side->cells),
        fmt::format("{:.2f}", MiB(side->cache_bytes)),
        side->allocated_bytes == 0
            ? "-"
            : fmt::format("{:.2f}", MiB(side->allocated_bytes)),
        fmt::format("{:.1f}", MiB(side->resident_bytes))};
    if (has_speed) row.push_back(fmt::format("{:.0f}", side->tokens_per_s));
    if (o.n_predictions > 0) row.push_back(fmt::format("{:.3f}", side->nll));
    table.AddRow(row);
  }
  return table.ToString();
}

std::string WhyItFits(const Task& task) {
  const std::string budget = tools::Policy(task.policy).Get("budget");
  return budget == "1" ? "budget=1 is the whole prompt; name a smaller budget, "
                         "as budget=0.25"
                       : fmt::format(
                             "the prompt of {} tokens fits the budget "
                             "of {}",
                             task.prompt.size(), budget);
}

std::string Table(const Outcome& o, const Task& task,
                  const llama_vocab* vocab) {
  std::string text =
      fmt::format("-p {} --tokens {} --predict {} --generate {}\n", task.policy,
                  task.prompt.size(), task.following.size(), task.n_generate);
  if (!task.scoring.empty()) text += task.scoring + "\n";
  if (task.prompt.size() > task.n_trained) {
    text +=
        fmt::format("the model was trained for {} tokens\n", task.n_trained);
  }
  text += fmt::format("prefilled in {:.2f} s; ", o.prefill_s);
  text +=
      o.evicted_any
          ? fmt::format(
                "evicted {} in {:.2f} ms, of which kvevict {:.2f} "
                "ms\n\n",
                o.in_place ? "in place" : "by state", o.evict_ms, o.kvevict_ms)
          : fmt::format("nothing was evicted: {}\n\n",
                        task.lacks_room
                            ? kvevict_reason_text(KVEVICT_REASON_SMALL_BUDGET)
                            : WhyItFits(task));
  text += CacheTable(o, task);
  text += "\nKV: of these cells, in the layers that keep every token";
  if (o.n_evicted_layers < o.n_cached_layers) {
    text +=
        fmt::format("; {} of {} layers are others, and keep what they keep",
                    o.n_cached_layers - o.n_evicted_layers, o.n_cached_layers);
  }
  text += "\nallocated: the whole cache of the context\n";
  if (o.in_place) {
    text += fmt::format(
        "{:.2f} MiB are free for later tokens; nothing goes back to the "
        "system\n",
        MiB(FreedBytes(o)));
  } else if (ReturnedBytes(o) > 0) {
    text +=
        fmt::format("{:.2f} MiB go back to the system with the old context\n",
                    MiB(ReturnedBytes(o)));
  }
  if (o.n_predictions > 0) {
    text += fmt::format(
        "\nof {} predictions {:.1f} % agree with the full cache, KL {:.4f} "
        "nats\n",
        o.n_predictions, 100 * o.agreement, o.kl);
  }
  if (task.n_generate > 0) {
    text += fmt::format("\nfull:    {}\nevicted: {}\n",
                        Quoted(Text(vocab, o.full.continuation)),
                        Quoted(Text(vocab, o.evicted.continuation)));
  }
  return text;
}

// null if there is no value.
json OrNull(bool there_is, double value) {
  return there_is ? json(value) : json();
}

json ToJson(const Side& side, const Outcome& o, const llama_vocab* vocab) {
  return {{"cells", side.cells},
          {"cache_bytes", side.cache_bytes},
          {"allocated_bytes", side.allocated_bytes},
          {"resident_bytes", side.resident_bytes},
          {"tokens_per_s", OrNull(side.tokens_per_s > 0, side.tokens_per_s)},
          {"nll", OrNull(o.n_predictions > 0, side.nll)},
          {"continuation_tokens", side.continuation},
          {"continuation", Text(vocab, side.continuation)}};
}

std::string Json(const Outcome& o, const Arguments& args,
                 const llama_vocab* vocab) {
  const json document = {
      {"model", args.model},
      {"policy", args.task.policy},
      {"scoring", args.task.scoring},
      {"cache_type", args.cache_type},
      {"prompt_tokens", args.task.prompt.size()},
      {"predict_tokens", args.task.following.size()},
      {"trained_tokens", args.task.n_trained},
      {"prefill_s", o.prefill_s},
      {"evict_ms", o.evict_ms},
      {"kvevict_ms", o.kvevict_ms},
      {"evicted_any", o.evicted_any},
      {"in_place", o.in_place},
      {"evicted_layers", o.n_evicted_layers},
      {"cached_layers", o.n_cached_layers},
      {"freed_bytes", FreedBytes(o)},
      {"returned_bytes", ReturnedBytes(o)},
      {"predictions", o.n_predictions},
      {"kl", OrNull(o.n_predictions > 0, o.kl)},
      {"agreement", OrNull(o.n_predictions > 0, o.agreement)},
      {"full", ToJson(o.full, o, vocab)},
      {"evicted", ToJson(o.evicted, o, vocab)}};
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

int Run(int argc, char** argv) {
  CLI::App app("Evicts the KV cache of a model in llama.cpp, and compares");
  Arguments args;
  AddOptions(app, args);
  app.footer([] {
    return "kvevict-llama-cli eval --help: many policies and budgets\n"
           "kvevict-llama-cli calibrate --help: the file for "
           "--calibration\n\n" +
           PoliciesThatCannotWork();
  });
  if (const auto status = Parse(app, argc, argv, args)) return *status;
  Task& task = args.task;
  task.context = args.context;
  const Engine engine = args.calibration.empty() ? Engine::kLlamaCpp
                                                 : Engine::kCalibratedLlamaCpp;
  const bool reads_weights =
      !task.policy.empty() && ReadsWeights(ParsePolicy(task.policy, engine));
  const Model model = Load(args, reads_weights);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  Cut(model.get(), Tokenize(vocab, ReadText(args.prompt_file), true, false),
      args, task);
  const auto n_prompt = static_cast<uint32_t>(task.prompt.size());
  if (task.policy.empty()) task.policy = DefaultPolicy(n_prompt);
  task.budget = Resolve(task.policy, n_prompt, engine).budget;
  const tools::Policy policy = ParsePolicy(task.policy, engine);
  task.lacks_room = task.budget == n_prompt && policy.Number("budget") < 1.0;
  if (policy.Resolve(1).n_query_rows == KVEVICT_QUERY_ROWS_ALL) {
    task.context.query_rows = n_prompt;
  }
  task.context.query_rows = std::min(task.context.query_rows, n_prompt);
  task.scoring = ScoringQueries(policy, n_prompt, task.context.query_rows);
  std::optional<tools::ProgressBar> bar(std::in_place, "prefill",
                                        task.prompt.size());
  const Outcome outcome = Measure(model.get(), task, [&](size_t n_done) {
    bar->Update(n_done);
    if (n_done == task.prompt.size()) bar.reset();
  });
  tools::WriteOutput(args.as_json ? Json(outcome, args, vocab)
                                  : Table(outcome, task, vocab));
  return 0;
}

}  // namespace
}  // namespace kvevict::llama_cli

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::strcmp(argv[1], "eval") == 0) {
      return kvevict::llama_cli::Evaluate(argc - 1, argv + 1);
    }
    if (argc > 1 && std::strcmp(argv[1], "calibrate") == 0) {
      return kvevict::llama_cli::Calibrate(argc - 1, argv + 1);
    }
    return kvevict::llama_cli::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvevict-llama-cli: %s\n", error.what());
    return 1;
  }
}
