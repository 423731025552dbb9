#include "tests/rig/ptx/decoder.h"

#include <algorithm>
#include <set>

#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

constexpr uint64_t kUnset = ~uint64_t{0};  // what a register holds at first

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

const std::map<std::string, Special>& Specials() {
  static const std::map<std::string, Special> kSpecials = {
      {"%tid.x", Special::kTidX},       {"%tid.y", Special::kTidY},
      {"%tid.z", Special::kTidZ},       {"%ntid.x", Special::kNtidX},
      {"%ntid.y", Special::kNtidY},     {"%ntid.z", Special::kNtidZ},
      {"%ctaid.x", Special::kCtaidX},   {"%ctaid.y", Special::kCtaidY},
      {"%ctaid.z", Special::kCtaidZ},   {"%nctaid.x", Special::kNctaidX},
      {"%nctaid.y", Special::kNctaidY}, {"%nctaid.z", Special::kNctaidZ}};
  return kSpecials;
}

class Decoder {
 public:
  Decoder(const Syntax& syntax, const Function& function,
          const std::map<std::string, uint64_t>& globals)
      : syntax_(syntax), function_(function), symbols_(globals) {}

  Kernel Run() {
    kernel_.name = function_.name;
    kernel_.max_threads = function_.max_threads;
    LayOutParams();
    LayOutLocals();
    LayOutShared();
    for (const Statement& statement : function_.statements) {
      try {
        kernel_.code.push_back(DecodeStatement(statement));
      } catch (const Error& error) {
        FailAt(statement.line, error.what());
      }
      kernel_.opcodes.push_back(statement.opcode);
    }
    AddFinalReturn();
    return std::move(kernel_);
  }

 private:
  // ---- Memory ----

  void LayOutParams() {
    for (const Variable& param : function_.params) {
      const uint64_t begin = AlignUp(kernel_.param_bytes, param.alignment);
      symbols_[param.name] = begin;
      kernel_.params.push_back({begin, begin + param.bytes});
      kernel_.param_bytes = begin + param.bytes;
    }
  }

  void LayOutLocals() {
    for (const Variable& variable : function_.variables) {
      if (variable.space != Space::kLocal) continue;
      const uint64_t begin = AlignUp(kernel_.local_bytes, variable.alignment);
      symbols_[variable.name] = begin;
      kernel_.local_bytes = begin + variable.bytes;
    }
  }

  // Static variables with gaps between them, dynamic memory after them. The gaps
  // keep every variable at bank 0.
  void LayOutShared() {
    constexpr uint64_t kGap = 256;
    const std::set<std::string> used = NamesInOperands();
    std::vector<const Variable*> variables;
    for (const auto* list : {&function_.variables, &syntax_.variables}) {
      for (const Variable& variable : *list) {
        if (variable.space == Space::kShared &&
            used.count(variable.name) != 0) {
          variables.push_back(&variable);
        }
      }
    }
    uint64_t end = Kernel::kSharedBegin;
    for (const Variable* variable : variables) {
      if (variable->bytes == 0) continue;
      const uint64_t begin =
          AlignUp(end, std::max<uint64_t>(variable->alignment, 128));
      symbols_[variable->name] = begin;
      kernel_.shared.push_back({begin, begin + variable->bytes});
      kernel_.static_shared_bytes += variable->bytes;
      end = begin + variable->bytes + kGap;
    }
    kernel_.dynamic_shared_begin = AlignUp(end, 1024);
    for (const Variable* variable : variables) {
      if (variable->bytes == 0) {
        symbols_[variable->name] = kernel_.dynamic_shared_begin;
      }
    }
  }

  std::set<std::string> NamesInOperands() const {
    std::set<std::string> names;
    for (const Statement& statement : function_.statements) {
      for (const Operand& operand : statement.operands) {
        names.insert(operand.name);
      }
    }
    return names;
  }

  // ---- Slots ----

  Slot NewSlot(uint64_t initial) {
    if (kernel_.registers.size() >= kNoSlot) Fail("too many registers");
    kernel_.registers.push_back(initial);
    return static_cast<Slot>(kernel_.registers.size() - 1);
  }

  Slot ConstantSlot(uint64_t value) {
    const auto [slot, is_new] = constants_.emplace(value, Slot{0});
    if (is_new) slot->second = NewSlot(value);
    return slot->second;
  }

  Slot RegisterSlot(const std::string& name) {
    if (name != "_" && function_.registers.count(name) == 0) {
      Fail("'" + name + "' is not a register");
    }
    const auto [slot, is_new] = registers_.emplace(name, Slot{0});
    if (is_new) slot->second = NewSlot(kUnset);
    return slot->second;
  }

  Slot SourceSlot(const std::string& name) {
    if (function_.registers.count(name) != 0) return RegisterSlot(name);
    const auto symbol = symbols_.find(name);
    if (symbol != symbols_.end()) return ConstantSlot(symbol->second);
    const auto special = Specials().find(name);
    if (special == Specials().end()) Fail("unknown name '" + name + "'");
    const auto [slot, is_new] = registers_.emplace(name, Slot{0});
    if (is_new) {
      slot->second = NewSlot(kUnset);
      kernel_.specials.push_back({slot->second, special->second});
    }
    return slot->second;
  }

