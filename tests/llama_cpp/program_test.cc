// `kvevict-llama-cli` as its user sees it.
#include <criterion/criterion.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/paths.h"

namespace {

using nlohmann::json;

const std::string kModel =
    std::string(test_shared_dir) + "/models/english800k.gguf";
const std::string kText = std::string(test_shared_dir) + "/texts/alice29.txt";

struct Outcome {
  int status;
  std::string out;
};

Outcome Run(const std::string& arguments) {
  const std::string command =
      test_llama_program + std::string(" ") + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome{-1, ""};
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.out.append(buffer, n);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

std::string Text(const std::string& options) {
  return std::string("-m ") + kModel + " -f " + kText +
         " --tokens 400 --predict 24 --generate 8 " + options;
}

void NeedModels() {
  if (!std::filesystem::exists(kModel)) {
    cr_skip_test("skipped: no %s", kModel.c_str());
  }
}

Test(llama_program, compares_both_caches) {
  NeedModels();
  json by_way[2];
  for (const bool in_place : {false, true}) {
    const Outcome run = Run(Text(in_place ? "--json --in-place" : "--json"));
    cr_assert(run.status == 0, "%s", run.out.c_str());
    const json result = by_way[in_place] = json::parse(run.out);
    cr_expect(result["full"]["cells"] == 400);
    cr_expect(result["evicted"]["cells"] == 100);
    cr_expect(result["full"]["cache_bytes"] == 400 * 4 * 2 * 2 * 32 * 2);
    cr_expect(result["in_place"] == in_place);
    cr_expect(result["predictions"] == 23);
    cr_expect(result["kl"] > 0 && result["kl"] < 2);
    cr_expect(result["full"]["continuation_tokens"].size() == 8);
  }
  // Where it works makes no difference to what stays.
  cr_expect(by_way[0]["kl"] == by_way[1]["kl"]);
  cr_expect(by_way[0]["evicted"]["continuation"] ==
            by_way[1]["evicted"]["continuation"]);
}

Test(llama_program, a_budget_of_everything_changes_nothing) {
  NeedModels();
  const Outcome run =
      Run(Text("--json --no-flash --cache-type f32 -p "
               "snapkv:budget=1000"));
  cr_assert(run.status == 0, "%s", run.out.c_str());
  const json result = json::parse(run.out);
  cr_expect(result["kl"] == 0 && result["agreement"] == 1);
  cr_expect(result["full"]["nll"] == result["evicted"]["nll"]);
}

Test(llama_program, keeps_the_queries_that_a_policy_wants) {
  NeedModels();
  for (const char* policy : {"-p non-causal:budget=100 --json",
                             "-p h2o:budget=100 --query-rows 400 --json"}) {
    const Outcome run = Run(Text(policy));
    cr_assert(run.status == 0, "%s", run.out.c_str());
    cr_expect(json::parse(run.out)["evicted"]["cells"] == 100);
  }
}

Test(llama_program, prints_a_table) {
  NeedModels();
  const Outcome run = Run(Text("--cache-type q8_0"));
  cr_assert(run.status == 0, "%s", run.out.c_str());
  for (const char* part : {"full ", "evicted ", "KV MiB", "agree with the full",
                           "400 tokens prefilled"}) {
    cr_expect(run.out.find(part) != std::string::npos, "no %s in\n%s", part,
              run.out.c_str());
  }
}

Test(llama_program, says_what_is_wrong) {
  cr_expect(Run("").status == 2);
  cr_expect(Run("--help").status == 0);
  const Outcome missing = Run("-m /nowhere.gguf -f /nowhere.txt");
  cr_expect(missing.status == 1);
  cr_expect(missing.out.find("/nowhere.gguf: llama.cpp does not load it") !=
            std::string::npos);
  NeedModels();
  const Outcome pyramid = Run(Text("-p pyramidkv:budget=100"));
  cr_expect(pyramid.status == 1);
  cr_expect(pyramid.out.find("split=uniform is held") != std::string::npos);
  const Outcome text = Run(std::string("-m ") + kModel + " -f /nowhere.txt");
  cr_expect(text.status == 1);
  cr_expect(text.out.find("/nowhere.txt: cannot be read") != std::string::npos);
  const Outcome folder = Run(std::string("-m ") + kModel + " -f /tmp");
  cr_expect(folder.out.find("/tmp: cannot be read") != std::string::npos);
  const Outcome key = Run(Text("-p snapkv:bugdet=5"));
  cr_expect(key.status == 1);
  cr_expect(key.out.find("no key \"bugdet\"") != std::string::npos);
  const Outcome backends = Run(Text("--backends /nowhere"));
  cr_expect(backends.out.find("no backend of ggml is found in /nowhere") !=
            std::string::npos);
}

}  // namespace
