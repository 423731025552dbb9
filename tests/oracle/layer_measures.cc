#include "tests/oracle/layer_measures.h"

#include <algorithm>
#include <cmath>
#include <vector>

void oracle_measure_attention(const oracle_attention* in, uint32_t n_first,
                              uint32_t n_last, oracle_measure* measure) {
  const uint32_t n = in->n_tokens;
  const uint32_t n_past = n - in->window;
  std::vector<std::vector<double>> rows(in->window, std::vector<double>(n));
  for (uint32_t h = 0; h < in->n_q_heads; ++h) {
    for (uint32_t w = 0; w < in->window; ++w) {
      oracle_row_weights(in, h, w, rows[w].data());
      for (uint32_t j = 0; j < n_past; ++j) {
        const double a = rows[w][j];
        measure->entropy -= a * std::log(a + 1e-10);
        if (j < n_first || n_past - j <= n_last) measure->ends += a;
      }
    }
    for (uint32_t j = 0; j < n_past && in->window > 1; ++j) {
      std::vector<double> of_key;
      for (const auto& row : rows) of_key.push_back(row[j]);
      measure->variance += oracle_variance(of_key.data(), in->window);
    }
  }
}

namespace {

// The layers with fewer than n_past tokens get equal parts of the rest, and the
// first of them one more while any are left.
void HandOut(uint64_t to_have, uint32_t n_past,
             std::vector<uint64_t>* budgets) {
  std::vector<uint64_t*> open;
  for (uint64_t& budget : *budgets) {
    if (budget < n_past) open.push_back(&budget);
  }
  for (size_t i = 0; i < open.size(); ++i) {
    *open[i] += to_have / open.size() + (i < to_have % open.size() ? 1 : 0);
  }
}

}  // namespace

double oracle_split_cake(const double* preferences, uint32_t n_layers,
                         uint64_t total, uint32_t n_past, uint64_t* budgets) {
  double sum = 0.0;
  for (uint32_t l = 0; l < n_layers; ++l) sum += preferences[l];
  double nearest = 1.0;
  std::vector<uint64_t> parts(n_layers);
  uint64_t above = 0;
  for (uint32_t l = 0; l < n_layers; ++l) {
    const double share = preferences[l] / sum * static_cast<double>(total);
    // A share of nothing or everything cannot round the other way.
    if (preferences[l] > 0.0 && preferences[l] < sum) {
      nearest = std::min(nearest, std::abs(share - std::round(share)) /
                                      static_cast<double>(total));
    }
    const auto part = static_cast<uint64_t>(share);
    parts[l] = std::min<uint64_t>(part, n_past);
    above += part - parts[l];
  }
  if (above > 0) HandOut(above, n_past, &parts);
  uint64_t given = 0;
  for (uint64_t part : parts) given += part;
  if (given < total) HandOut(total - given, n_past, &parts);
  for (uint32_t l = 0; l < n_layers; ++l) {
    budgets[l] = std::min<uint64_t>(parts[l], n_past);
  }
  return nearest;
}
