// Statistics of a model's queries before RoPE. See kvevict/calibration.h.
#ifndef KVEVICT_CORE_CALIBRATION_CALIBRATION_H_
#define KVEVICT_CORE_CALIBRATION_CALIBRATION_H_

#include <cstdint>
#include <span>

#include "core/complex.h"
#include "core/context.h"
#include "core/plan/plan.h"

namespace kvevict {

// The sums of one query head, in one array of f64.
struct HeadSums {
  std::span<double> elements;  // [head_dim]
  std::span<double> lengths;   // [pairs], of complex numbers
  // [head_dim, head_dim] on and behind the diagonal, row by row; or empty
  std::span<double> products;
};

class Calibration {
 public:
  static Status Create(const Plan& plan, bool has_covariances,
                       Calibration** out);
  void Destroy();

  const Plan& plan() const { return *plan_; }
  bool has_covariances() const { return has_covariances_; }
  uint64_t& rows(uint32_t layer) { return rows_[layer]; }
  uint64_t rows(uint32_t layer) const { return rows_[layer]; }
  // Pairs of a row that RoPE turns.
  uint32_t n_pairs() const { return plan_->rope().n_frequencies(); }

  // All sums of a layer, head after head, and those of one head.
  std::span<double> SumsOf(uint32_t layer) const;
  HeadSums SumsOf(uint32_t layer, uint32_t head) const;

  // Adds nothing if it fails.
  Status Observe(uint32_t layer, const kvevict_plane& queries,
                 uint32_t first_position, uint32_t n_rows, Stream stream);

  // All need rows of the layer.
  void FindCenters(uint32_t layer, float* out) const;
  // turns[f] rotates pair f to the positions to come. `covariance` may be NULL.
  void FindExpected(uint32_t layer, std::span<const Complex> turns, float* mean,
                    float* covariance) const;

  Calibration(const Plan& plan, bool has_covariances)
      : plan_(plan),
        has_covariances_(has_covariances),
        rows_(plan.context()),
        first_sums_(plan.context()),
        sums_(plan.context()) {}

 private:
  Status Allocate();
  size_t SumsPerHead(uint32_t layer) const;
  Status AddRows(uint32_t layer, const kvevict_plane& rows,
                 uint32_t first_position, uint32_t n_rows);

  const Retained<Plan> plan_;
  const bool has_covariances_;
  Array<uint64_t> rows_;      // per layer
  Array<size_t> first_sums_;  // of each layer, and the end
  Array<double> sums_;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_CALIBRATION_CALIBRATION_H_
