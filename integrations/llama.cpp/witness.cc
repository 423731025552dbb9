// The key of a sequence's last token: where it is another one, somebody else has set
// the sequence's cells.
#include <algorithm>

#include "adapter.h"

using kvevict::llama::Layer;
using kvevict::llama::ReadTensor;
using kvevict::llama::Sequence;
using kvevict::llama::Witness;

namespace {

std::vector<uint8_t> KeyOf(const Layer& layer, int64_t cell) {
  std::vector<uint8_t> key(layer.k->nb[1]);
  ReadTensor(layer.k, key.data(), static_cast<size_t>(cell) * key.size(),
             key.size());
  return key;
}

}  // namespace

const Layer* kvevict_llama::WitnessLayer(size_t cache) const {
  for (const Layer& layer : observer_.layers()) {
    if (layer.shape.index == witness_layers_[cache]) return &layer;
  }
  return nullptr;
}

// The deepest layer of a cache, whose keys depend on all earlier tokens, comes last.
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
    s.unfit =
        "the key of its last token is not the one that was decoded: a state "
        "was set, or its cells were shifted or copied over";
  }
}

// After an eviction: what stays begins at its stream's first cell, or nobody tells where.
void kvevict_llama::MoveWitnesses(Sequence& s, llama_seq_id seq,
                                  uint32_t n_cells) const {
  for (size_t cache = 0; cache < s.witnesses.size(); ++cache) {
    Witness& witness = s.witnesses[cache];
    const Layer* const layer = WitnessLayer(cache);
    if (witness.cell < 0 || layer == nullptr) continue;
    witness.cell = -1;
    const auto [row, stream_cells, n_streams, _] = layer->k->ne;
    if ((n_seq_max_ > 1 && n_streams == 1) || n_cells > stream_cells) continue;
    const int64_t cell =
        (n_streams > 1 ? seq * stream_cells : 0) + int64_t{n_cells} - 1;
    if (KeyOf(*layer, cell) == witness.key) witness.cell = cell;
  }
}
