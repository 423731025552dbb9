// Tables of single instructions with results computed by hand.
#ifndef KVEVICT_TESTS_RIG_PTX_INSTRUCTION_ROWS_H_
#define KVEVICT_TESTS_RIG_PTX_INSTRUCTION_ROWS_H_

#include <criterion/criterion.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/rig/ptx/ptx_test.h"

namespace kvevict::ptx {

// The instruction has its operands as D, A, B, C, E, in registers of the named
// class: r 32 bits, s 16 bits, d 64 bits, f f32, g f64, p predicate.
struct InstructionRow {
  const char* text;     // "add.s32 D, A, B;"
  const char* classes;  // classes of D, A, B ...: "rrr"
  std::vector<uint64_t> operands;
  uint64_t expected;
};

inline std::string RegisterOf(char register_class, size_t index) {
  const std::string n = std::to_string(index);
  switch (register_class) {
    case 'r':
      return "%r" + n;
    case 's':
      return "%rs" + n;
    case 'd':
      return "%rd" + n;
    case 'f':
      return "%f" + n;
    case 'g':
      return "%fd" + n;
    default:
      return "%p" + n;
  }
}

// Operands come from memory as 64 bits, cut to the class.
inline std::string LoadOperand(char register_class, size_t index) {
  const std::string from = "[%rd19+" + std::to_string(8 * (index - 1)) + "]";
  const std::string to = RegisterOf(register_class, index);
  switch (register_class) {
    case 'r':
      return "ld.global.u32 " + to + ", " + from + ";\n";
    case 's':
      return "ld.global.u16 " + to + ", " + from + ";\n";
    case 'd':
      return "ld.global.u64 " + to + ", " + from + ";\n";
    case 'f':
      return "ld.global.f32 " + to + ", " + from + ";\n";
    case 'g':
      return "ld.global.f64 " + to + ", " + from + ";\n";
    default:
      return "ld.global.u32 %r10, " + from + ";\nsetp.ne.u32 " + to +
             ", %r10, 0;\n";
  }
}

inline std::string StoreResult(char register_class) {
  switch (register_class) {
    case 'r':
      return "st.global.u32 [%rd18], %r0;\n";
    case 's':
      return "st.global.u16 [%rd18], %rs0;\n";
    case 'd':
      return "st.global.u64 [%rd18], %rd0;\n";
    case 'f':
      return "st.global.f32 [%rd18], %f0;\n";
    case 'g':
      return "st.global.f64 [%rd18], %fd0;\n";
    default:
      return "selp.u32 %r10, 1, 0, %p0;\nst.global.u32 [%rd18], %r10;\n";
  }
}

inline std::string BodyOf(const InstructionRow& row) {
  const std::string classes = row.classes;
  std::string body = "mov.u64 %rd10, 0;\nst.global.u64 [%rd18], %rd10;\n";
  for (size_t k = 1; k < classes.size(); ++k) {
    body += LoadOperand(classes[k], k);
  }
  const std::string names = "DABCE";
  for (const char* c = row.text; *c != '\0'; ++c) {
    const size_t name = names.find(*c);
    body += name == std::string::npos ? std::string(1, *c)
                                      : RegisterOf(classes[name], name);
  }
  return body + "\n" + StoreResult(classes[0]);
}

inline void ExpectRows(std::span<const InstructionRow> rows) {
  for (const InstructionRow& row : rows) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(row.operands.data());
    const std::vector<uint8_t> in(bytes, bytes + 8 * row.operands.size());
    try {
      const uint64_t result =
          RunFor<uint64_t>(TestModule(BodyOf(row)), 1, {}, in)[0];
      cr_expect_eq(result, row.expected, "%s: 0x%llx, expected 0x%llx",
                   row.text, static_cast<unsigned long long>(result),
                   static_cast<unsigned long long>(row.expected));
    } catch (const Error& error) {
      cr_expect_fail("%s: %s", row.text, error.what());
    }
  }
}

// Bits of floats, for operands and results.
inline uint64_t F(float value) { return std::bit_cast<uint32_t>(value); }
inline uint64_t G(double value) { return std::bit_cast<uint64_t>(value); }

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_INSTRUCTION_ROWS_H_
