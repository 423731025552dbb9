// Numbers in messages.
#ifndef KVEVICT_CORE_NUMBER_TEXT_H_
#define KVEVICT_CORE_NUMBER_TEXT_H_

#include <charconv>

namespace kvevict {

// The shortest text that reads back as the same number in any locale, so that a
// refused value never looks like the bound.
class NumberText {
 public:
  template <typename Float>
  explicit NumberText(Float value) {
    *std::to_chars(text_, text_ + sizeof(text_) - 1, value).ptr = '\0';
  }
  const char* c_str() const { return text_; }

 private:
  char text_[32];  // "-2.2250738585072014e-308" is the longest
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_NUMBER_TEXT_H_
