// Evictions of whole blocks by their table, and by moving rows.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/bench/clocks.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"

namespace kvevict::bench {
namespace {

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kBlockSize = 16;
constexpr size_t kRow = size_t{kHeads} * kHeadDim;

// A layer in blocks in no order.
class Layer {
 public:
  Layer(const char* simd_target, uint32_t n_tokens)
      : n_tokens_(n_tokens),
        context_(CreateContext(simd_target)),
        plan_(CreatePlan(context_.get(), 1, LayerOf(kHeads, kHeads, kHeadDim),
                         n_tokens,
                         fmt::format("streaming-llm:budget={},select_block=16",
                                     n_tokens / 2))),
        sequence_(CreateSequence(plan_.get())),
        workspace_(plan_.get(), KVEVICT_OPERATION_EVICT),
        rows_(2 * n_tokens * kRow),
        table_(n_tokens / kBlockSize) {
    std::iota(rows_.data(), rows_.data() + rows_.size(), 0.0f);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937_64(1));
    view_.n_kv_heads = kHeads;
    view_.k = BlocksOf(rows_.data());
    view_.v = BlocksOf(rows_.data() + rows_.size() / 2);
    view_.block_size = kBlockSize;
    view_.block_table = table_.data();
    view_.block_table_len = table_.size();
  }

  // Evicts from all tokens.
  void Evict(bool by_table) const {
    Check(kvevict_sequence_reset(sequence_.get(), nullptr));
    Check(kvevict_sequence_append(sequence_.get(), n_tokens_, nullptr));
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.by_table = by_table;
    Check(kvevict_sequence_evict(sequence_.get(), &view_, 1, &options,
                                 workspace_.data(), workspace_.bytes, nullptr));
  }

 private:
  static kvevict_plane BlocksOf(const float* data) {
    kvevict_plane plane = RowsOf(data, kHeads, kHeadDim);
    plane.block_stride_bytes = kBlockSize * plane.token_stride_bytes;
    return plane;
  }

  const uint32_t n_tokens_;
  const ContextHandle context_;
  PlanHandle plan_;
  SequenceHandle sequence_;
  const Workspace workspace_;
  HugeBuffer<float> rows_;
  std::vector<int32_t> table_;  // written by evictions
  kvevict_view view_ = KVEVICT_VIEW_INIT;
};

}  // namespace

void BenchTables(Session& session) {
  const uint32_t n_tokens = session.smoke ? 64 : 8192;
  const std::string name = fmt::format(
      "paged eviction by table, {} tokens to half, 16-token blocks", n_tokens);
  if (!session.Begins(name)) return;
  const Layer layer(session.simd.name, n_tokens);
  const auto evict = [&](bool by_table) {
    return TimeCalls([&] { layer.Evict(by_table); }, 0.05);
  };
  MeasureBeside(
      session, name, "eviction/s", 1,
      {"the same by moving rows", std::nullopt, [&] { return evict(false); }},
      [&] { return evict(true); });
}

}  // namespace kvevict::bench
