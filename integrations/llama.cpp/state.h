// The bytes of llama_state_seq_get_data(), and where positions, keys and values
// are in them. They do not say which version of llama.cpp wrote them. So they
// are accepted only if every header agrees with the layers and they end where
// they must.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_STATE_H_
#define KVEVICT_INTEGRATIONS_LLAMA_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "layers.h"

namespace kvevict::llama {

// The differences between versions.
struct StateFormat {
  uint32_t magic_bytes = 0;      // u32 0xaf143cd8 and i32 sequence, or 0
  uint32_t extension_bytes = 0;  // per cell, for models with M-RoPE
  uint32_t reserved_bytes = 0;   // after the number of layers
};

// The bytes of a state with n_cells cells, without windows and recurrence.
uint64_t StateBytes(const StateFormat& format,
                    std::span<const LayerShape> layers, uint32_t n_streams,
                    uint64_t n_cells);

// Whether any version would write n_bytes; `partial_bytes` as for
// State::Parse().
bool IsStateSize(std::span<const LayerShape> layers, uint32_t n_streams,
                 uint64_t n_cells, uint64_t partial_bytes, uint64_t n_bytes);

class State {
 public:
  // Reads `bytes` of a cache with `layers`. `partial_bytes` is the size, with
  // its own header, of what is not cells of these layers, or 0. Returns no
  // value for another form.
  static std::optional<State> Parse(std::span<uint8_t> bytes,
                                    std::span<const LayerShape> layers,
                                    uint64_t partial_bytes);

  // The number of streams of the state's cache; 0: not a state.
  static uint32_t CountStreams(std::span<const uint8_t> bytes);

  uint32_t n_cells() const { return n_cells_; }
  uint32_t n_streams() const { return n_streams_; }
  const StateFormat& format() const { return format_; }
  // Whether the state has more than cells that keep everything.
  bool has_tail() const { return tail_ < bytes_.size(); }
  int32_t position(uint32_t cell) const;
  // Bytes per cell of one sequence: of the layers' rows and of what is stored
  // beside them.
  uint64_t BytesPerCell() const;
  // A view of the layer's rows in place.
  kvevict_view View(const LayerShape& shape, size_t layer) const;

  // The key of a cell in a layer.
  std::vector<uint8_t> Key(const LayerShape& shape, size_t layer,
                           uint32_t cell) const;
  // The cell with the last position.
  uint32_t LastCell() const;

  // Reorders cells as `order` lists them, but not their rows.
  void ReorderCells(std::span<const int32_t> order);

  // Keeps cells 0 .. positions.size() - 1 and gives them these positions,
  // ascending. Other data of a cell moves with its position. Returns the bytes
  // left.
  size_t Tighten(std::span<const int32_t> positions);

 private:
  struct Piece {  // K or V of a layer
    size_t header = 0, header_bytes = 0, data = 0;
    // bytes of a row, or of an element of each channel
    uint64_t cell_bytes = 0;
    uint64_t n_rows = 0;  // 0: one row per cell; else channels
  };

  static std::optional<State> ParseAs(const StateFormat& format,
                                      std::span<uint8_t> bytes,
                                      std::span<const LayerShape> layers,
                                      uint64_t partial_bytes);
  size_t cell_bytes() const { return 12 + format_.extension_bytes; }

  std::span<uint8_t> bytes_;
  StateFormat format_;
  uint32_t n_streams_ = 0;
  uint32_t n_cells_ = 0;
  size_t count_ = 0;  // offset of the number of cells
  size_t cells_ = 0;
  size_t tail_ = 0;  // end of the layers
  std::vector<Piece> pieces_;
  std::vector<size_t> k_, v_;  // pieces of each layer; v: SIZE_MAX if none
};

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_STATE_H_
