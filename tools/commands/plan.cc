// `kvevict plan`: shows what a policy keeps, without running anything.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tools/commands/checks.h"
#include "tools/commands/commands.h"
#include "tools/commands/dtype_option.h"
#include "tools/engine/policy.h"
#include "tools/engine/text_table.h"

namespace kvevict::tools {
namespace {

struct PlanOptions {
  std::string policy;
  uint32_t n_tokens = 16384;
  uint32_t n_layers = 32;
  uint32_t n_kv_heads = 8;
  uint32_t head_dim = 128;
  kvevict_dtype dtype = KVEVICT_DTYPE_F16;
  bool json = false;
};

// The size of the kept part of a context, in tokens per KV head.
struct Kept {
  std::string policy;  // spelled out
  uint32_t n_first = 0;
  uint32_t n_last = 0;
  bool chooses = false;          // keeps some of the others, by score
  std::string heads;             // the word of the parameter
  std::vector<uint32_t> layers;  // tokens in all
  uint64_t token_bytes = 0;      // K and V of one layer
};

Kept Resolve(const PlanOptions& options) {
  const Policy policy(options.policy);
  Kept kept;
  kept.policy = policy.Text();
  kept.heads = policy.Get("heads");
  kept.layers.resize(options.n_layers);
  Check(kvevict_policy_layer_budgets(policy.get(), options.n_tokens,
                                     kept.layers.data(), kept.layers.size()));
  const kvevict_resolved_policy resolved = policy.Resolve(options.n_tokens);
  kept.n_first = resolved.n_sink;
  kept.n_last = resolved.n_recent;
  kept.chooses = resolved.n_selected > 0;
  for (const kvevict_dtype_info& info : CacheDtypes()) {
    if (info.dtype != options.dtype) continue;
    kept.token_bytes = uint64_t{2} * options.n_kv_heads * options.head_dim *
                       info.element_bytes;
  }
  return kept;
}

// The tokens that a layer keeps: first, last, and selected ones.
struct Parts {
  uint32_t n_first, n_last, n_chosen;
};

Parts PartsOf(const Kept& kept, uint32_t layer, uint32_t n_tokens) {
  const uint32_t n = kept.layers[layer];
  if (n == n_tokens) return {0, 0, n};
  if (!kept.chooses) return {kept.n_first, n - kept.n_first, 0};
  return {kept.n_first, kept.n_last, n - kept.n_first - kept.n_last};
}

uint64_t Sum(const std::vector<uint32_t>& numbers) {
  uint64_t sum = 0;
  for (const uint32_t n : numbers) sum += n;
  return sum;
}

uint64_t BytesBefore(const PlanOptions& options, const Kept& kept) {
  const uint64_t n_rows = uint64_t{options.n_tokens} * options.n_layers;
  uint64_t n_bytes = 0;
  if (__builtin_mul_overflow(n_rows, kept.token_bytes, &n_bytes)) {
    throw std::invalid_argument("such a cache has 2^64 bytes or more");
  }
  return n_bytes;
}

// Tells how to read the numbers of a layer if its heads keep different ones.
const char* NumbersAre(const std::string& heads) {
  if (heads == "adaptive") return "the mean of heads";
  if (heads == "adaptive-blend") return "about the mean of heads";
  return heads == "threshold" ? "the most of a head" : "of every head";
}

std::string ToJson(const PlanOptions& options, const Kept& kept) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (uint32_t l = 0; l < options.n_layers; ++l) {
    const Parts parts = PartsOf(kept, l, options.n_tokens);
    layers.push_back({{"n_keep", kept.layers[l]},
                      {"n_first", parts.n_first},
                      {"n_last", parts.n_last},
                      {"n_chosen", parts.n_chosen}});
  }
  const uint64_t before = BytesBefore(options, kept);
  const uint64_t after = kept.token_bytes * Sum(kept.layers);
  const nlohmann::ordered_json document = {
      {"policy", kept.policy},
      {"n_tokens", options.n_tokens},
      {"numbers_are", NumbersAre(kept.heads)},
      {"kv_bytes_before", before},
      {"kv_bytes_after", after},
      {"shrink", static_cast<double>(before) / static_cast<double>(after)},
      {"layers", layers}};
  return document.dump(2) + "\n";
}

std::string ToText(const PlanOptions& options, const Kept& kept) {
  constexpr double kMiB = 1 << 20;
  TextTable table({{"layers", TextTable::Align::kLeft},
                   {"keep"},
                   {"first"},
                   {"last"},
                   {"chosen"},
                   {"KV MiB"},
                   {"after"}});
  const auto mib = [](uint64_t bytes) {
    return fmt::format("{:.2f}", static_cast<double>(bytes) / kMiB);
  };
  for (uint32_t first = 0; first < options.n_layers;) {
    uint32_t end = first + 1;
    while (end < options.n_layers && kept.layers[end] == kept.layers[first]) {
      ++end;
    }
    const uint64_t row = kept.token_bytes * (end - first);
    const uint32_t n = kept.layers[first];
    const Parts parts = PartsOf(kept, first, options.n_tokens);
    const bool whole = n == options.n_tokens;
    const auto part = [&](uint32_t n_part) {
      return whole ? "-" : std::to_string(n_part);
    };
    table.AddRow({end == first + 1 ? std::to_string(first)
                                   : fmt::format("{}-{}", first, end - 1),
                  whole ? "all" : std::to_string(n), part(parts.n_first),
                  part(parts.n_last), part(parts.n_chosen),
                  mib(row * options.n_tokens), mib(row * n)});
    first = end;
  }
  const uint64_t before = BytesBefore(options, kept);
  const uint64_t after = kept.token_bytes * Sum(kept.layers);
  return fmt::format(
      "{}\n\n{}\n{}Of {} tokens per KV head {}{} stay in a layer, on average: "
      "{} MiB become {}, {:.1f} times less.\n",
      kept.policy, table.ToString(),
      kept.heads == "equal"
          ? ""
          : fmt::format("Scores decide what each head keeps: keep and chosen "
                        "are {}.\n",
                        NumbersAre(kept.heads)),
      options.n_tokens, kept.heads == "threshold" ? "at most " : "",
      Sum(kept.layers) / options.n_layers, mib(before), mib(after),
      static_cast<double>(before) / static_cast<double>(after));
}

}  // namespace

