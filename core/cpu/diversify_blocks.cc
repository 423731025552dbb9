// Keeps blocks whose keys are most unlike. Layers run one after the other. A
// work item is first a list, then a KV head, then a list again.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cpu/cpu.h"
#include "core/cpu/select.h"
#include "core/kernels/similarity.h"
#include "core/kernels/topk.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

// The blocks of a list between those that stay at both ends.
struct Found {
  uint32_t n_left;      // room left for blocks that are not taken
  uint32_t n_others;    // blocks that are not taken
  uint32_t* others;     // [n_others], ascending
  float* masses;        // [n_blocks]
  int64_t* similarity;  // [n_others], of the head with the list's number
};

uint32_t MostBlocks(const Policy& policy, uint32_t n_tokens) {
  return n_tokens / policy.select_block;
}

// The memory of a layer, before the workers' shares.
class Layer {
 public:
  static CheckedSize Bytes(uint32_t n_heads, uint32_t n_blocks) {
    return (CheckedSize(n_heads) *
            (CheckedSize(sizeof(Found)) +
             CheckedSize(n_blocks) *
                 CheckedSize(sizeof(int64_t) + sizeof(float) +
                             sizeof(uint32_t))))
        .AlignUp(kCacheLine);
  }
  Layer(uint8_t* memory, uint32_t n_heads, uint32_t n_blocks)
      : found_(reinterpret_cast<Found*>(memory)) {
    auto* similarity = reinterpret_cast<int64_t*>(found_ + n_heads);
    auto* masses =
        reinterpret_cast<float*>(similarity + uint64_t{n_heads} * n_blocks);
    auto* others =
        reinterpret_cast<uint32_t*>(masses + uint64_t{n_heads} * n_blocks);
    for (uint32_t i = 0; i < n_heads; ++i) {
      const uint64_t at = uint64_t{i} * n_blocks;
      found_[i] = {0, 0, others + at, masses + at, similarity + at};
    }
  }
  Found& operator[](uint32_t i) const { return found_[i]; }

 private:
  Found* const found_;
};

// The blocks of one list.
struct Blocks {
  uint32_t begin;  // first slot
  uint32_t n;
  uint32_t n_keep;

  Blocks(const SelectArgs& args, const SelectJob& job, uint32_t list) {
    const SlotBlocks blocks = args.blocks;
    const uint32_t n_tokens = job.tokens.Of(list);
    begin = static_cast<uint32_t>(
        std::min<uint64_t>(blocks.RoundUp(args.forced.n_sink), n_tokens));
    const uint32_t n_recent =
        std::min(blocks.Recent(args.forced.n_recent, n_tokens), n_tokens);
    const uint32_t end = std::max(begin, n_tokens - n_recent);
    n = (end - begin) / blocks.size;
    const uint32_t n_ends = begin + (n_tokens - end);
    const uint32_t n_all = job.keep.count.Of(list);
    n_keep = n_all > n_ends ? (n_all - n_ends) / blocks.size : 0;
  }
};

// Whether i comes before j if they are equal.
bool Precedes(kvevict_tie tie, uint32_t i, uint32_t j) {
  return tie == KVEVICT_TIE_LOWER_POSITION ? i < j : i > j;
}

// Takes the best blocks by their keys. Masses are added in the order of the
// blocks.
void Take(const DiversifyBlocksArgs& args, const SelectJob& job, uint32_t list,
          Found* found) {
  const Blocks blocks(args.select, job, list);
  const uint32_t size = args.select.blocks.size;
  const uint64_t row = uint64_t{list} * job.tokens.most + blocks.begin;
  const uint32_t* const keys = job.keys + row;
  float total = 0.0f;
  for (uint32_t k = 0; k < blocks.n; ++k) {
    float mass = 0.0f;
    for (uint32_t i = 0; i < size; ++i) {
      const float score = job.scores[row + uint64_t{k} * size + i];
      mass += std::isfinite(score) ? score : 0.0f;
    }
    found->masses[k] = mass;
    total += mass;
  }
  const float limit = args.mass * total;
  uint32_t n_taken = 0;
  found->n_others = 0;
  for (uint32_t k = 0; k < blocks.n; ++k) {
    const uint32_t key = keys[uint64_t{k} * size];
    uint32_t rank = 0;
    float before = 0.0f;
    for (uint32_t j = 0; j < blocks.n; ++j) {
      const uint32_t other = keys[uint64_t{j} * size];
      if (other < key || (other == key && !Precedes(args.select.tie, j, k))) {
        continue;
      }
      ++rank;
      before += found->masses[j];
    }
    const bool is_taken =
        key == kForcedKey || (rank < blocks.n_keep && before < limit);
    n_taken += is_taken;
    if (!is_taken) found->others[found->n_others++] = k;
  }
  found->n_left = blocks.n_keep - std::min(n_taken, blocks.n_keep);
}

