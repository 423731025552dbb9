// Attention sums and scores that sequences keep, and decoding by graphs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/random_model.h"

namespace kvevict::gpu {

// f32 rows of a layer that an attention kernel writes, or a gate: the sums of its slots,
// or scores of the tokens that come.
struct RandomModel::SumRows {
  SumRows(const Gpu& gpu, const RandomModel& model, uint32_t layer,
          uint32_t n_columns, uint32_t gap)
      : layer(layer),
        are_scores(model.takes_scores()),
        n_heads(are_scores ? model.n_kv_heads(layer)
                           : model.geometry().layer(layer).n_q_heads),
        host(size_t{n_heads} * (n_columns + gap)),
        device(gpu, host.size() * sizeof(float)) {
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = 1;
    plane.head_stride_bytes =
        static_cast<int64_t>((n_columns + gap) * sizeof(float));
  }

  void Draw(Random* random) {
    for (float& v : host) v = static_cast<float>(random->In(0, 999)) / 1024.0f;
    device.Write(host.data(), device.n_bytes());
  }
  kvevict_status Observe(kvevict_sequence* sequence, bool on_device, uint32_t n,
                         uint32_t first, kvevict_stream stream) {
    plane.data =
        on_device ? device.address() : reinterpret_cast<uintptr_t>(host.data());
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    (are_scores ? inputs.scores : inputs.attention_sums) = &plane;
    inputs.n_sum_heads = n_heads;
    const kvevict_observation shown = {sizeof(shown), layer, &inputs};
    return kvevict_sequence_observe(sequence, &shown, 1, n, first, stream);
  }

  const uint32_t layer;
  const bool are_scores;
  const uint32_t n_heads;
  std::vector<float> host;
  const Buffer device;
  kvevict_plane plane = KVEVICT_PLANE_INIT;
};

// Observes the attention of the next n tokens, whose slots count, or their scores.
// A sequence that started from gaps cannot be given scores.
bool RandomModel::ObserveSums(uint32_t first, uint32_t n) {
  bool observed = true;
  for (uint32_t l = 0; l < geometry().n_layers; ++l) {
    if (!IsFull(l)) continue;
    SumRows rows(gpu_, *this, l, (takes_scores() ? 0 : Stored(l)) + n,
                 random_.In(0, 3));
    rows.Draw(&random_);
    const kvevict_status status =
        rows.Observe(sequence(), true, n, first, NextStream());
    if (!takes_scores()) Check(status);
    observed = observed && status == KVEVICT_OK;
    Synchronize();  // the rows go
    if (rows.Observe(twin(), false, n, first, nullptr) != status) {
      throw std::runtime_error("only one side is given scores");
    }
  }
  return observed;
}

// A captured step, and the memory that it reads a token's rows from.
struct RandomModel::Step {
  std::vector<Buffer> rows;  // queries of each layer
  std::vector<kvevict_plane> planes;
  std::vector<Shown> shown;
  std::vector<std::unique_ptr<SumRows>> sums;
  std::unique_ptr<Graph> graph;
  bool is_counted = true;  // its first run was, when it was captured
};

std::shared_ptr<RandomModel::Step> RandomModel::CaptureStep() {
  auto step = std::make_shared<Step>();
  step->planes.resize(geometry().n_layers);
  for (uint32_t l = 0; l < geometry().n_layers; ++l) {
    const kvevict_layer_geometry& g = geometry().layer(l);
    step->rows.emplace_back(gpu_,
                            IsFull(l) ? PackedPlane(g, 1).n_bytes : size_t{0});
    if (!IsFull(l)) continue;
    if (observes_sums_) {
      const uint32_t n = takes_scores() ? 1 : geometry().max_tokens;
      step->sums.push_back(
          std::make_unique<SumRows>(gpu_, *this, l, n, random_.In(0, 3)));
    }
    if (!observes()) continue;
    step->planes[l] = PackedPlane(g, 1).plane;
    step->planes[l].data = step->rows[l].address();
    step->shown.push_back({l, &step->planes[l]});
  }
  const size_t at_once =
      random_.OneOf(2) ? 1 : std::max(step->shown.size(), size_t{1});
  step->graph = std::make_unique<Graph>(gpu_, [&] {
    const std::span<const Shown> all(step->shown);
    for (size_t i = 0; i < all.size(); i += at_once) {
      Check(gpu::Observe(sequence(), all.subspan(i, at_once), 1,
                         KVEVICT_POSITION_NEXT, stream_));
    }
    for (const auto& rows : step->sums) {
      Check(rows->Observe(sequence(), true, 1, KVEVICT_POSITION_NEXT, stream_));
    }
    Check(kvevict_sequence_append(sequence(), 1, stream_));
  });
  return step;
}

void RandomModel::Decode(uint32_t n) {
  n = std::min(n, Room());
  if (n == 0 || case_.debug) return;  // debug waits for every kernel
  Check(kvevict_context_prepare(context(), plan()));
  if (observes_sums_) {  // the first ones are not captured
    Append(1);
    if (--n == 0 || !sums_are_known_) return;
  }
  MoveTo(gpu_.stream());
  if (step_ == nullptr || random_.OneOf(3)) step_ = CaptureStep();
  for (uint32_t i = 0; i < n; ++i) {
    // A step that is captured has been counted.
    const bool is_counted = std::exchange(step_->is_counted, false);
    if (!is_counted) Check(kvevict_sequence_replayed(sequence(), 1));
    AddTokens(1);
    for (const Shown& layer : step_->shown) {
      step_->rows[layer.layer].Write(queries_[layer.layer].back().data(),
                                     step_->rows[layer.layer].n_bytes());
    }
    for (const auto& rows : step_->sums) {
      rows->Draw(&random_);
      Check(rows->Observe(twin(), false, 1, KVEVICT_POSITION_NEXT, nullptr));
    }
    step_->graph->Launch();
    Check(kvevict_sequence_append(twin(), 1, nullptr));
    Synchronize();
  }
  ExpectSameSums();
}

void RandomModel::ExpectSameSums() const {
  for (uint32_t l = 0; l < geometry().n_layers && sums_are_known_; ++l) {
    if (!IsFull(l)) continue;
    kvevict_sequence_memory here{}, there{};
    here.struct_size = there.struct_size = sizeof(here);
    Check(kvevict_sequence_memory_of(twin(), l, &here));
    Check(kvevict_sequence_memory_of(sequence(), l, &there));
    if (here.sums == 0) continue;  // sum_last keeps calls
    std::vector<float> sums(here.n_sum_heads * here.sum_stride);
    Check(gpu_.driver(),
          gpu_.driver().cuMemcpyDtoHAsync(sums.data(), there.sums,
                                          sums.size() * sizeof(float),
                                          gpu_.stream()),
          "cuMemcpyDtoHAsync");
    gpu_.Synchronize();
    const auto* const expected = reinterpret_cast<const float*>(here.sums);
    const uint32_t of_head = std::max(1u, here.n_sum_heads / n_kv_heads(l));
    for (uint32_t row = 0; row < here.n_sum_heads; ++row) {
      if (std::memcmp(&sums[row * here.sum_stride],
                      &expected[row * here.sum_stride],
                      Stored(l, row / of_head) * sizeof(float)) != 0) {
        throw std::runtime_error(
            fmt::format("layer {}, row {}: other sums", l, row));
      }
    }
  }
}

}  // namespace kvevict::gpu
