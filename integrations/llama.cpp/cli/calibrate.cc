#include "calibrate.h"

#include <fmt/format.h>
#include <kvevict/calibration.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "eval/texts.h"
#include "tools/commands/output.h"
#include "tools/engine/progress_bar.h"

namespace kvevict::llama_cli {
namespace {

struct Arguments : ModelArguments {
  std::vector<std::string> texts;
  std::string out;
  uint32_t n_chunk = 0;
  bool no_covariances = false;
};

void AddOptions(CLI::App& app, Arguments& args) {
  AddModelOptions(app, args);
  app.add_option("-f,--file", args.texts,
                 "Text whose queries count; several are read in turn")
      ->required();
  app.add_option("-o,--out", args.out, "File for --calibration")->required();
  app.add_option("--tokens", args.n_chunk,
                 "Tokens that are read together (default: what the model was "
                 "trained for, at most 4096)")
      ->check(CLI::Range(uint32_t{2}, kMostCells));
  app.add_flag("--no-covariances", args.no_covariances,
               "For triattention, which reads none; expected-attention then "
               "takes means alone. The file is smaller");
}

using Chunks = std::vector<std::vector<llama_token>>;

// Every chunk begins with the model's BOS, if it wants one.
Chunks Cut(const llama_vocab* vocab, const std::vector<eval::Text>& texts,
           uint32_t n_chunk) {
  const bool has_bos = llama_vocab_get_add_bos(vocab);
  const size_t n_of_text = n_chunk - (has_bos ? 1 : 0);
  Chunks chunks;
  for (const eval::Text& text : texts) {
    const std::span<const llama_token> all(text.tokens);
    for (size_t at = 0; at < all.size(); at += n_of_text) {
      auto& chunk = chunks.emplace_back();
      if (has_bos) chunk.push_back(llama_vocab_bos(vocab));
      const auto part = all.subspan(at, std::min(n_of_text, all.size() - at));
      chunk.insert(chunk.end(), part.begin(), part.end());
    }
  }
  if (chunks.empty()) throw std::runtime_error("--file: no text has a token");
  return chunks;
}

// Decodes the first tokens of an empty context.
void Read(const Context& context, std::span<const llama_token> tokens,
          size_t n_batch) {
  llama_memory_clear(llama_get_memory(context.ctx.get()), true);
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min(n_batch, tokens.size() - done);
    Batch batch(n);
    for (size_t i = done; i < done + n; ++i) {
      batch.Add(tokens[i], static_cast<llama_pos>(i), 0, false);
    }
    batch.Decode(context);
    done += n;
  }
}

// The number of layers. Throws unless all have these rows.
uint32_t CountLayers(const kvevict_llama* kv,
                     const kvevict_calibration* calibration, uint64_t n_rows) {
  uint32_t n_layers = 0;
  for (uint32_t layer = 0;
       kvevict_llama_layer(kv, n_layers, &layer) == KVEVICT_OK; ++n_layers) {
    uint64_t n = 0;
    if (kvevict_calibration_rows(calibration, n_layers, &n) != KVEVICT_OK) {
      throw std::runtime_error(kvevict_last_error_message());
    }
    if (n != n_rows) {
      throw std::runtime_error(fmt::format(
          "layer {}: {} rows < {} tokens; the others hold NaN or infinity",
          layer, n, n_rows));
    }
  }
  return n_layers;
}

std::string Save(const kvevict_calibration* calibration) {
  size_t n_bytes = 0;
  std::string bytes;
  if (kvevict_calibration_save(calibration, nullptr, 0, &n_bytes) ==
      KVEVICT_OK) {
    bytes.resize(n_bytes);
    if (kvevict_calibration_save(calibration, bytes.data(), n_bytes, nullptr) ==
        KVEVICT_OK) {
      return bytes;
    }
  }
  throw std::runtime_error(kvevict_last_error_message());
}

// A long run is not to fail at its end.
void CheckFolder(const std::string& path) {
  const auto folder = std::filesystem::absolute(path).parent_path();
  if (std::filesystem::is_directory(path) ||
      !std::filesystem::is_directory(folder)) {
    throw std::runtime_error(path + ": cannot be written");
  }
}

}  // namespace

int Calibrate(int argc, char** argv) {
  CLI::App app(
      "Adds up a model's queries, for triattention and expected-attention",
      "kvevict-llama-cli calibrate");
  Arguments args;
  AddOptions(app, args);
  if (const auto status = Parse(app, argc, argv, args)) return *status;
  CheckFolder(args.out);
  const Model model = Load(args, false);
  if (args.n_chunk == 0) {
    const auto trained =
        static_cast<uint32_t>(llama_model_n_ctx_train(model.get()));
    args.n_chunk = std::clamp(trained, 2u, 4096u);
  }
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  const Chunks chunks =
      Cut(vocab, eval::ReadTexts(vocab, args.texts), args.n_chunk);
  size_t n_tokens = 0;
  for (const auto& chunk : chunks) n_tokens += chunk.size();

  ContextOptions options = args.context;
  options.n_batch = options.n_ubatch;
  // A window's cache takes whole batches.
  const auto n_window = static_cast<uint32_t>(llama_model_n_swa(model.get()));
  options.n_ctx =
      std::max(args.n_chunk, n_window == 0 ? 0 : n_window + options.n_ubatch);
  const Context context = OpenContext(model.get(), "none", options);
  // The layers are known after a token, which does not count.
  Read(context, std::span(chunks.front()).first(1), 1);
  const kvevict_calibration* calibration = nullptr;
  Check(kvevict_llama_calibrate(context.kv.get(), args.no_covariances ? 0 : 1,
                                &calibration));
  {
    tools::ProgressBar bar("calibrate", n_tokens);
    size_t n_done = 0;
    for (const auto& chunk : chunks) {
      Read(context, chunk, options.n_batch);
      bar.Update(n_done += chunk.size());
    }
  }
  const uint32_t n_layers =
      CountLayers(context.kv.get(), calibration, n_tokens);
  const std::string bytes = Save(calibration);
  std::ofstream file(args.out, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error(args.out + ": cannot be written");
  tools::WriteOutput(fmt::format(
      "{}: {} rows in each of {} layers, {} covariances, {} bytes\n", args.out,
      n_tokens, n_layers, args.no_covariances ? "without" : "with",
      bytes.size()));
  return 0;
}

}  // namespace kvevict::llama_cli
