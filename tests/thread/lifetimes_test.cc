// Many threads make and destroy handles in any order. The last one frees what they
// share.
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/thread/check.h"
#include "tests/thread/scenario.h"

namespace kvevict {
namespace {

void* Alloc(size_t n_bytes, size_t alignment, void* n_live) {
  ++*static_cast<std::atomic<int>*>(n_live);
  return std::aligned_alloc(alignment,
                            (n_bytes + alignment - 1) / alignment * alignment);
}

void Free(void* memory, size_t, size_t, void* n_live) {
  --*static_cast<std::atomic<int>*>(n_live);
  std::free(memory);
}

// Main gives up its handles while requests still run.
void HandlesOutliveTheirMaker() {
  std::atomic<int> n_live{0};
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.alloc = Alloc;
  options.free = Free;
  options.alloc_user_data = &n_live;
  for (int round = 0; round < 10; ++round) {
    kvevict_context* context = nullptr;
    CHECK_OK(kvevict_context_create(&options, &context));
    kvevict_plan* plan = NewPlan(context, "snapkv:budget=80,window=4");
    std::vector<kvevict_sequence*> sequences(4);
    for (kvevict_sequence*& sequence : sequences) {
      CHECK_OK(kvevict_sequence_create(plan, &sequence));
      CHECK_OK(kvevict_sequence_begin_observing(sequence, nullptr, 0));
    }
    std::vector<std::thread> threads;
    for (kvevict_sequence* sequence : sequences) {
      threads.emplace_back([sequence] {
        for (int i = 0; i < 50; ++i) {
          CHECK_OK(kvevict_sequence_append(sequence, 3, nullptr));
          CHECK_OK(kvevict_sequence_end_observing(sequence));
          CHECK_OK(kvevict_sequence_begin_observing(sequence, nullptr, 0));
          CHECK_OK(kvevict_sequence_reset(sequence, nullptr));
        }
        kvevict_sequence_destroy(sequence);
      });
    }
    kvevict_plan_destroy(plan);
    kvevict_context_destroy(context);
    for (std::thread& thread : threads) thread.join();
    CHECK(n_live == 0);
  }
}

// Contexts, plans and sequences are created on many threads from shared parents.
void HandlesAreMadeAtOnce() {
  std::atomic<int> n_live{0};
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.alloc = Alloc;
  options.free = Free;
  options.alloc_user_data = &n_live;
  kvevict_context* context = nullptr;
  CHECK_OK(kvevict_context_create(&options, &context));
  kvevict_plan* shared = NewPlan(context, "random:sink=0,budget=80");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        kvevict_sequence* of_shared = nullptr;
        CHECK_OK(kvevict_sequence_create(shared, &of_shared));
        kvevict_plan* own = NewPlan(context, "pyramidkv:budget=80");
        kvevict_sequence* of_own = nullptr;
        CHECK_OK(kvevict_sequence_create(own, &of_own));
        CHECK_OK(kvevict_sequence_begin_observing(of_own, nullptr, 0));
        kvevict_plan_destroy(own);
        kvevict_sequence_destroy(of_shared);
        kvevict_sequence_destroy(of_own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  kvevict_plan_destroy(shared);
  kvevict_context_destroy(context);
  CHECK(n_live == 0);
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::HandlesOutliveTheirMaker();
  kvevict::HandlesAreMadeAtOnce();
  std::printf("handles live and die on any thread\n");
}
