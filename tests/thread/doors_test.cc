// Many threads call the three doors and the thread-safe queries on shared handles,
// with workspaces and caches of their own.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/thread/check.h"
#include "tests/thread/scenario.h"

namespace kvevict {
namespace {

constexpr uint32_t kTokens = 150;
constexpr uint32_t kKeep = 60;
constexpr uint32_t kWindow = 16;

// Scores, selects and compacts; returns the rows that are left.
std::vector<float> WalkThrough(const kvevict_context* context,
                               const kvevict_plan* plan, uint64_t seed) {
  constexpr size_t kRow = kKvHeads * kHeadDim;
  std::vector<float> k = RandomFloats(seed, kTokens * kRow);
  std::vector<float> v = RandomFloats(seed + 1, kTokens * kRow);
  const std::vector<float> q =
      RandomFloats(seed + 2, kWindow * kQHeads * kHeadDim);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kKvHeads;
  view.k = RowsOf(k.data(), kKvHeads);
  view.v = RowsOf(v.data(), kKvHeads);
  const std::vector<float> scores = ScoresOf(plan, kTokens, view, q.data());
  std::vector<int32_t> slots = SlotsOf(context, plan, kTokens, scores);
  CHECK(slots.size() == kKvHeads * kKeep);
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = kKvHeads;
  keep.count = kKeep;
  keep.slots = slots.data();
  keep.slots_len = slots.size();
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = kTokens;
  move.view = &view;
  move.keep = &keep;
  CHECK_OK(kvevict_compact(context, &move, 1, nullptr, 0, nullptr));
  k.resize(kKeep * kRow);
  v.resize(kKeep * kRow);
  k.insert(k.end(), v.begin(), v.end());
  return k;
}

// Every thread reads its own message, whatever fails in others.
void AskAndFail(const kvevict_plan* plan, uint32_t thread) {
  for (uint32_t i = 0; i < 200; ++i) {
    uint32_t budgets[kLayers];
    CHECK_OK(kvevict_plan_layer_budgets(plan, 100 + i, budgets, kLayers));
    kvevict_capabilities capabilities{};
    capabilities.struct_size = sizeof(capabilities);
    CHECK_OK(kvevict_plan_capabilities(plan, i % kLayers, &capabilities));
    const uint32_t layer = 1000 * (thread + 1) + i;
    CHECK(kvevict_plan_capabilities(plan, layer, &capabilities) ==
          KVEVICT_ERROR_INVALID_ARGUMENT);
    CHECK(std::strstr(kvevict_last_error_message(),
                      std::to_string(layer).c_str()) != nullptr);
    const std::string text = "snapkv:budget=" + std::to_string(1000 + layer);
    kvevict_policy* policy = nullptr;
    CHECK_OK(kvevict_policy_create(text.c_str(), &policy));
    char printed[256];
    CHECK_OK(kvevict_policy_format(policy, printed, sizeof(printed), nullptr));
    kvevict_policy_destroy(policy);
    CHECK(text == printed);
    CHECK(kvevict_simd_target_at(0) != nullptr);
  }
}

void Run() {
  uint32_t n_threads = 3;
  kvevict_context* context = NewContext(&n_threads);
  kvevict_plan* plan = NewPlan(context, "snapkv:budget=60,window=16");
  constexpr uint32_t kCallers = 4;
  std::vector<std::vector<float>> expected(kCallers);
  for (uint32_t t = 0; t < kCallers; ++t) {
    expected[t] = WalkThrough(context, plan, 10 * t);
  }
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kCallers; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        CHECK(WalkThrough(context, plan, 10 * t) == expected[t]);
      }
      AskAndFail(plan, t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  kvevict_plan_destroy(plan);
  kvevict_context_destroy(context);
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Run();
  std::printf("three doors, many callers, the same rows\n");
}
