// kvevict-llama-cli: what an eviction costs, frees and changes, on the user's own model
// and text.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "measure.h"
#include "tools/commands/output.h"
#include "tools/engine/progress_bar.h"
#include "tools/engine/text_table.h"

namespace kvevict::llama_cli {
namespace {

using nlohmann::json;
using tools::TextTable;

constexpr int kUsageError = 2;

struct Arguments {
  std::string model, prompt_file, backends;
  uint32_t n_prompt = 0, n_predict = 64;
  bool no_flash = false, verbose = false, as_json = false;
  std::string cache_type = "f16";
  Task task;
};

const std::map<std::string, ggml_type> kCacheTypes = {
    {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},
    {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
    {"q4_0", GGML_TYPE_Q4_0},
};

void AddOptions(CLI::App& app, Arguments& args) {
  app.set_version_flag("--version", std::string(kvevict_version()));
  app.add_option("-m,--model", args.model, "GGUF file that llama.cpp loads")
      ->required();
  app.add_option("-f,--file", args.prompt_file,
                 "Text: its first tokens are the prompt, those behind are "
                 "predicted")
      ->required();
  app.add_option("-p,--policy", args.task.policy,
                 "Policy, e.g. snapkv:budget=2048 (docs/policies.md)")
      ->capture_default_str();
  app.add_option("--tokens", args.n_prompt,
                 "Length of the prompt (default: all of the text but what is "
                 "predicted, as far as the model was trained for)")
      ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 30));
  app.add_option("--predict", args.n_predict,
                 "Tokens behind the prompt that are fed one by one, with and "
                 "without eviction")
      ->capture_default_str();
  app.add_option("--generate", args.task.n_generate,
                 "Tokens to continue the prompt with, greedily")
      ->capture_default_str();
  app.add_flag("--in-place", args.task.in_place,
               "Evict the context itself; default: into a smaller one, which "
               "gives memory back");
  app.add_option("--cache-type", args.cache_type,
                 "Of keys and values: f32, f16, bf16, q8_0, q4_0")
      ->capture_default_str()
      ->check(CLI::IsMember(kCacheTypes));
  app.add_flag("--no-flash", args.no_flash, "Without flash attention");
  app.add_option("--query-rows", args.task.context.query_rows,
                 "Last queries that are kept of each layer: h2o scores by all "
                 "of them (default: the policy's window; for non-causal the "
                 "prompt)");
  app.add_option("-t,--threads", args.task.context.n_threads, "For llama.cpp")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{1}, uint32_t{1024}));
  app.add_option("--ubatch", args.task.context.n_ubatch,
                 "Tokens that llama.cpp takes at once")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 20));
  app.add_option("--backends", args.backends,
                 "Folder with ggml's backends (default: where llama.cpp looks, "
                 "and beside its library)");
  app.add_flag("--json", args.as_json, "One JSON document instead of tables");
  app.add_flag("--verbose", args.verbose, "With llama.cpp's own log");
}

void LogErrors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}
void LogAll(ggml_log_level, const char* text, void*) {
  std::fputs(text, stderr);
}