  // ---- Statements ----

  Instruction DecodeStatement(const Statement& statement) {
    Instruction i;
    i.line = statement.line;
    if (!statement.guard.empty()) {
      i.guard = RegisterSlot(statement.guard);
      i.guard_negated = statement.guard_negated;
    }
    Modifiers modifiers(statement.opcode);
    const Opcode* opcode = FindOpcode(modifiers);
    if (opcode == nullptr) Fail("unknown opcode " + statement.opcode);
    if (syntax_.target < opcode->min_target) {
      Fail(statement.opcode + " needs sm_" +
           std::to_string(opcode->min_target));
    }
    n_slots_ = n_operands_ = n_addresses_ = 0;
    DecodeOperands(*opcode, statement, i);
    opcode->decode(modifiers, i);
    if (!modifiers.empty()) Fail("unknown modifier in " + statement.opcode);
    return i;
  }

  void DecodeOperands(const Opcode& opcode, const Statement& statement,
                      Instruction& i) {
    const std::vector<Operand>& operands = statement.operands;
    size_t next = 0;
    bool optional = false;
    for (const char* kind = opcode.operands; *kind != '\0'; ++kind) {
      if (*kind == '?') {
        optional = true;
      } else if (next < operands.size()) {
        DecodeOperand(*kind, operands[next++], i);
      } else if (!optional) {
        Fail("too few operands for " + statement.opcode);
      }
    }
    if (next < operands.size()) {
      Fail("too many operands for " + statement.opcode);
    }
  }

  void AddSlot(Slot slot, Instruction& i) {
    if (n_slots_ == kMaxSlots) Fail("too many registers in a statement");
    i.slots[n_slots_++] = slot;
    i.n_slots = static_cast<uint8_t>(n_slots_);
    ++i.counts[n_operands_];
  }

  void DecodeOperand(char kind, const Operand& operand, Instruction& i) {
    using Kind = Operand::Kind;
    if (operand.negated && kind != 'p') Fail("'!' is not known here");
    switch (kind) {
      case 'd':
        AddSlot(Destination(operand), i);
        break;
      case 'q':
        DecodeWithPredicate(operand, i);
        break;
      case 'p':
        i.source_negated = operand.negated;
        [[fallthrough]];
      case 's':
        AddSlot(Source(operand), i);
        break;
      case 'D':
      case 'S':
        for (const Operand& part : operand.kind == Kind::kVector
                                       ? operand.parts
                                       : std::vector<Operand>{operand}) {
          AddSlot(kind == 'D' ? Destination(part) : Source(part), i);
        }
        break;
      case 'x':
        if (operand.kind != Kind::kAddress) {
          AddSlot(Source(operand), i);
          break;
        }
        [[fallthrough]];
      case 'a':
        DecodeAddress(operand, i);
        break;
      case 'l':
        i.target = Label(operand.name);
        break;
      default:
        Fail("an operand of unknown kind in the table of opcodes");
    }
    ++n_operands_;
  }

  Slot Destination(const Operand& operand) {
    if (operand.kind != Operand::Kind::kName) Fail("expected a register");
    return RegisterSlot(operand.name);
  }

  Slot Source(const Operand& operand) {
    if (operand.kind == Operand::Kind::kNumber) {
      return ConstantSlot(operand.value);
    }
    if (operand.kind != Operand::Kind::kName) {
      Fail("expected a register or a number");
    }
    return SourceSlot(operand.name);
  }

  void DecodeWithPredicate(const Operand& operand, Instruction& i) {
    const bool pair = operand.kind == Operand::Kind::kPair;
    AddSlot(Destination(pair ? operand.parts[0] : operand), i);
    AddSlot(pair ? Destination(operand.parts[1]) : RegisterSlot("_"), i);
  }

  void DecodeAddress(const Operand& operand, Instruction& i) {
    if (operand.kind != Operand::Kind::kAddress) Fail("expected an address");
    AddSlot(operand.name.empty() ? ConstantSlot(0) : SourceSlot(operand.name),
            i);
    i.offsets[n_addresses_++] = static_cast<int64_t>(operand.value);
  }

  uint32_t Label(const std::string& name) {
    const auto found = function_.labels.find(name);
    if (found == function_.labels.end()) Fail("unknown label " + name);
    return found->second;
  }

  // The closing brace ends a thread as well.
  void AddFinalReturn() {
    Instruction i;
    Modifiers modifiers("ret");
    FindOpcode(modifiers)->decode(modifiers, i);
    i.line = function_.line;
    kernel_.code.push_back(i);
    kernel_.opcodes.emplace_back("ret");
  }

  const Syntax& syntax_;
  const Function& function_;
  std::map<std::string, uint64_t> symbols_;
  std::map<std::string, Slot> registers_;
  std::map<uint64_t, Slot> constants_;
  Kernel kernel_;
  int n_slots_ = 0;
  int n_operands_ = 0;
  int n_addresses_ = 0;
};

}  // namespace

Kernel Decode(const Syntax& syntax, const Function& function,
              const std::map<std::string, uint64_t>& globals) {
  return Decoder(syntax, function, globals).Run();
}

}  // namespace kvevict::ptx
