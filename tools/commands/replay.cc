// `kvevict replay`: evicts caches that any engine dumped, and tells what their
// queries lose.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/commands/checks.h"
#include "tools/commands/commands.h"
#include "tools/commands/replay_pictures.h"
#include "tools/engine/policies.h"
#include "tools/engine/text_table.h"
#include "tools/replay/replay.h"

namespace kvevict::tools {
namespace {

using nlohmann::ordered_json;

constexpr uint32_t kDefaultQueries = 16;
constexpr const char* kAxes[] = {"heads-tokens", "tokens-heads"};

struct ReplayArguments {
  std::vector<std::string> files, policies;
  std::vector<double> budgets;
  DumpOptions dump;
  ReplayOptions replay;
  std::string axes = kAxes[0], rope = "half", out, pictures;
  uint32_t n_queries = 0;
  uint32_t threads = 0;
  bool json = false;
};

struct Result {
  std::string policy;  // spelled out, with its budget
  Replayed replayed;
};

// A text with a budget of its own runs once, any other with every budget.
std::vector<Policy> Runs(const std::string& text,
                         const std::vector<double>& budgets) {
  std::vector<Policy> runs;
  for (const double budget : budgets) {
    try {
      Policy policy = ParsePolicy(text, budget);
      const bool has_own = !runs.empty() && policy.Text() == runs.back().Text();
      if (has_own) break;
      runs.push_back(std::move(policy));
    } catch (const KvevictError& error) {
      throw KvevictError(error.status, "policy " + text + ": " + error.what());
    }
  }
  return runs;
}

// Policies that K, V and Q are enough for.
const std::vector<std::string> kDefaultPolicies = {
    "snapkv", "h2o", "tova", "streaming-llm", "keydiff", "knorm", "random"};
const std::vector<double> kDefaultBudgets = {0.5, 0.25, 0.125, 0.0625};

std::vector<Policy> AllRuns(const ReplayArguments& args) {
  std::vector<Policy> runs;
  for (const std::string& text :
       args.policies.empty() ? kDefaultPolicies : args.policies) {
    auto more =
        Runs(text, args.budgets.empty() ? kDefaultBudgets : args.budgets);
    std::move(more.begin(), more.end(), std::back_inserter(runs));
  }
  if (!args.out.empty() && runs.size() != 1) {
    throw std::invalid_argument(
        fmt::format("--out takes one policy with one budget, but there are {}",
                    runs.size()));
  }
  return runs;
}

std::vector<Result> Evict(const ReplayArguments& args,
                          std::span<const Policy> runs, Replay& replay,
                          std::vector<std::string>* left_out) {
  std::vector<Result> results;
  for (const Policy& policy : runs) {
    try {
      results.push_back({policy.Text(), replay.Evict(policy)});
      if (!args.out.empty()) continue;
      for (ReplayLayer& layer : results.back().replayed.layers) {
        layer.k = layer.v = {};  // only --out reads them
      }
    } catch (const KvevictError& error) {
      const std::string why =
          fmt::format("policy {}: {}", policy.Text(), error.what());
      if (!args.policies.empty()) throw KvevictError(error.status, why);
      left_out->push_back(why);
    }
  }
  return results;
}

const char* DtypeName(kvevict_dtype dtype) {
  return dtype == KVEVICT_DTYPE_F32   ? "F32"
         : dtype == KVEVICT_DTYPE_F16 ? "F16"
                                      : "BF16";
}

double MeanTokens(const Replayed& r) {
  double sum = 0;
  size_t n = 0;
  for (const ReplayLayer& layer : r.layers) {
    for (const ReplayHead& head : layer.heads) {
      sum += static_cast<double>(head.positions.size());
      ++n;
    }
  }
  return sum / static_cast<double>(n);
}

std::string MiB(uint64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20));
}

// A percentage, or "-" for what is unknown.
std::string Percent(double share, bool known = true) {
  return known && std::isfinite(share) ? fmt::format("{:.2f}", 100 * share)
                                       : "-";
}

