// The format, behind the header of saved_bytes.h:
//
//   u32 flags   u32 n_layers with a full cache   u32 pairs   u32 0
//   u64 turns of each pair per position, in 2^-64 turns
//   per layer: u32 number   u32 n_q_heads   u32 k_head_dim   u32 0   u64 rows
//              f64 sums per query head: elements, lengths of pairs, products
#include "core/calibration/saved_calibration.h"

#include <algorithm>
#include <cmath>

#include "core/saved_bytes.h"

namespace kvevict {
namespace {

constexpr SavedKind kKind = {
    {'K', 'V', 'E', 'V', 'C', 'A', 'L', 0x1A}, 1, "saved calibration"};
constexpr size_t kModelBytes = kSavedHeaderBytes + 16;
constexpr size_t kLayerBytes = 24;

enum Flags : uint32_t { kHasCovariances = 1, kIsInterleaved = 2 };

uint32_t FlagsOf(const Calibration& calibration) {
  return (calibration.has_covariances() ? kHasCovariances : 0u) |
         (calibration.plan().rope().is_interleaved() ? kIsInterleaved : 0u);
}

Status CheckEqual(const char* what, uint64_t saved, uint64_t own) {
  if (saved == own) return Status();
  return InvalidArgument("data: %s %llu is not the plan's %llu", what,
                         static_cast<unsigned long long>(saved),
                         static_cast<unsigned long long>(own));
}

Status CheckModel(const Calibration& calibration, SavedReader* in) {
  const uint32_t flags = in->U32();
  if (calibration.has_covariances() && (flags & kHasCovariances) == 0) {
    return InvalidArgument("data has no covariances, but the calibration has");
  }
  const Rope& rope = calibration.plan().rope();
  KV_RETURN_IF_ERROR(CheckEqual("rope_layout",
                                (flags & kIsInterleaved) / kIsInterleaved,
                                rope.is_interleaved() ? 1 : 0));
  if (flags > (kHasCovariances | kIsInterleaved)) {
    return InvalidArgument("data: unknown flags %u", flags);
  }
  KV_RETURN_IF_ERROR(CheckEqual("the number of layers with a full cache",
                                in->U32(), calibration.plan().n_layers()));
  KV_RETURN_IF_ERROR(
      CheckEqual("rope_inv_freq_len", in->U32(), rope.n_frequencies()));
  in->U32();
  for (uint32_t f = 0; f < rope.n_frequencies(); ++f) {
    if (in->U64() == rope.turns()[f]) continue;
    return InvalidArgument("data: rope_inv_freq[%u] is not the plan's", f);
  }
  return Status();
}

// Checks all layers, and adds their sums if `adds`.
Status ReadLayers(Calibration* calibration, SavedReader in, bool has_products,
                  bool adds) {
  for (uint32_t l = 0; l < calibration->plan().n_layers(); ++l) {
    const PlanLayer& layer = calibration->plan().layer(l);
    const kvevict_layer_geometry& g = layer.geometry;
    KV_RETURN_IF_ERROR(CheckEqual("layer", in.U32(), layer.number));
    KV_RETURN_IF_ERROR(CheckEqual("n_q_heads", in.U32(), g.n_q_heads));
    KV_RETURN_IF_ERROR(CheckEqual("k_head_dim", in.U32(), g.k_head_dim));
    in.U32();
    const uint64_t n_rows = in.U64();
    if (adds) calibration->rows(l) += n_rows;
    for (uint32_t h = 0; h < g.n_q_heads; ++h) {
      const HeadSums sums = calibration->SumsOf(l, h);
      const size_t n_products =
          has_products ? size_t{g.k_head_dim} * (g.k_head_dim + 1) / 2 : 0;
      const size_t n_first = sums.elements.size() + sums.lengths.size();
      for (size_t i = 0; i < n_first + n_products; ++i) {
        const double sum = in.F64();
        if (!std::isfinite(sum)) {
          return InvalidArgument("data: layer %u holds NaN or infinity",
                                 layer.number);
        }
        // Elements, lengths and products lie end to end.
        if (adds && i < n_first + sums.products.size()) {
          sums.elements.data()[i] += sum;
        }
      }
    }
    if (!in.ok()) break;
  }
  if (!in.ok() || in.n_left() > 0) {
    return InvalidArgument("data does not end with its last layer");
  }
  return Status();
}

}  // namespace

size_t SavedBytes(const Calibration& calibration) {
  size_t n = kModelBytes + calibration.n_pairs() * sizeof(uint64_t);
  for (uint32_t l = 0; l < calibration.plan().n_layers(); ++l) {
    n += kLayerBytes + calibration.SumsOf(l).size_bytes();
  }
  return n;
}

void SaveCalibration(const Calibration& calibration, std::span<uint8_t> out) {
  const Plan& plan = calibration.plan();
  SavedWriter to(out.data() + kSavedHeaderBytes);
  to.U32(FlagsOf(calibration));
  to.U32(plan.n_layers());
  to.U32(calibration.n_pairs());
  to.U32(0);
  for (const uint64_t turns : plan.rope().turns()) to.U64(turns);
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    const PlanLayer& layer = plan.layer(l);
    to.U32(layer.number);
    to.U32(layer.geometry.n_q_heads);
    to.U32(layer.geometry.k_head_dim);
    to.U32(0);
    to.U64(calibration.rows(l));
    for (const double sum : calibration.SumsOf(l)) to.F64(sum);
  }
  WriteSavedHeader(kKind, out);
}

Status LoadCalibration(Calibration* calibration,
                       std::span<const uint8_t> data) {
  KV_RETURN_IF_ERROR(CheckSavedHeader(kKind, data, kModelBytes));
  SavedReader in(data.subspan(kSavedHeaderBytes));
  const bool has_products = (SavedReader(in).U32() & kHasCovariances) != 0;
  KV_RETURN_IF_ERROR(CheckModel(*calibration, &in));
  KV_RETURN_IF_ERROR(ReadLayers(calibration, in, has_products, false));
  return ReadLayers(calibration, in, has_products, true);
}

}  // namespace kvevict
