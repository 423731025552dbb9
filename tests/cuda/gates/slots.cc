#include "tests/cuda/gates/slots.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

namespace kvevict::cuda {
namespace {

using Code = std::vector<SassInstruction>;

// A branch back and its target: a loop's last and first place.
struct Loop {
  size_t first;
  size_t last;

  bool HasWithin(const Loop& other) const {
    return first <= other.first && other.last <= last &&
           (first != other.first || last != other.last);
  }
};

std::vector<Loop> FindLoops(const Code& code, int sm) {
  std::vector<Loop> loops;
  for (size_t at = 0; at < code.size(); ++at) {
    if (code[at].opcode() != Opcode::kBra) continue;
    for (const size_t next : NextPlaces(code, at, sm)) {
      // Every kernel ends with a branch to itself.
      if (next < at) loops.push_back({next, at});
    }
  }
  return loops;
}

// A way once around a loop: the fewest exponentials, and with these the most slots.
struct Way {
  size_t exponentials = 0;
  size_t slots = 0;
};

// Loops within it do not count.
Way FindWay(const Code& code, const Loop& loop, const std::vector<Loop>& loops,
            int sm) {
  std::vector<std::optional<Way>> before(loop.last - loop.first + 1);
  before.front() = Way();
  for (size_t at = loop.first; at <= loop.last; ++at) {
    if (!before[at - loop.first]) continue;
    Way way = *before[at - loop.first];
    const bool is_within =
        std::any_of(loops.begin(), loops.end(), [&](const Loop& l) {
          return loop.HasWithin(l) && l.first <= at && at <= l.last;
        });
    if (!is_within) {
      way.exponentials += code[at].opcode() == Opcode::kMufu;
      ++way.slots;
    }
    if (at == loop.last) return way;
    for (const size_t next : NextPlaces(code, at, sm)) {
      if (next <= at || next > loop.last) continue;
      std::optional<Way>& there = before[next - loop.first];
      if (!there || way.exponentials < there->exponentials ||
          (way.exponentials == there->exponentials &&
           way.slots > there->slots)) {
        there = way;
      }
    }
  }
  throw std::runtime_error("a loop whose end nobody reaches");
}

size_t CountProducts(const Code& code, const Loop& loop) {
  size_t n = 0;
  for (size_t at = loop.first; at <= loop.last; ++at) {
    n += code[at].opcode() == Opcode::kHmma;
  }
  return n;
}

size_t CountBetweenProducts(const Code& code, const Loop& loop) {
  size_t n = 0;
  size_t n_since_product = 0;
  bool has_product = false;
  for (size_t at = loop.first; at <= loop.last; ++at) {
    if (code[at].opcode() == Opcode::kHmma) {
      n += n_since_product;
      n_since_product = 0;
      has_product = true;
    }
    n_since_product += has_product && code[at].opcode() == Opcode::kMufu;
  }
  return n;
}

}  // namespace

ScorerSlots CountScorerSlots(const CubinKernel& kernel, int sm,
                             size_t n_products) {
  const Code& code = kernel.instructions;
  const std::vector<Loop> loops = FindLoops(code, sm);
  ScorerSlots slots;
  const Loop* chunk_loop = nullptr;
  for (const Loop& loop : loops) {
    const bool is_innermost =
        std::none_of(loops.begin(), loops.end(),
                     [&](const Loop& l) { return loop.HasWithin(l); });
    const size_t n_chunks = CountProducts(code, loop) / n_products;
    if (!is_innermost || n_chunks == 0) continue;
    const Way way = FindWay(code, loop, loops, sm);
    const size_t of_chunk = (way.slots + n_chunks - 1) / n_chunks;
    if (chunk_loop != nullptr && of_chunk >= slots.of_chunk) continue;
    chunk_loop = &loop;
    slots.of_chunk = of_chunk;
    slots.exponentials_of_chunk = way.exponentials / n_chunks;
    slots.exponentials_between_products =
        CountBetweenProducts(code, loop) / n_chunks;
  }
  if (chunk_loop == nullptr) {
    throw std::runtime_error(kernel.name + ": no loop over chunks");
  }
  const Loop* tile_loop = nullptr;
  for (const Loop& loop : loops) {
    if (!loop.HasWithin(*chunk_loop)) continue;
    if (tile_loop == nullptr || tile_loop->HasWithin(loop)) tile_loop = &loop;
  }
  if (tile_loop == nullptr) {
    throw std::runtime_error(kernel.name + ": no loop over tiles");
  }
  slots.of_tile = FindWay(code, *tile_loop, loops, sm).slots;
  return slots;
}

}  // namespace kvevict::cuda
