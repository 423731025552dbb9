// Any text is a policy or an error; a policy prints, reads back and keeps what the
// oracle says.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/fuzz/fuzz.h"
#include "tests/oracle/policy.h"

namespace kvevict {
namespace {

// The names of all policies and presets.
const std::vector<const char*>& Names() {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> all;
    kvevict_policy_info policy{};
    policy.struct_size = sizeof(policy);
    for (uint32_t i = 0; kvevict_policy_at(i, &policy) == KVEVICT_OK; ++i) {
      all.push_back(policy.name);
    }
    kvevict_preset_info preset{};
    preset.struct_size = sizeof(preset);
    for (uint32_t i = 0; kvevict_preset_at(i, &preset) == KVEVICT_OK; ++i) {
      all.push_back(preset.name);
    }
    return all;
  }();
  return names;
}

constexpr const char* kPairs[] = {"budget=64",
                                  "budget=0.5",
                                  "budget=1e9",
                                  "budget=777.7",
                                  "sink=0",
                                  "sink=7",
                                  "recent=0",
                                  "recent=31",
                                  "window=1",
                                  "window=64",
                                  "pool=avg3",
                                  "pool=max63",
                                  "pool=none",
                                  "rows=sum",
                                  "rows=mean",
                                  "group=max",
                                  "group=sum",
                                  "scope=model",
                                  "scope=layer",
                                  "over=sum",
                                  "tie=higher",
                                  "order=pool-reduce",
                                  "edge=shrink",
                                  "alpha=0.3",
                                  "alpha=1",
                                  "beta=1",
                                  "beta=9",
                                  "split=geometric",
                                  "split=uniform",
                                  "seed=5",
                                  "split=arithmetic-kvf",
                                  "keep_window=no",
                                  "weight=norm",
                                  "weight=given",
                                  "epsilon=0.25",
                                  "block=2",
                                  "block=65536",
                                  "split=arithmetic-kvpress",
                                  "split=arithmetic-adakv",
                                  "select_block=3",
                                  "select_block=64",
                                  "chunk=64",
                                  "chunk=1",
                                  "merge=values",
                                  "merge=pivot",
                                  "merge=weighted",
                                  "merge_threshold=0.25",
                                  "merge_threshold=2",
                                  "merge_fraction=0.5",
                                  "merge_fraction=0",
                                  "fit=values",
                                  "fit_ridge=0.5",
                                  "reference=9"};

// A text as a person would write it, with an occasional slip, or any bytes.
std::string DrawText(Draw& draw) {
  std::string text;
  if (draw.Below(8) == 0) {
    while (!draw.empty()) text += static_cast<char>(draw.Byte());
    return text;
  }
  const std::vector<const char*>& names = Names();
  text = names[draw.Below(static_cast<uint32_t>(names.size()))];
  for (uint32_t n = draw.Below(8); n > 0; --n) {
    text += text.find(':') == text.npos ? ':' : ',';
    text += kPairs[draw.Below(std::size(kPairs))];
  }
  if (draw.Below(4) == 0) {
    text[draw.Below(static_cast<uint32_t>(text.size()))] =
        static_cast<char>(draw.Byte());
  }
  return text;
}

struct Destroy {
  void operator()(kvevict_policy* policy) const {
    kvevict_policy_destroy(policy);
  }
};
using PolicyHandle = std::unique_ptr<kvevict_policy, Destroy>;

PolicyHandle Reread(const kvevict_policy* policy) {
  char printed[1024];
  size_t length = 0;
  FUZZ_CHECK(kvevict_policy_format(policy, printed, sizeof(printed), &length) ==
             KVEVICT_OK);
  FUZZ_CHECK(length == std::strlen(printed));
  kvevict_policy* again = nullptr;
  FUZZ_CHECK(kvevict_policy_create(printed, &again) == KVEVICT_OK);
  return PolicyHandle(again);
}

// Every parameter has the same text.
void CheckSame(const kvevict_policy* a, const kvevict_policy* b) {
  kvevict_parameter_info row{};
  row.struct_size = sizeof(row);
  for (uint32_t i = 0; kvevict_parameter_at(nullptr, i, &row) == KVEVICT_OK;
       ++i) {
    char of_a[40] = "";
    char of_b[40] = "";
    FUZZ_CHECK(kvevict_policy_get(a, row.key, of_a, sizeof(of_a), nullptr) ==
               kvevict_policy_get(b, row.key, of_b, sizeof(of_b), nullptr));
    FUZZ_CHECK(std::strcmp(of_a, of_b) == 0);
  }
}

// `policy` keeps what the oracle says of its values.
void CheckBudgets(const kvevict_policy* policy, Draw& draw) {
  const oracle_policy values = oracle_policy_of(policy);
  const uint32_t n_context = 1 + draw.Below(5000);
  const uint32_t n_layers = 1 + draw.Below(20);
  std::vector<uint32_t> ours(n_layers), theirs(n_layers);
  const bool fits =
      oracle_layer_budgets(&values, n_context, theirs.data(), n_layers);
  const kvevict_status status =
      kvevict_policy_layer_budgets(policy, n_context, ours.data(), n_layers);
  FUZZ_CHECK((status == KVEVICT_OK) == fits);
  FUZZ_CHECK(!fits || ours == theirs);
}

void CheckPolicy(const kvevict_policy* policy, Draw& draw) {
  const PolicyHandle again = Reread(policy);
  CheckSame(policy, again.get());
  CheckBudgets(policy, draw);
  // The same values under another name, as far as that has the parameters.
  oracle_policy other = oracle_policy_of(policy);
  other.kind = static_cast<oracle_kind>(draw.Below(ORACLE_CUSTOM + 1));
  other.seed = draw.Byte();
  const PolicyHandle renamed(oracle_policy_create(&other));
  if (renamed != nullptr) CheckBudgets(Reread(renamed.get()).get(), draw);
}

}  // namespace
}  // namespace kvevict

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvevict::Draw draw(data, size);
  const std::string text = kvevict::DrawText(draw);
  kvevict_policy* policy = nullptr;
  if (kvevict_policy_create(text.c_str(), &policy) != KVEVICT_OK) {
    FUZZ_CHECK(policy == nullptr);
    return 0;
  }
  const kvevict::PolicyHandle owner(policy);
  kvevict::CheckPolicy(policy, draw);
  return 0;
}
