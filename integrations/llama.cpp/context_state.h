// The state of a context's sequences, as llama.cpp returns and takes it.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CONTEXT_STATE_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CONTEXT_STATE_H_

#include <llama.h>

#include <cstdint>
#include <optional>
#include <span>

#include "bytes.h"
#include "layers.h"
#include "state.h"

namespace kvevict::llama {

class ContextState {
 public:
  ContextState() = default;
  explicit ContextState(llama_context* ctx);

  size_t Size(llama_seq_id seq) const;
  // Fetches the whole state into memory, which grows if needed.
  std::span<uint8_t> Fetch(llama_seq_id seq, Bytes& memory) const;
  // Returns no value for an unknown form.
  std::optional<State> TryParse(llama_seq_id seq, std::span<uint8_t> bytes,
                                std::span<const LayerShape> layers) const;
  // Throws for an unknown form.
  State Parse(llama_seq_id seq, std::span<uint8_t> bytes,
              std::span<const LayerShape> layers) const;
  // Replaces the sequence. Returns false if llama.cpp did not take it; the
  // sequence is then empty.
  [[nodiscard]] bool Store(llama_seq_id seq,
                           std::span<const uint8_t> bytes) const;
  // Bytes of the cells in layers that keep everything, for one sequence or with
  // -1 for all. `like` is a state of the same context.
  uint64_t FullBytes(llama_seq_id seq, const State& like) const;
  // Whether a state of the sequence has n_cells cells, without fetching it.
  bool HasCells(llama_seq_id seq, std::span<const LayerShape> layers,
                uint32_t n_streams, uint32_t n_cells) const;
  // The number of the cache's streams, from the state of a sequence without
  // cells.
  uint32_t CountStreams(llama_seq_id seq) const;

 private:
  // The bytes, with header, of all in a state except cells that keep
  // everything.
  uint64_t PartialBytes(llama_seq_id seq) const;

  llama_context* ctx_ = nullptr;
  bool is_partial_ = false;  // the model has windows or recurrent layers
};

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CONTEXT_STATE_H_
