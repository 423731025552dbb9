#include "tests/oracle/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/oracle/numbers.h"

namespace {

double Dot(const float* a, const float* b, uint32_t n) {
  double sum = 0.0;
  for (uint32_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

double Norm(const float* row, uint32_t n) {
  return std::sqrt(Dot(row, row, n));
}

// A row that goes.
struct Gone {
  uint32_t slot;
  uint32_t target;  // place in keep
  double similarity;
  double weight;
};

class Merging {
 public:
  Merging(const oracle_merge_rows& rows, kvevict_merge rule, double threshold,
          double fraction)
      : r_(rows),
        rule_(rule),
        threshold_(threshold),
        fraction_(fraction),
        // The roundings of products, norms and divisions of both keys.
        similarity_error_(kUnit * (3.0 * rows.key_dim + 12)) {}

  double Run(oracle_merged* out) {
    for (uint32_t slot = 0; slot < r_.n_tokens; ++slot) {
      const bool stays = std::binary_search(r_.keep, r_.keep + r_.n_keep,
                                            static_cast<int32_t>(slot));
      if (!stays && TakesPart(slot)) FindTarget(slot);
    }
    Weigh();
    for (uint32_t t = 0; t < r_.n_keep; ++t) {
      out->changes[t] = 0;
      Write(r_.keys, r_.key_dim, t, rule_ != KVEVICT_MERGE_VALUES, out->keys,
            out->key_bounds, &out->changes[t]);
      if (r_.values != nullptr) {
        Write(r_.values, r_.value_dim, t, true, out->values, out->value_bounds,
              &out->changes[t]);
      }
    }
    return gap_;
  }

 private:
  const float* Key(uint32_t slot) const {
    return r_.keys + size_t{slot} * r_.key_dim;
  }
  double ValueNorm(uint32_t slot) const {
    return Norm(r_.values + size_t{slot} * r_.value_dim, r_.value_dim);
  }

  static bool IsFinite(double norm) {
    return norm * norm <= double{std::numeric_limits<float>::max()};
  }
  bool TakesPart(uint32_t slot) const {
    return IsFinite(Norm(Key(slot), r_.key_dim)) &&
           (r_.values == nullptr || IsFinite(ValueNorm(slot)));
  }

  double Similarity(uint32_t a, uint32_t b) const {
    const double norms = std::max(Norm(Key(a), r_.key_dim), 1e-6) *
                         std::max(Norm(Key(b), r_.key_dim), 1e-6);
    return Dot(Key(a), Key(b), r_.key_dim) / norms;
  }

  void FindTarget(uint32_t slot) {
    Gone gone{slot, UINT32_MAX, -kInfinity, 0.0};
    for (uint32_t t = 0; t < r_.n_keep; ++t) {
      const auto kept = static_cast<uint32_t>(r_.keep[t]);
      if (!TakesPart(kept)) continue;
      const double similarity = Similarity(slot, kept);
      if (similarity > gone.similarity)
        gone.similarity = similarity, gone.target = t;
    }
    if (gone.target == UINT32_MAX) return;
    const auto best = static_cast<uint32_t>(r_.keep[gone.target]);
    for (uint32_t t = 0; t < r_.n_keep; ++t) {
      const auto kept = static_cast<uint32_t>(r_.keep[t]);
      if (t == gone.target || !TakesPart(kept)) continue;
      if (std::equal(Key(kept), Key(kept) + r_.key_dim, Key(best))) continue;
      Note(gone.similarity - Similarity(slot, kept));
    }
    gone_.push_back(gone);
  }

  // Notes two numbers that must be told apart.
  void Note(double apart) {
    gap_ = std::min(gap_, std::abs(apart) - 2 * similarity_error_);
  }

  double Cutoff() {
    if (fraction_ == 1.0) return threshold_;
    std::vector<double> all(r_.n_tokens - r_.n_keep, -kInfinity);
    for (size_t e = 0; e < gone_.size(); ++e) {
      if (gone_[e].similarity >= threshold_) all[e] = gone_[e].similarity;
    }
    std::sort(all.begin(), all.end());
    const double rank = (1.0 - fraction_) * static_cast<double>(all.size() - 1);
    const auto below = static_cast<size_t>(rank);
    const double part = rank - static_cast<double>(below);
    if (part > 0.0) Note(std::min(part, 1.0 - part) * 1e-3);
    const double low = all[below];
    if (low == -kInfinity) return threshold_;
    if (part == 0.0) return low;
    return low + part * (all[below + 1] - low);
  }

  void Weigh() {
    if (gone_.empty()) return;
    const bool by_values = rule_ == KVEVICT_MERGE_VALUES;
    const double cutoff = by_values ? Cutoff() : -kInfinity;
    for (Gone& gone : gone_) {
      const double s = gone.similarity;
      if (by_values) {
        Note(s - threshold_);
        if (s != cutoff) Note(s - cutoff);
        if (s < cutoff) continue;
        const double mine = ValueNorm(gone.slot);
        const double others =
            ValueNorm(static_cast<uint32_t>(r_.keep[gone.target]));
        gone.weight = std::max(s, 0.0) * mine / (mine + others + 1e-6);
      } else if (rule_ == KVEVICT_MERGE_PIVOT) {
        gone.weight = 0.5;
      } else {
        gone.weight = std::max((s + 1) / 2, 1e-6);
      }
    }
  }

  // The error of a weight.
  double WeightError(const Gone& gone) const {
    if (rule_ == KVEVICT_MERGE_PIVOT) return 0.0;
    return similarity_error_ + kUnit * (2.0 * r_.value_dim + 8) * gone.weight;
  }

  // Writes row t of the results, unchanged if nothing merges into it.
  void Write(const float* rows, uint32_t dim, uint32_t t, bool merges,
             double* out, double* bounds, uint8_t* changes) const {
    const float* own = rows + size_t{static_cast<uint32_t>(r_.keep[t])} * dim;
    double weights = 0.0, weights_error = 0.0;
    uint32_t n = 0;
    for (const Gone& gone : gone_) {
      if (!merges || gone.target != t || gone.weight == 0.0) continue;
      weights += gone.weight;
      weights_error += WeightError(gone);
      ++n;
    }
    for (uint32_t i = 0; i < dim; ++i) {
      double& x = out[size_t{t} * dim + i];
      double& bound = bounds[size_t{t} * dim + i];
      x = double{own[i]};
      bound = 0.0;
      if (n == 0) continue;
      // The pivot counts once in the mean with itself, and by half in each of the others.
      const bool pivots = rule_ == KVEVICT_MERGE_PIVOT;
      if (pivots) x *= 1.0 + weights;
      double sizes = std::abs(x);
      double off = 0.0;
      for (const Gone& gone : gone_) {
        if (gone.target != t || gone.weight == 0.0) continue;
        const double other = rows[size_t{gone.slot} * dim + i];
        x += gone.weight * other;
        sizes += gone.weight * std::abs(other);
        off += WeightError(gone) * std::abs(other);
      }
      const double divisor = 1.0 + weights * (pivots ? 2.0 : 1.0);
      x /= divisor;
      bound = (off + kUnit * (n + 4) * sizes +
               std::abs(x) * (weights_error + kUnit * (n + 4) * divisor)) /
              divisor;
    }
    if (n > 0) *changes = 1;
  }

  const oracle_merge_rows& r_;
  const kvevict_merge rule_;
  const double threshold_;
  const double fraction_;
  const double similarity_error_;
  std::vector<Gone> gone_;
  double gap_ = kInfinity;
};

}  // namespace

double oracle_merge(const oracle_merge_rows* rows, kvevict_merge rule,
                    double threshold, double fraction, oracle_merged* out) {
  return Merging(*rows, rule, threshold, fraction).Run(out);
}
