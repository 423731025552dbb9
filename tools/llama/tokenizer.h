// Text to token ids and back.
#ifndef KVEVICT_TOOLS_LLAMA_TOKENIZER_H_
#define KVEVICT_TOOLS_LLAMA_TOKENIZER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvevict::tools {

inline constexpr int32_t kUnknownId = 0;
inline constexpr int32_t kBosId = 1;
inline constexpr int32_t kEosId = 2;

enum class PieceKind { kNormal, kUnknown, kControl, kByte };

struct TokenizerPiece {
  std::string text;  // With plain spaces.
  float score = 0;
  PieceKind kind = PieceKind::kNormal;  // "<0x0A>" is found by its text.
};

struct TokenizerOptions {
  int32_t bos_id = kBosId;
  int32_t eos_id = kEosId;
  bool add_bos = true;
  bool add_space_prefix = true;  // Text begins as if a space stood before it.
};

// SentencePiece's BPE: among all adjacent pairs that form a piece, the one with
// the highest score is joined first, the leftmost of equals. What is not a
// piece in the end is spelled in bytes.
class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(Tokenizer&&) = default;  // No copies: id_of_ points into pieces_.
  Tokenizer& operator=(Tokenizer&&) = default;
  Tokenizer(std::vector<TokenizerPiece> pieces, TokenizerOptions options);

  // BOS, then the text's ids. Control pieces in the text are ordinary text.
  std::vector<int32_t> Encode(std::string_view text) const;

  // The text of the ids. After a BOS the space that Encode() put in front is
  // removed again, so Decode(Encode(text)) == text. Control pieces give no
  // text. Ids outside the vocabulary throw std::out_of_range.
  std::string Decode(std::span<const int32_t> ids) const;

  size_t vocab_size() const { return pieces_.size(); }
  const TokenizerOptions& options() const { return options_; }

 private:
  std::vector<TokenizerPiece> pieces_;
  TokenizerOptions options_;
  std::unordered_map<std::string_view, int32_t> id_of_;  // Keys: pieces_.
  std::array<int32_t, 256> byte_id_{};  // kUnknownId where there is none.
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_TOKENIZER_H_
