// Budgets of policy texts, the library's error messages, and an eviction whose
// lengths and rows the cache then has.
#include <criterion/criterion.h>

#include <cstring>
#include <string>

#include "tests/tools/engine_test_util.h"
#include "tools/engine/evictor.h"
#include "tools/engine/policies.h"

namespace kvevict::tools {
namespace {

Test(engine_evictor, the_default_budget_fills_what_the_text_leaves_open) {
  cr_expect(ParsePolicy("snapkv", 512).Number("budget") == 512);
  cr_expect(ParsePolicy("snapkv:window=16", 512).Number("budget") == 512);
  cr_expect(ParsePolicy("snapkv:budget=300", 512).Number("budget") == 300);
  cr_expect(ParsePolicy("snapkv: budget = 1.0", 512).Number("budget") == 1.0);
  cr_expect(ParsePolicy("streaming-llm", 512).Number("budget") == 512);
  // Its window and sinks say how much it keeps.
  const Policy window = ParsePolicy("streaming-llm:recent=100", 512);
  cr_expect(window.Resolve(1000).budget == 104);
}

Test(engine_evictor, errors_speak_the_librarys_words) {
  try {
    ParsePolicy("snapkv:window=x", 512);
    cr_expect(false, "was accepted");
  } catch (const KvevictError& error) {
    cr_expect(error.status == KVEVICT_ERROR_INVALID_ARGUMENT);
    cr_expect(std::string(error.what()) == kvevict_last_error_message());
    cr_expect(std::strlen(error.what()) > 0);
  }
}

// StreamingLLM needs no queries, so the survivors are known without scoring.
Test(engine_evictor, evict_leaves_lengths_and_rows_as_the_policy_says) {
  constexpr uint32_t kTokens = 100, kRow = 8;
  const KvShape shape = {.n_layers = 2,
                         .n_kv_heads = 2,
                         .k_head_dim = 4,
                         .v_head_dim = 4,
                         .capacity = kTokens + 1};
  ThreadPool pool(2);
  KvCache cache(shape);
  Evictor evictor(shape, {.n_q_heads = 4},
                  ParsePolicy("streaming-llm:sink=3", 20), pool);
  const std::vector<float> k = RandomFloats(kTokens * kRow, 1);
  const std::vector<float> v = RandomFloats(kTokens * kRow, 2);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    cache.Append(layer, kTokens, k.data(), kRow, v.data(), kRow);
  }
  evictor.Append(kTokens);

  const Evictor::Report report = evictor.Evict(cache);
  cr_expect(report.evicted);
  cr_expect(report.bytes_before == 2 * kTokens * 2 * kRow * 4);
  cr_expect(report.bytes_after == 2 * 20 * 2 * kRow * 4);
  cr_expect(report.bytes_after == cache.bytes_in_use());
  cr_expect(evictor.logical_length() == kTokens);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    cr_expect(cache.length(layer) == 20);
    cr_expect(evictor.stored_length(layer) == 20);
    const float* kept = static_cast<const float*>(cache.k(layer));
    const float* last = k.data() + (kTokens - 17) * kRow;
    cr_expect(std::memcmp(kept, k.data(), 3 * kRow * 4) == 0);
    cr_expect(std::memcmp(kept + 3 * kRow, last, 17 * kRow * 4) == 0);
  }
}

}  // namespace
}  // namespace kvevict::tools
