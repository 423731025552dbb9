// The smallest budgets that keep a share of the mass.
#include <algorithm>
#include <cmath>
#include <functional>

#include "core/doors/checks.h"
#include "core/doors/doors.h"
#include "core/evict/mass.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

// A row of scores in the order in which slots stay: those that must, then the
// others.
class Row {
 public:
  // `sorted` is memory for n scores.
  void Sort(const float* scores, uint32_t n, const kvevict_mass_options& o,
            float* sorted) {
    n_ = n;
    const auto n_sink = std::min(n, o.n_sink);
    const auto recent_begin = n - std::min(n - n_sink, o.n_recent);
    n_forced_ = n_sink + (n - recent_begin);
    n_infinite_ = n_finite_ = 0;
    sorted_ = sorted;
    for (uint32_t i = 0; i < n; ++i) {
      if (std::isfinite(scores[i]) && scores[i] < 0.0f) {
        below_zero_ = i;
        return;
      }
      if (i < n_sink || i >= recent_begin) {
        forced_ += double{MassOf(scores[i])};
      } else if (std::isfinite(scores[i])) {
        sorted[n_finite_++] = scores[i];
      } else {
        n_infinite_ += scores[i] > 0.0f;
      }
    }
    std::sort(sorted, sorted + n_finite_, std::greater<>());
    all_ = forced_;
    for (uint32_t i = 0; i < n_finite_; ++i) all_ += double{sorted[i]};
  }

  int64_t below_zero() const { return below_zero_; }
  uint32_t size() const { return n_; }
  uint32_t n_forced() const { return n_forced_; }

  void Begin() {
    kept_ = forced_;
    n_kept_ = n_forced_;
  }
  // Keeps up to `budget` slots. Budgets of later calls must not be smaller.
  void KeepUpTo(uint32_t budget) {
    for (; n_kept_ < std::min(budget, n_); ++n_kept_) {
      const uint32_t place = n_kept_ - n_forced_ - n_infinite_;
      // `place` wraps around for slots before the sorted ones.
      if (place < n_finite_) kept_ += double{sorted_[place]};
    }
  }
  double Share() const { return all_ == 0.0 ? 1.0 : kept_ / all_; }

 private:
  const float* sorted_ = nullptr;
  uint32_t n_ = 0;
  uint32_t n_forced_ = 0;
  uint32_t n_infinite_ = 0;
  uint32_t n_finite_ = 0;
  int64_t below_zero_ = -1;
  double forced_ = 0.0;
  double all_ = 0.0;
  double kept_ = 0.0;
  uint32_t n_kept_ = 0;
};

bool KeepEnough(std::span<const Row> rows, const kvevict_mass_options& o) {
  if (o.every_row != 0) {
    return std::all_of(rows.begin(), rows.end(),
                       [&](const Row& row) { return row.Share() >= o.mass; });
  }
  double sum = 0.0;
  for (const Row& row : rows) sum += row.Share();
  return sum / static_cast<double>(rows.size()) >= o.mass;
}

uint32_t BudgetOf(std::span<Row> rows, const kvevict_mass_options& o) {
  uint32_t budget = 1;
  uint32_t longest = 1;
  for (Row& row : rows) {
    budget = std::max(budget, row.n_forced());
    longest = std::max(longest, row.size());
    row.Begin();
  }
  for (;; ++budget) {
    for (Row& row : rows) row.KeepUpTo(budget);
    if (budget == longest || KeepEnough(rows, o)) return budget;
  }
}

Status CheckOptions(const kvevict_mass_options& o) {
  if (o.scope != KVEVICT_SCOPE_KV_HEAD && o.scope != KVEVICT_SCOPE_LAYER &&
      o.scope != KVEVICT_SCOPE_MODEL) {
    return InvalidArgument("scope %d is no scope", static_cast<int>(o.scope));
  }
  if (!(o.mass > 0.0 && o.mass <= 1.0)) {  // NaN fails
    return InvalidArgument("mass %g is not in (0, 1]", o.mass);
  }
  if (o.every_row > 1) {
    return InvalidArgument("every_row %u is not 0 or 1", o.every_row);
  }
  if (o.reserved == 0) return Status();
  return InvalidArgument("options.reserved %u is not 0", o.reserved);
}

Status CheckLayers(std::span<const LayerScores> layers, CheckedSize* n_rows,
                   CheckedSize* n_scores) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerScores& layer = layers[l];
    Status status = CheckTokenCount(layer.n_tokens, 1, INT32_MAX, "most");
    if (status.ok()) status = CheckListCount("n_rows", layer.n_rows);
    if (!status.ok()) return Prefixed(status, "layers[%zu]: ", l);
    if (layer.scores.size() != uint64_t{layer.n_rows} * layer.n_tokens) {
      return InvalidArgument(
          "layers[%zu]: scores_len %zu is not n_rows %u * n_tokens %u", l,
          layer.scores.size(), layer.n_rows, layer.n_tokens);
    }
    *n_rows = *n_rows + CheckedSize(layer.n_rows);
    *n_scores = *n_scores + CheckedSize(layer.scores.size());
  }
  return Status();
}

}  // namespace

Status BudgetForMass(const Context& context,
                     std::span<const LayerScores> layers,
                     const kvevict_mass_options& o,
                     std::span<uint32_t> budgets) {
  KV_RETURN_IF_ERROR(CheckOptions(o));
  CheckedSize n_rows(0);
  CheckedSize n_scores(0);
  KV_RETURN_IF_ERROR(CheckLayers(layers, &n_rows, &n_scores));
  const size_t wanted = o.scope == KVEVICT_SCOPE_KV_HEAD ? n_rows.value()
                        : o.scope == KVEVICT_SCOPE_LAYER ? layers.size()
                                                         : !layers.empty();
  if (budgets.size() != wanted) {
    return InvalidArgument("budgets_len %zu is not %zu", budgets.size(),
                           wanted);
  }
  Array<float> sorted(context);
  Array<Row> rows(context);
  KV_RETURN_IF_ERROR(sorted.AllocateUncleared("sorted scores", n_scores));
  KV_RETURN_IF_ERROR(rows.Allocate("rows of scores", n_rows));
  float* memory = sorted.data();
  size_t first_row = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerScores& layer = layers[l];
    const std::span<Row> of_layer(rows.data() + first_row, layer.n_rows);
    context.ParallelFor(layer.n_rows, [&](uint32_t r, uint32_t) {
      const size_t begin = size_t{r} * layer.n_tokens;
      of_layer[r].Sort(layer.scores.data() + begin, layer.n_tokens, o,
                       memory + begin);
    });
    for (uint32_t r = 0; r < layer.n_rows; ++r) {
      const int64_t slot = of_layer[r].below_zero();
      if (slot < 0) continue;
      return InvalidArgument(
          "layers[%zu]: score %g of row %u, slot %lld is below 0: no mass", l,
          double{layer.scores[size_t{r} * layer.n_tokens + size_t(slot)]}, r,
          static_cast<long long>(slot));
    }
    memory += layer.scores.size();
    first_row += layer.n_rows;
  }
  const std::span<Row> all(rows.data(), rows.size());
  size_t row = 0;
  for (size_t i = 0; i < budgets.size(); ++i) {
    const size_t n = o.scope == KVEVICT_SCOPE_KV_HEAD ? 1
                     : o.scope == KVEVICT_SCOPE_LAYER ? layers[i].n_rows
                                                      : all.size();
    budgets[i] = BudgetOf(all.subspan(row, n), o);
    row += n;
  }
  return Status();
}

}  // namespace kvevict
