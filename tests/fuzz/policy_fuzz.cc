// Any text is a policy or an error; a policy prints, reads back and keeps what the
// oracle says.
#include <cstring>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/oracle/policy.h"

namespace kvevict {
namespace {

// Of all policies and presets.
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
                                  "merge_fraction=0"};

// A text as a person would write it, with a slip now and then, or any bytes.
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

kvevict_policy Reread(const kvevict_policy& policy) {
  char printed[640];
  size_t length = 0;
  FUZZ_CHECK(kvevict_policy_format(&policy, printed, sizeof(printed),
                                   &length) == KVEVICT_OK);
  FUZZ_CHECK(length == std::strlen(printed));
  kvevict_policy again = KVEVICT_POLICY_INIT;
  FUZZ_CHECK(kvevict_policy_parse(printed, &again) == KVEVICT_OK);
  return again;
}

// `policy` keeps what the oracle says of `same`.
void CheckBudgets(const kvevict_policy& policy, const kvevict_policy& same,
                  Draw& draw) {
  const uint32_t n_context = 1 + draw.Below(5000);
  const uint32_t n_layers = 1 + draw.Below(20);
  std::vector<uint32_t> ours(n_layers), theirs(n_layers);
  const bool fits =
      oracle_layer_budgets(&same, n_context, theirs.data(), n_layers);
  const kvevict_status status =
      kvevict_policy_layer_budgets(&policy, n_context, ours.data(), n_layers);
  FUZZ_CHECK((status == KVEVICT_OK) == fits);
  FUZZ_CHECK(!fits || ours == theirs);
}

void CheckPolicy(const kvevict_policy& policy, Draw& draw) {
  const kvevict_policy again = Reread(policy);
  FUZZ_CHECK(std::memcmp(&policy, &again, sizeof(policy)) == 0);
  CheckBudgets(again, policy, draw);
  // Fields that mean nothing to another policy are not printed, and change nothing.
  kvevict_policy other = policy;
  other.kind = static_cast<oracle_kind>(draw.Below(8));
  other.seed = draw.Byte();
  if (kvevict_policy_validate(&other) == KVEVICT_OK) {
    CheckBudgets(Reread(other), other, draw);
  }
}

}  // namespace
}  // namespace kvevict

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvevict::Draw draw(data, size);
  const std::string text = kvevict::DrawText(draw);
  kvevict_policy policy = KVEVICT_POLICY_INIT;
  const kvevict_policy before = policy;
  if (kvevict_policy_parse(text.c_str(), &policy) != KVEVICT_OK) {
    FUZZ_CHECK(std::memcmp(&policy, &before, sizeof(policy)) == 0);
    return 0;
  }
  kvevict::CheckPolicy(policy, draw);
  return 0;
}
