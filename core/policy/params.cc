#include "core/policy/params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/evict/slot_blocks.h"
#include "core/number_text.h"
#include "core/policy/policy.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

// ---- Names that the rows of params.inc use ----

constexpr uint32_t kMaxCount = UINT32_MAX;
constexpr uint32_t kMaxBlock = 65536;
constexpr uint32_t kMaxReference = 65536;
constexpr double kMaxFloat = std::numeric_limits<float>::max();

constexpr Range Within(double least, double most) { return {least, most}; }
constexpr Range AboveTo(double least, double most) {
  return {least, most, /*is_open=*/true};
}
constexpr Range Above(double least) {
  return AboveTo(least, std::numeric_limits<double>::max());
}
constexpr Range ZeroOr(double least, double most) {
  return {least, most, /*is_open=*/false, /*takes_0=*/true};
}

constexpr char kSplitWordsAfterBars[] =
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) "|" text
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
    ;
constexpr const char* kSplitWords = &kSplitWordsAfterBars[1];

bool Evicts(const PolicyInfo& policy) { return policy.Evicts(); }
bool Ranks(const PolicyInfo& policy) { return InfoOf(policy.signal).Ranks(); }
template <SignalNeeds kWhat>
bool Needs(const PolicyInfo& policy) {
  return InfoOf(policy.signal).Needs(kWhat);
}
// For what is one signal's own.
template <Signal kSignal>
bool IsScoredBy(const PolicyInfo& policy) {
  return policy.signal == kSignal;
}
bool HasBlock(const PolicyInfo& policy) {
  const SignalInfo& signal = InfoOf(policy.signal);
  return signal.Needs(kBlock) || (signal.takes & kBlock) != 0;
}
bool HasWindow(const PolicyInfo& policy) {
  return InfoOf(policy.signal).HasWindow();
}
// True if the policy says how rows of the signal are reduced to one.
bool ReducesRows(const PolicyInfo& policy) {
  return HasWindow(policy) || Needs<kSums>(policy);
}
bool IsOfQueryHeads(const PolicyInfo& policy) {
  return InfoOf(policy.signal).IsOfQueryHeads();
}

constexpr kvevict_parameter_type TypeOf(double) {
  return KVEVICT_PARAMETER_NUMBER;
}
constexpr kvevict_parameter_type TypeOf(uint32_t) {
  return KVEVICT_PARAMETER_COUNT;
}
constexpr kvevict_parameter_type TypeOf(uint64_t) {
  return KVEVICT_PARAMETER_SEED;
}
constexpr kvevict_parameter_type TypeOf(bool) { return KVEVICT_PARAMETER_FLAG; }
constexpr kvevict_parameter_type TypeOf(const Pooling&) {
  return KVEVICT_PARAMETER_POOL;
}
constexpr kvevict_parameter_type TypeOf(const CountOrShare&) {
  return KVEVICT_PARAMETER_COUNT_OR_SHARE;
}
template <typename Enum>
constexpr kvevict_parameter_type TypeOf(Enum) {
  static_assert(sizeof(Enum) == sizeof(int32_t));
  return KVEVICT_PARAMETER_WORD;
}

constexpr Param kParams[] = {
#define KVEVICT_PARAM(key, Type, value, range, has, words, doc) \
  {#key, TypeOf(Type{}), offsetof(Policy, key), has, range, words, doc},
#include "core/policy/params.inc"
#undef KVEVICT_PARAM
};

// ---- Fields ----

template <typename T>
const T& Field(const Param& param, const Policy& policy) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(&policy) +
                                     param.offset);
}

template <typename T>
T& Field(const Param& param, Policy* policy) {
  return const_cast<T&>(Field<T>(param, *policy));
}

// Word number `index` of "a|b|c"; empty past the end.
std::string_view Word(std::string_view words, uint32_t index) {
  for (; index > 0; --index) {
    const size_t bar = words.find('|');
    if (bar == words.npos) return {};
    words.remove_prefix(bar + 1);
  }
  return words.substr(0, words.find('|'));
}

// The number of a word; -1 if it is none of them.
int32_t IndexOf(std::string_view words, std::string_view word) {
  for (uint32_t i = 0; !Word(words, i).empty(); ++i) {
    if (Word(words, i) == word) return static_cast<int32_t>(i);
  }
  return -1;
}

template <typename T>
bool ReadNumber(std::string_view text, T* out) {
  const char* end = text.data() + text.size();
  if constexpr (std::is_same_v<T, double>) {
    return ReadFloat(text.data(), end, out);
  } else {
    T value{};
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end) return false;
    *out = value;
    return true;
  }
}

constexpr const char* kPoolWords[] = {"none", "avg", "max"};

bool ReadPooling(std::string_view text, Pooling* out) {
  if (text == kPoolWords[0]) {
    *out = {};
    return true;
  }
  for (const PoolKind kind : {PoolKind::kAvg, PoolKind::kMax}) {
    const std::string_view word = kPoolWords[static_cast<int>(kind)];
    Pooling pooling{kind, 0};
    if (!text.starts_with(word) ||
        !ReadNumber(text.substr(word.size()), &pooling.width)) {
      continue;
    }
    if (pooling.width % 2 == 0 || pooling.width > kMaxPoolWidth) return false;
    *out = pooling;
    return true;
  }
  return false;
}

