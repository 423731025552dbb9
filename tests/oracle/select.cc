#include "tests/oracle/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/oracle/reduce.h"

void oracle_combine(const float* rows, uint32_t n_rows, uint32_t n_tokens,
                    kvevict_reduce reduce, float* out) {
  for (uint32_t j = 0; j < n_tokens; ++j) {
    std::vector<double> terms;
    for (uint32_t r = 0; r < n_rows; ++r) {
      terms.push_back(rows[size_t{r} * n_tokens + j]);
    }
    out[j] = static_cast<float>(kvevict::oracle::Reduce(terms, reduce));
  }
}

void oracle_select(const float* scores, uint32_t n_tokens, uint32_t n_keep,
                   const uint8_t* forced, kvevict_tie tie, int32_t* keep) {
  std::vector<int32_t> order(n_tokens);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (forced[a] != forced[b]) return forced[a] > forced[b];
    const bool a_nan = std::isnan(scores[a]), b_nan = std::isnan(scores[b]);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && scores[a] != scores[b]) return scores[a] > scores[b];
    return tie == KVEVICT_TIE_LOWER_POSITION ? a < b : a > b;
  });
  std::sort(order.begin(), order.begin() + n_keep);
  std::copy(order.begin(), order.begin() + n_keep, keep);
}

bool oracle_selection_is_right(const double* scores, uint32_t n_tokens,
                               const int32_t* keep, uint32_t n_keep,
                               const uint8_t* forced, double tolerance) {
  std::vector<bool> kept(n_tokens, false);
  for (uint32_t i = 0; i < n_keep; ++i) {
    if (keep[i] < 0 || static_cast<uint32_t>(keep[i]) >= n_tokens) return false;
    if (i > 0 && keep[i] <= keep[i - 1]) return false;
    kept[keep[i]] = true;
  }
  double worst_kept = std::numeric_limits<double>::infinity();
  double best_lost = -std::numeric_limits<double>::infinity();
  for (uint32_t j = 0; j < n_tokens; ++j) {
    if (forced[j] && !kept[j]) return false;
    if (forced[j]) continue;
    if (kept[j]) worst_kept = std::min(worst_kept, scores[j]);
    if (!kept[j]) best_lost = std::max(best_lost, scores[j]);
  }
  return !(best_lost > worst_kept + tolerance);
}
