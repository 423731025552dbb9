#include "core/calibration/calibration.h"

#include <algorithm>
#include <utility>

#include "core/kernels/query_sums.h"
#include "core/memory/device_array.h"
#include "core/signals/signal_inputs.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// Multiplies the pair (x, y), as a complex number, by another.
void Turn(const Complex& turn, double& x, double& y) {
  const double re = x * turn.re - y * turn.im;
  y = x * turn.im + y * turn.re;
  x = re;
}

}  // namespace

Status Calibration::Create(const Plan& plan, bool has_covariances,
                           Calibration** out) {
  auto* const calibration =
      NewObject<Calibration>(plan.context(), plan, has_covariances);
  if (calibration == nullptr) {
    return OutOfMemory("calibration: no memory for %zu bytes",
                       sizeof(Calibration));
  }
  if (Status status = calibration->Allocate(); !status.ok()) {
    calibration->Destroy();
    return status;
  }
  *out = calibration;
  return Status();
}

void Calibration::Destroy() { DeleteObject(plan_->context(), this); }

size_t Calibration::SumsPerHead(uint32_t layer) const {
  const size_t dim = plan_->layer(layer).geometry.k_head_dim;
  return dim + n_pairs() + (has_covariances_ ? dim * (dim + 1) / 2 : 0);
}

Status Calibration::Allocate() {
  const uint32_t n = plan_->n_layers();
  KV_RETURN_IF_ERROR(rows_.Allocate("rows of a calibration", CheckedSize(n)));
  KV_RETURN_IF_ERROR(first_sums_.Allocate("layers of a calibration",
                                          CheckedSize(n) + CheckedSize(1)));
  CheckedSize end(0);
  for (uint32_t l = 0; l < n; ++l) {
    end = end + CheckedSize(SumsPerHead(l)) *
                    CheckedSize(plan_->layer(l).geometry.n_q_heads);
    first_sums_[l + 1] = end.value();
  }
  return sums_.Allocate("sums of a calibration", end);
}

std::span<double> Calibration::SumsOf(uint32_t layer) const {
  double* const all = const_cast<double*>(sums_.data());
  return {all + first_sums_[layer], all + first_sums_[layer + 1]};
}

HeadSums Calibration::SumsOf(uint32_t layer, uint32_t head) const {
  const size_t n = SumsPerHead(layer);
  const size_t dim = plan_->layer(layer).geometry.k_head_dim;
  const std::span<double> sums = SumsOf(layer).subspan(head * n, n);
  return {sums.first(dim), sums.subspan(dim, n_pairs()),
          sums.subspan(dim + n_pairs())};
}

// ---- Adding rows ----

Status Calibration::Observe(uint32_t layer, const kvevict_plane& queries,
                            uint32_t first_position, uint32_t n_rows,
                            Stream stream) {
  const Context& context = plan_->context();
  kvevict_layer_geometry shown = plan_->layer(layer).geometry;
  if (queries.dtype == KVEVICT_DTYPE_F32) shown.q_dtype = KVEVICT_DTYPE_F32;
  LayerInputs inputs;
  inputs.queries = &queries;
  KV_RETURN_IF_ERROR(CheckQueryRows(shown, n_rows, inputs));
  if (n_rows == 0) return Status();
  const uint32_t row_bytes = RowBytes(queries);
  if (context.backend().on_host) {
    return AddRows(layer, WithPackedStrides(queries, row_bytes, n_rows),
                   first_position, n_rows);
  }
  // Packs [n_rows, n_q_heads, row] on the device.
  const CheckedSize n_bytes = CheckedSize(n_rows) *
                              CheckedSize(shown.n_q_heads) *
                              CheckedSize(row_bytes);
  DeviceArray<uint8_t> packed(context);
  Array<uint8_t> rows(context);
  KV_RETURN_IF_ERROR(packed.AllocateUncleared("query rows", n_bytes));
  KV_RETURN_IF_ERROR(rows.AllocateUncleared("query rows", n_bytes));
  // Refuses a stream that is captured before anything is queued.
  KV_RETURN_IF_ERROR(
      context.backend().read(context, stream, packed.data(), 1, rows.data()));
  const kvevict_plane* const given = &queries;
  ObserveArgs args{};
  args.layers = Jobs<const kvevict_plane*>(std::span(&given, 1));
  args.dtype = static_cast<DType>(queries.dtype);
  args.n_heads = shown.n_q_heads;
  args.n_rows = args.ring_rows = n_rows;
  args.rings = packed.data();
  KV_RETURN_IF_ERROR(context.backend().observe(context, stream, args));
  KV_RETURN_IF_ERROR(context.backend().read(context, stream, packed.data(),
                                            n_bytes.value(), rows.data()));
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uintptr_t>(rows.data());
  plane.dtype = queries.dtype;
  plane.head_dim = queries.head_dim;
  plane.head_stride_bytes = row_bytes;
  plane.token_stride_bytes = int64_t{shown.n_q_heads} * row_bytes;
  return AddRows(layer, plane, first_position, n_rows);
}

