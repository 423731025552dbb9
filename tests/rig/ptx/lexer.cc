#include "tests/rig/ptx/lexer.h"

#include <cctype>
#include <string>

#include "tests/rig/ptx/error.h"

namespace kvevict::ptx {
namespace {

bool IsDigit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}
bool IsWordStart(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         c == '$' || c == '%' || c == '.';
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> Run() {
    std::vector<Token> tokens;
    for (SkipBlanks(); at_ < text_.size(); SkipBlanks()) {
      tokens.push_back(Next());
    }
    tokens.push_back({TokenKind::kEnd, {}, line_});
    return tokens;
  }

 private:
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void SkipTo(std::string_view end) {
    size_t found = text_.find(end, at_);
    found = found == std::string_view::npos ? text_.size() : found + end.size();
    for (; at_ < found; ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
  }

  void SkipBlanks() {
    while (at_ < text_.size()) {
      if (Peek() == '/' && Peek(1) == '/') {
        SkipTo("\n");
      } else if (Peek() == '/' && Peek(1) == '*') {
        SkipTo("*/");
      } else if (std::isspace(static_cast<unsigned char>(Peek())) != 0) {
        line_ += Peek() == '\n' ? 1 : 0;
        ++at_;
      } else {
        return;
      }
    }
  }

  Token Next() {
    const size_t begin = at_;
    const uint32_t line = line_;
    TokenKind kind = TokenKind::kPunctuation;
    const char first = Peek();
    if (IsDigit(first)) {
      kind = TokenKind::kNumber;
      while (std::isalnum(static_cast<unsigned char>(Peek())) != 0) ++at_;
    } else if (IsWordStart(first)) {
      kind = TokenKind::kWord;
      SkipWord();
    } else if (first == '"') {
      kind = TokenKind::kString;
      ++at_;
      SkipTo("\"");
    } else if (std::string_view("{}[]()<>,;:|!@+-=*").find(first) !=
               std::string_view::npos) {
      ++at_;
    } else {
      FailAt(line_, std::string("character '") + first + "' is not PTX");
    }
    return {kind, text_.substr(begin, at_ - begin), line};
  }

  // "::" belongs to a word (".shared::cta"), ":" ends a label.
  void SkipWord() {
    while (IsWordStart(Peek()) || IsDigit(Peek()) ||
           (Peek() == ':' && Peek(1) == ':')) {
      at_ += Peek() == ':' ? 2 : 1;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view text) { return Lexer(text).Run(); }

}  // namespace kvevict::ptx
