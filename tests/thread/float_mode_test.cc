// Scores, keep lists and budgets do not depend on the floating-point mode of a
// host's threads: flushed denormals or another rounding, on all of them or some.
// The threads find their mode unchanged afterwards.
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/thread/check.h"
#include "tests/thread/scenario.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
int main() {
  std::printf("skipped: no known register of floating-point modes\n");
  return 77;
}
#else

namespace kvevict {
namespace {

#if defined(__x86_64__)
using Mode = uint32_t;
constexpr Mode kFlags = 0x3F;
constexpr Mode kFlushing = 0x8040;  // FTZ, DAZ
constexpr Mode kUpwards = 0x4000;
Mode ReadMode() {
  Mode mode;
  asm volatile("stmxcsr %0" : "=m"(mode));
  return mode & ~kFlags;
}
void WriteMode(Mode mode) { asm volatile("ldmxcsr %0" ::"m"(mode) : "memory"); }
#else
using Mode = uint64_t;
constexpr Mode kFlushing = 1 << 24;  // FZ
constexpr Mode kUpwards = 1 << 22;
Mode ReadMode() {
  Mode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void WriteMode(Mode mode) {
  asm volatile("msr fpcr, %0" ::"r"(mode) : "memory");
}
#endif

// The threads of a host: worker w has set the bits workers[w].
struct Host {
  std::vector<Mode> workers;
  Mode caller;
};

void RunInModes(uint32_t n_items, kvevict_task_fn run, void* task,
                void* user_data) {
  const Host& host = *static_cast<const Host*>(user_data);
  std::atomic<uint32_t> next{0};
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < host.workers.size(); ++w) {
    threads.emplace_back([&, w] {
      const Mode mode = ReadMode() | host.workers[w];
      WriteMode(mode);
      for (uint32_t item = next++; item < n_items; item = next++) {
        run(task, item, w);
        CHECK(ReadMode() == mode);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr uint32_t kTokens = 200;
constexpr uint32_t kWindow = 16;

// Data made in the default mode.
struct Data {
  std::vector<float> k, q, scores;
};

// The window's first row gives token 0 nearly all its weight, and the others some
// exp(-84.5) and less, down to the smallest normal number. The other rows give
// everything to token 0. So the means over the rows are denormal, and so are the
// selection's scores: if flushed, all of them are equal.
Data MakeData() {
  constexpr size_t kQRow = kQHeads * kHeadDim, kKvRow = kKvHeads * kHeadDim;
  const double scale = std::sqrt(double{kHeadDim});
  Data data;
  data.k.resize(kTokens * kKvRow);
  data.q.resize(kWindow * kQRow);
  for (size_t i = 0; i < data.q.size(); i += kHeadDim) {
    data.q[i + (i >= kQRow)] = 1.0f;
  }
  for (size_t i = 0; i < data.k.size(); i += kHeadDim) {
    const size_t t = i / kKvRow;
    const double logit = -84.5 - 0.03 * static_cast<double>(t * 7 % kTokens);
    if (t == 0) {
      data.k[i + 1] = static_cast<float>(200.0 * scale);
    } else {
      data.k[i] = static_cast<float>(logit * scale);
    }
  }
  data.scores = RandomFloats(3, kKvHeads * kTokens);
  for (float& f : data.scores) f *= 1e-39f;
  return data;
}

// Computes on the calling thread, rounded to the nearest.
std::vector<uint32_t> Budgets() {
  kvevict_policy* policy = nullptr;
  CHECK_OK(kvevict_policy_create(
      "pyramidkv:budget=2048,window=32,split=arithmetic-kvpress", &policy));
  std::vector<uint32_t> budgets(kLayers * 9);
  CHECK_OK(kvevict_policy_layer_budgets(policy, 20000, budgets.data(),
                                        budgets.size()));
  kvevict_policy_destroy(policy);
  return budgets;
}

struct Answer {
  std::vector<float> scores;
  std::vector<int32_t> list;
  std::vector<uint32_t> budgets;
};

Answer Ask(Host host, const Data& data) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.n_threads = static_cast<uint32_t>(host.workers.size());
  options.parallel = RunInModes;
  options.parallel_user_data = &host;
  kvevict_context* context = nullptr;
  CHECK_OK(kvevict_context_create(&options, &context));
  kvevict_plan* scoring =
      NewPlan(context, "snapkv:budget=60,window=16,pool=none");
  kvevict_plan* selecting =
      NewPlan(context, "custom:budget=60,scope=layer,sink=0");
  const Mode own = ReadMode();
  WriteMode(own | host.caller);
  Answer answer;
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kKvHeads;
  view.k = RowsOf(data.k.data(), kKvHeads);
  answer.scores = ScoresOf(scoring, kTokens, view, data.q.data());
  answer.list = SlotsOf(context, selecting, kTokens, data.scores);
  answer.budgets = Budgets();
  CHECK(ReadMode() == (own | host.caller));
  WriteMode(own);
  kvevict_plan_destroy(selecting);
  kvevict_plan_destroy(scoring);
  kvevict_context_destroy(context);
  return answer;
}

void Run() {
  const Data data = MakeData();
  const Answer expected = Ask({{0, 0, 0}, 0}, data);
  uint32_t n_denormal = 0;
  for (float score : expected.scores) {
    n_denormal += score > 0.0f && score < 1.17549435e-38f;
  }
  std::printf("%u of %zu scores are denormal\n", n_denormal,
              expected.scores.size());
  CHECK(n_denormal > 10);  // else the test shows nothing
  const Host kHosts[] = {
      {{kFlushing, kFlushing, kFlushing}, kFlushing},
      {{kFlushing, 0, kFlushing}, 0},
      {{0, 0, 0}, kFlushing},
      {{kUpwards, kFlushing | kUpwards, 0}, kUpwards},
  };
  for (const Host& host : kHosts) {
    const Answer answer = Ask(host, data);
    CHECK(std::memcmp(answer.scores.data(), expected.scores.data(),
                      expected.scores.size() * sizeof(float)) == 0);
    CHECK(answer.list == expected.list);
    CHECK(answer.budgets == expected.budgets);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::Run(); }
#endif