std::string About(const ReplayArguments& args, const Dump& dump) {
  const DumpLayer& first = dump.layers[0];
  const auto rows = [](const DumpRows& r) {
    return fmt::format("{} x {}", r.plane.head_dim, DtypeName(r.plane.dtype));
  };
  std::string text =
      fmt::format("{} layer{}, {} tokens, {} KV heads, K {}, {}",
                  dump.layers.size(), dump.layers.size() == 1 ? "" : "s",
                  dump.n_tokens, first.k.n_heads, rows(first.k),
                  first.v.n_heads > 0 ? "V " + rows(first.v)
                                      : "no V: keys' rows are the values");
  if (dump.n_queries == 0) {
    return text + "; no queries, so attention is not measured\n";
  }
  return text + fmt::format(
                    "; {} query heads, {} rows\nmeasured by the last {} "
                    "queries, {}\n",
                    first.q.n_heads, dump.n_queries, args.replay.n_measured,
                    args.replay.unseen ? "whose tokens come after the eviction"
                                       : "which the policy may have seen");
}

std::string ToText(const ReplayArguments& args, const Dump& dump,
                   const std::vector<Result>& results,
                   const std::vector<std::string>& left_out) {
  TextTable table({{"policy", TextTable::Align::kLeft},
                   {"tokens"},
                   {"KV MiB"},
                   {"after"},
                   {"mass %"},
                   {"output error %"},
                   {"own mass %"},
                   {"evict ms"}});
  const bool measured = args.replay.n_measured > 0;
  std::string notes;
  for (const Result& result : results) {
    const Replayed& r = result.replayed;
    table.AddRow({result.policy, fmt::format("{:.1f}", MeanTokens(r)),
                  MiB(r.report.bytes_before), MiB(r.report.bytes_after),
                  Percent(r.mass, measured), Percent(r.error, measured),
                  Percent(r.policy_mass),
                  fmt::format("{:.2f}", r.milliseconds)});
    if (r.report.reason != KVEVICT_REASON_NONE) {
      notes += fmt::format("{}: {}\n", result.policy,
                           kvevict_reason_text(r.report.reason));
    }
  }
  for (const std::string& why : left_out) notes += "left out: " + why + "\n";
  return About(args, dump) + "\n" + table.ToString() +
         "\ntokens: mean over layers and heads. mass: the share of these "
         "queries' attention\nthat stayed. output error: |kept - all| / |all| "
         "of their attention's output, mean\nover layers. own mass: the share "
         "of the policy's own scores.\n" +
         notes;
}

ordered_json Number(double value, bool known = true) {
  return known && std::isfinite(value) ? ordered_json(value) : ordered_json();
}

std::string ToJson(const ReplayArguments& args, const Dump& dump,
                   const std::vector<Result>& results,
                   const std::vector<std::string>& left_out) {
  const bool measured = args.replay.n_measured > 0;
  ordered_json document = {
      {"n_layers", dump.layers.size()},  {"n_tokens", dump.n_tokens},
      {"n_queries", dump.n_queries},     {"n_measured", args.replay.n_measured},
      {"unseen", args.replay.unseen},    {"left_out", left_out},
      {"results", ordered_json::array()}};
  for (const Result& result : results) {
    const Replayed& r = result.replayed;
    ordered_json layers = ordered_json::array();
    for (const ReplayLayer& layer : r.layers) {
      ordered_json heads = ordered_json::array();
      for (const ReplayHead& head : layer.heads) {
        heads.push_back({{"mass", Number(head.mass, measured)},
                         {"output_error", Number(head.error, measured)},
                         {"own_mass", Number(head.policy_mass)},
                         {"positions", head.positions}});
      }
      layers.push_back({{"output_error", Number(layer.error, measured)},
                        {"heads", std::move(heads)}});
    }
    document["results"].push_back(
        {{"policy", result.policy},
         {"evicted", r.report.evicted != 0},
         {"reason", kvevict_reason_text(r.report.reason)},
         {"tokens", MeanTokens(r)},
         {"bytes_before", r.report.bytes_before},
         {"bytes_after", r.report.bytes_after},
         {"mass", Number(r.mass, measured)},
         {"output_error", Number(r.error, measured)},
         {"own_mass", Number(r.policy_mass)},
         {"evict_ms", r.milliseconds},
         {"layers", std::move(layers)}});
  }
  return document.dump() + "\n";
}

