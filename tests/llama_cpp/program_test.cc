// `kvevict-llama-cli` as its user sees it.
#include <criterion/criterion.h>
#include <ggml-backend.h>
#include <llama.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/program.h"
#include "tests/llama_cpp/random_model.h"
#include "tests/paths.h"

namespace kvevict::tests {
namespace {

using nlohmann::json;

const std::string kModel =
    std::string(test_shared_dir) + "/models/english800k.gguf";
const std::string kText = std::string(test_shared_dir) + "/texts/alice29.txt";

std::string Text(const std::string& options) {
  return std::string("-m ") + kModel + " -f " + kText +
         " --tokens 400 --predict 24 --generate 8 " + options;
}

void NeedModels() {
  if (!std::filesystem::exists(kModel)) {
    cr_skip_test("skipped: no %s", kModel.c_str());
  }
}

Test(llama_program, defaults_fit_the_model_and_the_text) {
  NeedModels();
  const std::string text = std::string(" -f ") + kText;
  for (const char* model : {"english800k", "stories260K"}) {
    // Trained for 128 tokens.
    const std::string out = OutputOf(std::string("-m ") + test_shared_dir +
                                     "/models/" + model + ".gguf" + text);
    ExpectPart(out,
               "-p snapkv:budget=0.25,sink=4,window=6 --tokens 96 "
               "--predict 32 --generate 32\n");
  }
  const std::string model = std::string("-m ") + kModel;
  const json longer =
      json::parse(OutputOf(model + text + " --tokens 400 --json"));
  cr_expect(longer["policy"] == "snapkv:budget=0.25");
  cr_expect(longer["predict_tokens"] == 64);
  // Random bytes are no text, so there are more tokens than bytes.
  const char* path = "/tmp/kvevict-random-bytes";
  std::ofstream(path, std::ios::binary) << std::string(40, '\xfe');
  OutputOf(model + " -f " + path);
  unlink(path);
}

Test(llama_program, says_what_scores_and_what_it_measured) {
  NeedModels();
  const std::string h2o = OutputOf(Text("-p h2o:budget=100"));
  ExpectPart(h2o, "the last 32 queries of the prompt score (--query-rows)");
  const std::string all =
      OutputOf(Text("-p h2o:budget=100 --query-rows 4294967295"));
  ExpectPart(all, "all queries of the prompt score");
  const std::string one_row = OutputOf(Text("-p tova:budget=100"));
  ExpectPart(one_row, "the last query of the prompt scores\n");
  const std::string none = OutputOf(Text("-p knorm:budget=100"));
  cr_expect(!Has(none, "queries of the prompt"), "%s", none.c_str());
  const std::string unnamed = OutputOf(Text("-p knorm"));
  ExpectPart(unnamed, "nothing was evicted: budget=1 is the whole prompt");

  const std::string short_text = std::string("-m ") + kModel + " -f " + kText +
                                 " --tokens 400 --generate 4 -ngl 0 ";
  const std::string unpredicted = OutputOf(short_text + "--predict 0");
  cr_expect(!Has(unpredicted, "tokens/s") && !Has(unpredicted, "nats"), "%s",
            unpredicted.c_str());
  const json one = json::parse(OutputOf(short_text + "--predict 1 --json"));
  cr_expect(one["predictions"] == 0 && one["full"]["nll"].is_null() &&
            one["kl"].is_null() && one["full"]["tokens_per_s"] > 0);
  const std::string whole = OutputOf(short_text + "-p snapkv:budget=400");
  cr_expect(Has(whole, "nothing was evicted") && !Has(whole, "by state"), "%s",
            whole.c_str());
}

Test(llama_program, counts_the_whole_cache) {
  NeedModels();
  RandomModel shape;
  shape.arch = "gemma3";
  shape.n_layers = 7;  // one of them keeps every token
  shape.n_embd = shape.n_heads * shape.head_dim;
  shape.n_vocab = 512;
  shape.tokenizer = kModel;
  const std::string path = WriteRandomModel(shape);
  const std::string arguments = "-m " + path + " -f " + kText +
                                " --tokens 900 --predict 8 --ubatch 64 " +
                                "--generate 0 -p snapkv:budget=100,window=8";
  const std::string table = OutputOf(arguments);
  const json result = json::parse(OutputOf(arguments + " --json"));
  unlink(path.c_str());
  ExpectPart(table, "6 of 7 layers are others");
  ExpectPart(table, "go back to the system");
  const uint64_t cell = 2 * 2 * shape.n_kv_heads * shape.head_dim;
  cr_expect(result["full"]["cache_bytes"] == 900 * cell);
  cr_expect(result["evicted"]["cache_bytes"] == 100 * cell);
  // Windows of 32 tokens and a batch of 64 take 256 cells in six layers.
  cr_expect(result["full"]["allocated_bytes"] == (1024 + 6 * 256) * cell);
  cr_expect(result["evicted"]["allocated_bytes"] == 7 * 256 * cell);
  cr_expect(result["returned_bytes"] == 768 * cell);
}

Test(llama_program, compares_both_caches) {
  NeedModels();
  json by_way[2];
  for (const bool in_place : {false, true}) {
    const ProgramRun run =
        RunProgram(Text(in_place ? "--json --in-place" : "--json"));
    cr_assert(run.status == 0, "%s", run.out.c_str());
    const json result = by_way[in_place] = json::parse(run.out);
    cr_expect(result["full"]["cells"] == 400);
    cr_expect(result["evicted"]["cells"] == 100);
    cr_expect(result["full"]["cache_bytes"] == 400 * 4 * 2 * 2 * 32 * 2);
    cr_expect(result["in_place"] == in_place);
    cr_expect(result["predictions"] == 23);
    cr_expect(result["freed_bytes"] ==
              (in_place ? 300 * 4 * 2 * 2 * 32 * 2 : 0));
    cr_expect(result["kl"] > 0 && result["kl"] < 2);
    cr_expect(result["full"]["continuation_tokens"].size() == 8);
  }
  // The same tokens stay, whichever way it works.
  cr_expect(by_way[0]["kl"] == by_way[1]["kl"]);
  cr_expect(by_way[0]["evicted"]["continuation"] ==
            by_way[1]["evicted"]["continuation"]);
}

Test(llama_program, a_budget_of_everything_changes_nothing) {
  NeedModels();
  const ProgramRun run =
      RunProgram(Text("--json --no-flash --cache-type f32 -p "
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
    const ProgramRun run = RunProgram(Text(policy));
    cr_assert(run.status == 0, "%s", run.out.c_str());
    cr_expect(json::parse(run.out)["evicted"]["cells"] == 100);
  }
}

Test(llama_program, prints_a_table) {
  NeedModels();
  const ProgramRun run = RunProgram(Text("--cache-type q8_0"));
  cr_assert(run.status == 0, "%s", run.out.c_str());
  for (const char* part :
       {"full ", "evicted ", "KV MiB", "agree with the full", "prefilled in"}) {
    ExpectPart(run.out, part);
  }
}

Test(llama_program, lists_and_refuses_policies_that_cannot_work) {
  const std::string help = OutputOf("--help");
  for (const char* policy :
       {"pyramidkv", "adakv-kvpress", "custom", "q-filter",
        "triattention-original", "streaming-llm-original-decode"}) {
    const ProgramRun run = RunProgram("-m /nowhere.gguf -f /nowhere.txt -p " +
                                      std::string(policy));
    cr_expect(run.status == 1);
    const size_t at = run.out.find("\": ");
    cr_assert(at != std::string::npos, "%s", run.out.c_str());
    const std::string why = run.out.substr(at + 1, run.out.find('\n') - at - 1);
    cr_expect(Has(help, policy) && Has(help, why.c_str()), "%s: %s", policy,
              run.out.c_str());
  }
}

Test(llama_program, says_what_is_wrong) {
  cr_expect(RunProgram("").status == 2);
  ExpectRun("-m /nowhere.gguf -f /nowhere.txt", 1,
            "/nowhere.gguf: llama.cpp cannot load it");
  NeedModels();
  const std::string model = "-m " + kModel + " -f ";
  const std::tuple<std::string, int, const char*> kRuns[] = {
      {Text("-p snapkv:budget=20"), 1, "sink 4 + window 32 >= budget 20"},
      {Text("-p snapkv:budget=0.05"), 0,
       "nothing was evicted: the context is too short yet: its budget, a "
       "ratio, "
       "has no room"},
      {model + "/nowhere.txt", 1, "/nowhere.txt: cannot be read"},
      {model + "/tmp", 1, "/tmp: cannot be read"},
      {Text("-p snapkv:bugdet=5"), 1, "no key \"bugdet\""},
      {model + kText + " --tokens 400 --generate 4294967295", 1,
       "--generate 4294967295 > 16776816, what a context of 16777216 tokens "
       "leaves behind a prompt of 400"},
      {Text("-p \"\""), 2, "--policy: a policy has a name"},
      {Text("-ngl -7"), 2, "--gpu-layers: Value -7 not in range -1 to"},
      {Text("--backends /nowhere"), 1,
       "no backend of ggml is found in /nowhere"},
  };
  for (const auto& [arguments, status, part] : kRuns) {
    ExpectRun(arguments, status, part);
  }
  ggml_backend_load_all();
  if (!llama_supports_gpu_offload()) {
    ExpectRun(Text("-ngl 1"), 1,
              "--gpu-layers 1: llama.cpp has no GPU backend");
  }
}

}  // namespace
}  // namespace kvevict::tests
