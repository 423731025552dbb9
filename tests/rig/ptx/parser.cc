#include "tests/rig/ptx/parser.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lexer.h"

namespace kvevict::ptx {
namespace {

// Bytes of an element of a variable; 0 for other words.
uint64_t ElementBytes(std::string_view type) {
  if (type.size() < 3 || type[0] != '.') return 0;
  if (std::string_view("bsuf").find(type[1]) == std::string_view::npos)
    return 0;
  const std::string_view bits = type.substr(2);
  if (bits == "8") return 1;
  if (bits == "16") return 2;
  if (bits == "32") return 4;
  return bits == "64" ? 8 : 0;
}

std::optional<Space> SpaceOf(std::string_view word) {
  if (word == ".global") return Space::kGlobal;
  if (word == ".shared") return Space::kShared;
  if (word == ".local") return Space::kLocal;
  if (word == ".param") return Space::kParam;
  return std::nullopt;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(Tokenize(text)) {}

  Syntax Run() {
    while (Peek().kind != TokenKind::kEnd) ParseTopLevel();
    if (syntax_.target == 0) FailHere("no .target");
    return std::move(syntax_);
  }

 private:
  // ---- Tokens ----

  const Token& Peek() const { return tokens_[at_]; }
  const Token& Take() {
    const Token& token = tokens_[at_];
    if (token.kind != TokenKind::kEnd) ++at_;
    return token;
  }
  bool TakeIf(std::string_view text) {
    if (Peek().text != text || Peek().kind == TokenKind::kEnd) return false;
    ++at_;
    return true;
  }
  void Expect(std::string_view text) {
    if (!TakeIf(text)) {
      FailHere("expected '" + std::string(text) + "' before '" +
               std::string(Peek().text) + "'");
    }
  }
  std::string TakeWord() {
    if (Peek().kind != TokenKind::kWord) {
      FailHere("expected a name before '" + std::string(Peek().text) + "'");
    }
    return std::string(Take().text);
  }
  [[noreturn]] void FailHere(const std::string& what) const {
    FailAt(Peek().line, what);
  }
  void SkipLine() {
    const uint32_t line = Take().line;
    while (Peek().line == line && Peek().kind != TokenKind::kEnd) Take();
  }

  uint64_t TakeNumber() {
    const bool negative = TakeIf("-");
    if (Peek().kind != TokenKind::kNumber) FailHere("expected a number");
    const std::string_view text = Take().text;
    const uint64_t value = NumberBits(text);
    return negative ? 0 - value : value;
  }

  uint64_t NumberBits(std::string_view text) const {
    const char* begin = text.data();
    const char* end = text.data() + text.size();
    int base = 10;
    if (text.size() > 2 && text[0] == '0' &&
        std::strchr("fFdDxX", text[1]) != nullptr) {
      base = 16;
      begin += 2;
    } else if (*(end - 1) == 'U') {
      --end;
    }
    uint64_t value = 0;
    const auto [stop, error] = std::from_chars(begin, end, value, base);
    if (error != std::errc() || stop != end) {
      FailHere("'" + std::string(text) + "' is not a number");
    }
    return value;
  }

  // ---- Module ----

  void ParseTopLevel() {
    const std::string_view word = Peek().text;
    if (word == ".version") {
      Take();
      syntax_.version = static_cast<uint32_t>(TakeNumber() * 10);
      // The lexer ends a number at the point, so the minor reads as a word.
      syntax_.version +=
          static_cast<uint32_t>(NumberBits(TakeWord().substr(1)));
    } else if (word == ".target") {
      Take();
      const std::string target = TakeWord();
      if (target.rfind("sm_", 0) != 0) FailHere("unknown target " + target);
      syntax_.target = static_cast<uint32_t>(std::strtoul(
          target.c_str() + 3, nullptr, 10));  // a letter may follow: sm_90a
    } else if (word == ".address_size") {
      const uint32_t line = Take().line;
      if (TakeNumber() != 64) FailAt(line, "only 64-bit addresses");
    } else if (word == ".file") {
      SkipLine();
    } else {
      ParseDefinition();
    }
  }

  void ParseDefinition() {
    while (TakeIf(".visible") || TakeIf(".extern")) {
    }
    if (Peek().text == ".entry") {
      ParseEntry();
    } else if (SpaceOf(Peek().text)) {
      syntax_.variables.push_back(ParseVariable());
      Expect(";");
    } else {
      FailHere("unknown directive '" + std::string(Peek().text) + "'");
    }
  }

  // .space [.align n] .type name [ '[' count ']' ] [ = initial ]
  Variable ParseVariable() {
    Variable variable;
    variable.line = Peek().line;
    variable.space = *SpaceOf(Take().text);
    uint64_t alignment = 0;
    if (TakeIf(".align")) alignment = TakeNumber();
    const uint64_t element = ElementBytes(Peek().text);
    if (element == 0) {
      FailHere("unknown type '" + std::string(Peek().text) + "'");
    }
    Take();
    variable.alignment = alignment == 0 ? element : alignment;
    variable.name = TakeWord();
    variable.bytes = element;
    if (TakeIf("[")) {
      variable.bytes = Peek().text == "]" ? 0 : element * TakeNumber();
      Expect("]");
    }
    if (TakeIf("=")) ParseInitial(element, variable);
    return variable;
  }

  void ParseInitial(uint64_t element, Variable& variable) {
    const bool list = TakeIf("{");
    do {
      const uint64_t value = TakeNumber();
      const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
      variable.initial.insert(variable.initial.end(), bytes, bytes + element);
    } while (list && TakeIf(","));
    if (list) Expect("}");
    if (variable.initial.size() > variable.bytes) {
      FailHere("more initial values than elements");
    }
  }

  // ---- Entry ----

  void ParseEntry() {
    function_ = {};
    function_.line = Take().line;
    function_.name = TakeWord();
    if (TakeIf("(")) {
      while (!TakeIf(")")) {
        if (Peek().text != ".param") FailHere("expected .param");
        function_.params.push_back(ParseVariable());
        TakeIf(",");
      }
    }
    while (!TakeIf("{")) ParsePerformanceDirective();
    scopes_.assign(1, {});
    while (!scopes_.empty()) ParseBodyItem();
    syntax_.functions.push_back(std::move(function_));
  }

  void ParsePerformanceDirective() {
    const std::string word = TakeWord();
    uint64_t product = TakeNumber();
    while (TakeIf(",")) product *= TakeNumber();
    if (word == ".maxntid") {
      function_.max_threads = product;
    } else if (word != ".minnctapersm") {
      FailHere("unknown directive '" + word + "'");
    }
  }

  void ParseBodyItem() {
    const Token& token = Peek();
    if (TakeIf("{")) {
      scopes_.emplace_back();
    } else if (TakeIf("}")) {
      scopes_.pop_back();
    } else if (token.text == ".loc") {
      SkipLine();
    } else if (TakeIf(".pragma")) {
      while (!TakeIf(";")) Take();
    } else if (TakeIf(".reg")) {
      ParseRegisters();
    } else if (SpaceOf(token.text)) {
      function_.variables.push_back(ParseVariable());
      Expect(";");
    } else if (token.kind == TokenKind::kWord && tokens_[at_ + 1].text == ":") {
      ParseLabel();
    } else {
      ParseStatement();
    }
  }

  void ParseRegisters() {
    const std::string type = TakeWord();
    if (type != ".pred" && ElementBytes(type) == 0) {
      FailHere("unknown register type " + type);
    }
    do {
      const std::string name = TakeWord();
      if (TakeIf("<")) {
        const uint64_t count = TakeNumber();
        Expect(">");
        for (uint64_t i = 0; i < count; ++i) Declare(name + std::to_string(i));
      } else {
        Declare(name);
      }
    } while (TakeIf(","));
    Expect(";");
  }

  // Inline assembly opens scopes of its own and declares the same names again.
  void Declare(const std::string& name) {
    std::string unique = name;
    if (scopes_.size() > 1) unique += "#" + std::to_string(++n_scoped_);
    scopes_.back()[name] = unique;
    function_.registers.insert(unique);
  }

  std::string Resolve(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    return name;
  }

  void ParseLabel() {
    const std::string name = TakeWord();
    Expect(":");
    const auto index = static_cast<uint32_t>(function_.statements.size());
    if (!function_.labels.emplace(name, index).second) {
      FailHere("label " + name + " twice");
    }
  }

  void ParseStatement() {
    Statement statement;
    statement.line = Peek().line;
    if (TakeIf("@")) {
      statement.guard_negated = TakeIf("!");
      statement.guard = Resolve(TakeWord());
    }
    statement.opcode = TakeWord();
    if (!TakeIf(";")) {
      do {
        statement.operands.push_back(ParseOperand());
      } while (TakeIf(","));
      Expect(";");
    }
    function_.statements.push_back(std::move(statement));
  }

  Operand ParseOperand() {
    Operand operand;
    if (TakeIf("{")) {
      operand.kind = Operand::Kind::kVector;
      do {
        operand.parts.push_back(ParseOperand());
      } while (TakeIf(","));
      Expect("}");
    } else if (TakeIf("[")) {
      operand = ParseAddress();
    } else if (Peek().kind == TokenKind::kNumber || Peek().text == "-") {
      operand.kind = Operand::Kind::kNumber;
      operand.value = TakeNumber();
    } else {
      operand.negated = TakeIf("!");
      operand.name = Resolve(TakeWord());
      if (TakeIf("|")) {
        Operand pair;
        pair.kind = Operand::Kind::kPair;
        pair.parts = {operand, ParseOperand()};
        return pair;
      }
    }
    return operand;
  }

  Operand ParseAddress() {
    Operand operand;
    operand.kind = Operand::Kind::kAddress;
    if (Peek().kind == TokenKind::kWord) {
      operand.name = Resolve(TakeWord());
      if (TakeIf("+") || Peek().text == "-") operand.value = TakeNumber();
    } else {
      operand.value = TakeNumber();
    }
    Expect("]");
    return operand;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Syntax syntax_;
  Function function_;
  std::vector<std::map<std::string, std::string>> scopes_;
  uint32_t n_scoped_ = 0;
};

}  // namespace

Syntax Parse(std::string_view text) { return Parser(text).Run(); }

}  // namespace kvevict::ptx
