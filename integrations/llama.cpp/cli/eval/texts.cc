#include "texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "arguments.h"

namespace kvevict::llama_cli::eval {
namespace {

// FNV-1a, in hexadecimal digits.
std::string Hash(const std::string& bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace

std::vector<Text> ReadTexts(const llama_vocab* vocab,
                            const std::vector<std::string>& paths) {
  std::vector<Text> texts;
  for (const std::string& path : paths) {
    Text text{
        std::filesystem::path(path).filename().string(), ReadText(path), {}};
    std::erase(text.bytes, '\r');
    text.tokens = Tokenize(vocab, text.bytes, false, false);
    texts.push_back(std::move(text));
  }
  return texts;
}

nlohmann::json Describe(const std::vector<Text>& texts) {
  nlohmann::json all;
  for (const Text& text : texts) {
    all.push_back({{"name", text.name},
                   {"tokens", text.tokens.size()},
                   {"fnv1a", Hash(text.bytes)}});
  }
  return all;
}

std::string HashOfEnd(const std::string& path) {
  const uint64_t size = std::filesystem::file_size(path);
  std::string bytes(std::min<uint64_t>(size, 1 << 20), '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(-static_cast<std::streamoff>(bytes.size()), std::ios::end);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return Hash(bytes);
}

std::vector<Window> CutWindows(const llama_vocab* vocab,
                               const std::vector<Text>& texts, uint32_t n,
                               uint32_t n_tokens, size_t stride) {
  const bool has_bos = llama_vocab_get_add_bos(vocab);
  const size_t n_of_text = n_tokens - (has_bos ? 1 : 0);
  if (stride == 0) stride = n_of_text;
  std::vector<Window> windows;
  for (uint32_t i = 0; i < n; ++i) {
    const Text& text = texts[i % texts.size()];
    Window window{&text, i / texts.size() * stride, {}};
    if (window.at + n_of_text > text.tokens.size()) {
      throw std::runtime_error(fmt::format(
          "{}: {} tokens < {}, the end of window {} of --windows {}; see "
          "--prompt, --predict, --stride",
          text.name, text.tokens.size(), window.at + n_of_text, i + 1, n));
    }
    if (has_bos) window.tokens.push_back(llama_vocab_bos(vocab));
    const auto begin = text.tokens.begin() + static_cast<ptrdiff_t>(window.at);
    window.tokens.insert(window.tokens.end(), begin,
                         begin + static_cast<ptrdiff_t>(n_of_text));
    windows.push_back(std::move(window));
  }
  return windows;
}

}  // namespace kvevict::llama_cli::eval
