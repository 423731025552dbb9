// Standardises scores over the heads of a layer. A work item is a layer.
#include <algorithm>
#include <cmath>

#include "core/context.h"
#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

// As many sums as a block on a GPU has threads: of every 256th score of each
// head's slots between both ends, which are then added as a tree.
constexpr uint32_t kSums = 256;

struct Row {
  const float* scores;  // between both ends
  uint32_t n;
};

Row RowOf(const ShapeJob& job, uint32_t head, const float* scores) {
  const uint32_t n_tokens = job.scored->tokens.Of(head);
  const uint32_t first = std::min(job.scored->n_sink, n_tokens);
  return {scores + uint64_t{head} * job.scored->tokens.most + first,
          n_tokens - first - std::min(job.scored->n_recent, n_tokens - first)};
}

// Sums f(score) over the scores that are finite.
template <typename F>
double Sum(const ShapeJob& job, uint32_t n_heads, const float* scores,
           const F& f) {
  double sums[kSums] = {};
  for (uint32_t head = 0; head < n_heads; ++head) {
    const Row row = RowOf(job, head, scores);
    for (uint32_t i = 0; i < row.n; ++i) {
      const float score = row.scores[i];
      if (std::isfinite(score)) sums[i % kSums] += f(score);
    }
  }
  for (uint32_t half = kSums / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

void StandardizeLayer(const StandardizeArgs& args, const ShapeJob& job) {
  const uint32_t n_heads = args.layer.n_kv_heads;
  const float* const from = args.adds ? job.leverage : job.scores;
  const double n = Sum(job, n_heads, from, [](float) { return 1.0; });
  if (n == 0.0) return;
  const auto near = static_cast<float>(
      Sum(job, n_heads, from, [](float v) { return double{v}; }) / n);
  // Around the rounded mean, whose remainder is added to it. Squares of f32 are
  // exact in double, so that no device rounds them otherwise.
  const double rest =
      Sum(job, n_heads, from, [&](float v) { return double{v - near}; }) / n;
  const double squares = Sum(job, n_heads, from, [&](float v) {
    const double distance = double{v - near};
    return distance * distance;
  });
  const auto more = static_cast<float>(rest);
  const double spread = std::fma(-static_cast<double>(more) * more, n, squares);
  const double variance = n > 1.0 ? std::max(0.0, spread) / (n - 1.0) : 0.0;
  const auto scale =
      static_cast<float>(1.0 / std::max(std::sqrt(variance), 1e-6));
  for (uint32_t head = 0; head < n_heads; ++head) {
    const uint64_t row = uint64_t{head} * job.scored->tokens.most;
    if (args.adds) {
      const Row added = RowOf(job, head, from);
      float* const to = job.scores + (added.scores - from);
      for (uint32_t i = 0; i < added.n; ++i) {
        const float z = (added.scores[i] - near - more) * scale;
        to[i] = static_cast<float>(double{z} * job.blend + to[i]);
      }
      continue;
    }
    for (uint32_t i = 0; i < job.scored->tokens.Of(head); ++i) {
      float& score = job.scores[row + i];
      if (std::isfinite(score)) score = (score - near - more) * scale;
    }
  }
}

Status RunStandardize(const Context& context, Stream,
                      const StandardizeArgs& args) {
  context.ParallelFor(static_cast<uint32_t>(args.jobs.size()),
                      [&](uint32_t item, uint32_t) {
                        StandardizeLayer(args, args.jobs[item]);
                      });
  return Status();
}

}  // namespace

const Op<StandardizeArgs> kOp_standardize = {RunStandardize};

}  // namespace kvevict::cpu
