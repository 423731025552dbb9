#include "arguments.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "kvevict/kvevict.h"
#include "tools/commands/output.h"

namespace kvevict::llama_cli {
namespace {

constexpr int kUsageError = 2;

const std::map<std::string, ggml_type> kCacheTypes = {
    {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},
    {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
    {"q4_0", GGML_TYPE_Q4_0},
};

void LogErrors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}
void LogAll(ggml_log_level, const char* text, void*) {
  std::fputs(text, stderr);
}

}  // namespace

void AddModelOptions(CLI::App& app, ModelArguments& args) {
  app.set_version_flag("--version", std::string(kvevict_version()));
  app.add_option("-m,--model", args.model, "GGUF file that llama.cpp loads")
      ->required();
  app.add_option("--cache-type", args.cache_type,
                 "Of keys and values: f32, f16, bf16, q8_0, q4_0")
      ->capture_default_str()
      ->check(CLI::IsMember(kCacheTypes));
  app.add_flag("--no-flash", args.no_flash, "Without flash attention");
  app.add_option("-t,--threads", args.context.n_threads, "For llama.cpp")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{1}, uint32_t{1024}));
  app.add_option("--gpu-layers", args.n_gpu_layers,
                 "Layers that llama.cpp puts on a GPU, with their cache; -1: "
                 "all. -ngl is the same")
      ->capture_default_str()
      ->check(CLI::Range(int32_t{-1}, INT32_MAX));
  app.add_option("--ubatch", args.context.n_ubatch,
                 "Tokens that llama.cpp takes at once")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 20));
  app.add_option("--backends", args.backends,
                 "Folder with ggml's backends (default: where llama.cpp looks, "
                 "and beside its library)");
  app.add_flag("--verbose", args.verbose, "With llama.cpp's own log");
}

CLI::Option* AddCalibrationOption(CLI::App& app, ModelArguments& args) {
  return app.add_option(
      "--calibration", args.calibration_file,
      "File that `kvevict-llama-cli calibrate` made of the model: "
      "triattention needs it, expected-attention takes it in "
      "place of the prompt's own queries");
}

std::optional<int> Parse(CLI::App& app, int argc, char** argv,
                         ModelArguments& args) {
  // llama.cpp's own name, which the parser would read as three options.
  static char gpu_layers[] = "--gpu-layers";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "-ngl") == 0) argv[i] = gpu_layers;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    const int status = app.exit(error, out, err);
    std::fputs(err.str().c_str(), stderr);
    tools::WriteOutput(out.str());
    return status == 0 ? 0 : kUsageError;
  }
  if (!args.calibration_file.empty()) {
    args.calibration = ReadText(args.calibration_file);
    args.context.calibration = args.calibration;
  }
  args.context.type_k = args.context.type_v = kCacheTypes.at(args.cache_type);
  if (args.no_flash) args.context.flash = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  return std::nullopt;
}

Model Load(const ModelArguments& args, bool reads_weights) {
  return LoadModel(
      args.model, args.backends, args.verbose ? LogAll : LogErrors,
      [&](llama_model_params& params) {
        if (args.n_gpu_layers != 0 && !llama_supports_gpu_offload()) {
          throw std::runtime_error("--gpu-layers " +
                                   std::to_string(args.n_gpu_layers) +
                                   ": llama.cpp has no GPU backend here");
        }
        params.n_gpu_layers = args.n_gpu_layers;
        if (reads_weights) params.use_extra_bufts = false;
      });
}

std::string ReadText(const std::string& path) {
  std::ostringstream bytes;
  // A folder can be opened but gives nothing, like an empty file.
  if (std::ifstream file(path, std::ios::binary); !(bytes << file.rdbuf())) {
    throw std::runtime_error(path + ": cannot be read, or is empty");
  }
  return bytes.str();
}

std::vector<llama_token> Tokenize(const llama_vocab* vocab,
                                  const std::string& text, bool add_special,
                                  bool parse_special) {
  const auto tokenize = [&](std::vector<llama_token>& tokens) {
    return llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()),
                          tokens.data(), static_cast<int32_t>(tokens.size()),
                          add_special, parse_special);
  };
  std::vector<llama_token> tokens(text.size() + 8);
  int32_t n = tokenize(tokens);
  // Bytes that are not UTF-8 become more tokens than there are bytes.
  if (n < 0 && n != INT32_MIN) {
    tokens.resize(static_cast<size_t>(-n));
    n = tokenize(tokens);
  }
  if (n < 0) throw std::runtime_error("llama_tokenize() failed");
  tokens.resize(static_cast<size_t>(n));
  return tokens;
}

}  // namespace kvevict::llama_cli
