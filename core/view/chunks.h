// A cache in chunks of adjacent slots. Each chunk is scored and selected from
// as if it were the whole cache.
#ifndef KVEVICT_CORE_VIEW_CHUNKS_H_
#define KVEVICT_CORE_VIEW_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/policy/params.h"
#include "core/status.h"

namespace kvevict {

// The chunks of a valid policy, or one chunk of all slots.
class Chunks {
 public:
  Chunks(const Policy& policy, uint32_t n_tokens);

  uint32_t Count() const {
    return static_cast<uint32_t>((uint64_t{n_tokens_} + size_ - 1) / size_);
  }
  uint32_t BeginOf(uint32_t chunk) const { return chunk * size_; }
  uint32_t LengthOf(uint32_t chunk) const {
    return std::min(size_, n_tokens_ - BeginOf(chunk));
  }
  // The chunk of a slot.
  uint32_t IndexOf(uint32_t slot) const { return slot / size_; }

  // The first and last tokens of a chunk that must stay.
  uint32_t SinkOf(uint32_t chunk) const {
    return std::min(n_sink_, LengthOf(chunk));
  }
  uint32_t RecentOf(uint32_t chunk) const {
    const uint32_t end = BeginOf(chunk) + LengthOf(chunk);
    const uint32_t first = n_tokens_ - std::min(n_recent_, n_tokens_);
    return std::min(end - std::min(first, end), LengthOf(chunk));
  }
  uint32_t EndsOf(uint32_t chunk) const {
    return static_cast<uint32_t>(std::min(
        uint64_t{SinkOf(chunk)} + RecentOf(chunk), uint64_t{LengthOf(chunk)}));
  }
  // Whether a slot is one of them.
  bool IsEnd(uint32_t slot) const {
    return slot % size_ < n_sink_ ||
           uint64_t{slot} + n_recent_ >= uint64_t{n_tokens_};
  }
  // The fewest tokens that a chunk keeps: these, but at least one.
  uint32_t LeastOf(uint32_t chunk) const { return std::max(1u, EndsOf(chunk)); }
  uint64_t Least() const;
  uint64_t Sinks() const;

  // The tokens of all chunks at a ratio, rounded down in each.
  uint64_t TokensAt(double ratio) const;

  // Shares a budget among the chunks. `counts` has the least of each, for which
  // the budget has room, and receives what each keeps; the sum is the budget.
  void Share(uint32_t budget, std::span<uint32_t> counts) const;

 private:
  // Sums a number over the chunks. It is equal for chunks before the last
  // tokens.
  template <typename Number>
  uint64_t Sum(const Number& of_chunk) const {
    const uint32_t n_alike =
        IndexOf(n_tokens_ - std::min(n_recent_, n_tokens_));
    uint64_t sum = n_alike == 0 ? 0 : uint64_t{of_chunk(0)} * n_alike;
    for (uint32_t i = n_alike; i < Count(); ++i) sum += of_chunk(i);
    return sum;
  }
  uint32_t ShareOf(uint32_t chunk, uint64_t level) const;

  const uint32_t n_tokens_;
  const uint32_t size_;
  const uint32_t n_sink_;
  const uint32_t n_recent_;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_CHUNKS_H_
