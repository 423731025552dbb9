// The parts of an opcode after its mnemonic. Its decoder takes them one by one.
// A modifier that no decoder takes is an error: none is ever skipped.
#ifndef KVEVICT_TESTS_RIG_PTX_MODIFIERS_H_
#define KVEVICT_TESTS_RIG_PTX_MODIFIERS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tests/rig/ptx/order.h"
#include "tests/rig/ptx/syntax.h"
#include "tests/rig/ptx/types.h"

namespace kvevict::ptx {

class Modifiers {
 public:
  explicit Modifiers(std::string_view opcode);

  const std::string& mnemonic() const { return mnemonic_; }
  std::string first() const { return parts_.empty() ? "" : parts_.front(); }

  // Takes the next modifier if it is this one.
  bool Take(std::string_view modifier);
  // Takes the next modifier if it is in the list; its index, or -1.
  int TakeOneOf(std::initializer_list<std::string_view> list);
  // Takes the next modifier, which must be this one or in the list.
  void Expect(std::string_view modifier);
  int ExpectOneOf(std::initializer_list<std::string_view> list);
  // Takes the next modifier, which must be a type.
  Type ExpectType();
  // Takes the next modifier if it names a space; kNone if it does not.
  Space TakeSpace();
  // Takes the next modifier, which must be a scope.
  Scope ExpectScope();
  // Takes the last modifier if it is this one.
  bool TakeLast(std::string_view modifier);

  bool empty() const { return at_ == parts_.size(); }

 private:
  std::string mnemonic_;
  std::vector<std::string> parts_;
  size_t at_ = 0;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_MODIFIERS_H_
