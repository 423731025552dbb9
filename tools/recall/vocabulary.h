// Tokens of the recall model and the code that represents each.
#ifndef KVEVICT_TOOLS_RECALL_VOCABULARY_H_
#define KVEVICT_TOOLS_RECALL_VOCABULARY_H_

#include <array>
#include <cstdint>

namespace kvevict::tools {

inline constexpr int32_t kBos = 0;
inline constexpr int32_t kSeparator = 1;
inline constexpr int32_t kUnknown = 2;  // the answer "not found"
inline constexpr int32_t kFirstKey = 64;
inline constexpr int32_t kFirstValue = 128;
inline constexpr int32_t kFirstFiller = 192;
inline constexpr uint32_t kKeys = 64;  // there are as many values
inline constexpr uint32_t kFillers = 128;
inline constexpr uint32_t kVocabulary = 320;

inline constexpr uint32_t kCodeBits = 32;

// One code per token: bit i set means +1/sqrt(32) in dimension i, otherwise
// -1/sqrt(32). Any two correlate by at most 0.375.
const std::array<uint32_t, kVocabulary>& TokenCodes();

// Dimension i of a token's code.
float CodeValue(int32_t token, uint32_t i);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_RECALL_VOCABULARY_H_