// The rows that stayed, [heads, tokens, dim]. Heads with fewer end in zeros.
std::vector<uint8_t> KeptRows(const DumpRows& rows, const ReplayLayer& layer,
                              const std::vector<uint8_t>& memory,
                              size_t n_slots) {
  const auto row_bytes = static_cast<size_t>(
      kvevict_row_bytes(rows.plane.dtype, rows.plane.head_dim));
  std::vector<uint8_t> kept(layer.heads.size() * n_slots * row_bytes);
  for (size_t h = 0; h < layer.heads.size(); ++h) {
    for (size_t t = 0; t < layer.heads[h].positions.size(); ++t) {
      const size_t at = h * static_cast<size_t>(rows.plane.head_stride_bytes) +
                        t * static_cast<size_t>(rows.plane.token_stride_bytes);
      std::copy_n(
          memory.begin() + static_cast<ptrdiff_t>(at), row_bytes,
          kept.begin() + static_cast<ptrdiff_t>((h * n_slots + t) * row_bytes));
    }
  }
  return kept;
}

// k.L and v.L [heads, tokens, dim] and positions.L [heads, tokens]; -1 where a
// head holds fewer.
void WriteKept(const std::string& path, const Dump& dump,
               const Replayed& replayed) {
  std::vector<std::vector<uint8_t>> memory;
  memory.reserve(3 * dump.layers.size());  // spans of them stay valid
  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, const char* type,
                       std::vector<uint64_t> shape, std::vector<uint8_t> data) {
    memory.push_back(std::move(data));
    tensors.push_back(
        {std::move(name), path, type, std::move(shape), memory.back()});
  };
  for (size_t l = 0; l < dump.layers.size(); ++l) {
    const DumpLayer& rows = dump.layers[l];
    const ReplayLayer& layer = replayed.layers[l];
    const std::string number = "." + std::to_string(l);
    const uint64_t n_heads = layer.heads.size();
    uint64_t n_slots = 0;
    for (const ReplayHead& head : layer.heads) {
      n_slots = std::max<uint64_t>(n_slots, head.positions.size());
    }
    add("k" + number, DtypeName(rows.k.plane.dtype),
        {n_heads, n_slots, rows.k.plane.head_dim},
        KeptRows(rows.k, layer, layer.k, n_slots));
    if (rows.v.n_heads > 0) {
      add("v" + number, DtypeName(rows.v.plane.dtype),
          {n_heads, n_slots, rows.v.plane.head_dim},
          KeptRows(rows.v, layer, layer.v, n_slots));
    }
    std::vector<uint8_t> positions(n_heads * n_slots * sizeof(int32_t), 0xFF);
    for (size_t h = 0; h < n_heads; ++h) {
      const auto& held = layer.heads[h].positions;
      const auto* bytes = reinterpret_cast<const uint8_t*>(held.data());
      std::copy_n(bytes, held.size() * sizeof(int32_t),
                  positions.begin() +
                      static_cast<ptrdiff_t>(h * n_slots * sizeof(int32_t)));
    }
    add("positions" + number, "I32", {n_heads, n_slots}, std::move(positions));
  }
  WriteTensors(path, tensors);
}

void DrawPictures(const std::string& folder, uint32_t n_tokens,
                  const std::vector<Result>& results) {
  if (GnuplotVersion().empty()) {
    throw std::runtime_error(
        "--pictures: gnuplot is not here (Debian's package is gnuplot-nox)");
  }
  std::vector<HeatMap> maps;
  for (const Result& result : results) {
    for (HeatMap& map :
         ReplayMaps(result.replayed, n_tokens, result.policy,
                    static_cast<size_t>(&result - results.data()))) {
      maps.push_back(std::move(map));
    }
  }
  DrawHeatMaps(folder, maps);
}

std::string RunReplay(ReplayArguments args) {
  const TensorFiles files(args.files);
  args.dump.tokens_first = args.axes == kAxes[1];
  args.replay.rope_interleaved = args.rope == "interleaved";
  const Dump dump = ReadDump(files, args.dump);
  if (args.n_queries > dump.n_queries) {
    throw std::invalid_argument(
        fmt::format("--queries {}: the dump has {} query rows", args.n_queries,
                    dump.n_queries));
  }
  args.replay.n_measured = args.n_queries > 0
                               ? args.n_queries
                               : std::min(dump.n_queries, kDefaultQueries);
  if (args.replay.unseen && (args.replay.n_measured == 0 ||
                             args.replay.n_measured >= dump.n_tokens)) {
    throw std::invalid_argument(fmt::format(
        "--unseen: the last {} of {} tokens come after the eviction; there "
        "must be some of them and some before",
        args.replay.n_measured, dump.n_tokens));
  }
  const uint32_t n_held =
      dump.n_tokens - (args.replay.unseen ? args.replay.n_measured : 0);
  const std::vector<Policy> runs = AllRuns(args);
  const DumpInputs inputs(files, dump, n_held, runs);
  ThreadPool pool(args.threads);
  Replay replay(dump, inputs, args.replay, pool);
  std::vector<std::string> left_out;
  const std::vector<Result> results = Evict(args, runs, replay, &left_out);
  if (!args.out.empty()) WriteKept(args.out, dump, results[0].replayed);
  if (!args.pictures.empty()) DrawPictures(args.pictures, n_held, results);
  return args.json ? ToJson(args, dump, results, left_out)
                   : ToText(args, dump, results, left_out);
}

