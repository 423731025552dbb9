// How RoPE rotated the queries of a layer.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_ROTATION_H_
#define KVEVICT_INTEGRATIONS_LLAMA_ROTATION_H_

#include <ggml.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvevict::llama {

// How a layer's queries were rotated: pair p of a head's elements by position *
// inv_freq[p]. Elements beyond the pairs are left alone.
struct Rotation {
  std::vector<double> inv_freq;
  bool halves = false;  // pair p is (p, p + pairs), else (2p, 2p + 1)
  std::string unknown;  // why it is not known; "" if it is

  bool operator==(const Rotation&) const = default;
};

// Finds the rotation from the node that computed the queries that attention
// reads.
Rotation FindRotation(const ggml_tensor* q);

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_ROTATION_H_
