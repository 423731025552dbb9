// `kvevict-llama-cli calibrate` and `--calibration` as their user sees them.
#include <criterion/criterion.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/program.h"
#include "tests/llama_cpp/session.h"
#include "tests/paths.h"

namespace kvevict::tests {
namespace {

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

// Decodes the chunks of a text, each behind a BOS. Returns the number of tokens.
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

// The file is what the adapter's own functions make of the text. calibration_test.cc
// has what that is.
Test(llama_calibrate, adds_up_all_queries_of_a_text) {
  NeedModels();
  const File file("-calibration");
  const std::string text = kTexts + "tinystories_sample.txt";
  for (const char* name : {"english800k.gguf", "stories260K.gguf"}) {
    const std::string out = OutputOf(
        "calibrate -m " + kModels + name + " -f " + text + " -o " + file.path +
        " --tokens 100 --ubatch 32 --cache-type f32 --no-flash");
    const ModelHandle model = LoadModel(kModels + name);
    SessionOptions options;
    options.n_ubatch = 32;
    options.last_logits_only = true;
    Session session(model.get(), "none", options);
    const kvevict_calibration* calibration = session.Calibrate(true);
    const size_t n_rows = ReadChunks(model.get(), session, ReadFile(text));
    const std::string bytes = ReadFile(file.path);
    cr_expect(bytes == SaveCalibration(calibration), "%s", name);
    const std::string line = file.path + ": " + std::to_string(n_rows) +
                             " rows in each of " +
                             std::to_string(llama_model_n_layer(model.get())) +
                             " layers, with covariances, " +
                             std::to_string(bytes.size()) + " bytes\n";
    cr_expect(Has(out, line.c_str()), "%s", out.c_str());
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
