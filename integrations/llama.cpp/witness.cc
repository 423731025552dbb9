// Checks whether a sequence's cells are the known ones: by their number, their
// positions and the key of the last token, which differs if somebody else has
// set the cells.
#include <algorithm>

#include "adapter.h"
#include "error.h"

using kvevict::llama::Bytes;
using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::kRemedy;
using kvevict::llama::Layer;
using kvevict::llama::PositionsOf;
using kvevict::llama::ReadTensor;
using kvevict::llama::Sequence;
using kvevict::llama::State;
using kvevict::llama::Witness;

namespace {

constexpr char kForeignKey[] =
    "the key of its last token is not the known one: a state was set, or its "
    "cells were shifted or copied over";

std::vector<uint8_t> KeyOf(const Layer& layer, int64_t cell) {
  std::vector<uint8_t> key(layer.k->nb[1]);
  ReadTensor(layer.k, key.data(), static_cast<size_t>(cell) * key.size(),
             key.size());
  return key;
}

}  // namespace

namespace kvevict::llama {

std::vector<int32_t> PositionsOf(const kvevict_sequence* sequence) {
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(sequence, 0, 0, &n));
  std::vector<int32_t> positions(n);
  size_t n_written = 0;
  Check(kvevict_sequence_keep_positions(sequence, 0, 0, positions.data(), n,
                                        &n_written));
  return positions;
}

}  // namespace kvevict::llama

const Layer* kvevict_llama::WitnessLayer(size_t cache) const {
  for (const Layer& layer : observer_.layers()) {
    if (layer.shape.index == witness_layers_[cache]) return &layer;
  }
  return nullptr;
}

// The deepest layer of a cache, whose keys depend on all earlier tokens, comes
// last.
void kvevict_llama::TakeWitnesses(size_t layer) {
  const Layer& from = observer_.layers()[layer];
  if (from.cache >= witness_layers_.size() ||
      from.shape.index < witness_layers_[from.cache]) {
    return;
  }
  witness_layers_[from.cache] = from.shape.index;
  const auto cells = observer_.CellsOf(layer);
  if (cells.size() != rows_.size()) return;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].later > 0) continue;
    Sequence& s = sequences_[static_cast<size_t>(rows_[r].seq)];
    s.witnesses[from.cache] = {cells[r], KeyOf(from, cells[r])};
    s.witnessed = rows_[r].position;
  }
}

void kvevict_llama::ForgetWitnesses(Sequence& s) {
  for (Witness& witness : s.witnesses) witness.cell = -1;
}

void kvevict_llama::CheckWitnesses(Sequence& s) const {
  if (!s.unfit.empty()) return;
  for (size_t cache = 0; cache < s.witnesses.size(); ++cache) {
    const Witness& witness = s.witnesses[cache];
    const Layer* const layer = WitnessLayer(cache);
    if (witness.cell < 0 || layer == nullptr ||
        KeyOf(*layer, witness.cell) == witness.key) {
      continue;
    }
    s.unfit = kForeignKey;
  }
}

std::vector<uint8_t> kvevict_llama::KeyIn(const State& state,
                                          uint32_t cell) const {
  return state.Key(shapes_.back(), shapes_.size() - 1, cell);
}

void kvevict_llama::CheckCount(const Sequence& s, llama_seq_id seq) const {
  if (state_.HasCells(seq, shapes_, n_streams_, s.n_cells)) return;
  Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": its cells are not the ",
       s.n_cells,
       " that are known here: some were removed, shifted or copied, another "
       "adapter has evicted it, a state was set, or its form is not known",
       kRemedy);
}

void kvevict_llama::CheckState(Sequence& s, llama_seq_id seq,
                               const State& state) const {
  std::vector<int32_t> known = PositionsOf(s.handle.get());
  std::erase_if(known, [next = NextOf(seq)](int32_t position) {
    return position >= static_cast<int64_t>(next);
  });
  if (state.n_cells() != known.size()) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": llama.cpp has ",
         state.n_cells(), " cells, and ", known.size(),
         " are known here: some were removed or copied, another adapter has "
         "evicted it, or a state was set",
         kRemedy);
  }
  std::vector<std::pair<int32_t, uint32_t>> cells(known.size());
  for (uint32_t i = 0; i < cells.size(); ++i) cells[i] = {state.position(i), i};
  std::sort(cells.begin(), cells.end());
  for (size_t i = 0; i < known.size(); ++i) {
    const auto [position, cell] = cells[i];
    if (position != known[i]) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": the token of position ",
           known[i], " has position ", position,
           " in llama.cpp; it was shifted, or a state was set", kRemedy);
    }
    if (!s.state_key.empty() &&
        static_cast<uint32_t>(position) == s.state_last &&
        KeyIn(state, cell) != s.state_key) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": ", kForeignKey, kRemedy);
    }
  }
  // The witness is a later token now.
  if (!known.empty() && static_cast<uint32_t>(known.back()) > s.state_last) {
    s.state_key.clear();
  }
}

void kvevict_llama::CheckCells(Sequence& s, llama_seq_id seq) const {
  const uint32_t next = NextOf(seq);
  if (next == 0) return;
  if (next == s.next && s.state_key.empty()) return CheckCount(s, seq);
  Bytes memory;
  const State state = state_.Parse(seq, state_.Fetch(seq, memory), shapes_);
  CheckState(s, seq, state);
  if (next == s.next || !WasShifted(s, seq, state)) return;
  Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq, ": of ", s.next,
       " tokens decoded llama.cpp's positions reach ", next,
       ", and those that went are not the last: positions were shifted",
       kRemedy);
}

// Whether a token other than the last was removed from a sequence that has
// fewer positions. llama.cpp rotates shifted keys before the next graph, so
// rows show it.
bool kvevict_llama::WasShifted(const Sequence& s, llama_seq_id seq,
                               const State& state) const {
  const std::vector<uint8_t> last = KeyIn(state, state.LastCell());
  if (s.in_order && s.placed && !windowed_) {
    const Layer& layer = LiveLayer(shapes_.size() - 1);
    const auto [row, stream_cells, n_streams, _] = layer.k->ne;
    return KeyOf(layer, (n_streams > 1 ? seq * stream_cells : 0) +
                            int64_t{state.n_cells()} - 1) != last;
  }
  if (!s.state_key.empty() && s.state_last + 1 == s.next) {
    return last == s.state_key;
  }
  for (size_t cache = 0; cache < s.witnesses.size(); ++cache) {
    if (s.witnesses[cache].cell >= 0 &&
        witness_layers_[cache] == shapes_.back().index &&
        s.witnesses[cache].key == last) {
      return true;
    }
  }
  return false;
}

// Updates witnesses after an eviction in place, whose cells begin at the first
// cell of their stream.
void kvevict_llama::MoveWitnesses(Sequence& s, llama_seq_id seq,
                                  uint32_t n_cells) const {
  for (size_t cache = 0; cache < s.witnesses.size(); ++cache) {
    Witness& witness = s.witnesses[cache];
    const Layer* const layer = WitnessLayer(cache);
    if (witness.cell < 0 || layer == nullptr) continue;
    witness.cell = -1;
    const auto [row, stream_cells, n_streams, _] = layer->k->ne;
    if (n_cells > stream_cells) continue;
    const int64_t cell =
        (n_streams > 1 ? seq * stream_cells : 0) + int64_t{n_cells} - 1;
    if (KeyOf(*layer, cell) == witness.key) witness.cell = cell;
  }
}
