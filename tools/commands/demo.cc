// `kvevict demo`: what each policy keeps of a long prompt.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/commands/commands.h"
#include "tools/commands/demo_options.h"
#include "tools/llama/text_demo.h"
#include "tools/recall/recall_demo.h"

namespace kvevict::tools {
namespace {

const std::map<std::string, kvevict_dtype> kDtypes = {
    {"f32", KVEVICT_DTYPE_F32},
    {"f16", KVEVICT_DTYPE_F16},
    {"bf16", KVEVICT_DTYPE_BF16},
};

constexpr uint32_t kMaxThreads = 1024;  // as many as the library takes

std::string CheckBudget(const std::string& text) {
  double budget = 0;
  if (CLI::detail::lexical_cast(text, budget) && budget > 0 &&
      std::isfinite(budget)) {
    return "";
  }
  return "'" + text + "' is neither a number of tokens nor a ratio in (0, 1]";
}

// What the command line parser fills.
struct Arguments {
  DemoOptions options;
  uint32_t tokens = 0;
  double budget = 0;
  std::vector<std::string> policies;
  std::string dtype = "f32";
};

}  // namespace

void AddDemoCommand(CLI::App& app, Action& action) {
  // Lives as long as the callback that the parser calls.
  const auto args = std::make_shared<Arguments>();
  DemoOptions& options = args->options;
  CLI::App* demo = app.add_subcommand("demo",
                                      "Prefills a long prompt, evicts its "
                                      "cache by several policies, decodes on");
  CLI::Option* tokens =
      demo->add_option("--tokens", args->tokens,
                       "Length of the prompt (default 16384; with --model all "
                       "that fits)")
          ->check(CLI::PositiveNumber);
  CLI::Option* budget =
      demo->add_option(
              "--budget", args->budget,
              "Tokens to keep per KV head, or up to 1 the share of the "
              "prompt (default an eighth; with --model a quarter)")
          ->check(CheckBudget);
  demo->add_option("--policy", args->policies,
                   "Policy, e.g. snapkv:window=64,pool=max5; repeatable")
      ->take_all()
      ->allow_extra_args(false);
  demo->add_option("--seed", options.seed, "Seed of the prompt")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  demo->add_option("--dtype", args->dtype, "Element type of the cache")
      ->check(CLI::IsMember(kDtypes))
      ->capture_default_str();
  demo->add_option("--threads", options.threads, "Default: one per CPU")
      ->check(CLI::Range(1u, kMaxThreads));
  demo->add_flag("--json", options.json,
                 "One JSON document instead of a table");
  CLI::Option* model =
      demo->add_option(
              "--model", options.model,
              "LLaMA model to use, GGUF or llama2.c .bin (default: the "
              "built-in recall model)")
          ->check(CLI::ExistingFile);
  CLI::Option* text = demo->add_option("--text", options.text,
                                       "Text file for the model to read")
                          ->check(CLI::ExistingFile)
                          ->needs(model);
  model->needs(text);
  demo->add_option("--tokenizer", options.tokenizer,
                   "Tokenizer of a .bin model (default: found beside it)")
      ->check(CLI::ExistingFile)
      ->needs(model);

  demo->callback([args, tokens, budget, &action] {
    DemoOptions& options = args->options;
    if (tokens->count() > 0) options.tokens = args->tokens;
    if (budget->count() > 0) options.budget = args->budget;
    if (!args->policies.empty()) options.policies.clear();
    for (const std::string& policy : args->policies) {
      options.policies.push_back({policy, policy});
    }
    options.dtype = kDtypes.at(args->dtype);
    if (options.model.empty()) {
      action = [args] { return RunRecallDemo(args->options); };
    } else {
      action = [args] { return RunTextDemo(args->options); };
    }
  });
}

}  // namespace kvevict::tools
