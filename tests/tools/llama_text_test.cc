// `kvevict demo --model FILE --text FILE`.
#include <criterion/criterion.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/tools/llama_synthetic.h"
#include "tests/tools/llama_test_util.h"
#include "tools/llama/text_demo.h"

namespace kvevict::tools {
namespace {

// A model and a text of `n_letters` + 2 tokens: BOS, the leading space, letters.
struct Files {
  explicit Files(size_t n_letters)
      : model(SyntheticModel(GgmlType::kF16).Build()),
        text(std::vector<uint8_t>(n_letters, 'b')) {
    options.model = model.path();
    options.text = text.path();
    options.threads = 2;
    options.json = true;
  }
  TempFile model, text;
  DemoOptions options;
};

Test(llama_text, json_has_every_field) {
  Files files(200);
  const auto json = nlohmann::json::parse(RunTextDemo(files.options));
  // The context is 128: 64 of it are the prompt.
  cr_assert(json["n_tokens"] == 64 && json["n_predictions"] == 64);
  cr_assert(json["budget"] == 48);
  cr_assert(json["results"].size() == kDefaultDemoPolicies.size());
  for (const auto& row : json["results"]) {
    const bool none = row["policy"] == "none";
    cr_expect(row["kv_bytes_before"] == 2 * 2 * 64 * 2 * 16 * 4);
    cr_expect(row["shrink"].get<double>() == (none ? 1.0 : 64.0 / 48));
    cr_expect(row["recall_asked"].is_null() && row["recall_unasked"].is_null());
    cr_expect(row["evict_ms"].get<double>() >= 0);
    cr_expect(row["decode_tokens_per_s"].get<double>() > 0);
    cr_expect(row["nll"].get<double>() > 0 && row["text"].is_string());
    const double kl = row["kl"];
    const double agreement = row["agreement"];
    cr_expect(none ? kl == 0 && agreement == 1 : kl > 0 && agreement <= 1);
  }
}

Test(llama_text, a_budget_for_all_changes_nothing) {
  Files files(200);
  files.options.tokens = 100;
  files.options.budget = 100;
  const auto json = nlohmann::json::parse(RunTextDemo(files.options));
  const auto& none = json["results"][0];
  for (const auto& row : json["results"]) {
    cr_expect(row["kl"] == 0.0 && row["agreement"] == 1.0);
    cr_expect(row["nll"] == none["nll"] && row["text"] == none["text"]);
    cr_expect(row["kv_bytes_after"] == none["kv_bytes_before"]);
  }
}

// The cache stays as long as the policy says, however much is decoded.
Test(llama_text, evictions_go_on_while_decoding) {
  Files files(200);
  files.options.tokens = 40;
  files.options.decode = 80;
  files.options.policies = {{"none", "none"},
                            {"tova", "tova:budget=30"},
                            {"knorm", "knorm:budget=30,margin=7"},
                            {"ring", "streaming-llm:budget=30,sink=0,every=9"},
                            {"pinned", "knorm:budget=10,prompt=pinned-beside"},
                            {"h2o", "h2o:budget=30,recent=20,margin=7"}};
  const auto json = nlohmann::json::parse(RunTextDemo(files.options));
  cr_assert(json["n_tokens"] == 40 && json["n_predictions"] == 80);
  const auto& rows = json["results"];
  constexpr uint64_t kTokenBytes = 2 * 2 * 2 * 16 * 4;
  const struct {
    uint64_t after, at_end, n_evictions;
  } expected[] = {{40, 120, 0},
                  {30, 30, 80},
                  {30, 30 + 80 % 8, 80 / 8},
                  {30, 30 + 80 % 9, 80 / 9},
                  {40, 50, 70},
                  {30, 30 + 80 % 8, 80 / 8}};
  for (size_t i = 0; i < std::size(expected); ++i) {
    cr_expect(rows[i]["kv_bytes_after"] == expected[i].after * kTokenBytes);
    cr_expect(rows[i]["kv_bytes_at_end"] == expected[i].at_end * kTokenBytes);
    cr_expect(rows[i]["decode_evictions"] == expected[i].n_evictions);
    cr_expect(i == 0 ? rows[i]["kl"] == 0.0 : rows[i]["kl"].get<double>() > 0);
  }
  files.options.json = false;
  const std::string text = RunTextDemo(files.options);
  cr_expect(text.find("evictions") != std::string::npos);
}

// A budget that nothing exceeds gives the full cache, however long it decodes.
Test(llama_text, evictions_that_do_nothing_change_nothing) {
  Files files(200);
  files.options.tokens = 40;
  files.options.decode = 60;
  files.options.policies = {{"none", "none"}, {"tova", "tova:budget=100"}};
  const auto json = nlohmann::json::parse(RunTextDemo(files.options));
  const auto& rows = json["results"];
  cr_expect(rows[1]["kl"] == 0.0 && rows[1]["nll"] == rows[0]["nll"]);
  cr_expect(rows[1]["kv_bytes_at_end"] == rows[0]["kv_bytes_at_end"]);
}

// Its queries choose other tokens than the window's do, as many of them.
Test(llama_text, a_question_scores_by_reference) {
  Files files(200);
  files.options.tokens = 60;
  files.options.budget = 30;
  files.options.question = "bbb";
  files.options.policies = {
      {"window", "snapkv:window=8"},
      {"question", "snapkv:window=8,reference=3"},
      {"both", "snapkv:window=8,reference=3,reference_weight=0.5"}};
  const auto json = nlohmann::json::parse(RunTextDemo(files.options));
  const auto& rows = json["results"];
  for (const auto& row : rows) cr_expect(row["shrink"] == 2.0);
  cr_expect(rows[0]["kl"] != rows[1]["kl"] && rows[1]["kl"] != rows[2]["kl"]);
  files.options.tokens = 40;
  files.options.decode = 20;
  files.options.policies = {{"all", "snapkv:window=8,reference=2,margin=3"}};
  const auto decoded = nlohmann::json::parse(RunTextDemo(files.options));
  cr_expect(decoded["results"][0]["decode_evictions"] == 5);
}

Test(llama_text, a_short_text_leaves_fewer_predictions) {
  Files files(20);
  files.options.tokens = 12;
  files.options.policies = {{"none", "none"}};
  const auto json = nlohmann::json::parse(RunTextDemo(files.options));
  cr_assert(json["n_tokens"] == 12 && json["n_predictions"] == 9);
}

Test(llama_text, the_table_names_every_policy) {
  Files files(200);
  files.options.json = false;
  const std::string text = RunTextDemo(files.options);
  for (const NamedPolicy& policy : files.options.policies) {
    cr_expect(text.find("\n" + policy.label + " ") != std::string::npos, "%s",
              policy.label.c_str());
  }
}

Test(llama_text, errors_say_what_is_wrong) {
  const auto expect = [](const DemoOptions& options, const char* part) {
    const std::string error = ErrorOf([&] { RunTextDemo(options); });
    cr_expect(error.find(part) != std::string::npos, "'%s' lacks '%s'",
              error.c_str(), part);
  };
  Files files(200);
  DemoOptions options = files.options;
  options.text = "/nonexistent/text";
  expect(options, "/nonexistent/text");
  options = files.options;
  options.model = "/nonexistent/model";
  expect(options, "/nonexistent/model");
  options = files.options;
  options.tokens = 201;
  expect(options, "202 tokens are too few for a prompt of 201");
  options = files.options;
  options.tokens.reset();
  options.decode = 100000;
  expect(options, "--decode 100000 leaves no room for a prompt");
  options = files.options;
  options.budget = 20;
  expect(options, "policy snapkv: sink 4 + window 32 >= budget 20");
  options.budget = -1;
  expect(options, "budget");
  options.budget = std::nan("");
  expect(options, "budget");
  options = files.options;
  options.decode = 20;
  options.policies = {{"h2o", "h2o:heads=adaptive"}};
  expect(options,
         "policy h2o cannot go on with --decode: it needs attention sums");
  options.policies = {{"turned", "knorm:rotate=yes"}};
  expect(options, "policy turned cannot go on with --decode: it rotates");
  options = files.options;
  options.policies = {{"asked", "snapkv:window=8,reference=2"}};
  expect(options, "policy asked: reference 2 > 0 reference queries");
  options = files.options;
  options.simd = "MMX";
  expect(options, "simd_target \"MMX\" is not one of");
}

}  // namespace
}  // namespace kvevict::tools
