// `kvevict-llama-cli calibrate` and `--calibration` as their user sees them.
#include <criterion/criterion.h>
#include <kvevict/calibration.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "integrations/llama.cpp/layers.h"
#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/program.h"
#include "tests/llama_cpp/query_statistics.h"
#include "tests/llama_cpp/session.h"
#include "tests/paths.h"

namespace kvevict::tests {
namespace {

using kvevict::llama::CalibrationHandle;
using kvevict::llama::ContextHandle;
using kvevict::llama::PlanHandle;
using kvevict::llama::PolicyHandle;

const std::string kModels = std::string(test_shared_dir) + "/models/";
const std::string kTexts = std::string(test_shared_dir) + "/texts/";
constexpr size_t kChunk = 100;

void NeedModels() {
  if (!std::filesystem::exists(kModels + "english800k.gguf")) {
    cr_skip_test("skipped: no %s", (kModels + "english800k.gguf").c_str());
  }
}

// A file of this process that is removed at the end.
struct File {
  explicit File(const char* name)
      : path("/tmp/kvevict-" + std::to_string(getpid()) + name) {}
  ~File() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

void Expect(kvevict_status status) {
  cr_assert(status == KVEVICT_OK, "%s", kvevict_last_error_message());
}

// Decodes the chunks of a text in an unmodified llama.cpp, each behind a BOS. Returns
// the number of tokens.
size_t ReadChunks(const llama_model* model, Session& session,
                  const std::string& text) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  std::vector<llama_token> tokens(text.size());
  tokens.resize(static_cast<size_t>(llama_tokenize(
      vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
      static_cast<int32_t>(tokens.size()), false, false)));
  size_t n_read = 0;
  for (size_t at = 0; at < tokens.size(); at += kChunk - 1) {
    std::vector<llama_token> chunk = {llama_vocab_bos(vocab)};
    for (size_t i = at; i < std::min(at + kChunk - 1, tokens.size()); ++i) {
      chunk.push_back(tokens[i]);
    }
    llama_memory_clear(session.memory(), true);
    session.Decode(chunk);
    n_read += chunk.size();
  }
  return n_read;
}

// Loads the bytes for the model's shape, in a plan that knows nothing of llama.cpp.
CalibrationHandle LoadBytes(const std::string& bytes, const llama_model* model,
                            const QueryShape& shape) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  kvevict_context* context = nullptr;
  Expect(kvevict_context_create(&options, &context));
  const ContextHandle own_context(context);
  kvevict_policy* policy = nullptr;
  Expect(kvevict_policy_create("none", &policy));
  const PolicyHandle own_policy(policy);
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = static_cast<uint32_t>(llama_model_n_head(model));
  layer.n_kv_heads = static_cast<uint32_t>(llama_model_n_head_kv(model));
  layer.k_head_dim = layer.v_head_dim = static_cast<uint32_t>(shape.head_dim);
  const std::vector<float> inv_freq(shape.inv_freq.begin(),
                                    shape.inv_freq.end());
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = static_cast<uint32_t>(llama_model_n_layer(model));
  geometry.max_tokens = 1;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  geometry.rope_layout = KVEVICT_ROPE_LAYOUT_INTERLEAVED;
  geometry.rope_inv_freq = inv_freq.data();
  geometry.rope_inv_freq_len = inv_freq.size();
  kvevict_plan* plan = nullptr;
  Expect(kvevict_plan_create(context, &geometry, policy, nullptr, &plan));
  const PlanHandle own_plan(plan);
  kvevict_calibration* calibration = nullptr;
  Expect(kvevict_calibration_create(plan, 1, &calibration));
  CalibrationHandle loaded(calibration);
  Expect(kvevict_calibration_load(calibration, bytes.data(), bytes.size()));
  return loaded;
}

Test(llama_calibrate, adds_up_all_queries_of_a_text) {
  NeedModels();
  const File file("-calibration");
  const std::string text = kTexts + "tinystories_sample.txt";
  for (const char* name : {"english800k.gguf", "stories260K.gguf"}) {
    const std::string out = OutputOf(
        "calibrate -m " + kModels + name + " -f " + text + " -o " + file.path +
        " --tokens 100 --ubatch 32 --cache-type f32 --no-flash");
    const ModelHandle model = LoadModel(kModels + name);
    const auto n_heads = static_cast<size_t>(llama_model_n_head(model.get()));
    const QueryShape shape = MakeQueryShape(
        n_heads, static_cast<size_t>(llama_model_n_embd(model.get())) / n_heads,
        false);
    Queries queries;
    SessionOptions options;
    options.n_ubatch = 32;
    options.last_logits_only = true;
    options.callback = &CaptureQueries;
    options.callback_data = &queries;
    Session session(model.get(), nullptr, options);
    const size_t n_rows = ReadChunks(model.get(), session, ReadFile(text));
    const auto n_layers =
        static_cast<uint32_t>(llama_model_n_layer(model.get()));
    const std::string bytes = ReadFile(file.path);
    const std::string line = file.path + ": " + std::to_string(n_rows) +
                             " rows in each of " + std::to_string(n_layers) +
                             " layers, with covariances, " +
                             std::to_string(bytes.size()) + " bytes\n";
    cr_expect(Has(out, line.c_str()), "%s", out.c_str());
    const CalibrationHandle loaded = LoadBytes(bytes, model.get(), shape);
    const size_t width = n_heads * shape.head_dim;
    for (uint32_t l = 0; l < n_layers; ++l) {
      const std::vector<float>& rows = queries.at(l);
      uint64_t n = 0;
      Expect(kvevict_calibration_rows(loaded.get(), l, &n));
      cr_assert(n == n_rows && rows.size() == n_rows * width);
      double longest = 0;  // pair
      for (const float q : rows) {
        longest = std::max(longest, std::sqrt(2.0) * double{std::abs(q)});
      }
      // llama.cpp's angle is position * frequency, whose roundings add up to less
      // than two in f32; so are the library's.
      const double at_end = 2 * std::ldexp(kChunk + 1.0, -23) * longest;
      std::vector<float> centers(n_heads * 3 * shape.head_dim / 2);
      Expect(kvevict_calibration_query_centers(loaded.get(), l, centers.data(),
                                               centers.size()));
      const double by_centers = MaxDifference(centers, Centers(rows, shape));
      cr_expect(by_centers < at_end, "%s layer %u: %g", name, l, by_centers);
      const Moments expected = ExpectedMoments(rows, shape, 0);
      std::vector<float> mean(width), covariance(width * shape.head_dim);
      Expect(kvevict_calibration_query_mean(
          loaded.get(), l, 0, 512, mean.data(), mean.size(), covariance.data(),
          covariance.size()));
      // The means are also turned forward, to position 511.
      const double forward = 2 * std::ldexp(kChunk + 512.0, -23) * longest;
      const double by_mean = MaxDifference(mean, expected.mean);
      cr_expect(by_mean < forward, "%s layer %u: %g", name, l, by_mean);
      const double by_covariance =
          MaxDifference(covariance, expected.covariance);
      cr_expect(by_covariance < 2 * forward * longest, "%s layer %u: %g", name,
                l, by_covariance);
    }
  }
}

Test(llama_calibrate, serves_the_program_and_eval) {
  NeedModels();
  const File with("-with"), without("-without"), results("-results");
  const std::string model = " -m " + kModels + "english800k.gguf";
  const std::string make =
      "calibrate" + model + " -f " + kTexts + "tinystories_sample.txt -o ";
  OutputOf(make + with.path);
  const std::string out = OutputOf(make + without.path + " --no-covariances");
  ExpectPart(out, "without covariances");
  cr_expect(std::filesystem::file_size(without.path) <
            std::filesystem::file_size(with.path) / 4);
  const std::string text = " -f " + kTexts + "alice29.txt";
  std::string runs[3];
  const std::string options[3] = {"", " --calibration " + without.path,
                                  " --calibration " + with.path};
  for (int i = 0; i < 3; ++i) {
    const std::string run = model + text + options[i] +
                            " --tokens 400 --predict 24 --generate 0 -p ";
    runs[i] = OutputOf(run + "expected-attention:budget=100");
    runs[i] = runs[i].substr(runs[i].find("of 23 predictions"));
    if (i == 0) continue;
    const std::string centers =
        OutputOf(run + "triattention-original:budget=100");
    ExpectPart(centers, "evicted    100");
  }
  cr_expect(runs[0] != runs[1] && runs[1] != runs[2] && runs[0] != runs[2],
            "%s", runs[0].c_str());
  const std::string eval = OutputOf(
      "eval" + model + text + options[1] +
      " -p triattention --windows 1 --prompt 200 --predict 20 --tasks 0 --keep "
      "25 -o " +
      results.path);
  ExpectPart(eval, "\ntriattention  ");
  // Another file's results are others.
  const ProgramRun other = RunProgram(
      "eval" + model + text + options[2] +
      " -p triattention --windows 1 --prompt 200 --predict 20 --tasks 0 --keep "
      "25 -o " +
      results.path);
  cr_expect(other.status == 1, "%s", other.out.c_str());
}

Test(llama_calibrate, says_what_is_wrong) {
  const std::string files = "-m /nowhere.gguf -f /nowhere.txt ";
  cr_expect(RunProgram("calibrate").status == 2);
  ExpectRun("calibrate " + files + "-o /nowhere/file", 1,
            "/nowhere/file: cannot be written");
  ExpectRun("calibrate " + files + "-o /tmp/x --tokens 1", 2,
            "--tokens: Value 1 not in range 2 to 16777216");
  ExpectRun(files + "--calibration /nowhere", 1, "/nowhere: cannot be read");
  ExpectRun("eval " + files + "--own-engine --calibration /x", 2,
            "--own-engine excludes --calibration");
  NeedModels();
  const File file("-wrong");
  const std::string text = " -f " + kTexts + "tinystories_sample.txt ";
  OutputOf("calibrate -m " + kModels + "stories260K.gguf" + text + "-o " +
           file.path);
  ExpectRun(
      "-m " + kModels + "english800k.gguf" + text +
          "--tokens 100 --predict 0 --generate 0 -p "
          "triattention:budget=50 --calibration " +
          file.path,
      1,
      "options.calibration: data: the number of layers with a full cache 5 "
      "is not the plan's 4");
}

}  // namespace
}  // namespace kvevict::tests
