// Statistics of queries: those that a context computes, and saved ones.
#include <kvevict/calibration.h>

#include <algorithm>

#include "adapter.h"
#include "error.h"

using kvevict::llama::CalibrationHandle;
using kvevict::llama::Check;
using kvevict::llama::CreatePolicy;
using kvevict::llama::Fail;
using kvevict::llama::LayerShape;
using kvevict::llama::PlanHandle;
using kvevict::llama::PolicyHandle;
using kvevict::llama::ReadTensor;
using kvevict::llama::Rotation;
using kvevict::llama::Sequence;

const Rotation& kvevict_llama::RotationOf(
    std::span<const LayerShape> shapes) const {
  const Rotation* first = nullptr;
  for (const LayerShape& shape : shapes) {
    const auto index = static_cast<size_t>(shape.index);
    const Rotation* own =
        index < rotations_.size() ? &rotations_[index] : nullptr;
    if (own != nullptr && !own->unknown.empty()) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shape.index, ": ",
           own->unknown);
    }
    if (own == nullptr || own->inv_freq.empty()) {
      Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "layer ", shape.index,
           ": its RoPE is not known before a llama_decode()");
    }
    if (first == nullptr) first = own;
    if (*own != *first) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shape.index,
           " has another RoPE than layer ", shapes.front().index,
           ", and one is taken for all");
    }
  }
  return *first;
}

CalibrationHandle kvevict_llama::MakeCalibration(
    std::span<const LayerShape> shapes, bool has_covariances) const {
  // Queries are the same whatever the types of the cache are.
  std::vector<LayerShape> layers(shapes.begin(), shapes.end());
  for (LayerShape& shape : layers) {
    shape.k.type = shape.v.type = GGML_TYPE_F32;
  }
  const PolicyHandle policy = CreatePolicy("none");
  const PlanHandle plan =
      PlanFor(policy.get(), layers, {}, 0, &RotationOf(shapes));
  kvevict_calibration* calibration = nullptr;
  Check(kvevict_calibration_create(plan.get(), has_covariances ? 1 : 0,
                                   &calibration));
  return CalibrationHandle(calibration);
}

const kvevict_calibration* kvevict_llama::Calibrate(uint32_t has_covariances) {
  if (ctx_ == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "no context is attached");
  }
  if (has_covariances > 1) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "has_covariances ", has_covariances,
         " is not 0 or 1");
  }
  llama_synchronize(ctx_);
  if (plan_ == nullptr) MakePlan(0);
  calibrated_ = MakeCalibration(shapes_, has_covariances != 0);
  return calibrated_.get();
}

// ---- Queries of a graph -----------------------------------------------------

void kvevict_llama::AddQueries(size_t index, const ggml_tensor* q) {
  const auto tokens = static_cast<size_t>(q->ne[1]);
  for (size_t r = 0, n = 0; r < rows_.size(); r += n) {
    for (n = 1; r + n < rows_.size() && (r + n) % tokens != 0; ++n) {
      const RowOwner& row = rows_[r + n];
      if (row.seq != rows_[r].seq || row.position != rows_[r].position + n) {
        break;
      }
    }
    AddRun(index, q, r, n);
  }
}

