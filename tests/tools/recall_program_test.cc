// `kvevict demo` and `kvevict plan` as their user sees them.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/paths.h"
#include "tests/tools/program.h"
#include "tools/engine/policy.h"

namespace kvevict::tools {
namespace {

using nlohmann::json;

Test(recall_program, demo_prints_a_table_and_nothing_else) {
  const Outcome run = Run("demo --tokens 512 --budget 128 --threads 2");
  cr_assert(run.status == 0, "%s", run.err.c_str());
  for (const char* policy :
       {"none", "streaming-llm", "snapkv", "pyramidkv", "random"}) {
    cr_expect(
        run.out.find(std::string("\n") + policy + " ") != std::string::npos,
        "no row %s in\n%s", policy, run.out.c_str());
  }
  // stderr is no terminal here, so there is no progress bar.
  cr_expect(run.err.empty(), "%s", run.err.c_str());
}

constexpr size_t kDemoPolicies = 9;  // if none is named

Test(recall_program, demo_json_is_one_document_with_the_documented_keys) {
  const json document = JsonOf("demo --json --tokens 1024 --budget 256");
  cr_expect(document.size() == 4);
  cr_expect(document.at("cache") == "contiguous");
  cr_expect(document.at("n_tokens") == 1024);
  cr_expect(document.at("budget") == 256);
  const json& results = document.at("results");
  cr_assert(results.size() == kDemoPolicies);
  for (const json& result : results) {
    cr_expect(result.size() == 9);
    cr_expect(result.at("shrink_of_f32") == result.at("shrink"));
    const bool none = result.at("policy") == "none";
    // 1024 tokens, 2 layers, K and V, 2 heads, 128 elements of 4 bytes.
    cr_expect(result.at("kv_bytes_before") == 1024 * 2 * 2 * 2 * 128 * 4);
    cr_expect(result.at("shrink") == (none ? 1.0 : 4.0));
    cr_expect(result.at("kv_bytes_after").get<double>() *
                  result.at("shrink").get<double>() ==
              result.at("kv_bytes_before").get<double>());
    cr_expect(result.at("evict_ms") >= 0.0);
    cr_expect(result.at("recall_asked") >= 0.0);
    cr_expect(result.at("recall_unasked") <= 1.0);
    cr_expect(result.at("decode_tokens_per_s") > 0.0);
  }
  cr_expect(results[0].at("recall_unasked") == 1.0);
  cr_expect(results[2].at("policy") == "snapkv");
  cr_expect(results[2].at("recall_asked") == 1.0);
}

Test(recall_program, demo_takes_policies_dtypes_and_ratios) {
  const json document = JsonOf(
      "demo --json --tokens 512 --budget 0.25 --seed 3 --dtype bf16 "
      "--threads 1 --policy snapkv:window=24,pool=max5 "
      "--policy streaming-llm:budget=64");
  cr_expect(document.at("budget") == 128);
  const json& results = document.at("results");
  cr_assert(results.size() == 2);
  cr_expect(results[0].at("policy") == "snapkv:window=24,pool=max5");
  cr_expect(results[0].at("kv_bytes_before") == 512 * 2 * 2 * 2 * 128 * 2);
  cr_expect(results[0].at("shrink") == 4.0);
  cr_expect(results[1].at("shrink") == 8.0);
}

// The last tokens come one by one, and the cache stays as long as the policy says.
Test(recall_program, demo_evicts_while_it_decodes) {
  const json results =
      JsonOf(
          "demo --json --tokens 512 --decode 60 --policy none "
          "--policy tova:budget=100 --policy knorm:budget=100,margin=7 "
          "--policy h2o:budget=100,recent=20,every=9 "
          "--policy openvino-genai-adaptive-r-kv:budget=135,sink=8,recent=16,"
          "select_block=8")
          .at("results");
  constexpr uint64_t kTokenBytes = 2 * 2 * 2 * 128 * 4;
  const struct {
    uint64_t after, at_end, n_evictions;
  } expected[] = {{452, 512, 0},
                  {100, 100, 60},
                  {100, 100 + 60 % 8, 60 / 8},
                  {100, 100 + 60 % 9, 60 / 9},
                  {452, 128, 0}};
  cr_assert(results.size() == std::size(expected));
  for (size_t i = 0; i < results.size(); ++i) {
    const json& result = results[i];
    cr_expect(result.size() == 12);
    cr_expect(result.at("kv_bytes_before") == 452 * kTokenBytes);
    cr_expect(result.at("kv_bytes_after") == expected[i].after * kTokenBytes);
    cr_expect(result.at("kv_bytes_at_end") == expected[i].at_end * kTokenBytes,
              "row %zu: %s", i, result.dump().c_str());
    if (i < 4) {
      cr_expect(result.at("decode_evictions") == expected[i].n_evictions);
    }
    cr_expect(result.at("decode_evict_ms") >= 0.0);
  }
  cr_expect(results[4].at("decode_evictions") >= 7);
  cr_expect(results[0].at("recall_asked") == 1.0);
  cr_expect(results[0].at("recall_unasked") == 1.0);
  const Outcome table = Run("demo --tokens 512 --decode 30");
  cr_expect(table.out.find("evictions") != std::string::npos &&
            table.out.find("\nr-kv ") != std::string::npos);
}

// If scores are a mass, a larger share needs more tokens.
Test(recall_program, demo_tells_budgets_for_a_mass) {
  const auto budgets = [](const std::string& mass) {
    return JsonOf("demo --json --tokens 512 --budget 128 --policy all --mass " +
                  mass)
        .at("results");
  };
  const json half = budgets("0.5");
  const json most = budgets("0.95");
  const json all = budgets("1");
  uint32_t n = 0;
  for (size_t i = 0; i < half.size(); ++i) {
    cr_assert(half[i].size() == 10);
    const json& a = half[i].at("budget_for_mass");
    const json& b = most[i].at("budget_for_mass");
    const json& c = all[i].at("budget_for_mass");
    cr_assert(a.is_null() == b.is_null() && b.is_null() == c.is_null());
    if (a.is_null()) continue;
    ++n;
    cr_expect(0 < a && a < b && b < c && c <= 512, "%s: %s, %s, %s",
              half[i].at("policy").dump().c_str(), a.dump().c_str(),
              b.dump().c_str(), c.dump().c_str());
  }
  cr_expect(n >= 6 && n + 7 <= half.size(), "%u of %zu", n, half.size());
  // The library says whether a policy's scores are a mass; the kind does not.
  for (const auto& [policy, is_mass] :
       {std::pair{"r-kv", false}, {"r-kv:redundancy=0", true}}) {
    const json row =
        JsonOf(std::string("demo --json --tokens 512 --budget 128 --mass 0.95 "
                           "--policy ") +
               policy)
            .at("results")
            .at(0);
    cr_expect(row.at("budget_for_mass").is_null() != is_mass, "%s", policy);
  }
  const Outcome table = Run("demo --tokens 512 --mass 0.9");
  cr_expect(table.out.find("for 0.9") != std::string::npos);
}

// Equal seeds give equal recall, and other seeds other prompts.
Test(recall_program, demo_is_repeatable_for_every_number_of_threads) {
  const auto recalls = [](const std::string& arguments) {
    const json document =
        JsonOf("demo --json --tokens 1024 --budget 256 " + arguments);
    std::vector<double> found;
    for (const json& result : document.at("results")) {
      found.push_back(result.at("recall_asked"));
      found.push_back(result.at("recall_unasked"));
    }
    return found;
  };
  const std::vector<double> once = recalls("--threads 1");
  cr_assert(once.size() == 2 * kDemoPolicies);
  cr_expect(recalls("--threads 1") == once);
  cr_expect(recalls("--threads 3") == once);
  cr_expect(recalls("--seed 2") != once);
}

Test(recall_program, bad_command_lines_end_with_status_2_and_a_reason) {
  const struct {
    const char* arguments;
    const char* reason;  // part of the message
  } cases[] = {
      {"", "Subcommands"},
      {"no-such-command", "no-such-command"},
      {"demo --no-such-option", "--no-such-option"},
      {"demo --tokens 0",
       "--tokens: '0' is not a whole number from 1 to "
       "2147483647"},
      {"demo --tokens -5", "--tokens"},
      {"demo --tokens 12.5", "--tokens"},
      {"demo --tokens many", "--tokens"},
      {"demo --tokens 99999999999", "from 1 to 2147483647"},
      {"demo --tokens 100", "256 to 32768"},
      {"demo --tokens 40000", "256 to 32768"},
      {"demo --budget 0", "--budget"},
      {"demo --budget -1", "--budget"},
      {"demo --budget nan", "--budget"},
      {"demo --budget inf", "--budget"},
      {"demo --budget 12x", "--budget"},
      {"demo --seed -1", "--seed"},
      {"demo --seed 18446744073709551616",
       "--seed: '18446744073709551616' is not a whole number from 0 to "
       "18446744073709551615"},
      {"demo --seed 1e3", "--seed"},
      {"demo --dtype f64", "--dtype: 'f64' is not one of f32, f16, bf16"},
      {"demo --threads 0",
       "--threads: '0' is not a whole number from 1 to 1024"},
      {"demo --threads 5000", "--threads"},
      {"demo --cache ring", "--cache: 'ring' is not one of "},
      {"demo --cache int8 --dtype f32",
       "--dtype: is for a cache that is not quantized"},
      {"demo --simd MMX", "--simd: 'MMX' is not one of "},
      {"demo --policy no-such-policy", "no-such-policy"},
      {"demo --policy snapkv:pool=avg8",
       "is not none, avgN or maxN with an odd N up to 1023"},
      {"demo --policy", "policy"},
      {"demo --budget 20", "policy snapkv: sink 4 + window 32 >= budget 20"},
      {"demo --mass 0", "--mass: '0' is not a share in (0, 1]"},
      {"demo --mass 1.5", "--mass: '1.5' is not a share in (0, 1]"},
      {"demo --mass most", "--mass"},
      {"demo --decode 0", "--decode"},
      {"demo --tokens 512 --decode 512",
       "--decode 512: the prompt has 512 tokens"},
      {"demo --tokens 512 --decode 9 --policy knorm:rotate=yes",
       "policy knorm:rotate=yes cannot go on with --decode: it rotates"},
      {"inspect --no-such-option", "--no-such-option"},
      {"no-such-verb", "no-such-verb"},
      {"no-such-verb --help", "no-such-verb"},
      {"--help no-such-verb", "no-such-verb"},
      {"no-such-verb --version", "no-such-verb"},
      {"demo --help --no-such-option", "--no-such-option"},
  };
  for (const auto& c : cases) {
    for (const char* json_flag : {"", " --json"}) {
      if (c.arguments[0] == '\0' && json_flag[0] != '\0') continue;
      const Outcome run = Run(std::string(c.arguments) + json_flag);
      cr_expect(run.status == 2, "`%s` ended with %d", c.arguments, run.status);
      cr_expect(run.out.empty(), "`%s` printed %s", c.arguments,
                run.out.c_str());
      cr_expect(run.err.find(c.reason) != std::string::npos,
                "`%s` explained: %s", c.arguments, run.err.c_str());
    }
  }
}

Test(recall_program, help_and_version_succeed) {
  cr_expect(Run("--help").status == 0);
  cr_expect(Run("demo --help").out.find("--budget") != std::string::npos);
  // Ranges are words, not types as the parser prints them.
  for (const char* command : {"demo", "plan", "inspect"}) {
    const std::string help = Run(std::string(command) + " --help").out;
    for (const char* noise :
         {"UINT", "FLOAT", "TEXT", "4294967295", "e+", "POSITIVE", "in ["}) {
      cr_expect(help.find(noise) == std::string::npos, "%s", help.c_str());
    }
  }
  const Outcome version = Run("--version");
  cr_expect(version.status == 0);
  cr_expect(version.out == std::string(kvevict_version()) + "\n");
}

// The disk is full, nobody reads the pipe, or there is no output.
Test(recall_program, output_that_does_not_arrive_is_an_error) {
  int ends[2];
  cr_assert(pipe(ends) == 0);
  close(ends[0]);
  cr_assert(dup2(ends[1], 9) == 9);
  const struct {
    const char* to;
    const char* reason;
  } places[] = {
      {" >/dev/full", "No space left on device"},
      {" >&9", "Broken pipe"},
      {" >&-", "Bad file descriptor"},
  };
  for (const char* arguments :
       {"--help", "demo --help", "--version", "inspect", "inspect --json",
        "plan snapkv:budget=64", "plan snapkv:budget=64 --json",
        "demo --tokens 256 --policy none",
        "demo --tokens 256 --policy none --json"}) {
    for (const auto& place : places) {
      const Outcome run = Run(arguments, place.to);
      cr_expect(run.status == 1, "`%s%s` ended with %d", arguments, place.to,
                run.status);
      cr_expect(run.err == std::string("kvevict: standard output: ") +
                               place.reason + "\n",
                "`%s%s` explained: %s", arguments, place.to, run.err.c_str());
    }
  }
}

// ---- plan ----

Test(recall_program, plan_tells_what_a_policy_keeps) {
  const json document = JsonOf(
      "plan snapkv:budget=2048,recent=40 --tokens 16384 --layers 3 "
      "--kv-heads 4 --head-dim 64 --dtype bf16 --json");
  cr_expect(document.at("policy") == "snapkv:budget=2048,recent=40");
  cr_expect(document.at("n_tokens") == 16384);
  cr_expect(document.at("kv_bytes_before") == 16384ull * 3 * 2 * 4 * 64 * 2);
  cr_expect(document.at("kv_bytes_after") == 2048ull * 3 * 2 * 4 * 64 * 2);
  cr_expect(document.at("shrink") == 8.0);
  cr_assert(document.at("layers").size() == 3);
  for (const json& layer : document.at("layers")) {
    cr_expect(layer.at("n_keep") == 2048);
    cr_expect(layer.at("n_first") == 4);
    cr_expect(layer.at("n_last") == 40);
    cr_expect(layer.at("n_chosen") == 2004);
  }
}

// The library splits the budget over layers, and a preset is spelled out.
Test(recall_program, plan_splits_budgets_as_the_library_does) {
  kvevict_preset_info preset = {};
  preset.struct_size = sizeof(preset);
  std::vector<std::string> texts = {"pyramidkv:budget=600",
                                    "pyramidkv:budget=300,split=arithmetic-kvf",
                                    "streaming-llm:recent=100",
                                    "streaming-llm:budget=100,split=geometric",
                                    "none",
                                    "custom:budget=0.25,sink=0",
                                    "snapkv"};
  for (uint32_t i = 0; kvevict_preset_at(i, &preset) == KVEVICT_OK; ++i) {
    texts.emplace_back(preset.name);
  }
  for (const std::string& text : texts) {
    const Outcome run =
        Run("plan " + text + " --tokens 2000 --layers 7 --json");
    const Policy policy(text);
    const std::string split = policy.Get("split");
    if (split == "cake" || split == "lazy" || split == "scores") {
      cr_assert(
          run.status != 0 && run.err.find("scores decide") != run.err.npos,
          "%s: %s", text.c_str(), run.err.c_str());
      continue;
    }
    cr_assert(run.status == 0, "%s: %s", text.c_str(), run.err.c_str());
    const json document = json::parse(run.out);
    uint32_t budgets[7];
    cr_assert(kvevict_policy_layer_budgets(policy.get(), 2000, budgets, 7) ==
              KVEVICT_OK);
    for (size_t l = 0; l < 7; ++l) {
      const json& layer = document.at("layers").at(l);
      cr_expect(layer.at("n_keep") == budgets[l], "%s", text.c_str());
      const auto n_first = layer.at("n_first").get<uint64_t>();
      const auto n_last = layer.at("n_last").get<uint64_t>();
      const auto n_chosen = layer.at("n_chosen").get<uint64_t>();
      cr_expect(n_first + n_last + n_chosen == budgets[l], "%s", text.c_str());
      if (policy.Name() == "streaming-llm") {
        cr_expect(n_chosen == 0 && n_first == 4, "%s", text.c_str());
      }
    }
    const std::string spelled_out = document.at("policy");
    cr_expect(spelled_out == policy.Text());
  }
}

Test(recall_program, plan_prints_layers_that_are_alike_in_one_row) {
  const Outcome uniform = Run("plan snapkv:budget=2048");
  cr_assert(uniform.status == 0, "%s", uniform.err.c_str());
  cr_expect(uniform.out ==
                "snapkv:budget=2048\n\n"
                "layers  keep  first  last  chosen   KV MiB   after\n"
                "------  ----  -----  ----  ------  -------  ------\n"
                "0-31    2048      4    32    2012  2048.00  256.00\n\n"
                "Of 16384 tokens per KV head 2048 stay in a layer, on average: "
                "2048.00 MiB become 256.00, 8.0 times less.\n",
            "%s", uniform.out.c_str());
  const Outcome pyramid =
      Run("plan pyramidkv:budget=600,alpha=0.5 --tokens 1000 --layers 3");
  cr_assert(pyramid.status == 0, "%s", pyramid.err.c_str());
  cr_expect(pyramid.out.find("\n0       1000") == std::string::npos);
  ExpectPart(pyramid.out, "\n0        all      -     -       -");
}

// If scores decide, the output is a mean or a bound and says so.
Test(recall_program, plan_of_heads_that_keep_different_numbers) {
  const Outcome adaptive =
      Run("plan adakv-kvpress:budget=2000 --tokens 16000 --layers 4");
  cr_assert(adaptive.status == 0, "%s", adaptive.err.c_str());
  ExpectPart(adaptive.out,
             "keep and chosen are the mean of heads.\nOf "
             "16000 tokens per KV head 2000 stay");
  const Outcome threshold =
      Run("plan custom:budget=2000,heads=threshold --tokens 16000 --layers 4");
  ExpectPart(threshold.out,
             "the most of a head.\nOf 16000 tokens per KV "
             "head at most 2000 stay");
  const json document =
      json::parse(Run("plan adakv-original --tokens 16000 --json").out);
  cr_expect_eq(document.at("numbers_are"), "about the mean of heads");
}

Test(recall_program, demo_knows_heads_that_keep_different_numbers) {
  const json document = JsonOf(
      "demo --json --tokens 1024 --budget 256 --policy adakv-kvpress --policy "
      "snapkv:heads=adaptive-blend");
  for (const json& policy : document.at("results")) {
    cr_expect(policy.at("recall_asked").get<double>() > 0.9, "%s",
              policy.dump().c_str());
  }
}

// ---- --cache ----

// Rows of 128 elements of 4 bytes become codes with a scale and a minimum in f16.
Test(recall_program, demo_keeps_its_cache_as_it_is_told) {
  for (const auto& [cache, row_bytes] :
       {std::pair("contiguous", 512.0), std::pair("paged", 512.0),
        std::pair("int8", 128.0 + 4), std::pair("int4", 64.0 + 4)}) {
    const json document = JsonOf(
        "demo --json --tokens 1024 --budget 128 --policy snapkv --policy "
        "adakv-kvpress --policy h2o --decode 8 --cache " +
        std::string(cache));
    cr_expect(document.at("cache") == cache);
    for (const json& row : document.at("results")) {
      const double times = row.at("shrink_of_f32").get<double>() /
                           row.at("shrink").get<double>();
      cr_expect(std::abs(times - 512 / row_bytes) < 1e-6, "%s: %s", cache,
                row.dump().c_str());
    }
    const json& snapkv = document.at("results").at(0);
    // The tokens that stay decide recall, however rows are stored.
    cr_expect(snapkv.at("recall_asked") == 0.75, "%s", snapkv.dump().c_str());
  }
}

// Its last 128 tokens stay as they are, and survivors before them are quantized,
// which loses nothing.
Test(recall_program, demo_keeps_a_cache_as_kivi_does) {
  const std::string demo =
      "demo --json --tokens 2048 --policy snapkv --policy h2o --cache kivi ";
  for (const char* options : {"--budget 512", "--budget 512 --decode 40"}) {
    const json document = JsonOf(demo + options);
    for (const json& row : document.at("results")) {
      const double times = row.at("shrink_of_f32").get<double>();
      cr_expect(times > 10 && times < 4 * 7, "%s", row.dump().c_str());
    }
    const json& snapkv = document.at("results").at(0);
    if (snapkv.contains("decode_evictions")) continue;
    cr_expect(snapkv.at("recall_asked") == 1.0, "%s", snapkv.dump().c_str());
  }
  const Outcome refused = Run(demo + "--budget 128");
  cr_expect(refused.status != 0);
  ExpectPart(refused.err, "budget 128 < ");
}

// ---- --simd ----

// Every target finds the needles. Only the library's rounding may differ.
Test(recall_program, demo_runs_on_every_simd_target) {
  for (uint32_t i = 0; const char* name = kvevict_simd_target_at(i); ++i) {
    const json document = JsonOf(
        "demo --json --tokens 1024 --budget 256 --policy snapkv --simd " +
        std::string(name));
    cr_expect(document.at("results").at(0).at("recall_asked") == 1.0, "%s",
              name);
  }
}

}  // namespace
}  // namespace kvevict::tools
