#include "core/policy/policy_text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "core/policy/policy.h"

namespace kvevict {
namespace {

constexpr Preset kPresets[] = {
#define KVEVICT_PRESET(name, text, reproduces) {name, text, reproduces},
#include "core/policy/presets.inc"
#undef KVEVICT_PRESET
};

// ---- The keys: one row each, read and written alike ----

enum class FieldType { kDouble, kU32, kU64, kWord, kPool, kCountOrShare };

// To which policies a key means something.
bool Evicts(const PolicyInfo& policy) { return policy.Evicts(); }
bool Ranks(const PolicyInfo& policy) { return InfoOf(policy.signal).Ranks(); }
template <SignalNeeds... kWhat>
bool Needs(const PolicyInfo& policy) {
  return (InfoOf(policy.signal).Needs(kWhat) || ...);
}
bool HasBlock(const PolicyInfo& policy) {
  const SignalInfo& signal = InfoOf(policy.signal);
  return signal.Needs(kBlock) || (signal.takes & kBlock) != 0;
}
bool HasWindow(const PolicyInfo& policy) {
  return InfoOf(policy.signal).HasWindow();
}
// Of which the rows are summed as the policy says.
bool ReducesRows(const PolicyInfo& policy) {
  return HasWindow(policy) || Needs<kSums>(policy);
}
bool IsOfQueryHeads(const PolicyInfo& policy) {
  return InfoOf(policy.signal).IsOfQueryHeads();
}

struct Field {
  const char* key;
  bool (*is_of)(const PolicyInfo&);
  FieldType type;
  size_t offset;
  // kWord: the words of values 0, 1, ... separated by '|'; otherwise what to
  // expect.
  const char* words;
  size_t share = 0;  // kCountOrShare: where the share is
};

static_assert(sizeof(kvevict_pool) == sizeof(uint32_t));

constexpr char kCountOrShare[] =
    "a count below 2^32 or a share of the budget below 1";

constexpr Field kFields[] = {
    {"budget", Evicts, FieldType::kDouble, offsetof(kvevict_policy, budget),
     "a number"},
    {"sink", Evicts, FieldType::kCountOrShare, offsetof(kvevict_policy, n_sink),
     kCountOrShare, offsetof(kvevict_policy, sink_share)},
    {"recent", Evicts, FieldType::kCountOrShare,
     offsetof(kvevict_policy, n_recent), kCountOrShare,
     offsetof(kvevict_policy, recent_share)},
    {"window", HasWindow, FieldType::kCountOrShare,
     offsetof(kvevict_policy, obs_window), kCountOrShare,
     offsetof(kvevict_policy, window_share)},
    {"keep_window", HasWindow, FieldType::kWord,
     offsetof(kvevict_policy, keep_window), "no|yes"},
    {"pool", Ranks, FieldType::kPool, offsetof(kvevict_policy, pool),
     "none, avgN or maxN"},
    {"edge", Ranks, FieldType::kWord, offsetof(kvevict_policy, pool_edge),
     "pad|shrink"},
    {"rows", ReducesRows, FieldType::kWord,
     offsetof(kvevict_policy, window_reduce), "mean|max|sum"},
    {"row_weight", HasWindow, FieldType::kWord,
     offsetof(kvevict_policy, row_weight), "none|past"},
    {"softmax", HasWindow, FieldType::kWord,
     offsetof(kvevict_policy, softmax_keys), "causal|past"},
    {"spread", HasWindow, FieldType::kDouble,
     offsetof(kvevict_policy, row_spread), "a number"},
    {"group", IsOfQueryHeads, FieldType::kWord,
     offsetof(kvevict_policy, group_reduce), "mean|max|sum"},
    {"order", IsOfQueryHeads, FieldType::kWord,
     offsetof(kvevict_policy, shaping_order),
     "reduce-pool|pool-reduce|reduce-logits|weigh-pool"},
    {"scope", Ranks, FieldType::kWord, offsetof(kvevict_policy, scope),
     "head|layer|model"},
    {"over", Ranks, FieldType::kWord, offsetof(kvevict_policy, scope_reduce),
     "mean|max|sum"},
    {"tie", Ranks, FieldType::kWord, offsetof(kvevict_policy, tie),
     "lower|higher"},
    {"split", Evicts, FieldType::kWord, offsetof(kvevict_policy, layer_split),
#define KVEVICT_LAYER_SPLIT(NAME, text, function, is_exact, measure) "|" text
     &
#include "core/budgets/layer_splits.inc"
     [1]},
#undef KVEVICT_LAYER_SPLIT
    {"alpha", Evicts, FieldType::kDouble,
     offsetof(kvevict_policy, pyramid_alpha), "a number"},
    {"beta", Evicts, FieldType::kU32, offsetof(kvevict_policy, pyramid_beta),
     "a count below 2^32"},
    {"tau1", HasWindow, FieldType::kDouble, offsetof(kvevict_policy, cake_tau1),
     "a number"},
    {"tau2", HasWindow, FieldType::kDouble, offsetof(kvevict_policy, cake_tau2),
     "a number"},
    {"lazy", HasWindow, FieldType::kDouble,
     offsetof(kvevict_policy, lazy_threshold), "a number"},
    {"seed", Ranks, FieldType::kU64, offsetof(kvevict_policy, seed),
     "a whole number below 2^64"},
    {"block", HasBlock, FieldType::kU32, offsetof(kvevict_policy, block),
     "a count below 2^32"},
    {"ranks", Needs<kPartitions>, FieldType::kWord,
     offsetof(kvevict_policy, lag_ranks), "no|yes"},
    {"of", Needs<kPartitions>, FieldType::kWord,
     offsetof(kvevict_policy, budget_of_partition), "context|partition"},
    {"select_block", Evicts, FieldType::kU32,
     offsetof(kvevict_policy, select_block), "a count below 2^32"},
    {"chunk", Ranks, FieldType::kU32, offsetof(kvevict_policy, chunk),
     "a count below 2^32"},
    {"weight", Ranks, FieldType::kWord, offsetof(kvevict_policy, value_weight),
     "none|norm|given"},
    {"epsilon", Ranks, FieldType::kDouble,
     offsetof(kvevict_policy, weight_epsilon), "a number"},
    {"redundancy", Ranks, FieldType::kDouble,
     offsetof(kvevict_policy, redundancy), "a number"},
    {"similarity", Ranks, FieldType::kDouble,
     offsetof(kvevict_policy, similarity), "a number"},
    {"secure", Ranks, FieldType::kDouble, offsetof(kvevict_policy, secure),
     "a number"},
    {"heads", Ranks, FieldType::kWord, offsetof(kvevict_policy, head_split),
     "equal|adaptive|adaptive-blend|threshold"},
    {"floor", Ranks, FieldType::kDouble, offsetof(kvevict_policy, head_floor),
     "a number"},
    {"threshold", Ranks, FieldType::kDouble,
     offsetof(kvevict_policy, score_threshold), "a number"},
    {"normalize", Ranks, FieldType::kWord,
     offsetof(kvevict_policy, head_normalize), "no|yes"},
    {"merge", Evicts, FieldType::kWord, offsetof(kvevict_policy, merge),
     "none|values|pivot|weighted"},
    {"merge_threshold", Evicts, FieldType::kDouble,
     offsetof(kvevict_policy, merge_threshold), "a number"},
    {"merge_fraction", Evicts, FieldType::kDouble,
     offsetof(kvevict_policy, merge_fraction), "a number"},
    {"rotate", Evicts, FieldType::kWord, offsetof(kvevict_policy, rotate),
     "no|yes"},
    {"margin", Evicts, FieldType::kU32, offsetof(kvevict_policy, margin),
     "a count below 2^32"},
    {"every", Evicts, FieldType::kU32, offsetof(kvevict_policy, every),
     "a count below 2^32"},
    {"prompt", Evicts, FieldType::kWord, offsetof(kvevict_policy, prompt),
     "inside|beside|pinned|pinned-beside|at-end"},
    {"sums", Needs<kSums>, FieldType::kWord, offsetof(kvevict_policy, sum_rows),
     "head|query|layer"},
    {"sum_pool", Needs<kSums>, FieldType::kU32,
     offsetof(kvevict_policy, sum_pool), "a count below 2^32"},
    {"sum_last", Needs<kSums>, FieldType::kU32,
     offsetof(kvevict_policy, sum_last), "a count below 2^32"},
    {"raw_first", Needs<kSums>, FieldType::kWord,
     offsetof(kvevict_policy, sum_raw_first), "no|yes"},
    {"rescue", Ranks, FieldType::kU32, offsetof(kvevict_policy, rescue),
     "a count below 2^32"},
    {"anchor", Ranks, FieldType::kWord, offsetof(kvevict_policy, anchor),
     "mean|zeros|ones|alternating|random"},
    {"diverse_mass", Ranks, FieldType::kDouble,
     offsetof(kvevict_policy, diverse_mass), "a number"},
};

constexpr const char* kPoolWords[] = {"none", "avg", "max"};

template <typename T>
T Get(const kvevict_policy& policy, size_t offset) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(&policy) + offset,
              sizeof(T));
  return value;
}

