#include "state.h"

#include <algorithm>
#include <cstring>

namespace kvevict::llama {
namespace {

constexpr uint32_t kMagic = 0xaf143cd8;
constexpr uint32_t kMaxStreams = 4096;

// All known versions, newest first.
constexpr StateFormat kFormats[] = {
    {8, 0, 0}, {8, 12, 0}, {8, 0, 8}, {8, 12, 8},
    {0, 0, 0}, {0, 8, 0},  {8, 8, 0}, {8, 8, 8},
};

// Reads forward. A read past the end returns 0 and is remembered.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    if (Skip(sizeof value)) {
      std::memcpy(&value, bytes_.data() + at_ - sizeof value, sizeof value);
    }
    return value;
  }
  bool Skip(uint64_t n) {
    if (!ok_ || n > bytes_.size() - at_) return ok_ = false;
    at_ += n;
    return true;
  }
  size_t at() const { return at_; }
  bool ok() const { return ok_; }

 private:
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

uint64_t ElementBytes(const Rows& rows) {
  return ggml_type_size(static_cast<ggml_type>(rows.type));
}

// The channels of values. The tensor of transposed values may have more as
// padding.
uint64_t Channels(const LayerShape& layer) {
  return uint64_t{layer.n_kv_heads} * layer.v.head_dim;
}

}  // namespace

uint64_t StateBytes(const StateFormat& format,
                    std::span<const LayerShape> layers, uint32_t n_streams,
                    uint64_t n_cells) {
  uint64_t bytes = format.magic_bytes + 4 + 4 * uint64_t{n_streams};
  bytes += n_cells * (12 + format.extension_bytes) + 8 + format.reserved_bytes;
  for (const LayerShape& layer : layers) {
    bytes += 12 + n_cells * layer.k.row_bytes;
    if (layer.v.head_dim == 0) continue;
    bytes += 12 + n_cells * (layer.v.transposed != 0
                                 ? Channels(layer) * ElementBytes(layer.v)
                                 : layer.v.row_bytes);
  }
  return bytes;
}

bool IsStateSize(std::span<const LayerShape> layers, uint32_t n_streams,
                 uint64_t n_cells, uint64_t partial_bytes, uint64_t n_bytes) {
  return std::any_of(
      std::begin(kFormats), std::end(kFormats), [&](const StateFormat& format) {
        const uint64_t tail =
            partial_bytes == 0 ? 0 : partial_bytes - format.magic_bytes;
        return StateBytes(format, layers, n_streams, n_cells) + tail == n_bytes;
      });
}

uint32_t State::CountStreams(std::span<const uint8_t> bytes) {
  Reader in(bytes);
  auto n = in.Take<uint32_t>();
  if (n == kMagic) {
    in.Take<int32_t>();
    n = in.Take<uint32_t>();
  }
  return in.ok() && n <= kMaxStreams ? n : 0;
}

std::optional<State> State::Parse(std::span<uint8_t> bytes,
                                  std::span<const LayerShape> layers,
                                  uint64_t partial_bytes) {
  for (const StateFormat& format : kFormats) {
    if (auto state = ParseAs(format, bytes, layers, partial_bytes)) {
      return state;
    }
  }
  return std::nullopt;
}

std::optional<State> State::ParseAs(const StateFormat& format,
                                    std::span<uint8_t> bytes,
                                    std::span<const LayerShape> layers,
                                    uint64_t partial_bytes) {
  if (partial_bytes != 0 && partial_bytes < format.magic_bytes) return {};
  State state;
  state.bytes_ = bytes;
  state.format_ = format;
  Reader in(bytes);
  if (format.magic_bytes != 0) {
    if (in.Take<uint32_t>() != kMagic) return {};
    in.Take<int32_t>();
  }
  state.n_streams_ = in.Take<uint32_t>();
  if (!in.ok() || state.n_streams_ == 0 || state.n_streams_ > kMaxStreams) {
    return {};
  }
  for (uint32_t s = 0; s < state.n_streams_ && in.ok(); ++s) {
    const size_t at = in.at();
    const auto n_cells = in.Take<uint32_t>();
    if (n_cells == 0) continue;
    if (state.n_cells_ != 0) return {};  // a sequence is in one stream
    state.n_cells_ = n_cells;
    state.count_ = at;
    state.cells_ = in.at();
    for (uint32_t c = 0; c < n_cells && in.ok(); ++c) {
      in.Take<int32_t>();
      if (in.Take<uint32_t>() != 1) return {};
      in.Skip(format.extension_bytes);
      in.Take<int32_t>();
    }
    const auto transposed = in.Take<uint32_t>();
    if (!in.ok() || transposed > 1) return {};
    if (in.Take<uint32_t>() != layers.size()) return {};
    in.Skip(format.reserved_bytes);
    for (const LayerShape& layer : layers) {
      Piece piece;
      piece.header = in.at();
      if (in.Take<int32_t>() != layer.k.type) return {};
      if (in.Take<uint64_t>() != layer.k.row_bytes) return {};
      piece.data = in.at();
      piece.header_bytes = piece.data - piece.header;
      piece.cell_bytes = layer.k.row_bytes;
      if (!in.Skip(n_cells * piece.cell_bytes)) return {};
      state.k_.push_back(state.pieces_.size());
      state.pieces_.push_back(piece);
    }
    for (const LayerShape& layer : layers) {
      if (layer.v.head_dim == 0) {
        state.v_.push_back(SIZE_MAX);
        continue;
      }
      if (layer.v.transposed != transposed) return {};
      Piece piece;
      piece.header = in.at();
      if (in.Take<int32_t>() != layer.v.type) return {};
      if (transposed == 1) {
        piece.cell_bytes = ElementBytes(layer.v);
        if (in.Take<uint32_t>() != piece.cell_bytes) return {};
        piece.n_rows = in.Take<uint32_t>();
        if (piece.n_rows != Channels(layer)) return {};
      } else {
        if (in.Take<uint64_t>() != layer.v.row_bytes) return {};
        piece.cell_bytes = layer.v.row_bytes;
      }
      piece.data = in.at();
      piece.header_bytes = piece.data - piece.header;
      const uint64_t per_cell =
          piece.cell_bytes * std::max<uint64_t>(piece.n_rows, 1);
      if (!in.Skip(n_cells * per_cell)) return {};
      state.v_.push_back(state.pieces_.size());
      state.pieces_.push_back(piece);
    }
  }
  state.tail_ = in.at();
  const uint64_t tail_bytes =
      partial_bytes == 0 ? 0 : partial_bytes - format.magic_bytes;
  if (!in.ok() || bytes.size() - in.at() != tail_bytes) return {};
  return state;
}

