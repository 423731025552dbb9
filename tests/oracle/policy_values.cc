#include "tests/oracle/policy_values.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "oracle: %s: %s\n", what, kvevict_last_error_message());
  std::abort();
}

// The values of one policy, by key.
class Reader {
 public:
  explicit Reader(const kvevict_policy* policy) : policy_(policy) {}

  std::string Text(const char* key) const {
    char text[40];
    if (kvevict_policy_get(policy_, key, text, sizeof(text), nullptr) ==
        KVEVICT_OK) {
      return text;
    }
    return Row(key).default_text;
  }
  double Number(const char* key) const {
    return std::strtod(Text(key).c_str(), nullptr);
  }
  uint32_t Count(const char* key) const {
    return static_cast<uint32_t>(Number(key));
  }
  // The place of a value among the row's words.
  int Word(const char* key) const {
    const std::string value = Text(key);
    std::string_view words = Row(key).words;
    for (int i = 0;; ++i) {
      const size_t bar = words.find('|');
      if (words.substr(0, bar) == value) return i;
      if (bar == words.npos) Fail(key);
      words.remove_prefix(bar + 1);
    }
  }
  template <typename Enum>
  Enum Word(const char* key) const {
    return static_cast<Enum>(Word(key));
  }
  bool Flag(const char* key) const { return Word(key) == 1; }
  void CountOrShare(const char* key, uint32_t* count, double* share) const {
    const double value = Number(key);
    const bool is_share = value > 0.0 && value < 1.0;
    *count = is_share ? 0 : static_cast<uint32_t>(value);
    *share = is_share ? value : 0.0;
  }

 private:
  static kvevict_parameter_info Row(const char* key) {
    kvevict_parameter_info row = {};
    row.struct_size = sizeof(row);
    for (uint32_t i = 0; kvevict_parameter_at(nullptr, i, &row) == KVEVICT_OK;
         ++i) {
      if (std::strcmp(row.key, key) == 0) return row;
    }
    Fail(key);
  }

  const kvevict_policy* policy_;
};

oracle_kind KindOf(const kvevict_policy* policy) {
  char text[2048];
  if (kvevict_policy_format(policy, text, sizeof(text), nullptr) !=
      KVEVICT_OK) {
    Fail("policy");
  }
  const std::string_view name =
      std::string_view(text).substr(0, std::string_view(text).find(':'));
  kvevict_policy_info info = {};
  info.struct_size = sizeof(info);
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    if (name == info.name) return static_cast<oracle_kind>(i);
  }
  Fail(text);
}

}  // namespace

oracle_policy oracle_policy_of(const kvevict_policy* policy) {
  const Reader values(policy);
  oracle_policy p = {};
  p.kind = KindOf(policy);
  p.budget = values.Number("budget");
  values.CountOrShare("sink", &p.sink, &p.sink_share);
  values.CountOrShare("recent", &p.recent, &p.recent_share);
  values.CountOrShare("window", &p.window, &p.window_share);
  p.keep_window = values.Flag("keep_window");
  const std::string pool = values.Text("pool");
  p.pool = pool[0] == 'n'   ? ORACLE_POOL_NONE
           : pool[0] == 'a' ? ORACLE_POOL_AVG
                            : ORACLE_POOL_MAX;
  p.pool_width = p.pool == ORACLE_POOL_NONE
                     ? 1
                     : static_cast<uint32_t>(std::atoi(pool.c_str() + 3));
  p.edge = values.Word("edge");
  p.rows = values.Word<kvevict_reduce>("rows");
  p.row_weight = values.Word("row_weight");
  p.softmax = values.Word("softmax");
  p.spread = values.Number("spread");
  p.group = values.Word<kvevict_reduce>("group");
  p.order = values.Word("order");
  p.scope = values.Word<kvevict_scope>("scope");
  p.over = values.Word<kvevict_reduce>("over");
  p.tie = values.Word<kvevict_tie>("tie");
  p.split = values.Word("split");
  p.alpha = values.Number("alpha");
  p.beta = values.Count("beta");
  p.tau1 = values.Number("tau1");
  p.tau2 = values.Number("tau2");
  p.lazy = values.Number("lazy");
  p.seed = std::strtoull(values.Text("seed").c_str(), nullptr, 10);
  p.block = values.Count("block");
  p.ranks = values.Flag("ranks");
  p.of = values.Word("of");
  p.select_block = values.Count("select_block");
  p.chunk = values.Count("chunk");
  p.weight = values.Word("weight");
  p.epsilon = values.Number("epsilon");
  p.redundancy = values.Number("redundancy");
  p.similarity = values.Number("similarity");
  p.secure = values.Number("secure");
  p.heads = values.Word("heads");
  p.floor = values.Number("floor");
  p.threshold = values.Number("threshold");
  p.normalize = values.Flag("normalize");
  p.merge = values.Word<kvevict_merge>("merge");
  p.merge_threshold = values.Number("merge_threshold");
  p.merge_fraction = values.Number("merge_fraction");
  p.rotate = values.Flag("rotate");
  p.margin = values.Count("margin");
  p.every = values.Count("every");
  p.prompt = values.Word("prompt");
  p.sums = values.Word("sums");
  p.sum_pool = values.Count("sum_pool");
  p.sum_last = values.Count("sum_last");
  p.raw_first = values.Flag("raw_first");
  p.rescue = values.Count("rescue");
  p.anchor = values.Word("anchor");
  p.diverse_mass = values.Number("diverse_mass");
  return p;
}

oracle_policy oracle_policy_from(const char* text) {
  kvevict_policy* policy = nullptr;
  if (kvevict_policy_create(text, &policy) != KVEVICT_OK) Fail(text);
  const oracle_policy values = oracle_policy_of(policy);
  kvevict_policy_destroy(policy);
  return values;
}
