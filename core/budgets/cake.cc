// CAKE: layers share what is left after the least in proportion to their
// preference, E^(1/tau1) V^(1/tau2) of the measured attention.
#include <algorithm>
#include <cmath>

#include "core/budgets/budgets.h"

namespace kvevict {
namespace {

bool IsPreferred(const LayerMeasure& layer) {
  return layer.first > 0.0f && layer.variance > 0.0f &&
         std::isfinite(layer.first) && std::isfinite(layer.variance);
}

// Preferences are scaled by about the largest, by a power of two that changes
// no digit.
class Preferences {
 public:
  explicit Preferences(const SplitInput& in) : in_(in) {
    LayerMeasure most;
    for (const LayerMeasure& layer : in.measures) {
      if (!IsPreferred(layer)) continue;
      most.first = std::max(most.first, layer.first);
      most.variance = std::max(most.variance, layer.variance);
    }
    if (!IsPreferred(most)) return;
    first_exponent_ = std::ilogb(most.first);
    variance_exponent_ = std::ilogb(most.variance);
  }

  double Of(size_t l) const {
    const LayerMeasure& layer = in_.measures[l];
    if (!IsPreferred(layer)) return 0.0;
    return std::pow(std::scalbn(double{layer.first}, -first_exponent_),
                    1.0 / in_.policy.tau1) *
           std::pow(std::scalbn(double{layer.variance}, -variance_exponent_),
                    1.0 / in_.policy.tau2);
  }

 private:
  const SplitInput& in_;
  int first_exponent_ = 0;
  int variance_exponent_ = 0;
};

// Deals equal parts of `total` to layers under `most`; the first ones get one
// more if needed. Parts may end above `most`.
void Deal(uint64_t total, uint32_t most, std::span<uint64_t> parts) {
  const auto is_open = [most](uint64_t part) { return part < most; };
  const auto n_open =
      static_cast<uint64_t>(std::count_if(parts.begin(), parts.end(), is_open));
  if (n_open == 0) return;
  uint64_t rest = total % n_open;
  for (uint64_t& part : parts) {
    if (!is_open(part)) continue;
    part += total / n_open + (rest > 0);
    rest -= rest > 0;
  }
}

}  // namespace

void SplitCake(const SplitInput& in, std::span<uint32_t> budgets) {
  const size_t n = budgets.size();
  const Preferences preferences(in);
  double sum = 0.0;
  for (size_t l = 0; l < n; ++l) sum += preferences.Of(l);
  if (sum == 0.0) return SplitUniform(in, budgets);

  const uint32_t most = in.n_context - in.least;
  const uint64_t total = uint64_t{in.budget - in.least} * n;
  uint64_t parts[kMaxLayers];
  uint64_t given = 0;
  uint64_t excess = 0;
  for (size_t l = 0; l < n; ++l) {
    // The product comes first, so that whole numbers stay whole.
    const auto part = static_cast<uint64_t>(preferences.Of(l) *
                                            static_cast<double>(total) / sum);
    parts[l] = std::min<uint64_t>(part, most);
    excess += part - parts[l];
    given += part;
  }
  Deal(excess, most, {parts, n});
  Deal(total - std::min(total, given), most, {parts, n});
  for (size_t l = 0; l < n; ++l) {
    budgets[l] =
        in.least + static_cast<uint32_t>(std::min<uint64_t>(parts[l], most));
  }
}

}  // namespace kvevict
