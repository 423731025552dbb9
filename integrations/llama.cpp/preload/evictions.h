// Batches that the program decodes, and the evictions behind each of them.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_EVICTIONS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_EVICTIONS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "context.h"

namespace kvevict::llama_preload {

// A token of a batch.
struct Row {
  llama_seq_id seq = 0;
  llama_pos position = -1;  // -1: not known
  bool output = false;      // the program wants its logits or embedding
  bool shared = false;      // it belongs to several sequences
};
using Rows = std::vector<Row>;

// Announces a batch, decodes it and, if the context is automatic, evicts its sequences.
// Returns the status of `decode`, or -3, llama.cpp's "compute error", if an eviction lost a sequence.
int32_t Process(Context& c, const Rows& rows,
                const std::function<int32_t()>& decode);

}  // namespace kvevict::llama_preload

#endif  // KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_EVICTIONS_H_
