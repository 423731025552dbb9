#include "tools/recall/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tools/recall/random.h"

namespace kvevict::tools {
namespace {

constexpr uint64_t kCodeSeed = 0x6b76657669637431;  // "kvevict1"

// 32 bits that differ in d places correlate by 1 - d/16.
constexpr int kMinDistance = 10;
constexpr int kMaxDistance = 22;

std::array<uint32_t, kVocabulary> DrawCodes() {
  SplitMix64 random(kCodeSeed);
  std::array<uint32_t, kVocabulary> codes;
  for (auto next = codes.begin(); next != codes.end();) {
    const uint32_t code = static_cast<uint32_t>(random.Next() >> 32);
    const bool distinct = std::all_of(codes.begin(), next, [&](uint32_t other) {
      const int distance = std::popcount(code ^ other);
      return distance >= kMinDistance && distance <= kMaxDistance;
    });
    if (distinct) *next++ = code;
  }
  return codes;
}

}  // namespace

const std::array<uint32_t, kVocabulary>& TokenCodes() {
  static const std::array<uint32_t, kVocabulary> codes = DrawCodes();
  return codes;
}

float CodeValue(int32_t token, uint32_t i) {
  static const float unit =
      static_cast<float>(1 / std::sqrt(static_cast<double>(kCodeBits)));
  const uint32_t code = TokenCodes()[static_cast<size_t>(token)];
  return (code >> i & 1) != 0 ? unit : -unit;
}

}  // namespace kvevict::tools