// In addition to the taken blocks, keeps the others that are least like each
// other.
void Keep(const DiversifyBlocksArgs& args, const SelectJob& job,
          const ShapeJob& shape, uint32_t list, const Found& found) {
  const Blocks blocks(args.select, job, list);
  const uint32_t size = args.select.blocks.size;
  float* const scores =
      shape.scores + uint64_t{list} * job.tokens.most + blocks.begin;
  std::fill_n(scores, uint64_t{blocks.n} * size,
              std::numeric_limits<float>::infinity());
  for (uint32_t i = 0; i < found.n_others; ++i) {
    const int64_t own = found.similarity[i];
    uint32_t rank = 0;
    for (uint32_t j = 0; j < found.n_others; ++j) {
      const int64_t other = found.similarity[j];
      rank += other < own || (other == own && Precedes(args.select.tie, j, i));
    }
    if (rank < found.n_left) continue;
    std::fill_n(scores + uint64_t{found.others[i]} * size, size,
                std::numeric_limits<float>::quiet_NaN());
  }
}

ScratchNeeds DiversityScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  return Layer::Bytes(g.n_kv_heads, MostBlocks(size.policy, size.n_tokens)) +
         SharesOf(context, CheckedSize(SimilarityScratchBytes(size.n_tokens,
                                                              g.k_head_dim)));
}

Status RunDiversifyBlocks(const Context& context, Stream,
                          const DiversifyBlocksArgs& args) {
  const uint32_t n_heads = args.layer.n_kv_heads;
  const uint32_t n_blocks = args.n_tokens / args.select.blocks.size;
  ForEachList(context, args.select, [&](uint32_t item, uint32_t list) {
    MakeKeys(context, args.select, args.select.jobs[item], list);
  });
  const std::span<uint8_t> shares =
      args.scratch.subspan(Layer::Bytes(n_heads, n_blocks).value());
  for (size_t i = 0; i < args.jobs.size(); ++i) {
    const SelectJob& select = args.select.jobs[i];
    const ShapeJob& job = args.jobs[i];
    const uint32_t n_lists = select.keep.n_lists;
    const Layer layer(args.scratch.data(), n_heads, n_blocks);
    context.ParallelFor(n_lists, [&](uint32_t list, uint32_t) {
      Take(args, select, list, &layer[list]);
    });
    context.ParallelFor(n_heads, [&](uint32_t head, uint32_t worker) {
      const uint32_t list = n_lists == 1 ? 0 : head;
      const Found& found = layer[list];
      if (found.n_left == 0) return;
      const Blocks blocks(args.select, select, list);
      SumSimilarity(
          context.simd(),
          {HeadRows(*job.scored->view, job.scored->view->k, head), blocks.begin,
           blocks.n * args.select.blocks.size, args.layer.k_head_dim,
           args.select.blocks.size, found.others, found.n_others,
           layer[head].similarity, ShareOf(context, shares, worker).data()});
    });
    context.ParallelFor(n_lists, [&](uint32_t list, uint32_t) {
      const Found& found = layer[list];
      if (found.n_left == 0) return;
      for (uint32_t head = 1; n_lists == 1 && head < n_heads; ++head) {
        for (uint32_t j = 0; j < found.n_others; ++j) {
          found.similarity[j] += layer[head].similarity[j];
        }
      }
      Keep(args, select, job, list, found);
    });
  }
  return Status();
}

}  // namespace

const Op<DiversifyBlocksArgs> kOp_diversify_blocks = {RunDiversifyBlocks,
                                                      DiversityScratch};

}  // namespace kvevict::cpu
