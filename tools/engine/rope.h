// How a model rotates its queries and keys.
#ifndef KVEVICT_TOOLS_ENGINE_ROPE_H_
#define KVEVICT_TOOLS_ENGINE_ROPE_H_

#include <cstddef>
#include <vector>

namespace kvevict::tools {

// Pair p of a head's elements is rotated by position * inv_freq[p]. Elements
// beyond the pairs are left alone.
struct Rope {
  std::vector<double> inv_freq = {};
  bool halves = false;  // pair p is (p, p + pairs), else (2p, 2p + 1)

  size_t n_pairs() const { return inv_freq.size(); }
  size_t First(size_t pair) const { return halves ? pair : 2 * pair; }
  size_t Second(size_t pair) const {
    return halves ? pair + n_pairs() : 2 * pair + 1;
  }
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_ROPE_H_
