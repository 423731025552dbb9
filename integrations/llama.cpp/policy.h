// A policy and what the adapter needs to know about it.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_POLICY_H_
#define KVEVICT_INTEGRATIONS_LLAMA_POLICY_H_

#include <cstdint>

#include "kvevict/experimental.h"
#include "layers.h"

namespace kvevict::llama {

struct Policy {
  PolicyHandle handle;
  uint32_t n_sink = 0;
  uint32_t n_query_rows = 0;  // see kvevict_resolved_policy
  bool has_one_list = false;  // all layers and heads share a list
  bool rewrites = false;      // merges rows or fits values

  bool Needs(kvevict_input input) const;
};

PolicyHandle CreatePolicy(const char* text);

// Throws Error for a policy that llama.cpp's cache cannot hold, or that needs
// what the adapter does not have.
Policy ParsePolicy(const char* text, bool has_calibration);

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_POLICY_H_
