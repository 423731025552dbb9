// A PTX module as it is written, with names resolved to their scope.
#ifndef KVEVICT_TESTS_RIG_PTX_SYNTAX_H_
#define KVEVICT_TESTS_RIG_PTX_SYNTAX_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

namespace kvevict::ptx {

struct Operand {
  enum class Kind {
    kName,     // register, symbol, label or "_"
    kNumber,   // value: the bits; 0f... 32 of them, others sign-extended to 64
    kAddress,  // [name + value], name may be empty
    kVector,   // {parts}
    kPair      // parts[0] | parts[1]
  };
  Kind kind = Kind::kName;
  bool negated = false;  // !name
  std::string name;
  uint64_t value = 0;
  std::vector<Operand> parts;
};

struct Statement {
  uint32_t line = 0;
  std::string guard;  // predicate register; empty: always
  bool guard_negated = false;
  std::string opcode;  // with all modifiers
  std::vector<Operand> operands;
};

enum class Space : uint8_t { kNone, kGlobal, kShared, kLocal, kParam };

struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  uint64_t bytes = 0;  // 0: extern, sized at launch
  uint64_t alignment = 1;
  std::vector<uint8_t> initial;  // first bytes; the rest is zero
  uint32_t line = 0;
};

struct Function {
  std::string name;
  uint32_t line = 0;
  uint64_t max_threads = 1024;
  std::vector<Variable> params;
  std::vector<Variable> variables;  // demoted into the body
  std::unordered_set<std::string> registers;
  std::vector<Statement> statements;
  std::map<std::string, uint32_t> labels;  // -> index of a statement
};

struct Syntax {
  uint32_t version = 0;  // 78: PTX 7.8
  uint32_t target = 0;   // 80: sm_80
  std::vector<Variable> variables;
  std::vector<Function> functions;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_SYNTAX_H_