// A number above 0 and below 1 is a share.
bool SetCountOrShare(const Range& range, double value, CountOrShare* out) {
  if (value > 0.0 && value < 1.0) {
    *out = {0, value};
    return true;
  }
  if (!range.Has(value) || value != std::floor(value)) return false;
  *out = {static_cast<uint32_t>(value), 0.0};
  return true;
}

bool SetCount(const Range& range, double value, uint32_t* out) {
  if (!range.Has(value) || value != std::floor(value)) return false;
  *out = static_cast<uint32_t>(value);
  return true;
}

bool Set(const Param& param, double value, Policy* policy) {
  switch (param.type) {
    case KVEVICT_PARAMETER_NUMBER:
      if (!param.range.Has(value)) return false;
      Field<double>(param, policy) = value + 0.0;  // -0 is 0
      return true;
    case KVEVICT_PARAMETER_COUNT:
      return SetCount(param.range, value, &Field<uint32_t>(param, policy));
    case KVEVICT_PARAMETER_COUNT_OR_SHARE:
      return SetCountOrShare(param.range, value,
                             &Field<CountOrShare>(param, policy));
    case KVEVICT_PARAMETER_SEED: {
      constexpr double kEnd = 18446744073709551616.0;  // 2^64
      if (!(value >= 0.0 && value < kEnd && value == std::floor(value))) {
        return false;
      }
      Field<uint64_t>(param, policy) = static_cast<uint64_t>(value);
      return true;
    }
    case KVEVICT_PARAMETER_FLAG:
      if (value != 0.0 && value != 1.0) return false;
      Field<bool>(param, policy) = value != 0.0;
      return true;
    case KVEVICT_PARAMETER_WORD:
    case KVEVICT_PARAMETER_POOL:
      return false;
  }
  return false;
}

bool Read(const Param& param, std::string_view text, Policy* policy) {
  switch (param.type) {
    case KVEVICT_PARAMETER_NUMBER:
    case KVEVICT_PARAMETER_COUNT:
    case KVEVICT_PARAMETER_COUNT_OR_SHARE: {
      double value = 0.0;
      return ReadNumber(text, &value) && Set(param, value, policy);
    }
    case KVEVICT_PARAMETER_SEED:
      return ReadNumber(text, &Field<uint64_t>(param, policy));
    case KVEVICT_PARAMETER_FLAG:
    case KVEVICT_PARAMETER_WORD: {
      const int32_t index = IndexOf(param.words, text);
      if (index < 0) return false;
      if (param.type == KVEVICT_PARAMETER_FLAG) {
        Field<bool>(param, policy) = index != 0;
      } else {
        Field<int32_t>(param, policy) = index;
      }
      return true;
    }
    case KVEVICT_PARAMETER_POOL:
      return ReadPooling(text, &Field<Pooling>(param, policy));
  }
  return false;
}

Status IsNot(const Param& param, std::string_view value) {
  char expected[160];
  WriteExpected(param, expected);
  constexpr size_t kShown = 40;
  return InvalidArgument("%s=\"%.*s%s\" is not %s", param.key,
                         static_cast<int>(std::min(value.size(), kShown)),
                         value.data(), value.size() > kShown ? "..." : "",
                         expected);
}

}  // namespace

bool Range::Has(double value) const {
  if (takes_0 && value == 0.0) return true;
  return (is_open ? value > least : value >= least) && value <= most;
}

std::span<const Param> Params() { return kParams; }

const Param* FindParam(const PolicyInfo& policy, std::string_view key) {
  for (const Param& param : kParams) {
    if (key == param.key && param.is_of(policy)) return &param;
  }
  return nullptr;
}

Status ReadParam(const Param& param, std::string_view text, Policy* policy) {
  return Read(param, text, policy) ? Status() : IsNot(param, text);
}

Status SetParam(const Param& param, double value, Policy* policy) {
  return Set(param, value, policy) ? Status()
                                   : IsNot(param, NumberText(value).c_str());
}

Status GetParam(const Param& param, const Policy& policy, double* out) {
  switch (param.type) {
    case KVEVICT_PARAMETER_NUMBER:
      *out = Field<double>(param, policy);
      return Status();
    case KVEVICT_PARAMETER_COUNT:
      *out = Field<uint32_t>(param, policy);
      return Status();
    case KVEVICT_PARAMETER_COUNT_OR_SHARE: {
      const auto& value = Field<CountOrShare>(param, policy);
      *out = value.share > 0.0 ? value.share : value.count;
      return Status();
    }
    case KVEVICT_PARAMETER_SEED: {
      constexpr uint64_t kMostExact = uint64_t{1} << 53;
      const uint64_t value = Field<uint64_t>(param, policy);
      if (value > kMostExact) {
        return InvalidArgument(
            "%s %llu > 2^53 is no exact double: read it as a text", param.key,
            static_cast<unsigned long long>(value));
      }
      *out = static_cast<double>(value);
      return Status();
    }
    case KVEVICT_PARAMETER_FLAG:
      *out = Field<bool>(param, policy) ? 1.0 : 0.0;
      return Status();
    case KVEVICT_PARAMETER_WORD:
    case KVEVICT_PARAMETER_POOL:
      break;
  }
  return InvalidArgument("%s is no number: read it as a text", param.key);
}

