// A line of a transcript: the name of a call or a struct, and its arguments by
// name, as in `sequence_append sequence=s n_tokens=40`.
#ifndef KVEVICT_BINDINGS_TRANSCRIPT_LINE_H_
#define KVEVICT_BINDINGS_TRANSCRIPT_LINE_H_

#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace transcript {

inline std::vector<std::string> Split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, by);) parts.push_back(part);
  return parts;
}

/// Spaces and percent signs of values are written as %20 and %25.
inline std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == ' ' ? "%20" : c == '%' ? "%25" : std::string(1, c);
  }
  return out;
}

inline std::string Unescape(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
    i += 2;
  }
  return out;
}

class Line {
 public:
  Line() = default;
  explicit Line(const std::string& text) : text_(text) {
    const std::vector<std::string> words = Split(text, ' ');
    name_ = words.at(0);
    for (std::size_t i = 1; i < words.size(); ++i) {
      const std::size_t equals = words[i].find('=');
      if (equals == std::string::npos) Fail("no value: " + words[i]);
      values_[words[i].substr(0, equals)] =
          Unescape(words[i].substr(equals + 1));
    }
  }

  const std::string& name() const { return name_; }
  const std::string& text() const { return text_; }

  bool Has(const std::string& key) const { return values_.count(key) != 0; }

  /// The value of a key; without the key "".
  std::string Text(const std::string& key) {
    used_.insert(key);
    const auto found = values_.find(key);
    return found == values_.end() ? "" : found->second;
  }

  std::vector<std::string> List(const std::string& key, char by = ',') {
    return Split(Text(key), by);
  }

  /// A whole number of any type; without the key 0.
  template <class T>
  T Number(const std::string& key) {
    const std::string text = Text(key);
    return static_cast<T>(text[0] == '-'
                              ? std::strtoll(text.c_str(), nullptr, 10)
                              : std::strtoull(text.c_str(), nullptr, 10));
  }
  uint32_t Count(const std::string& key) { return Number<uint32_t>(key); }

  double Real(const std::string& key) {
    return std::strtod(Text(key).c_str(), nullptr);
  }
  float Float(const std::string& key) {
    return std::strtof(Text(key).c_str(), nullptr);
  }

  /// Throws if a key was not read: a misspelt one, or one without a meaning.
  void CheckUsed() const {
    for (const auto& [key, value] : values_) {
      if (used_.count(key) == 0) Fail("unused key " + key);
    }
  }

  [[noreturn]] void Fail(const std::string& why) const {
    throw std::runtime_error(why + " in: " + text_);
  }

 private:
  std::string text_;
  std::string name_;
  std::map<std::string, std::string> values_;
  std::set<std::string> used_;
};

/// What came out of a call, as text.
class Results {
 public:
  void Add(const std::string& key, const std::string& value) {
    text_ += " " + key + "=" + Escape(value);
  }
  void Add(const std::string& key, const char* value) {
    Add(key, std::string(value));
  }
  template <class T>
  void Add(const std::string& key, T value) {
    Add(key, std::to_string(value));
  }
  /// Numbers in a row, as 1:2:3.
  template <class... T>
  void AddAll(const std::string& key, T... values) {
    Add(key, Joined(values...));
  }
  template <class... T>
  static std::string Joined(T... values) {
    std::string all;
    ((all += (all.empty() ? "" : ":") + std::to_string(values)), ...);
    return all;
  }
  template <class T>
  void AddList(const std::string& key, const T* values, std::size_t n) {
    std::string all;
    for (std::size_t i = 0; i < n; ++i) {
      all += (i == 0 ? "" : ",") + std::to_string(values[i]);
    }
    Add(key, all);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace transcript

#endif  // KVEVICT_BINDINGS_TRANSCRIPT_LINE_H_
