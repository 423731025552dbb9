// Moves the accepted nodes of a speculative tree down behind a prefix, in all layers at
// once, beside a copy of their rows alone and the same call without a prefix.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tests/bench/clocks.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"

namespace kvevict::bench {
namespace {

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadBytes = 256;  // 128 elements of 16 bits
constexpr uint32_t kRowBytes = kHeads * kHeadBytes;
constexpr uint32_t kNodes = 32;
constexpr uint32_t kAccepted[] = {0, 7, 18, 30};
constexpr uint32_t kBlockSize = 16;

// Layers of keys and values [n_tokens, n_kv_heads, head_dim] whose last tokens are
// the nodes, and a move for each.
class Layers {
 public:
  Layers(uint32_t n_layers, uint32_t n_prefix, bool paged)
      : n_prefix_(n_prefix), views_(n_layers), moves_(n_layers) {
    const uint32_t n_tokens = n_prefix + kNodes;
    table_.resize(n_tokens / kBlockSize);
    std::iota(table_.rbegin(), table_.rend(), 0);
    for (uint32_t node : kAccepted) {
      slots_.push_back(static_cast<int32_t>(n_prefix + node));
    }
    keep_.n_lists = 1;
    keep_.slots = slots_.data();
    keep_.slots_len = slots_.size();
    keep_.count = static_cast<uint32_t>(slots_.size());
    for (uint32_t l = 0; l < n_layers; ++l) {
      kvevict_view& view = views_[l];
      view = KVEVICT_VIEW_INIT;
      view.n_kv_heads = kHeads;
      view.k = AddPlane(n_tokens);
      view.v = AddPlane(n_tokens);
      if (paged) {
        view.block_size = kBlockSize;
        view.block_table = table_.data();
        view.block_table_len = table_.size();
        view.k.block_stride_bytes = view.v.block_stride_bytes =
            kBlockSize * kRowBytes;
      }
      moves_[l] = KVEVICT_MOVE_INIT;
      moves_[l].n_tokens = n_tokens;
      moves_[l].view = &view;
      moves_[l].keep = &keep_;
      moves_[l].first_slot = n_prefix;
    }
  }

  const std::vector<kvevict_move>& moves() const { return moves_; }
  size_t moved_bytes() const {
    return planes_.size() * std::size(kAccepted) * kRowBytes;
  }

  void NumberNodes() {
    ForEachNode([](uint8_t* row, uint32_t node) {
      std::memcpy(row, &node, sizeof(node));
    });
  }
  void ExpectCompacted() {
    ForEachNode([](uint8_t* row, uint32_t node) {
      if (node >= std::size(kAccepted)) return;
      if (std::memcmp(row, &kAccepted[node], sizeof(node)) == 0) return;
      throw std::runtime_error(fmt::format(
          "tail: slot {} does not hold node {}", node, kAccepted[node]));
    });
  }
  // This is the least work.
  void CopyRows() {
    for (size_t plane = 0; plane < planes_.size(); ++plane) {
      for (uint32_t i = 0; i < std::size(kAccepted); ++i) {
        if (kAccepted[i] == i) continue;
        std::memcpy(Row(plane, i), Row(plane, kAccepted[i]), kRowBytes);
      }
    }
  }

 private:
  kvevict_plane AddPlane(uint32_t n_tokens) {
    planes_.push_back(
        std::make_unique<HugeBuffer<uint8_t>>(size_t{n_tokens} * kRowBytes));
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = reinterpret_cast<uintptr_t>(planes_.back()->data());
    plane.row_bytes = kHeadBytes;
    plane.head_stride_bytes = kHeadBytes;
    plane.token_stride_bytes = kRowBytes;
    return plane;
  }
  uint8_t* Row(size_t plane, uint32_t node) {
    uint32_t slot = n_prefix_ + node;
    if (views_[0].block_size != 0) {
      slot = static_cast<uint32_t>(table_[slot / kBlockSize]) * kBlockSize +
             slot % kBlockSize;
    }
    return planes_[plane]->data() + size_t{slot} * kRowBytes;
  }
  template <typename Visit>
  void ForEachNode(const Visit& visit) {
    for (size_t plane = 0; plane < planes_.size(); ++plane) {
      for (uint32_t node = 0; node < kNodes; ++node) {
        visit(Row(plane, node), node);
      }
    }
  }

  const uint32_t n_prefix_;
  std::vector<int32_t> table_;
  std::vector<int32_t> slots_;
  kvevict_keep_lists keep_ = KVEVICT_KEEP_LISTS_INIT;
  std::vector<std::unique_ptr<HugeBuffer<uint8_t>>> planes_;
  std::vector<kvevict_view> views_;
  std::vector<kvevict_move> moves_;
};

void BenchTails(Session& session, uint32_t n_layers, uint32_t n_prefix,
                bool paged) {
  const std::string name = fmt::format(
      "tail of {} rows to {}, {} layers behind {}, {}", kNodes,
      std::size(kAccepted), n_layers, n_prefix, paged ? "paged" : "contiguous");
  if (!session.wants(name)) return;
  session.announce(name);
  const ContextHandle context = CreateContext(session.simd.name);
  Layers layers(n_layers, n_prefix, paged);
  Layers alone(n_layers, 0, paged);
  const auto compact = [&](const Layers& which) {
    const std::vector<kvevict_move>& moves = which.moves();
    Check(kvevict_compact(context.get(), moves.data(), moves.size(), nullptr, 0,
                          nullptr));
  };
  layers.NumberNodes();
  compact(layers);
  layers.ExpectCompacted();

  Row& row = session.report.AddRow(name, 1, "byte/s");
  Comparison& copy = row.Against("memcpy of the rows that move");
  Comparison& tail =
      row.Against("the same without a prefix",
                  session.smoke ? std::nullopt : std::optional(Goal{0.7, 0.9}));
  const double seconds = session.smoke ? 0.0 : 0.02;
  Repeat(session, [&](bool measured) {
    const Timing copying = TimeCalls([&] { layers.CopyRows(); }, seconds);
    const Timing without = TimeCalls([&] { compact(alone); }, seconds);
    const Timing timing = TimeCalls([&] { compact(layers); }, seconds);
    if (!measured) return;
    row.Add(timing, static_cast<double>(layers.moved_bytes()));
    copy.ratio.Add(copying.cpu / timing.cpu);
    tail.ratio.Add(without.cpu / timing.cpu);
  });
}

}  // namespace

void BenchTail(Session& session) {
  for (bool paged : {false, true}) {
    if (session.smoke) {
      BenchTails(session, 2, 64, paged);
    } else {
      BenchTails(session, 32, 8192, paged);
    }
  }
}

}  // namespace kvevict::bench