std::vector<llama_token> Tokenize(const llama_vocab* vocab,
                                  const std::string& path) {
  std::ostringstream bytes;
  // Of a folder it opens, and reads nothing; of an empty file too.
  if (std::ifstream file(path, std::ios::binary); !(bytes << file.rdbuf())) {
    throw std::runtime_error(path + ": cannot be read, or is empty");
  }
  const std::string text = bytes.str();
  std::vector<llama_token> tokens(text.size() + 8);
  const int32_t n = llama_tokenize(
      vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
      static_cast<int32_t>(tokens.size()), true, false);
  if (n < 0) throw std::runtime_error(path + ": llama_tokenize() failed");
  tokens.resize(static_cast<size_t>(n));
  return tokens;
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

// In one line.
std::string Quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// Cuts the text into prompt and what follows.
void Cut(const llama_model* model, std::vector<llama_token> tokens,
         const Arguments& args, Task& task) {
  const auto trained = static_cast<size_t>(llama_model_n_ctx_train(model));
  task.n_trained = trained;
  const size_t behind = std::max<size_t>(args.n_predict, task.n_generate);
  size_t n = args.n_prompt;
  if (n == 0) {
    const size_t most = std::min(tokens.size(), trained);
    n = most > behind ? most - behind : 0;
  }
  if (n == 0 || tokens.size() < n + args.n_predict) {
    throw std::runtime_error(fmt::format(
        "{}: {} tokens < prompt of {} and {} to predict; see --tokens, "
        "--predict",
        args.prompt_file, tokens.size(), std::max<size_t>(n, 1),
        args.n_predict));
  }
  const auto split = tokens.begin() + static_cast<ptrdiff_t>(n);
  task.prompt.assign(tokens.begin(), split);
  task.following.assign(split, split + args.n_predict);
}

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string Table(const Outcome& o, const Task& task,
                  const llama_vocab* vocab) {
  using enum TextTable::Align;
  TextTable table({{"cache", kLeft},
                   {"cells"},
                   {"KV MiB"},
                   {"process MiB"},
                   {"tokens/s"},
                   {"nats/token"}});
  for (const auto& [name, side] :
       {std::pair("full", &o.full), std::pair("evicted", &o.evicted)}) {
    table.AddRow({name, fmt::format("{}", side->cells),
                  fmt::format("{:.2f}", MiB(side->cache_bytes)),
                  fmt::format("{:.1f}", MiB(side->resident_bytes)),
                  fmt::format("{:.0f}", side->tokens_per_s),
                  fmt::format("{:.3f}", side->nll)});
  }
  std::string text = fmt::format(
      "{}: {} tokens prefilled in {:.2f} s; evicted {} in {:.2f} ms, of which "
      "kvevict {:.2f} ms\n\n{}",
      task.policy, task.prompt.size(), o.prefill_s,
      o.in_place ? "in place" : "by state", o.evict_ms, o.kvevict_ms,
      table.ToString());
  if (task.prompt.size() > task.n_trained) {
    text +=
        fmt::format("\nthe model was trained for {} tokens\n", task.n_trained);
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

json ToJson(const Side& side, const llama_vocab* vocab) {
  return {{"cells", side.cells},
          {"cache_bytes", side.cache_bytes},
          {"resident_bytes", side.resident_bytes},
          {"tokens_per_s", side.tokens_per_s},
          {"nll", side.nll},
          {"continuation_tokens", side.continuation},
          {"continuation", Text(vocab, side.continuation)}};
}

std::string Json(const Outcome& o, const Arguments& args,
                 const llama_vocab* vocab) {
  const json document = {{"model", args.model},
                         {"policy", args.task.policy},
                         {"cache_type", args.cache_type},
                         {"prompt_tokens", args.task.prompt.size()},
                         {"trained_tokens", args.task.n_trained},
                         {"prefill_s", o.prefill_s},
                         {"evict_ms", o.evict_ms},
                         {"kvevict_ms", o.kvevict_ms},
                         {"in_place", o.in_place},
                         {"predictions", o.n_predictions},
                         {"kl", o.kl},
                         {"agreement", o.agreement},
                         {"full", ToJson(o.full, vocab)},
                         {"evicted", ToJson(o.evicted, vocab)}};
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

int Run(int argc, char** argv) {
  CLI::App app("Evicts the KV cache of a model in llama.cpp, and compares");
  Arguments args;
  args.task.policy = "snapkv:budget=0.25";
  args.task.n_generate = 32;
  AddOptions(app, args);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    const int status = app.exit(error, out, err);
    std::fputs(err.str().c_str(), stderr);
    tools::WriteOutput(out.str());
    return status == 0 ? 0 : kUsageError;
  }
  Task& task = args.task;
  task.context.type_k = task.context.type_v = kCacheTypes.at(args.cache_type);
  if (args.no_flash) task.context.flash = LLAMA_FLASH_ATTN_TYPE_DISABLED;

  kvevict_policy policy = KVEVICT_POLICY_INIT;
  if (kvevict_policy_parse(task.policy.c_str(), &policy) != KVEVICT_OK) {
    throw std::runtime_error(kvevict_last_error_message());
  }
  const Model model =
      LoadModel(args.model, args.backends, args.verbose ? LogAll : LogErrors);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  Cut(model.get(), Tokenize(vocab, args.prompt_file), args, task);
  if (policy.kind == KVEVICT_POLICY_NON_CAUSAL) {
    task.context.query_rows = static_cast<uint32_t>(task.prompt.size());
  }
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
    return kvevict::llama_cli::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvevict-llama-cli: %s\n", error.what());
    return 1;
  }
}
