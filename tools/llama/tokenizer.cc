#include "tools/llama/tokenizer.h"

#include <cmath>
#include <optional>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace kvevict::tools {
namespace {

constexpr int kNone = -1;

// The byte spelled by a piece "<0xHH>".
std::optional<uint8_t> ByteOfPiece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') {
    return std::nullopt;
  }
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return kNone;
  };
  const int high = digit(text[3]);
  const int low = digit(text[4]);
  if (high == kNone || low == kNone) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

size_t Utf8Length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  if (byte < 0xc0) return 1;  // ASCII, or a stray continuation byte.
  if (byte < 0xe0) return 2;
  return byte < 0xf0 ? 3 : 4;
}

// A stretch of the text that is one piece so far, in a list by index.
struct Symbol {
  std::string_view text;
  int previous;
  int next;
};

// Two adjacent symbols that could be joined. It is stale if either has been
// joined with something else since: then the lengths no longer add up.
struct Pair {
  float score;
  int left;
  int right;
  size_t n_bytes;

  bool operator<(const Pair& other) const {  // The greatest is joined first.
    return std::tie(score, other.left) < std::tie(other.score, left);
  }
};

std::vector<Symbol> SplitCharacters(std::string_view text) {
  std::vector<Symbol> symbols;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, Utf8Length(text[0]));
    const int index = static_cast<int>(symbols.size());
    symbols.push_back({character, index - 1, index + 1});
    text.remove_prefix(character.size());
  }
  if (!symbols.empty()) symbols.back().next = kNone;
  return symbols;
}

}  // namespace

Tokenizer::Tokenizer(std::vector<TokenizerPiece> pieces,
                     TokenizerOptions options)
    : pieces_(std::move(pieces)), options_(options) {
  byte_id_.fill(kUnknownId);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    TokenizerPiece& piece = pieces_[i];
    const int32_t id = static_cast<int32_t>(i);
    // NaN would break the order of the queue; no trainer writes it.
    if (std::isnan(piece.score)) piece.score = -INFINITY;
    if (piece.kind == PieceKind::kNormal || piece.kind == PieceKind::kByte) {
      if (const auto byte = ByteOfPiece(piece.text)) {
        piece.kind = PieceKind::kByte;
        piece.text.assign(1, static_cast<char>(*byte));
        byte_id_[*byte] = id;
      }
    }
    if (piece.kind == PieceKind::kNormal) id_of_.emplace(piece.text, id);
  }
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  if (options_.add_bos) ids.push_back(options_.bos_id);
  if (text.empty()) return ids;

  std::string prefixed;
  if (options_.add_space_prefix) {
    prefixed.append(" ").append(text);
    text = prefixed;
  }
  std::vector<Symbol> symbols = SplitCharacters(text);
  std::priority_queue<Pair> queue;
  const auto consider = [&](int left, int right) {
    if (left == kNone || right == kNone) return;
    const std::string_view joined(
        symbols[left].text.data(),
        symbols[left].text.size() + symbols[right].text.size());
    const auto found = id_of_.find(joined);
    if (found == id_of_.end()) return;
    queue.push({pieces_[found->second].score, left, right, joined.size()});
  };

  for (size_t i = 1; i < symbols.size(); ++i) {
    consider(static_cast<int>(i) - 1, static_cast<int>(i));
  }
  while (!queue.empty()) {
    const Pair pair = queue.top();
    queue.pop();
    Symbol& left = symbols[pair.left];
    Symbol& right = symbols[pair.right];
    if (left.text.empty() || right.text.empty() ||
        left.text.size() + right.text.size() != pair.n_bytes) {
      continue;
    }
    left.text = {left.text.data(), pair.n_bytes};
    right.text = {};
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = pair.left;
    consider(left.previous, pair.left);
    consider(pair.left, left.next);
  }

  for (int i = 0; i != kNone; i = symbols[i].next) {
    const std::string_view piece = symbols[i].text;
    if (const auto found = id_of_.find(piece); found != id_of_.end()) {
      ids.push_back(found->second);
      continue;
    }
    for (const char c : piece) ids.push_back(byte_id_[static_cast<uint8_t>(c)]);
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  bool at_start = false;
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= pieces_.size()) {
      throw std::out_of_range("token id " + std::to_string(id) +
                              " is outside the vocabulary of " +
                              std::to_string(pieces_.size()));
    }
    const TokenizerPiece& piece = pieces_[id];
    std::string_view spelled = piece.text;
    if (piece.kind == PieceKind::kControl) spelled = {};
    if (at_start && options_.add_space_prefix && spelled.starts_with(' ')) {
      spelled.remove_prefix(1);
    }
    text += spelled;
    at_start = id == options_.bos_id;
  }
  return text;
}

}  // namespace kvevict::tools
