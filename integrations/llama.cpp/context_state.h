// The state of a context's sequences, as llama.cpp hands it out and takes it.
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
  // All of it, into memory that grows where it must.
  std::span<uint8_t> Fetch(llama_seq_id seq, Bytes& memory) const;
  // No value: a form that is not known.
  std::optional<State> TryParse(llama_seq_id seq, std::span<uint8_t> bytes,
                                std::span<const LayerShape> layers) const;
  // Throws.
  State Parse(llama_seq_id seq, std::span<uint8_t> bytes,
              std::span<const LayerShape> layers) const;
  // Replaces the sequence. False: llama.cpp did not take it, and has none of it now.
  [[nodiscard]] bool Store(llama_seq_id seq,
                           std::span<const uint8_t> bytes) const;
  // Bytes of the cells that keep everything: of a sequence, or with -1 of all; `like` is
  // a state of the same context.
  uint64_t FullBytes(llama_seq_id seq, const State& like) const;
  // Whether a state of the sequence has so many cells, without fetching it.
  bool HasCells(llama_seq_id seq, std::span<const LayerShape> layers,
                uint32_t n_streams, uint32_t n_cells) const;
  // Of the cache, as the state of a sequence without cells has it.
  uint32_t CountStreams(llama_seq_id seq) const;

 private:
  // With header, of what is in a state besides cells that keep everything.
  uint64_t PartialBytes(llama_seq_id seq) const;

  llama_context* ctx_ = nullptr;
  bool is_partial_ = false;  // the model has windows or recurrent layers
};

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CONTEXT_STATE_H_
