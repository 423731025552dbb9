#include "core/policy/policy_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "core/policy/policy.h"

namespace kvevict {
namespace {

constexpr Preset kPresets[] = {
#define KVEVICT_PRESET(name, text, reproduces) {name, text, reproduces},
#include "core/policy/presets.inc"
#undef KVEVICT_PRESET
};

std::string_view Trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

// The text being read, for columns in messages; columns count from 1.
struct Reader {
  std::string_view text;

  int Column(std::string_view part) const {
    return static_cast<int>(part.data() - text.data()) + 1;
  }
};

#define KV_SV(s) static_cast<int>((s).size() > 40 ? 40 : (s).size()), (s).data()

// Words for a message, separated by commas.
class WordList {
 public:
  void Add(const char* word) {
    n_ += std::snprintf(text_ + n_, sizeof(text_) - n_, "%s%s",
                        n_ == 0 ? "" : ", ", word);
    n_ = std::min(n_, sizeof(text_) - 1);
  }
  const char* text() const { return text_; }
  bool empty() const { return n_ == 0; }

 private:
  char text_[512] = "";
  size_t n_ = 0;
};

Status ReadPair(const Reader& reader, std::string_view pair, Policy* policy) {
  const PolicyInfo& info = InfoOf(policy->kind);
  const size_t equals = pair.find('=');
  const std::string_view key = Trim(pair.substr(0, equals));
  const auto at = [&](Status status, std::string_view part) {
    return status.ok()
               ? status
               : Prefixed(status,
                          "policy text, column %d: ", reader.Column(part));
  };
  if (key.empty()) return at(InvalidArgument("a key is missing"), key);
  const Param* param = FindParam(info, key);
  if (param == nullptr) return at(NoSuchKey(info, key), key);
  if (equals == pair.npos) {
    return at(InvalidArgument("\"%s\" without a value", param->key), key);
  }
  const std::string_view value = Trim(pair.substr(equals + 1));
  return at(ReadParam(*param, value, policy), value);
}

Status ReadPairs(const Reader& reader, std::string_view rest, Policy* policy) {
  while (true) {
    const size_t comma = rest.find(',');
    KV_RETURN_IF_ERROR(ReadPair(reader, rest.substr(0, comma), policy));
    if (comma == rest.npos) return Status();
    rest.remove_prefix(comma + 1);
  }
}

// Reads the policy that a name stands for, before any key.
bool ReadName(std::string_view name, Policy* policy) {
  for (size_t i = 0; i < Policies().size(); ++i) {
    if (name != Policies()[i].name) continue;
    *policy = DefaultPolicy(static_cast<PolicyKind>(i));
    return true;
  }
  for (const Preset& preset : kPresets) {
    if (name == preset.name)
      return ParsePolicy(preset.policy_text, policy).ok();
  }
  return false;
}

WordList PolicyNames() {
  WordList names;
  for (const PolicyInfo& info : Policies()) names.Add(info.name);
  return names;
}

size_t CommonPrefix(std::string_view a, std::string_view b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

// Lists the names that share the longest prefix with `one`. name_of(row) is the
// name of a row, or NULL if it takes no part.
template <typename Rows, typename NameOf>
WordList NamesLike(std::string_view one, const Rows& rows,
                   const NameOf& name_of) {
  size_t longest = 1;
  WordList alike;
  for (const auto& row : rows) {
    const char* const name = name_of(row);
    if (name == nullptr) continue;
    const size_t n = CommonPrefix(one, name);
    if (n > longest) alike = WordList();
    longest = std::max(longest, n);
    if (n == longest) alike.Add(name);
  }
  return alike;
}

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

Policy DefaultPolicy(PolicyKind kind) {
  Policy policy;
  policy.kind = kind;
  const std::string_view defaults = InfoOf(kind).defaults;
  // Defaults are texts of the list itself. A test parses them all.
  if (!defaults.empty()) (void)ReadPairs({defaults}, defaults, &policy);
  return policy;
}

Status NoSuchKey(const PolicyInfo& policy, std::string_view key) {
  uint32_t n_keys = 0;
  for (const Param& param : Params()) n_keys += param.is_of(policy) ? 1 : 0;
  const WordList alike = NamesLike(key, Params(), [&](const Param& param) {
    return param.is_of(policy) ? param.key : nullptr;
  });
  return InvalidArgument(
      "%s has no key \"%.*s\"%s%s; kvevict_parameter_at() lists its %u keys",
      policy.name, KV_SV(key),
      alike.empty() ? "" : "; keys that begin alike: ", alike.text(), n_keys);
}

Status ParsePolicy(std::string_view text, Policy* out) {
  const Reader reader{text};
  const size_t colon = text.find(':');
  const std::string_view name = Trim(text.substr(0, colon));
  Policy policy;
  if (!ReadName(name, &policy)) {
    const WordList alike = NamesLike(
        name, kPresets, [](const Preset& preset) { return preset.name; });
    return InvalidArgument(
        "policy text, column %d: \"%.*s\" is no policy or preset; the policies "
        "are %s%s%s",
        reader.Column(name), KV_SV(name), PolicyNames().text(),
        alike.empty() ? "" : "; presets that begin alike: ", alike.text());
  }
  if (colon != text.npos) {
    KV_RETURN_IF_ERROR(ReadPairs(reader, text.substr(colon + 1), &policy));
  }
  if (Status status = ValidatePolicy(policy); !status.ok()) {
    return Prefixed(status, "policy text: ");
  }
  *out = policy;
  return Status();
}

namespace {

// The text says sink=0 and recent=0 if neither end of the cache stays, even if
// those are the policy's defaults.
bool IsSaid(const Param& param, const Policy& policy) {
  if (!SignalOf(policy).Ranks() || policy.sink != CountOrShare{} ||
      policy.recent != CountOrShare{} || RecentTokens(policy) > 0) {
    return false;
  }
  return param.offset == offsetof(Policy, sink) ||
         param.offset == offsetof(Policy, recent);
}

}  // namespace

size_t FormatPolicy(const Policy& policy,
                    std::span<char, kMaxPolicyText> text) {
  const PolicyInfo& info = InfoOf(policy.kind);
  const Policy defaults = DefaultPolicy(policy.kind);
  size_t length = 0;
  const auto put = [&](std::string_view part) {
    std::memcpy(text.data() + length, part.data(), part.size());
    length += part.size();
  };
  put(info.name);
  char separator = ':';
  for (const Param& param : Params()) {
    if (!param.is_of(info)) continue;
    if (!ParamDiffers(param, policy, defaults) && !IsSaid(param, policy)) {
      continue;
    }
    char value[kMaxValueText];
    const size_t value_length = WriteParam(param, policy, value);
    put({&separator, 1});
    put(param.key);
    put("=");
    put({value, value_length});
    separator = ',';
  }
  text[length] = '\0';
  return length;
}

}  // namespace kvevict