// Adds n rows of consecutive tokens of a sequence.
void kvevict_llama::AddRun(size_t index, const ggml_tensor* q, size_t first,
                           size_t n) {
  const auto head_dim = static_cast<uint32_t>(q->ne[0]);
  const size_t width = head_dim * static_cast<size_t>(q->ne[2]);
  std::vector<float> rows(n * width);
  for (size_t r = 0; r < n; ++r) ReadRow(q, first + r, &rows[r * width]);
  const auto add = [&](kvevict_calibration* calibration, uint32_t layer,
                       size_t n_left_out) {
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = reinterpret_cast<uint64_t>(rows.data() + n_left_out * width);
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = head_dim;
    plane.token_stride_bytes = static_cast<int64_t>(width * sizeof(float));
    plane.head_stride_bytes = head_dim * int64_t{sizeof(float)};
    // Rows with NaN do not count, which their number shows.
    (void)kvevict_calibration_observe(
        calibration, layer, &plane,
        rows_[first].position + static_cast<uint32_t>(n_left_out),
        static_cast<uint32_t>(n - n_left_out), nullptr);
  };
  if (calibrated_ != nullptr) {
    for (size_t i = 0; i < shapes_.size(); ++i) {
      if (static_cast<size_t>(shapes_[i].index) != index) continue;
      add(calibrated_.get(), static_cast<uint32_t>(i), 0);
    }
  }
  if (!wants_moments_ || !rotations_[index].unknown.empty()) return;
  // Sinks are unlike future queries and are left out, as in kvpress.
  const uint32_t position = rows_[first].position;
  const size_t n_sinks =
      position < policy_.n_sink ? policy_.n_sink - position : 0;
  if (n_sinks >= n) return;
  Sequence& s = sequences_[static_cast<size_t>(rows_[first].seq)];
  if (s.moments.size() <= index) s.moments.resize(index + 1);
  CalibrationHandle& moments = s.moments[index];
  if (moments == nullptr) moments = MakeMoments(index);
  add(moments.get(), 0, n_sinks);
}

void kvevict_llama::ReadRow(const ggml_tensor* q, size_t row,
                            float* out) const {
  const auto [head_dim, tokens, heads, streams] = q->ne;
  const size_t head_bytes = static_cast<size_t>(head_dim) * sizeof(float);
  const size_t at = row / tokens * q->nb[3] + row % tokens * q->nb[1];
  if (q->nb[2] == head_bytes) {
    return ReadTensor(q, out, at, head_bytes * static_cast<size_t>(heads));
  }
  for (int64_t h = 0; h < heads; ++h) {
    ReadTensor(q, out + h * head_dim, at + h * q->nb[2], head_bytes);
  }
}

// The statistics of a sequence in llama.cpp's layer, without any row.
CalibrationHandle kvevict_llama::MakeMoments(size_t index) const {
  const auto& layers = observer_.layers();
  const auto layer =
      std::find_if(layers.begin(), layers.end(), [&](const Layer& l) {
        return static_cast<size_t>(l.shape.index) == index;
      });
  return MakeCalibration({&layer->shape, 1}, true);
}

std::vector<CalibrationHandle> kvevict_llama::CopyMoments(
    const Sequence& s) const {
  std::vector<CalibrationHandle> copies(s.moments.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    const kvevict_calibration* from = s.moments[i].get();
    if (from == nullptr) continue;
    size_t n = 0;
    Check(kvevict_calibration_save(from, nullptr, 0, &n));
    std::vector<uint8_t> bytes(n);
    Check(kvevict_calibration_save(from, bytes.data(), n, nullptr));
    copies[i] = MakeMoments(i);
    Check(kvevict_calibration_load(copies[i].get(), bytes.data(), n));
  }
  return copies;
}

// ---- A saved calibration ----------------------------------------------------

const kvevict_calibration* kvevict_llama::SavedCalibration() {
  if (saved_ != nullptr) return saved_.get();
  const auto load = [&](bool has_covariances) {
    CalibrationHandle loaded = MakeCalibration(shapes_, has_covariances);
    if (kvevict_calibration_load(loaded.get(), saved_bytes_.data(),
                                 saved_bytes_.size()) != KVEVICT_OK) {
      loaded.reset();
    }
    return loaded;
  };
  saved_has_covariances_ = policy_.Needs(KVEVICT_INPUT_QUERY_MEAN);
  if (saved_has_covariances_) saved_ = load(true);
  if (saved_ == nullptr) {
    saved_has_covariances_ = false;
    saved_ = load(false);
  }
  if (saved_ == nullptr) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
         "options.calibration: ", kvevict_last_error_message());
  }
  return saved_.get();
}