void AddNames(CLI::App& replay, ReplayArguments& args) {
  const auto name = [&replay](const char* option, std::string& value,
                              const char* what) {
    replay.add_option(option, value, what)->type_name("NAME");
  };
  name("--k", args.dump.k,
       "Tensor with keys; {} stands for the layer's number (default k, or k.0, "
       "k.1 ...)");
  name("--v", args.dump.v,
       "Tensor with values (default v; without any the values are the keys' "
       "rows, as with MLA)");
  name(
      "--q", args.dump.q,
      "Tensor with queries after RoPE, of the last tokens (default q, if there "
      "is one)");
  replay
      .add_option("--axes", args.axes,
                  "Order of a layer's axes: [heads, tokens, dim] or [tokens, "
                  "heads, dim] (default heads-tokens)")
      ->type_name("heads-tokens|tokens-heads")
      ->check(OneOf({kAxes[0], kAxes[1]}));
}

}  // namespace

void AddReplayCommand(CLI::App& app, Action& action) {
  const auto args = std::make_shared<ReplayArguments>();
  CLI::App* replay = app.add_subcommand(
      "replay",
      "Evicts keys and values that an engine dumped, and tells what their "
      "queries lose");
  replay
      ->add_option("files", args->files,
                   "Tensors: .safetensors, .npy, or folders with them")
      ->type_name("FILE")
      ->required();
  replay
      ->add_option("--policy", args->policies,
                   "Policy, e.g. snapkv:window=64; repeatable (default: those "
                   "that score by K, V and Q)")
      ->type_name("POLICY")
      ->take_all()
      ->allow_extra_args(false);
  replay
      ->add_option("--budget", args->budgets,
                   "Tokens to keep per KV head, or up to 1 the share of all; "
                   "repeatable (default 0.5, 0.25, 0.125 and 0.0625)")
      ->type_name("X")
      ->take_all()
      ->allow_extra_args(false)
      ->check(Budget());
  AddNames(*replay, *args);
  replay
      ->add_option("--queries", args->n_queries,
                   "The last queries, for which the loss is measured (default "
                   "16)")
      ->type_name("N")
      ->check(WholeNumber(1, INT32_MAX));
  replay->add_flag("--unseen", args->replay.unseen,
                   "The tokens of these queries come after the eviction");
  replay
      ->add_option("--scale", args->replay.softmax_scale,
                   "Factor of q.k (default 1/sqrt(dim))")
      ->type_name("X");
  replay
      ->add_option("--softcap", args->replay.logit_softcap,
                   "Cap of logits, as in Gemma 2 (default: none)")
      ->type_name("X");
  replay
      ->add_option("--rope", args->rope,
                   "Elements that RoPE rotates as a pair, for policies that "
                   "read tensor rope_inv_freq (default half)")
      ->type_name("half|interleaved")
      ->check(OneOf({"half", "interleaved"}));
  replay
      ->add_option("--threads", args->threads,
                   "1 to 1024 (default: one per CPU)")
      ->type_name("N")
      ->check(WholeNumber(1, 1024));
  replay
      ->add_option("--out", args->out,
                   "Write what one policy keeps: a file .safetensors, or a "
                   "folder for .npy")
      ->type_name("PATH");
  replay
      ->add_option("--pictures", args->pictures,
                   "Folder for heat maps, which gnuplot draws: the rows that "
                   "stay by layer and position, bytes by layer and KV head")
      ->type_name("PATH");
  replay->add_flag("--json", args->json,
                   "One JSON document with the kept positions");
  replay->callback(
      [args, &action] { action = [args] { return RunReplay(*args); }; });
}

}  // namespace kvevict::tools
