#include "tools/llama/model_file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "tools/engine/platform.h"
#include "tools/llama/gguf.h"
#include "tools/llama/llama2c.h"
#include "tools/llama/llama_gguf.h"

namespace kvevict::tools {
namespace {

bool IsGguf(const std::string& path) {
  char magic[4] = {};
  std::ifstream(PathOf(path), std::ios::binary).read(magic, sizeof(magic));
  return std::string_view(magic, sizeof(magic)) == "GGUF";
}

std::string FindTokenizer(const std::string& model_path, uint32_t vocab_size) {
  const std::filesystem::path model = PathOf(model_path);
  const std::filesystem::path folder = model.parent_path();
  const std::string by_size = "tok" + std::to_string(vocab_size) + ".bin";
  const std::filesystem::path candidates[] = {
      std::filesystem::path(model).replace_extension(".tok"),
      folder / by_size,
      folder / "tokenizer.bin",
  };
  for (const auto& candidate : candidates) {
    if (std::filesystem::exists(candidate)) return TextOf(candidate);
  }
  throw std::runtime_error(model_path + ": no tokenizer beside it (" +
                           TextOf(candidates[0].filename()) + ", " + by_size +
                           " or tokenizer.bin); name one with --tokenizer");
}

void CheckVocabulary(const std::string& path, const ModelFile& model) {
  const size_t n_pieces = model.tokenizer.vocab_size();
  const size_t n_rows = model.weights.config.vocab_size;
  if (n_pieces != n_rows) {
    throw std::runtime_error(
        path + ": the tokenizer has " + std::to_string(n_pieces) +
        " pieces, the model embeds " + std::to_string(n_rows));
  }
}

}  // namespace

ModelFile ReadModelFile(const std::string& path,
                        const std::string& tokenizer_path) {
  ModelFile model;
  if (IsGguf(path)) {
    const GgufFile file(path);
    model.weights = ReadGgufModel(file);
    model.tokenizer = ReadGgufTokenizer(file);
  } else {
    model.weights = ReadLlama2cModel(path);
    const uint32_t vocab_size = model.weights.config.vocab_size;
    model.tokenizer = ReadLlama2cTokenizer(tokenizer_path.empty()
                                               ? FindTokenizer(path, vocab_size)
                                               : tokenizer_path,
                                           vocab_size);
  }
  CheckVocabulary(path, model);
  return model;
}

}  // namespace kvevict::tools
