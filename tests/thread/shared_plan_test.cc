// Requests that share a plan and a context, each on a thread of its own with work
// on more threads, end as they do one after another on one thread.
#include <thread>
#include <vector>

#include "tests/thread/check.h"
#include "tests/thread/scenario.h"

namespace kvevict {
namespace {

constexpr uint32_t kRequests = 6;

void ExpectSameAsSerial(const char* policy) {
  uint32_t one = 1;
  kvevict_context* serial_context = NewContext(&one);
  kvevict_plan* serial_plan = NewPlan(serial_context, policy);
  std::vector<Outcome> expected;
  for (uint32_t r = 0; r < kRequests; ++r) {
    expected.push_back(Live(serial_plan, r));
  }
  CHECK(!(expected[0] == expected[1]));
  kvevict_plan_destroy(serial_plan);
  kvevict_context_destroy(serial_context);

  for (uint32_t n_threads : {1u, 2u, 4u}) {
    kvevict_context* context = NewContext(&n_threads);
    kvevict_plan* plan = NewPlan(context, policy);
    std::vector<Outcome> outcomes(kRequests);
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < kRequests; ++r) {
      threads.emplace_back([&, r] { outcomes[r] = Live(plan, r); });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(outcomes == expected);
    kvevict_plan_destroy(plan);
    kvevict_context_destroy(context);
  }
  std::printf("%s: %u requests at once as one by one\n", policy, kRequests);
}

}  // namespace
}  // namespace kvevict

int main() {
  for (const char* policy :
       {"none", "snapkv:budget=80,window=16",
        "snapkv:budget=80,window=16,scope=model",
        "pyramidkv:budget=80,window=8,alpha=0.8", "streaming-llm:budget=50",
        "random:sink=0,budget=60,scope=layer"}) {
    kvevict::ExpectSameAsSerial(policy);
  }
}
