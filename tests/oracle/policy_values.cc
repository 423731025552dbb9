#include "tests/oracle/policy_values.h"
#include "kvevict/experimental.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace {

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "oracle: %s: %s\n", what, kvevict_last_error_message());
  std::abort();
}

// One line for each parameter that has a field: its key and its field.
template <typename Visitor, typename Values>
void ForEachField(const Visitor& on, Values& p) {
  on.Number("budget", p.budget);
  on.CountOrShare("sink", p.sink, p.sink_share);
  on.CountOrShare("recent", p.recent, p.recent_share);
  on.CountOrShare("window", p.window, p.window_share);
  on.Word("keep_window", p.keep_window);
  on.Pool("pool", p.pool, p.pool_width);
  on.Word("edge", p.edge);
  on.Word("rows", p.rows);
  on.Word("row_weight", p.row_weight);
  on.Word("softmax", p.softmax);
  on.Number("reference", p.reference);
  on.Number("reference_weight", p.reference_weight);
  on.Number("spread", p.spread);
  on.Word("group", p.group);
  on.Word("order", p.order);
  on.Word("prior", p.prior);
  on.Word("scope", p.scope);
  on.Word("over", p.over);
  on.Word("tie", p.tie);
  on.Word("split", p.split);
  on.Number("beta", p.beta);
  on.Number("tau1", p.tau1);
  on.Number("tau2", p.tau2);
  on.Number("lazy", p.lazy);
  on.Number("seed", p.seed);
  on.Number("half_life", p.half_life);
  on.Number("block", p.block);
  on.Word("ranks", p.ranks);
  on.Word("of", p.of);
  on.Number("select_block", p.select_block);
  on.Number("chunk", p.chunk);
  on.Word("weight", p.weight);
  on.Number("epsilon", p.epsilon);
  on.Word("share", p.share);
  on.Word("standardize", p.standardize);
  on.Number("leverage", p.leverage);
  on.Word("leverage_scale", p.leverage_scale);
  on.Number("redundancy", p.redundancy);
  on.Number("similarity", p.similarity);
  on.Number("secure", p.secure);
  on.CountOrShare("secure_values", p.secure_values, p.secure_values_share);
  on.Word("value_measure", p.value_measure);
  on.Number("first_stage_mass", p.first_stage_mass);
  on.Word("first_stage_bias", p.first_stage_bias);
  on.Word("heads", p.heads);
  on.Number("floor", p.floor);
  on.Word("rounding", p.rounding);
  on.Word("draw", p.draw);
  on.Number("threshold", p.threshold);
  on.Word("normalize", p.normalize);
  on.Word("merge", p.merge);
  on.Number("merge_threshold", p.merge_threshold);
  on.Number("merge_fraction", p.merge_fraction);
  on.Word("fit", p.fit);
  on.Number("fit_ridge", p.fit_ridge);
  on.Word("rotate", p.rotate);
  on.Number("margin", p.margin);
  on.Number("every", p.every);
  on.Word("prompt", p.prompt);
  on.Word("sums", p.sums);
  on.Number("sum_pool", p.sum_pool);
  on.Number("sum_last", p.sum_last);
  on.Word("raw_first", p.raw_first);
  on.Number("rescue", p.rescue);
  on.Word("anchor", p.anchor);
  on.Number("diverse_mass", p.diverse_mass);
}

kvevict_parameter_info RowOf(const char* key) {
  kvevict_parameter_info row = {};
  row.struct_size = sizeof(row);
  for (uint32_t i = 0; kvevict_parameter_at(nullptr, i, &row) == KVEVICT_OK;
       ++i) {
    if (std::strcmp(row.key, key) == 0) return row;
  }
  Fail(key);
}

std::vector<std::string> WordsOf(const char* key) {
  std::istringstream all(RowOf(key).words);
  std::vector<std::string> words;
  for (std::string word; std::getline(all, word, '|');) words.push_back(word);
  return words;
}

template <typename Number>
std::string TextOf(Number value) {
  char text[40];
  *std::to_chars(text, text + sizeof(text) - 1, value).ptr = '\0';
  return text;
}

constexpr const char* kPools[] = {"none", "avg", "max"};

// Reads a policy's values into the fields, or the library's defaults where it has none.
struct Reader {
  const kvevict_policy* policy;

  std::string Text(const char* key) const {
    char text[40];
    if (kvevict_policy_get(policy, key, text, sizeof(text), nullptr) ==
        KVEVICT_OK) {
      return text;
    }
    return RowOf(key).default_text;
  }
  template <typename T>
  void Number(const char* key, T& out) const {
    const std::string text = Text(key);
    if constexpr (std::is_same_v<T, double>) {
      out = std::strtod(text.c_str(), nullptr);
    } else {
      std::from_chars(text.data(), text.data() + text.size(), out);
    }
  }
  void CountOrShare(const char* key, uint32_t& count, double& share) const {
    double value = 0.0;
    Number(key, value);
    const bool is_share = value > 0.0 && value < 1.0;
    count = is_share ? 0 : static_cast<uint32_t>(value);
    share = is_share ? value : 0.0;
  }
  template <typename T>
  void Word(const char* key, T& out) const {
    const std::vector<std::string> words = WordsOf(key);
    const auto at = std::find(words.begin(), words.end(), Text(key));
    if (at == words.end()) Fail(key);
    out = static_cast<T>(at - words.begin());
  }
  void Pool(const char* key, int& pool, uint32_t& width) const {
    const std::string text = Text(key);
    for (pool = ORACLE_POOL_MAX; !text.starts_with(kPools[pool]); --pool) {
    }
    width = 1;
    if (pool != ORACLE_POOL_NONE) {
      std::from_chars(text.data() + 3, text.data() + text.size(), width);
    }
  }
};

