// The mass of scores that a list keeps: see kvevict_list_report.
#ifndef KVEVICT_CORE_EVICT_MASS_H_
#define KVEVICT_CORE_EVICT_MASS_H_

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvevict {

// The mass of a score. It is 0 for NaN and infinities, and NaN for a negative
// score.
inline float MassOf(float score) {
  if (!std::isfinite(score)) return 0.0f;
  return score >= 0.0f ? score : std::numeric_limits<float>::quiet_NaN();
}

struct Mass {
  float all = 0.0f;
  float kept = 0.0f;
  float largest_evicted = 0.0f;

  bool IsKnown() const { return std::isfinite(all); }
  float ShareKept() const { return ShareOf(kept, 1.0f); }
  float LargestEvicted() const { return ShareOf(largest_evicted, 0.0f); }

  Mass operator+(const Mass& other) const {
    return {all + other.all, kept + other.kept,
            std::max(largest_evicted, other.largest_evicted)};
  }

 private:
  float ShareOf(float part, float of_nothing) const {
    if (!IsKnown()) return std::numeric_limits<float>::quiet_NaN();
    return all == 0.0f ? of_nothing : part / all;
  }
};
static_assert(sizeof(Mass) == 12);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_MASS_H_
