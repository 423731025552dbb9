// A long prompt with needles in it. It asks for a quarter of them at its end.
#ifndef KVEVICT_TOOLS_RECALL_WORKLOAD_H_
#define KVEVICT_TOOLS_RECALL_WORKLOAD_H_

#include <cstdint>
#include <vector>

namespace kvevict::tools {

inline constexpr uint32_t kNeedles = 64;
inline constexpr uint32_t kQuestions = 16;
inline constexpr uint32_t kQuestionTokens = 2 * kQuestions;

// Shorter prompts have no room for the needles. In longer ones RoPE rotates a
// key so far that the model no longer finds it.
inline constexpr uint32_t kMinTokens = 256;
inline constexpr uint32_t kMaxTokens = 32768;

struct Needle {
  uint32_t position;  // of the key; the value follows
  int32_t key;
  int32_t value;
  bool asked;
};

struct Workload {
  std::vector<int32_t> tokens;
  std::vector<Needle> needles;      // ascending positions
  std::vector<uint32_t> questions;  // needles in the order they are asked

  // Position of question i's key.
  uint32_t QuestionPosition(uint32_t i) const {
    return static_cast<uint32_t>(tokens.size()) - kQuestionTokens + 2 * i;
  }
};

// n_tokens within [kMinTokens, kMaxTokens].
Workload MakeWorkload(uint32_t n_tokens, uint64_t seed);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_RECALL_WORKLOAD_H_