// `rows` are in host memory.
Status Calibration::AddRows(uint32_t layer, const kvevict_plane& rows,
                            uint32_t first_position, uint32_t n_rows) {
  const Context& context = plan_->context();
  const kvevict_layer_geometry& g = plan_->layer(layer).geometry;
  const size_t per_worker = QuerySumsScratch(g.k_head_dim);
  Array<double> scratch(context);
  Array<Complex> turns(context);
  KV_RETURN_IF_ERROR(scratch.Allocate(
      "scratch of a calibration",
      CheckedSize(per_worker) * CheckedSize(context.n_workers())));
  KV_RETURN_IF_ERROR(turns.AllocateUncleared(
      "turns of a calibration", CheckedSize(n_rows) * CheckedSize(n_pairs())));
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t f = 0; f < n_pairs(); ++f) {
      turns[size_t{r} * n_pairs() + f] =
          plan_->rope().TurnOf(f, -(static_cast<double>(first_position) + r));
    }
  }
  const auto args_of = [&](uint32_t head, uint32_t worker) {
    QuerySums args;
    PlainRows plain;
    plain.base = reinterpret_cast<const uint8_t*>(rows.data) +
                 int64_t{head} * rows.head_stride_bytes;
    plain.row_stride = rows.token_stride_bytes;
    plain.element_stride = ElementStride(rows);
    plain.dtype = static_cast<DType>(rows.dtype);
    args.rows = plain.Source();
    args.n_rows = n_rows;
    args.head_dim = g.k_head_dim;
    args.turns = turns.data();
    args.n_pairs = n_pairs();
    args.is_interleaved = plan_->rope().is_interleaved();
    args.scratch = scratch.data() + worker * per_worker;
    return args;
  };
  std::atomic<uint32_t> first_bad = g.n_q_heads;
  context.ParallelFor(g.n_q_heads, [&](uint32_t head, uint32_t worker) {
    if (AreFinite(context.simd(), args_of(head, worker))) return;
    uint32_t known = first_bad.load();
    while (head < known && !first_bad.compare_exchange_weak(known, head)) {
    }
  });
  if (first_bad < g.n_q_heads) {
    return InvalidArgument("queries: head %u holds NaN or infinity",
                           first_bad.load());
  }
  context.ParallelFor(g.n_q_heads, [&](uint32_t head, uint32_t worker) {
    QuerySums args = args_of(head, worker);
    const HeadSums sums = SumsOf(layer, head);
    args.elements = sums.elements.data();
    args.lengths = sums.lengths.data();
    args.products = sums.products.empty() ? nullptr : sums.products.data();
    AddQueryRows(context.simd(), args);
  });
  rows_[layer] += n_rows;
  return Status();
}

// ---- What policies want ----

void Calibration::FindCenters(uint32_t layer, float* out) const {
  const auto n = static_cast<double>(rows_[layer]);
  const bool interleaved = plan_->rope().is_interleaved();
  const uint32_t step = interleaved ? 2 : 1;
  const uint32_t apart = interleaved ? 1 : n_pairs();
  for (uint32_t h = 0; h < plan_->layer(layer).geometry.n_q_heads; ++h) {
    const HeadSums sums = SumsOf(layer, h);
    for (uint32_t f = 0; f < n_pairs(); ++f, ++out) {
      out[0] = static_cast<float>(sums.elements[f * step] / n);
      out[n_pairs()] = static_cast<float>(sums.elements[f * step + apart] / n);
      out[2 * n_pairs()] = static_cast<float>(sums.lengths[f] / n);
    }
    out += 2 * n_pairs();
  }
}

void Calibration::FindExpected(uint32_t layer, std::span<const Complex> turns,
                               float* mean, float* covariance) const {
  const auto n = static_cast<double>(rows_[layer]);
  const size_t dim = plan_->layer(layer).geometry.k_head_dim;
  const bool interleaved = plan_->rope().is_interleaved();
  for (uint32_t h = 0; h < plan_->layer(layer).geometry.n_q_heads; ++h) {
    const HeadSums sums = SumsOf(layer, h);
    const auto pair = [&](size_t f) {
      return interleaved ? std::pair(2 * f, 2 * f + 1)
                         : std::pair(f, f + turns.size());
    };
    // Row i of the matrix begins at its diagonal.
    const auto element = [&](size_t i, size_t j) {
      if (i > j) std::swap(i, j);
      const double product = sums.products[i * dim - i * (i + 1) / 2 + j];
      return product / n - sums.elements[i] / n * (sums.elements[j] / n);
    };
    // An element of C R', or of R C R' with the row's partner.
    const auto turned = [&](size_t i, size_t f, double* x, double* y) {
      const auto [first, second] = pair(f);
      *x = element(i, first);
      *y = element(i, second);
      Turn(turns[f], *x, *y);
    };
    for (size_t i = 0; i < dim; ++i) {
      mean[i] = static_cast<float>(sums.elements[i] / n);
    }
    for (size_t f = 0; f < turns.size(); ++f) {
      const auto [x, y] = pair(f);
      double re = sums.elements[x] / n, im = sums.elements[y] / n;
      Turn(turns[f], re, im);
      mean[x] = static_cast<float>(re);
      mean[y] = static_cast<float>(im);
    }
    mean += dim;
    if (covariance == nullptr) continue;
    const size_t n_turned = 2 * turns.size();
    const auto store = [&](size_t i, size_t j, double value) {
      covariance[i * dim + j] = static_cast<float>(value);
    };
    for (size_t i = n_turned; i < dim; ++i) {
      for (size_t j = n_turned; j < dim; ++j) store(i, j, element(i, j));
      for (size_t f = 0; f < turns.size(); ++f) {
        const auto [x, y] = pair(f);
        double re, im;
        turned(i, f, &re, &im);
        store(i, x, re), store(i, y, im), store(x, i, re), store(y, i, im);
      }
    }
    for (size_t g = 0; g < turns.size(); ++g) {
      const auto [u, v] = pair(g);
      for (size_t f = 0; f < turns.size(); ++f) {
        const auto [x, y] = pair(f);
        double ux, uy, vx, vy;
        turned(u, f, &ux, &uy);
        turned(v, f, &vx, &vy);
        Turn(turns[g], ux, vx);
        Turn(turns[g], uy, vy);
        store(u, x, ux), store(u, y, uy), store(v, x, vx), store(v, y, vy);
      }
    }
    covariance += dim * dim;
  }
}

}  // namespace kvevict
