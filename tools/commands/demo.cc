// `kvevict demo`: what each policy keeps of a long prompt.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tools/commands/checks.h"
#include "tools/commands/commands.h"
#include "tools/commands/demo_options.h"
#include "tools/commands/dtype_option.h"
#include "tools/commands/recall_demo.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kMaxThreads = 1024;  // the library's limit

std::vector<std::string> SimdTargets() {
  std::vector<std::string> names;
  for (uint32_t i = 0; const char* name = kvevict_simd_target_at(i); ++i) {
    names.emplace_back(name);
  }
  return names;
}

// The command line parser fills these.
struct DemoArguments {
  DemoOptions options;
  uint32_t tokens = 0;
  uint32_t decode = 0;
  double budget = 0;
  double mass = 0;
  std::vector<std::string> policies;
};

}  // namespace

void AddDemoCommand(CLI::App& app, Action& action) {
  // Shared with the callback that the parser calls.
  const auto args = std::make_shared<DemoArguments>();
  DemoOptions& options = args->options;
  CLI::App* demo = app.add_subcommand("demo",
                                      "Prefills a long prompt, evicts its "
                                      "cache by several policies, decodes on");
  CLI::Option* tokens = demo->add_option("--tokens", args->tokens,
                                         "Length of the prompt (default 16384)")
                            ->type_name("N")
                            ->check(WholeNumber(1, INT32_MAX));
  CLI::Option* budget =
      demo->add_option(
              "--budget", args->budget,
              "Tokens to keep per KV head, or up to 1 the share of the "
              "prompt (default an eighth)")
          ->type_name("X")
          ->check(Budget());
  demo->add_option("--policy", args->policies,
                   "Policy, e.g. snapkv:window=64,pool=max5, or `all`; "
                   "repeatable")
      ->type_name("POLICY")
      ->take_all()
      ->allow_extra_args(false);
  demo->add_option("--seed", options.seed,
                   "Seed of the prompt, below 2^64 (default 1)")
      ->type_name("N")
      ->check(WholeNumber(0, UINT64_MAX));
  CLI::Option* dtype =
      AddDtypeOption(*demo, "Element type of the cache", options.dtype);
  demo->add_option("--cache", options.cache,
                   "How the cache is kept: in one piece, in blocks of 16 "
                   "tokens, or quantized, with a scale and a minimum of 16 "
                   "bits per token and head; kivi: of four bits, keys with "
                   "those of each channel for 32 tokens, and the last 128 to "
                   "159 tokens as they are (default contiguous)")
      ->type_name(CLI::detail::join(kDemoCaches, "|"))
      ->check(OneOf(kDemoCaches));
  demo->add_option("--threads", options.threads,
                   "1 to 1024 (default: one per CPU)")
      ->type_name("N")
      ->check(WholeNumber(1, kMaxThreads));
  demo->add_option("--simd", options.simd,
                   "Whose code the library runs: one of the SIMD targets that "
                   "`kvevict inspect` lists (default: the first)")
      ->type_name("TARGET")
      ->check(OneOf(SimdTargets()));
  demo->add_flag("--json", options.json,
                 "One JSON document instead of a table");
  CLI::Option* decode =
      demo->add_option("--decode", args->decode,
                       "Reads so many tokens one by one, and evicts after each "
                       "of them, where margin and every of the policy let it: "
                       "the prompt's last ones (without it 64, and no "
                       "evictions)")
          ->type_name("N")
          ->check(WholeNumber(1, INT32_MAX));
  CLI::Option* mass =
      demo->add_option("--mass", args->mass,
                       "Also tells how many tokens per KV head keep so much of "
                       "what a policy's scores add up to, above 0 and up to 1")
          ->type_name("X")
          ->check(Share());

  demo->callback([args, tokens, budget, decode, mass, dtype, &action] {
    DemoOptions& options = args->options;
    if (options.cache != "contiguous" && options.cache != "paged") {
      if (dtype->count() > 0) {
        throw CLI::ValidationError(
            "--dtype", "is for a cache that is not quantized, but --cache is " +
                           options.cache);
      }
      options.dtype =
          options.cache == "int8" ? KVEVICT_DTYPE_U8 : KVEVICT_DTYPE_U4;
    }
    if (tokens->count() > 0) options.tokens = args->tokens;
    if (decode->count() > 0) {
      options.decode = args->decode;
      options.policies = kDecodingDemoPolicies;
    }
    if (budget->count() > 0) options.budget = args->budget;
    if (mass->count() > 0) options.mass = args->mass;
    if (!args->policies.empty()) options.policies.clear();
    for (const std::string& policy : args->policies) {
      if (policy == "all") {
        const std::vector<NamedPolicy> all = AllPolicies();
        options.policies.insert(options.policies.end(), all.begin(), all.end());
      } else {
        options.policies.push_back({policy, policy});
      }
    }
    action = [args] { return RunRecallDemo(args->options); };
  });
}

}  // namespace kvevict::tools
