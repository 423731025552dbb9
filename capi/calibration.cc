#include "kvevict/calibration.h"

#include "capi/guard.h"
#include "core/calibration/calibration.h"
#include "core/calibration/saved_calibration.h"
#include "core/sequence/query_ring.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

// More would take longer than they change a mean.
constexpr uint32_t kMostPositions = 65536;

// Finds a layer that has rows.
Status FindSeenLayer(const Calibration& calibration, uint32_t number,
                     uint32_t* out) {
  KV_RETURN_IF_ERROR(FindLayer(calibration.plan(), number, out));
  if (calibration.rows(*out) > 0) return Status();
  return InvalidArgument("no query of layer %u has been observed", number);
}

Status CheckLengthOf(const char* name, size_t given, size_t wanted) {
  if (given == wanted) return Status();
  return InvalidArgument("%s %zu is not %zu", name, given, wanted);
}

}  // namespace

extern "C" {

kvevict_status kvevict_calibration_create(
    const kvevict_plan* plan, uint32_t has_covariances,
    kvevict_calibration** out_calibration) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckNotNull("out_calibration", out_calibration));
    if (has_covariances > 1) {
      return InvalidArgument("has_covariances %u is not 0 or 1",
                             has_covariances);
    }
    Calibration* calibration = nullptr;
    KV_RETURN_IF_ERROR(
        Calibration::Create(Core(plan), has_covariances != 0, &calibration));
    *out_calibration = reinterpret_cast<kvevict_calibration*>(calibration);
    return Status();
  });
}

void kvevict_calibration_destroy(kvevict_calibration* calibration) noexcept {
  if (calibration != nullptr) Core(calibration).Destroy();
}

kvevict_status kvevict_calibration_observe(kvevict_calibration* calibration,
                                           uint32_t layer,
                                           const kvevict_plane* queries,
                                           uint32_t first_position,
                                           uint32_t n_rows,
                                           kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("calibration", calibration));
    KV_RETURN_IF_ERROR(CheckNotNull("queries", queries));
    uint32_t place = 0;
    KV_RETURN_IF_ERROR(FindLayer(Core(calibration).plan(), layer, &place));
    KV_RETURN_IF_ERROR(CheckPositions({n_rows, first_position, nullptr}));
    return Core(calibration)
        .Observe(place, *queries, first_position, n_rows, stream);
  });
}

kvevict_status kvevict_calibration_rows(const kvevict_calibration* calibration,
                                        uint32_t layer,
                                        uint64_t* out_rows) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("calibration", calibration));
    KV_RETURN_IF_ERROR(CheckNotNull("out_rows", out_rows));
    uint32_t place = 0;
    KV_RETURN_IF_ERROR(FindLayer(Core(calibration).plan(), layer, &place));
    *out_rows = Core(calibration).rows(place);
    return Status();
  });
}

kvevict_status kvevict_calibration_query_centers(
    const kvevict_calibration* calibration, uint32_t layer, float* centers,
    size_t centers_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("calibration", calibration));
    KV_RETURN_IF_ERROR(CheckNotNull("centers", centers));
    const Calibration& c = Core(calibration);
    uint32_t place = 0;
    KV_RETURN_IF_ERROR(FindSeenLayer(c, layer, &place));
    if (c.n_pairs() == 0) {
      return InvalidArgument("the plan's geometry has no rope_inv_freq");
    }
    KV_RETURN_IF_ERROR(CheckLengthOf(
        "centers_len", centers_len,
        size_t{c.plan().layer(place).geometry.n_q_heads} * 3 * c.n_pairs()));
    c.FindCenters(place, centers);
    return Status();
  });
}

kvevict_status kvevict_calibration_query_mean(
    const kvevict_calibration* calibration, uint32_t layer,
    uint32_t first_position, uint32_t n_positions, float* mean, size_t mean_len,
    float* covariance, size_t covariance_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("calibration", calibration));
    KV_RETURN_IF_ERROR(CheckNotNull("mean", mean));
    const Calibration& c = Core(calibration);
    uint32_t place = 0;
    KV_RETURN_IF_ERROR(FindSeenLayer(c, layer, &place));
    if (n_positions == 0 || n_positions > kMostPositions) {
      return InvalidArgument("n_positions %u is not in [1, %u]", n_positions,
                             kMostPositions);
    }
    KV_RETURN_IF_ERROR(CheckPositions({n_positions, first_position, nullptr}));
    const kvevict_layer_geometry& g = c.plan().layer(place).geometry;
    const size_t n_mean = size_t{g.n_q_heads} * g.k_head_dim;
    KV_RETURN_IF_ERROR(CheckLengthOf("mean_len", mean_len, n_mean));
    KV_RETURN_IF_ERROR(
        CheckLengthOf("covariance_len", covariance_len,
                      covariance == nullptr ? 0 : n_mean * g.k_head_dim));
    if (covariance != nullptr && !c.has_covariances()) {
      return InvalidArgument(
          "covariance is not NULL, but the calibration has no covariances");
    }
    Array<Complex> turns(c.plan().context());
    KV_RETURN_IF_ERROR(turns.Allocate("turns", CheckedSize(c.n_pairs())));
    for (uint32_t f = 0; f < c.n_pairs(); ++f) {
      for (uint32_t i = 0; i < n_positions; ++i) {
        const Complex turn =
            c.plan().rope().TurnOf(f, static_cast<double>(first_position) + i);
        turns[f] = {turns[f].re + turn.re, turns[f].im + turn.im};
      }
      turns[f] = {turns[f].re / n_positions, turns[f].im / n_positions};
    }
    c.FindExpected(place, {turns.data(), turns.size()}, mean, covariance);
    return Status();
  });
}

kvevict_status kvevict_calibration_save(const kvevict_calibration* calibration,
                                        void* data, size_t data_capacity,
                                        size_t* out_data_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("calibration", calibration));
    const size_t length = SavedBytes(Core(calibration));
    if (data_capacity > 0) {
      KV_RETURN_IF_ERROR(CheckNotNull("data", data));
      if (data_capacity < length) {
        return InvalidArgument("data_capacity %zu < length %zu", data_capacity,
                               length);
      }
      SaveCalibration(Core(calibration), {static_cast<uint8_t*>(data), length});
    }
    if (out_data_len != nullptr) *out_data_len = length;
    return Status();
  });
}

kvevict_status kvevict_calibration_load(kvevict_calibration* calibration,
                                        const void* data,
                                        size_t data_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("calibration", calibration));
    KV_RETURN_IF_ERROR(CheckNotNull("data", data));
    return LoadCalibration(&Core(calibration),
                           {static_cast<const uint8_t*>(data), data_len});
  });
}

}  // extern "C"
