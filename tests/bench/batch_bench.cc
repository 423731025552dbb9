// A step of many requests in one call beside a call for each: a token is appended
// and one evicted; and the same if the policy's margin leaves all alone, and the
// token is taken back.
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "kvevict/batch.h"
#include "tests/bench/clocks.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"

namespace kvevict::bench {
namespace {

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;
constexpr double kMinSeconds = 3e-3;

struct Shape {
  uint32_t n_sequences, n_layers, n_tokens;
  bool evicts;
};

// Requests with caches of their own.
class Requests {
 public:
  Requests(const char* simd, const Shape& shape)
      : shape_(shape), context_(CreateContext(simd)) {
    const uint32_t most = shape.n_tokens + 1;
    plan_ =
        CreatePlan(context_.get(), shape.n_layers,
                   LayerOf(kHeads, kHeads, kHeadDim, KVEVICT_DTYPE_F16), most,
                   fmt::format("knorm:budget={},margin={}", shape.n_tokens,
                               shape.evicts ? 0 : 1));
    const size_t n_bytes = size_t{most} * kHeads * kHeadDim * 2;
    views_.resize(size_t{shape.n_sequences} * shape.n_layers);
    for (kvevict_view& view : views_) {
      view = KVEVICT_VIEW_INIT;
      view.n_kv_heads = kHeads;
      for (kvevict_plane* plane : {&view.k, &view.v}) {
        caches_.emplace_back(n_bytes);
        std::fill_n(caches_.back().data(), n_bytes, uint8_t{0x3c});
        *plane = PlaneOf(caches_.back().data(), KVEVICT_DTYPE_F16, kHeads,
                         kHeadDim, kHeadDim * 2);
      }
    }
    for (uint32_t i = 0; i < shape.n_sequences; ++i) {
      kvevict_sequence* const sequence =
          sequences_.emplace_back(CreateSequence(plan_.get())).get();
      Check(kvevict_sequence_append(sequence, shape.n_tokens, nullptr));
      steps_.push_back({sizeof(kvevict_sequence_tokens), 1, sequence});
      lengths_.push_back(
          {sizeof(kvevict_sequence_length), shape.n_tokens, sequence});
      items_.push_back({sizeof(kvevict_sequence_eviction), 0, sequence,
                        &views_[size_t{i} * shape.n_layers], shape.n_layers,
                        nullptr});
    }
    workspace_.emplace(plan_.get(), KVEVICT_OPERATION_EVICT);
  }

  void Single() {
    for (size_t i = 0; i < items_.size(); ++i) {
      const kvevict_sequence_eviction& item = items_[i];
      Check(kvevict_sequence_append(item.sequence, 1, nullptr));
      Check(kvevict_sequence_evict(item.sequence, item.views, item.views_len,
                                   nullptr, workspace_->data(),
                                   workspace_->bytes, nullptr));
      if (shape_.evicts) continue;
      Check(kvevict_sequence_trim_to(item.sequence, shape_.n_tokens, nullptr));
    }
  }

  void Batch() {
    Check(kvevict_sequences_append(steps_.data(), steps_.size(), nullptr));
    Check(kvevict_sequences_evict(items_.data(), items_.size(),
                                  workspace_->data(), workspace_->bytes,
                                  nullptr));
    if (shape_.evicts) return;
    Check(kvevict_sequences_trim_to(lengths_.data(), lengths_.size(), nullptr));
  }

 private:
  const Shape shape_;
  const ContextHandle context_;
  PlanHandle plan_;
  std::vector<SequenceHandle> sequences_;
  std::vector<HugeBuffer<uint8_t>> caches_;
  std::vector<kvevict_view> views_;
  std::vector<kvevict_sequence_tokens> steps_;
  std::vector<kvevict_sequence_length> lengths_;
  std::vector<kvevict_sequence_eviction> items_;
  std::optional<Workspace> workspace_;
};

void BenchShape(Session& session, const Shape& shape) {
  const std::string name =
      fmt::format("batch of {}, {} layers, {} tokens: {}", shape.n_sequences,
                  shape.n_layers, shape.n_tokens,
                  shape.evicts ? "each evicts one" : "none evicts");
  if (!session.Begins(name)) return;
  Requests requests(session.simd.name, shape);
  MeasureBeside(
      session, name, "sequence/s", shape.n_sequences,
      {"time of single calls", std::nullopt,
       [&] { return TimeCalls([&] { requests.Single(); }, kMinSeconds); },
       true},
      [&] { return TimeCalls([&] { requests.Batch(); }, kMinSeconds); });
}

}  // namespace

void BenchBatch(Session& session) {
  for (const bool evicts : {true, false}) {
    BenchShape(session, session.smoke ? Shape{3, 2, 64, evicts}
                                      : Shape{64, 4, 256, evicts});
  }
}

}  // namespace kvevict::bench
