#include "context_state.h"

#include "error.h"

namespace kvevict::llama {

ContextState::ContextState(llama_context* ctx) : ctx_(ctx) {
  const llama_model* model = llama_get_model(ctx);
  is_partial_ = llama_model_is_hybrid(model) ||
                llama_model_is_recurrent(model) || llama_model_n_swa(model) > 0;
}

size_t ContextState::Size(llama_seq_id seq) const {
  return llama_state_seq_get_size(ctx_, seq);
}

std::span<uint8_t> ContextState::Fetch(llama_seq_id seq, Bytes& memory) const {
  const size_t size = Size(seq);
  memory.Reserve(size);
  uint8_t* const data = memory.data();
  if (size == 0 || llama_state_seq_get_data(ctx_, data, size, seq) != size) {
    Fail(KVEVICT_ERROR_INTERNAL, "seq ", seq,
         ": llama_state_seq_get_data() failed");
  }
  return {data, size};
}

uint64_t ContextState::PartialBytes(llama_seq_id seq) const {
  if (!is_partial_) return 0;
  return llama_state_seq_get_size_ext(ctx_, seq,
                                      LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
}

uint64_t ContextState::FullBytes(llama_seq_id seq, const State& like) const {
  if (!like.has_tail()) return Size(seq);
  return Size(seq) - (PartialBytes(seq) - like.format().magic_bytes);
}

bool ContextState::HasCells(llama_seq_id seq,
                            std::span<const LayerShape> layers,
                            uint32_t n_streams, uint32_t n_cells) const {
  const uint64_t size = Size(seq), partial = PartialBytes(seq);
  return IsStateSize(layers, n_streams, n_cells, partial, size) ||
         (is_partial_ && IsStateSize(layers, n_streams, n_cells, 0, size));
}

std::optional<State> ContextState::TryParse(
    llama_seq_id seq, std::span<uint8_t> bytes,
    std::span<const LayerShape> layers) const {
  auto state = State::Parse(bytes, layers, PartialBytes(seq));
  // Models with windows may have one cache for all layers, as with a full
  // window.
  if (!state && is_partial_) state = State::Parse(bytes, layers, 0);
  return state;
}

State ContextState::Parse(llama_seq_id seq, std::span<uint8_t> bytes,
                          std::span<const LayerShape> layers) const {
  const auto state = TryParse(seq, bytes, layers);
  if (!state) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": llama.cpp's state of ",
         bytes.size(), " bytes has an unknown form");
  }
  return *state;
}

bool ContextState::Store(llama_seq_id seq,
                         std::span<const uint8_t> bytes) const {
  if (llama_state_seq_set_data(ctx_, bytes.data(), bytes.size(), seq) ==
      bytes.size()) {
    return true;
  }
  llama_memory_seq_rm(llama_get_memory(ctx_), seq, -1, -1);
  return false;
}

uint32_t ContextState::CountStreams(llama_seq_id seq) const {
  Bytes memory;
  return State::CountStreams(Fetch(seq, memory));
}

}  // namespace kvevict::llama
