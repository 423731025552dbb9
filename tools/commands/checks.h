// Checks of option values, with messages in words.
#ifndef KVEVICT_TOOLS_COMMANDS_CHECKS_H_
#define KVEVICT_TOOLS_COMMANDS_CHECKS_H_

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "tools/engine/platform.h"

namespace kvevict::tools {

// A check without a text in the help, since the option's description has it.
inline CLI::Validator Checked(std::function<std::string(std::string&)> check) {
  return CLI::Validator(std::move(check), "");
}

inline CLI::Validator WholeNumber(uint64_t low, uint64_t high) {
  return Checked([low, high](std::string& text) -> std::string {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < low || value > high) {
      return "'" + text + "' is not a whole number from " +
             std::to_string(low) + " to " + std::to_string(high);
    }
    text = std::to_string(value);  // because CLI11 would read 010 as 8
    return "";
  });
}

// Checks a number of tokens, or a share of them.
inline CLI::Validator Budget() {
  return Checked([](std::string& text) -> std::string {
    double budget = 0;
    if (CLI::detail::lexical_cast(text, budget) && budget > 0 &&
        std::isfinite(budget)) {
      return "";
    }
    return "'" + text + "' is neither a number of tokens nor a ratio in (0, 1]";
  });
}

inline CLI::Validator Share() {
  return Checked([](std::string& text) -> std::string {
    double share = 0;
    if (CLI::detail::lexical_cast(text, share) && share > 0 && share <= 1) {
      return "";
    }
    return "'" + text + "' is not a share in (0, 1]";
  });
}

inline CLI::Validator OneOf(std::vector<std::string> words) {
  return Checked([words = std::move(words)](std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return "'" + text + "' is not one of " + CLI::detail::join(words, ", ");
  });
}

inline CLI::Validator File() {
  return Checked([](std::string& text) -> std::string {
    switch (std::error_code error;
            std::filesystem::status(PathOf(text), error).type()) {
      case std::filesystem::file_type::not_found:
      case std::filesystem::file_type::none:
        return "File does not exist: " + text;
      case std::filesystem::file_type::directory:
        return "File is actually a directory: " + text;
      default:
        return "";
    }
  });
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_CHECKS_H_
