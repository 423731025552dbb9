// A small cache with everything that an eviction of it needs, for the mock.
#ifndef KVEVICT_TESTS_GPU_EVICTABLE_H_
#define KVEVICT_TESTS_GPU_EVICTABLE_H_

#include <fmt/format.h>

#include <initializer_list>
#include <numeric>
#include <string_view>
#include <vector>

#include "tests/gpu/model.h"

namespace kvevict::gpu {

inline constexpr char kPolicy[] = "snapkv:budget=60,scope=head,window=16";

inline Shape SmallShape() {
  return {"",
          2,
          4,
          2,
          32,
          120,
          KVEVICT_DTYPE_BF16,
          KVEVICT_DTYPE_BF16,
          Layout::kTokenMajor};
}

// A sequence in mid-prompt with everything that an eviction of it needs.
struct Evictable {
  Twin twin;
  Side side;
  Buffer workspace;
  Buffer scores;
  Buffer keep;  // lists of the first slots until something is selected

  explicit Evictable(const Gpu& gpu,
                     const kvevict_context_options* options = nullptr,
                     const char* policy = kPolicy)
      : twin(gpu, SmallShape(), 1),
        side(&gpu, &twin, policy, options),
        workspace(gpu, WorkspaceBytes(side.plan(), KVEVICT_OPERATION_EVICT)),
        scores(gpu, 240 * sizeof(float)),
        keep(gpu, 240 * sizeof(int32_t)) {
    std::vector<int32_t> slots(240);
    std::iota(slots.begin(), slots.end(), 0);
    keep.Write(slots.data(), keep.n_bytes());
  }

  kvevict_status Evict(const kvevict_evict_options* options = nullptr) const {
    return kvevict_sequence_evict(
        side.sequence(), twin.device_views().data(), twin.device_views().size(),
        options, workspace.pointer<void>(), workspace.n_bytes(), side.stream());
  }
};

// Fails unless a call returned `expected` with these words in its message.
inline void ExpectFailure(kvevict_status status, kvevict_status expected,
                          std::initializer_list<const char*> words,
                          Report* report) {
  const std::string_view message = kvevict_last_error_message();
  if (status != expected) {
    report->Fail(fmt::format("{} where {} was expected: {}",
                             kvevict_status_name(status),
                             kvevict_status_name(expected), message));
    return;
  }
  for (const char* word : words) {
    report->FailIf(message.find(word) == std::string_view::npos,
                   fmt::format("\"{}\" does not say {}", message, word));
  }
}

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_EVICTABLE_H_