size_t WriteParam(const Param& param, const Policy& policy,
                  std::span<char, kMaxValueText> text) {
  const auto put = [&](std::string_view prefix, auto... number) {
    std::memcpy(text.data(), prefix.data(), prefix.size());
    char* end = text.data() + prefix.size();
    char* const last = text.data() + text.size() - 1;
    [[maybe_unused]] const auto write = [&](auto value) {
      if constexpr (std::is_same_v<decltype(value), double>) {
        return WriteFloat(end, last, value);
      } else {
        return std::to_chars(end, last, value).ptr;
      }
    };
    ((end = write(number)), ...);
    *end = '\0';
    return static_cast<size_t>(end - text.data());
  };
  switch (param.type) {
    case KVEVICT_PARAMETER_NUMBER:
      return put("", Field<double>(param, policy));
    case KVEVICT_PARAMETER_COUNT:
      return put("", Field<uint32_t>(param, policy));
    case KVEVICT_PARAMETER_SEED:
      return put("", Field<uint64_t>(param, policy));
    case KVEVICT_PARAMETER_COUNT_OR_SHARE: {
      const auto& value = Field<CountOrShare>(param, policy);
      return value.share > 0.0 ? put("", value.share) : put("", value.count);
    }
    case KVEVICT_PARAMETER_FLAG:
      return put(Word(param.words, Field<bool>(param, policy)));
    case KVEVICT_PARAMETER_WORD:
      return put(Word(param.words,
                      static_cast<uint32_t>(Field<int32_t>(param, policy))));
    case KVEVICT_PARAMETER_POOL: {
      const auto& value = Field<Pooling>(param, policy);
      const char* word = kPoolWords[static_cast<int>(value.kind)];
      return value.kind == PoolKind::kNone ? put(word) : put(word, value.width);
    }
  }
  return put("");
}

bool ParamDiffers(const Param& param, const Policy& a, const Policy& b) {
  switch (param.type) {
    case KVEVICT_PARAMETER_NUMBER:
      return Field<double>(param, a) != Field<double>(param, b);
    case KVEVICT_PARAMETER_COUNT:
      return Field<uint32_t>(param, a) != Field<uint32_t>(param, b);
    case KVEVICT_PARAMETER_SEED:
      return Field<uint64_t>(param, a) != Field<uint64_t>(param, b);
    case KVEVICT_PARAMETER_FLAG:
      return Field<bool>(param, a) != Field<bool>(param, b);
    case KVEVICT_PARAMETER_WORD:
      return Field<int32_t>(param, a) != Field<int32_t>(param, b);
    case KVEVICT_PARAMETER_POOL:
      return Field<Pooling>(param, a) != Field<Pooling>(param, b);
    case KVEVICT_PARAMETER_COUNT_OR_SHARE:
      return Field<CountOrShare>(param, a) != Field<CountOrShare>(param, b);
  }
  return true;
}

size_t WriteExpected(const Param& param, std::span<char> text) {
  const auto put = [&](const char* format, auto... values) {
    const int n = std::snprintf(text.data(), text.size(), format, values...);
    return std::min<size_t>(static_cast<size_t>(n), text.size() - 1);
  };
  const NumberText least(param.range.least);
  const NumberText most(param.range.most);
  const char* or_0 = param.range.takes_0 ? "0 or " : "";
  switch (param.type) {
    case KVEVICT_PARAMETER_NUMBER:
      if (param.range.most == std::numeric_limits<double>::max()) {
        return put("a finite number > %s", least.c_str());
      }
      return put("a number in %s%s, %s]", param.range.is_open ? "(" : "[",
                 least.c_str(), most.c_str());
    case KVEVICT_PARAMETER_COUNT:
      return put("%sa count in [%.0f, %.0f]", or_0, param.range.least,
                 param.range.most);
    case KVEVICT_PARAMETER_COUNT_OR_SHARE:
      return put("a count in [%.0f, %.0f] or a share of the budget below 1",
                 param.range.least, param.range.most);
    case KVEVICT_PARAMETER_SEED:
      return put("%s", "a whole number below 2^64");
    case KVEVICT_PARAMETER_FLAG:
    case KVEVICT_PARAMETER_WORD:
      return put("one of %s", param.words);
    case KVEVICT_PARAMETER_POOL:
      return put("none, avgN or maxN with an odd N up to %u", kMaxPoolWidth);
  }
  return 0;
}

const char* WordOf(LayerSplit split) {
  constexpr const char* kWords[] = {
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) text,
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
  };
  return kWords[static_cast<int>(split)];
}

const char* WordOf(PromptRule prompt) {
  constexpr const char* kWords[] = {"inside", "beside", "pinned",
                                    "pinned-beside", "at-end"};
  return kWords[static_cast<int>(prompt)];
}

}  // namespace kvevict
