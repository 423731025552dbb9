// Splits PTX text into tokens.
#ifndef KVEVICT_TESTS_RIG_PTX_LEXER_H_
#define KVEVICT_TESTS_RIG_PTX_LEXER_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvevict::ptx {

enum class TokenKind {
  kWord,         // names, directives and opcodes with their modifiers
  kNumber,       // 12, 0x1F, 0f3F800000, 0d...; without a sign
  kString,       // with its quotes
  kPunctuation,  // one character
  kEnd
};

struct Token {
  TokenKind kind;
  std::string_view text;  // a part of the text
  uint32_t line;
};

// The last token is kEnd. Throws Error at a character that PTX does not have.
std::vector<Token> Tokenize(std::string_view text);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_LEXER_H_