void AddPlanCommand(CLI::App& app, Action& action) {
  // Shared with the callback that the parser calls.
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* plan = app.add_subcommand(
      "plan",
      "Checks a policy and tells what it keeps of a context, per layer");
  plan->add_option("policy", options->policy,
                   "Policy or preset, e.g. pyramidkv:budget=2048,alpha=0.9")
      ->type_name("POLICY")
      ->required();
  plan->add_option("--tokens", options->n_tokens,
                   "Tokens of the context (default 16384)")
      ->type_name("N")
      ->check(WholeNumber(1, INT32_MAX));
  plan->add_option("--layers", options->n_layers,
                   "Layers with a KV cache, 1 to 4096 (default 32)")
      ->type_name("N")
      ->check(WholeNumber(1, 4096));
  plan->add_option("--kv-heads", options->n_kv_heads,
                   "KV heads of a layer, 1 to 65535 (default 8)")
      ->type_name("N")
      ->check(WholeNumber(1, 65535));
  plan->add_option("--head-dim", options->head_dim,
                   "Elements of a row, 1 to 65536 (default 128)")
      ->type_name("N")
      ->check(WholeNumber(1, 65536));
  AddDtypeOption(*plan, "Element type of the cache", options->dtype);
  plan->add_flag("--json", options->json,
                 "One JSON document instead of a table");
  plan->callback([options, &action] {
    action = [options] {
      const Kept kept = Resolve(*options);
      return options->json ? ToJson(*options, kept) : ToText(*options, kept);
    };
  });
}

}  // namespace kvevict::tools