// Finds whether a parameter has a field.
struct Finder {
  std::string_view key;
  bool* found;

  template <typename... Fields>
  void Number(const char* one, Fields&...) const {
    *found |= key == one;
  }
  template <typename... Fields>
  void CountOrShare(const char* one, Fields&... fields) const {
    Number(one, fields...);
  }
  template <typename... Fields>
  void Word(const char* one, Fields&... fields) const {
    Number(one, fields...);
  }
  template <typename... Fields>
  void Pool(const char* one, Fields&... fields) const {
    Number(one, fields...);
  }
};

bool HasField(const char* key) {
  oracle_policy any = {};
  bool found = false;
  ForEachField(Finder{key, &found}, any);
  return found;
}

void ReadOwn(const kvevict_policy* policy, const std::string& name,
             oracle_policy& p) {
  kvevict_parameter_info row = {};
  row.struct_size = sizeof(row);
  for (uint32_t i = 0;
       kvevict_parameter_at(name.c_str(), i, &row) == KVEVICT_OK; ++i) {
    if (HasField(row.key) || (row.type != KVEVICT_PARAMETER_COUNT &&
                              row.type != KVEVICT_PARAMETER_NUMBER)) {
      continue;
    }
    if (p.n_own == std::size(p.own)) Fail(row.key);
    double value = 0.0;
    Reader{policy}.Number(row.key, value);
    p.own[p.n_own++] = {row.key, value};
  }
}

// Sets the values that the policy has; `ok` says whether it accepted all of them.
struct Writer {
  kvevict_policy* policy;
  bool* ok;

  void Set(const char* key, const std::string& value) const {
    char text[40];
    if (kvevict_policy_get(policy, key, text, sizeof(text), nullptr) !=
            KVEVICT_OK ||
        !*ok) {
      return;
    }
    *ok = kvevict_policy_set(policy, key, value.c_str()) == KVEVICT_OK;
  }
  template <typename T>
  void Number(const char* key, T value) const {
    Set(key, TextOf(value));
  }
  void CountOrShare(const char* key, uint32_t count, double share) const {
    Set(key, share > 0.0 ? TextOf(share) : TextOf(count));
  }
  template <typename T>
  void Word(const char* key, T value) const {
    Set(key, WordsOf(key).at(static_cast<size_t>(value)));
  }
  void Pool(const char* key, int pool, uint32_t width) const {
    const std::string word = kPools[pool];
    Set(key, pool == ORACLE_POOL_NONE ? word : word + TextOf(width));
  }
};

// The names of the kinds before ORACLE_OTHER.
constexpr std::string_view kKinds[] = {
    "none",         "streaming-llm", "snapkv", "pyramidkv",
    "tova",         "h2o",           "knorm",  "keydiff",
    "q-filter",     "lagkv",         "cur",    "expected-attention",
    "triattention", "non-causal",    "r-kv",   "cake",
    "random",       "custom"};
static_assert(std::size(kKinds) == ORACLE_CUSTOM + 1);

std::string NameOf(oracle_kind kind) {
  if (kind < ORACLE_OTHER) return std::string(kKinds[kind]);
  kvevict_policy_info info = {};
  info.struct_size = sizeof(info);
  if (kvevict_policy_at(static_cast<uint32_t>(kind - ORACLE_OTHER), &info) !=
      KVEVICT_OK) {
    Fail("kind");
  }
  return info.name;
}

oracle_kind KindOf(const kvevict_policy* policy) {
  char text[2048];
  if (kvevict_policy_format(policy, text, sizeof(text), nullptr) !=
      KVEVICT_OK) {
    Fail("policy");
  }
  const std::string_view name =
      std::string_view(text).substr(0, std::string_view(text).find(':'));
  const auto* const at = std::find(std::begin(kKinds), std::end(kKinds), name);
  if (at != std::end(kKinds)) return static_cast<oracle_kind>(at - kKinds);
  kvevict_policy_info info = {};
  info.struct_size = sizeof(info);
  for (int i = 0;
       kvevict_policy_at(static_cast<uint32_t>(i), &info) == KVEVICT_OK; ++i) {
    if (name == info.name) return static_cast<oracle_kind>(ORACLE_OTHER + i);
  }
  Fail(text);
}

}  // namespace

oracle_policy oracle_policy_of(const kvevict_policy* policy) {
  oracle_policy p = {};
  p.kind = KindOf(policy);
  ForEachField(Reader{policy}, p);
  ReadOwn(policy, NameOf(p.kind), p);
  kvevict_need need = KVEVICT_NEED_NONE;
  p.reads_positions = kvevict_policy_need(policy, KVEVICT_INPUT_POSITIONS,
                                          &need) == KVEVICT_OK &&
                      need != KVEVICT_NEED_NONE;
  return p;
}

oracle_policy oracle_policy_from(const char* text) {
  kvevict_policy* policy = nullptr;
  if (kvevict_policy_create(text, &policy) != KVEVICT_OK) Fail(text);
  const oracle_policy values = oracle_policy_of(policy);
  kvevict_policy_destroy(policy);
  return values;
}

kvevict_policy* oracle_policy_create(const oracle_policy* values) {
  const std::string name = NameOf(values->kind);
  kvevict_policy* policy = nullptr;
  if (kvevict_policy_create(name.c_str(), &policy) != KVEVICT_OK) {
    Fail(name.c_str());
  }
  bool ok = true;
  const Writer writer{policy, &ok};
  ForEachField(writer, *values);
  for (uint32_t i = 0; i < values->n_own; ++i) {
    writer.Number(values->own[i].key, values->own[i].value);
  }
  if (ok && kvevict_policy_validate(policy) == KVEVICT_OK) return policy;
  kvevict_policy_destroy(policy);
  return nullptr;
}
