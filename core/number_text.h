// Numbers in messages and in the text form of policies.
#ifndef KVEVICT_CORE_NUMBER_TEXT_H_
#define KVEVICT_CORE_NUMBER_TEXT_H_

#include <charconv>
#ifdef __wasi__
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#endif

namespace kvevict {

// Both write and read as std::to_chars() and std::from_chars() do: the shortest
// text that reads back as the same number, in any locale.
#ifndef __wasi__
template <typename Float>
char* WriteFloat(char* out, char* end, Float value) {
  return std::to_chars(out, end, value).ptr;
}
inline bool ReadFloat(const char* text, const char* end, double* out) {
  const auto [stop, error] = std::from_chars(text, end, *out);
  return error == std::errc() && stop == end;
}
#else
// In WebAssembly the tables of std::to_chars() would be a third of the module,
// std::from_chars() is missing, and the C locale is the only one.
template <typename Float>
char* WriteFloat(char* out, char* end, Float value) {
  const auto size = static_cast<size_t>(end - out);
  if (!std::isfinite(value)) {
    return out + std::snprintf(out, size, "%f", static_cast<double>(value));
  }
  char text[40];  // "-1.2345678901234567e-308"
  const auto reads_back = [&](int digits) {
    std::snprintf(text, sizeof(text), "%.*e", digits - 1,
                  static_cast<double>(value));
    return static_cast<Float>(std::strtod(text, nullptr)) == value;
  };
  int digits = reads_back(15) ? 1 : 16;
  while (!reads_back(digits)) ++digits;
  const int exponent = std::atoi(std::strchr(text, 'e') + 1);
  char fixed[400];
  const int decimals = digits - 1 - exponent;
  std::snprintf(fixed, sizeof(fixed), "%.*f", decimals > 0 ? decimals : 0,
                static_cast<double>(value));
  const char* const shorter =
      std::strlen(fixed) <= std::strlen(text) ? fixed : text;
  return out + std::snprintf(out, size, "%s", shorter);
}
inline bool ReadFloat(const char* text, const char* end, double* out) {
  // strtod() would also take spaces, a plus and hexadecimal numbers.
  constexpr char kFirst[] = "-.0123456789inIN";
  char copy[64];
  const auto n = static_cast<size_t>(end - text);
  if (n == 0 || n >= sizeof(copy)) return false;
  std::memcpy(copy, text, n);
  copy[n] = '\0';
  if (std::strchr(kFirst, copy[0]) == nullptr ||
      std::strpbrk(copy, "xX") != nullptr) {
    return false;
  }
  char* stop = nullptr;
  const double value = std::strtod(copy, &stop);
  const bool is_out_of_range =
      std::fabs(value) == HUGE_VAL && std::strpbrk(copy, "iI") == nullptr;
  if (stop != copy + n || is_out_of_range) return false;
  *out = value;
  return true;
}
#endif

// The text of a number, so that a refused value never looks like the bound.
class NumberText {
 public:
  template <typename Float>
  explicit NumberText(Float value) {
    *WriteFloat(text_, text_ + sizeof(text_) - 1, value) = '\0';
  }
  const char* c_str() const { return text_; }

 private:
  char text_[32];  // "-2.2250738585072014e-308" is the longest
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_NUMBER_TEXT_H_