int32_t State::position(uint32_t cell) const {
  int32_t position;
  std::memcpy(&position, bytes_.data() + cells_ + cell * cell_bytes(),
              sizeof position);
  return position;
}

uint64_t State::BytesPerCell() const {
  uint64_t bytes = cell_bytes();
  for (const Piece& p : pieces_) {
    bytes += p.cell_bytes * std::max<uint64_t>(p.n_rows, 1);
  }
  return bytes;
}

kvevict_view State::View(const LayerShape& shape, size_t layer) const {
  const auto address = [&](size_t piece) {
    return reinterpret_cast<uint64_t>(bytes_.data() + pieces_[piece].data);
  };
  return CacheView(shape, address(k_[layer]),
                   v_[layer] == SIZE_MAX ? 0 : address(v_[layer]), n_cells_);
}

std::vector<uint8_t> State::Key(const LayerShape& shape, size_t layer,
                                uint32_t cell) const {
  const uint8_t* const key =
      bytes_.data() + pieces_[k_[layer]].data + cell * shape.k.row_bytes;
  return {key, key + shape.k.row_bytes};
}

uint32_t State::LastCell() const {
  uint32_t last = 0;
  for (uint32_t i = 1; i < n_cells_; ++i) {
    if (position(i) > position(last)) last = i;
  }
  return last;
}

void State::ReorderCells(std::span<const int32_t> order) {
  const std::vector<uint8_t> before(
      bytes_.data() + cells_, bytes_.data() + cells_ + n_cells_ * cell_bytes());
  for (size_t i = 0; i < order.size(); ++i) {
    std::memcpy(bytes_.data() + cells_ + i * cell_bytes(),
                before.data() + static_cast<size_t>(order[i]) * cell_bytes(),
                cell_bytes());
  }
}

size_t State::Tighten(std::span<const int32_t> positions) {
  const auto n = static_cast<uint32_t>(positions.size());
  uint8_t* const base = bytes_.data();
  const size_t stride = cell_bytes();
  for (uint32_t i = 0, from = 0; i < n; ++i) {
    while (from + 1 < n_cells_ && position(from) < positions[i]) ++from;
    uint8_t* const cell = base + cells_ + i * stride;
    if (from != i) std::memmove(cell, base + cells_ + from * stride, stride);
    std::memcpy(cell, &positions[i], sizeof positions[i]);
  }
  std::memcpy(base + count_, &n, sizeof n);

  // Moves what is between the cells and the first piece, then the pieces, then
  // the tail.
  size_t out = cells_ + n * stride;
  const auto move = [&](size_t from, size_t bytes) {
    if (out != from) std::memmove(base + out, base + from, bytes);
    out += bytes;
  };
  size_t end = cells_ + n_cells_ * stride;
  const auto rows_of = [](const Piece& p) {
    return std::max<uint64_t>(p.n_rows, 1);
  };
  move(end, pieces_.empty() ? 0 : pieces_.front().header - end);
  for (const Piece& p : pieces_) {
    move(p.header, p.header_bytes);
    for (uint64_t r = 0; r < rows_of(p); ++r) {
      move(p.data + r * n_cells_ * p.cell_bytes, n * p.cell_bytes);
    }
    end = p.data + rows_of(p) * n_cells_ * p.cell_bytes;
  }
  move(end, bytes_.size() - end);
  return out;
}

}  // namespace kvevict::llama