template <typename T>
void Set(kvevict_policy* policy, size_t offset, T value) {
  std::memcpy(reinterpret_cast<char*>(policy) + offset, &value, sizeof(T));
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

// ---- Reading ----

std::string_view Trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

template <typename T>
bool ReadNumber(std::string_view text, T* out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end;
}

template <typename T>
bool ReadField(std::string_view value, size_t offset, kvevict_policy* policy) {
  T number{};
  if (!ReadNumber(value, &number)) return false;
  Set(policy, offset, number);
  return true;
}

// A whole number is a count.
bool ReadCountOrShare(const Field& field, std::string_view value,
                      kvevict_policy* policy) {
  if (ReadField<uint32_t>(value, field.offset, policy)) {
    Set(policy, field.share, 0.0);
    return true;
  }
  double share = 0.0;
  if (!ReadNumber(value, &share) || !(share > 0.0 && share < 1.0)) return false;
  Set(policy, field.share, share);
  return true;
}

bool ReadPool(std::string_view value, kvevict_policy* policy) {
  for (uint32_t i = 0; i < std::size(kPoolWords); ++i) {
    const std::string_view word = kPoolWords[i];
    if (!value.starts_with(word)) continue;
    const std::string_view width = value.substr(word.size());
    if (width.empty() ? i != KVEVICT_POOL_NONE
                      : !ReadNumber(width, &policy->pool_kernel)) {
      return false;
    }
    policy->pool = static_cast<kvevict_pool>(i);
    return true;
  }
  return false;
}

bool ReadWord(const Field& field, std::string_view value,
              kvevict_policy* policy) {
  for (uint32_t i = 0;; ++i) {
    const std::string_view word = Word(field.words, i);
    if (word.empty()) return false;
    if (word != value) continue;
    Set(policy, field.offset, i);
    return true;
  }
}

bool ReadValue(const Field& field, std::string_view value,
               kvevict_policy* policy) {
  switch (field.type) {
    case FieldType::kDouble:
      return ReadField<double>(value, field.offset, policy);
    case FieldType::kU32:
      return ReadField<uint32_t>(value, field.offset, policy);
    case FieldType::kU64:
      return ReadField<uint64_t>(value, field.offset, policy);
    case FieldType::kWord:
      return ReadWord(field, value, policy);
    case FieldType::kPool:
      return ReadPool(value, policy);
    case FieldType::kCountOrShare:
      return ReadCountOrShare(field, value, policy);
  }
  return false;
}

const Field* FindField(const PolicyInfo& policy, std::string_view key) {
  for (const Field& field : kFields) {
    if (key == field.key && field.is_of(policy)) return &field;
  }
  return nullptr;
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

Status NoSuchKey(const Reader& reader, std::string_view key,
                 const PolicyInfo& policy) {
  WordList keys;
  for (const Field& field : kFields) {
    if (field.is_of(policy)) keys.Add(field.key);
  }
  return InvalidArgument(
      "policy text, column %d: %s has no key \"%.*s\"; it has %s",
      reader.Column(key), policy.name, KV_SV(key),
      keys.empty() ? "none" : keys.text());
}

Status ReadPair(const Reader& reader, std::string_view pair,
                kvevict_policy* policy) {
  const PolicyInfo& info = *FindPolicy(policy->kind);
  const size_t equals = pair.find('=');
  const std::string_view key = Trim(pair.substr(0, equals));
  if (key.empty()) {
    return InvalidArgument("policy text, column %d: a key is missing",
                           reader.Column(key));
  }
  const Field* field = FindField(info, key);
  if (field == nullptr) return NoSuchKey(reader, key, info);
  if (equals == pair.npos) {
    return InvalidArgument("policy text, column %d: \"%s\" without a value",
                           reader.Column(key), field->key);
  }
  const std::string_view value = Trim(pair.substr(equals + 1));
  if (!ReadValue(*field, value, policy)) {
    return InvalidArgument("policy text, column %d: %s=\"%.*s\" is not %s%s",
                           reader.Column(value), field->key, KV_SV(value),
                           field->type == FieldType::kWord ? "one of " : "",
                           field->words);
  }
  return Status();
}

Status ReadPairs(const Reader& reader, std::string_view rest,
                 kvevict_policy* policy) {
  while (true) {
    const size_t comma = rest.find(',');
    KV_RETURN_IF_ERROR(ReadPair(reader, rest.substr(0, comma), policy));
    if (comma == rest.npos) return Status();
    rest.remove_prefix(comma + 1);
  }
}

// The policy a name stands for, before any key.
bool ReadName(std::string_view name, kvevict_policy* policy) {
  for (const PolicyInfo& info : Policies()) {
    if (name != info.name) continue;
    *policy = DefaultPolicy(info);
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

// The presets that have the longest beginning in common with a name.
WordList PresetsLike(std::string_view name) {
  size_t longest = 1;
  for (const Preset& preset : kPresets) {
    longest = std::max(longest, CommonPrefix(name, preset.name));
  }
  WordList alike;
  for (const Preset& preset : kPresets) {
    if (CommonPrefix(name, preset.name) == longest) alike.Add(preset.name);
  }
  return alike;
}

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

kvevict_policy DefaultPolicy(const PolicyInfo& info) {
  kvevict_policy policy = KVEVICT_POLICY_INIT;
  policy.kind = info.kind;
  const std::string_view defaults = info.defaults;
  // The lists' own texts, which a test reads.
  if (!defaults.empty()) (void)ReadPairs({defaults}, defaults, &policy);
  return policy;
}

const char* SplitText(kvevict_layer_split split) {
  constexpr const char* kTexts[] = {
#define KVEVICT_LAYER_SPLIT(NAME, text, function, is_exact, measure) text,
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
  };
  return kTexts[split];
}

Status ParsePolicy(std::string_view text, kvevict_policy* out) {
  const Reader reader{text};
  const size_t colon = text.find(':');
  const std::string_view name = Trim(text.substr(0, colon));
  kvevict_policy policy;
  if (!ReadName(name, &policy)) {
    const WordList alike = PresetsLike(name);
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

// ---- Writing ----

namespace {

// Appends to a buffer that is large enough.
class Writer {
 public:
  explicit Writer(std::span<char> buffer)
      : begin_(buffer.data()), at_(begin_), end_(begin_ + buffer.size()) {}

  void Text(std::string_view s) {
    std::memcpy(at_, s.data(), s.size());
    at_ += s.size();
  }
  template <typename T>
  void Number(T value) {
    at_ = std::to_chars(at_, end_, value).ptr;
  }
  size_t Finish() {
    *at_ = '\0';
    return static_cast<size_t>(at_ - begin_);
  }

 private:
  char* begin_;
  char* at_;
  char* end_;
};

void WriteValue(const Field& field, const kvevict_policy& policy,
                const kvevict_policy& defaults, Writer* out) {
  switch (field.type) {
    case FieldType::kDouble:
      return out->Number(Get<double>(policy, field.offset));
    case FieldType::kU32:
      return out->Number(Get<uint32_t>(policy, field.offset));
    case FieldType::kU64:
      return out->Number(Get<uint64_t>(policy, field.offset));
    case FieldType::kWord:
      return out->Text(Word(field.words, Get<uint32_t>(policy, field.offset)));
    case FieldType::kPool:
      out->Text(kPoolWords[policy.pool]);
      // "none" has no width to speak of; one that differs is written all the
      // same, so that reading gives the same policy back.
      if (policy.pool != KVEVICT_POOL_NONE ||
          policy.pool_kernel != defaults.pool_kernel) {
        out->Number(policy.pool_kernel);
      }
      return;
    case FieldType::kCountOrShare:
      if (const double share = Get<double>(policy, field.share); share > 0.0) {
        return out->Number(share);
      }
      return out->Number(Get<uint32_t>(policy, field.offset));
  }
}

bool Differs(const Field& field, const kvevict_policy& a,
             const kvevict_policy& b) {
  switch (field.type) {
    case FieldType::kDouble:
      return Get<double>(a, field.offset) != Get<double>(b, field.offset);
    case FieldType::kU64:
      return Get<uint64_t>(a, field.offset) != Get<uint64_t>(b, field.offset);
    case FieldType::kU32:
    case FieldType::kWord:
      return Get<uint32_t>(a, field.offset) != Get<uint32_t>(b, field.offset);
    case FieldType::kPool:
      return a.pool != b.pool || a.pool_kernel != b.pool_kernel;
    case FieldType::kCountOrShare:
      return Get<double>(a, field.share) != Get<double>(b, field.share) ||
             Get<uint32_t>(a, field.offset) != Get<uint32_t>(b, field.offset);
  }
  return true;
}

// Neither end of the cache stays: not only where that is the policy's default.
bool IsSaid(const Field& field, const kvevict_policy& policy) {
  if (!SignalOf(policy).Ranks() || policy.n_sink > 0 ||
      policy.sink_share > 0.0 || policy.recent_share > 0.0 ||
      RecentTokens(policy) > 0) {
    return false;
  }
  return field.offset == offsetof(kvevict_policy, n_sink) ||
         field.offset == offsetof(kvevict_policy, n_recent);
}

}  // namespace

size_t FormatPolicy(const kvevict_policy& policy,
                    std::span<char, kMaxPolicyText> text) {
  const PolicyInfo& info = *FindPolicy(policy.kind);
  const kvevict_policy defaults = DefaultPolicy(info);
  Writer out(text);
  out.Text(info.name);
  char separator = ':';
  for (const Field& field : kFields) {
    if (!field.is_of(info)) continue;
    if (!Differs(field, policy, defaults) && !IsSaid(field, policy)) continue;
    out.Text({&separator, 1});
    out.Text(field.key);
    out.Text("=");
    WriteValue(field, policy, defaults, &out);
    separator = ',';
  }
  return out.Finish();
}

}  // namespace kvevict
