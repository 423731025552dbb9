// The format, little-endian:
//
//   u8 magic[8]   u32 version   u32 CRC-32 of all that follows
//   u64 bytes in all   u32 n_layers with a full cache   u32 logical length
//   u32 tokens of the prompt, or 2^32 - 1   u32 round
//   per layer: u32 number   u32 n_lists   u32 tail position   u32 flags
//              u32 slots of the prompt
//              if kEdited, which only the first layer is: u32 first position
//              whose row was computed with other tokens before it
//              unless kAsBefore: u32 counts[n_lists], i32 positions per list
//   version 2, per layer: u32 n_kv_heads, or 0 without scores   u32 position at
//              which they end   f32 scores of each KV head's slots up to there
#include "core/sequence/saved_sequence.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/crc32.h"

namespace kvevict {
namespace {

constexpr uint8_t kMagic[8] = {'K', 'V', 'E', 'V', 'S', 'E', 'Q', 0x1A};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kVersionWithScores = 2;  // follow the layers
constexpr size_t kCrcBegin = 16;
constexpr size_t kHeaderBytes = 40;
constexpr size_t kLayerBytes = 20;
constexpr size_t kScoresBytes = 8;  // of each layer, before its scores

enum LayerFlags : uint32_t {
  kMerged = 1,    // rows may have been merged
  kAsBefore = 2,  // the lists are those of the layer before
  kEdited = 4,    // rows were computed with other text
};

// Whether a layer has the lists of the one before: all layers share a list, or
// both share a cache.
bool IsAsBefore(const Sequence& sequence, uint32_t l) {
  if (l == 0) return false;
  const LayerSlots& slots = sequence.slots()[l];
  const LayerSlots& before = sequence.slots()[l - 1];
  return slots.n_kept > 0 && slots.n_kept == before.n_kept &&
         slots.kept_offset == before.kept_offset;
}

bool HasScores(const Sequence& sequence) {
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    if (sequence.sums().ScoresEnd(sequence.slots(), l) > 0) return true;
  }
  return false;
}

// The slots of a KV head that have a score if those up to position `end` do.
// No token that came later has been evicted.
uint32_t ScoredSlots(const Sequence& sequence, uint32_t l, uint32_t kv_head,
                     uint32_t end) {
  return sequence.Stored(l, kv_head) - (sequence.logical_length() - end);
}

bool IsEdited(const Sequence& sequence) {
  return sequence.slots().edited_from() != SlotTable::kNotEdited;
}

class Writer {
 public:
  explicit Writer(uint8_t* out) : out_(out) {}

  void U32(uint32_t value) {
    for (int i = 0; i < 4; ++i) *out_++ = static_cast<uint8_t>(value >> 8 * i);
  }
  void U64(uint64_t value) {
    U32(static_cast<uint32_t>(value));
    U32(static_cast<uint32_t>(value >> 32));
  }

 private:
  uint8_t* out_;
};

// Reads 0 and is no longer ok() once no bytes are left.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> data) : data_(data) {}

  uint32_t U32() {
    uint32_t value = 0;
    ok_ = ok_ && data_.size() >= 4;
    if (!ok_) return 0;
    for (int i = 0; i < 4; ++i) value |= uint32_t{data_[i]} << 8 * i;
    data_ = data_.subspan(4);
    return value;
  }
  uint64_t U64() {
    const uint64_t low = U32();
    return low | uint64_t{U32()} << 32;
  }
  void Skip(size_t n_bytes) { data_ = data_.subspan(n_bytes); }
  bool ok() const { return ok_; }
  size_t n_left() const { return data_.size(); }

 private:
  std::span<const uint8_t> data_;
  bool ok_ = true;
};

// Reads all scores into `row`, one KV head after the other, and writes them.
Status SaveScores(const Sequence& sequence, std::span<float> row, Writer* out) {
  const SumTable& sums = sequence.sums();
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    const uint32_t end = sums.ScoresEnd(sequence.slots(), l);
    const uint32_t n_heads = sequence.plan().layer(l).geometry.n_kv_heads;
    out->U32(end == 0 ? 0 : n_heads);
    out->U32(end);
    for (uint32_t h = 0; end > 0 && h < n_heads; ++h) {
      const uint32_t n = ScoredSlots(sequence, l, h, end);
      KV_RETURN_IF_ERROR(sums.ReadRow(sequence.stream(), l, h, n, row.data()));
      for (const float score : row.first(n)) {
        out->U32(std::bit_cast<uint32_t>(score));
      }
    }
  }
  return Status();
}

Status SaveLayer(const Sequence& sequence, uint32_t l, Writer* out) {
  const PlanLayer& layer = sequence.plan().layer(l);
  const LayerSlots& slots = sequence.slots()[l];
  const bool as_before = IsAsBefore(sequence, l);
  out->U32(layer.number);
  out->U32(layer.n_lists);
  out->U32(slots.tail_position);
  const bool is_edited = l == 0 && IsEdited(sequence);
  out->U32((slots.is_merged ? kMerged : 0u) | (as_before ? kAsBefore : 0u) |
           (is_edited ? kEdited : 0u));
  // Evictions may leave fewer slots than the prompt had. More than are stored
  // would have no meaning.
  out->U32(std::min(sequence.prompt().SlotsOf(l), slots.stored));
  if (is_edited) out->U32(sequence.slots().edited_from());
  if (as_before) return Status();
  SlotPositions positions;
  KV_RETURN_IF_ERROR(sequence.HostPositions(l, &positions));
  for (uint32_t list = 0; list < layer.n_lists; ++list) {
    out->U32(positions.n_kept.Of(list));
  }
  for (uint32_t list = 0; list < layer.n_lists; ++list) {
    for (uint32_t i = 0; i < positions.n_kept.Of(list); ++i) {
      out->U32(static_cast<uint32_t>(positions.PositionOf(list, i)));
    }
  }
  return Status();
}

// ---- Loading ----

Status CheckHeader(std::span<const uint8_t> data, uint32_t* out_version) {
  if (data.size() < kHeaderBytes) {
    return InvalidArgument("data_len %zu < %zu of the least saved sequence",
                           data.size(), kHeaderBytes);
  }
  if (!std::equal(std::begin(kMagic), std::end(kMagic), data.begin())) {
    return InvalidArgument("data does not begin with a saved sequence's magic");
  }
  Reader header(data.subspan(sizeof kMagic));
  *out_version = header.U32();
  if (*out_version != kVersion && *out_version != kVersionWithScores) {
    return InvalidArgument("data: version %u, but this library reads %u and %u",
                           *out_version, kVersion, kVersionWithScores);
  }
  const uint32_t saved_crc = header.U32();
  if (const uint64_t n_bytes = header.U64(); n_bytes != data.size()) {
    return InvalidArgument("data_len %zu is not the %llu bytes that were saved",
                           data.size(),
                           static_cast<unsigned long long>(n_bytes));
  }
  if (const uint32_t crc = Crc32(data.subspan(kCrcBegin)); crc != saved_crc) {
    return InvalidArgument("data: CRC-32 %08x is not the saved %08x: damaged",
                           crc, saved_crc);
  }
  return Status();
}

Status Malformed(const PlanLayer& layer) {
  return InvalidArgument("data: layer %u contradicts itself", layer.number);
}

// Writes positions to *room and advances it.
Status LoadLists(const PlanLayer& layer, Reader* in, int32_t** room,
                 const LayerPositions& out) {
  uint64_t n_positions = 0;
  for (PositionList& list : out.lists) {
    const uint32_t n = in->U32();
    if (n_positions + n > in->n_left() / sizeof(int32_t)) {
      return Malformed(layer);
    }
    list = {*room + n_positions, n};
    n_positions += n;
  }
  for (uint64_t i = 0; i < n_positions; ++i) {
    const auto position = static_cast<int32_t>(in->U32());
    if (position >= int64_t{out.tail_position}) return Malformed(layer);
    *(*room)++ = position;
  }
  return Status();
}

Status LoadLayer(const Plan& plan, uint32_t l, uint32_t logical, Reader* in,
                 int32_t** room, std::span<LayerPositions> layers,
                 uint32_t* edited_from) {
  const PlanLayer& layer = plan.layer(l);
  if (const uint32_t number = in->U32(); number != layer.number) {
    return InvalidArgument("data has layer %u in place of the plan's layer %u",
                           number, layer.number);
  }
  if (const uint32_t n_lists = in->U32(); n_lists != layer.n_lists) {
    return InvalidArgument("data: layer %u has %u lists, but the plan's has %u",
                           layer.number, n_lists, layer.n_lists);
  }
  layers[l].tail_position = in->U32();
  const uint32_t flags = in->U32();
  layers[l].prompt_slots = in->U32();
  layers[l].is_merged = (flags & kMerged) != 0;
  if (layers[l].tail_position > logical ||
      flags > (kMerged | kAsBefore | kEdited)) {
    return Malformed(layer);
  }
  if ((flags & kEdited) != 0) {
    *edited_from = in->U32();
    if (l > 0 || *edited_from >= logical) return Malformed(layer);
  }
  if ((flags & kAsBefore) == 0) return LoadLists(layer, in, room, layers[l]);
  if (l == 0 || layers[l - 1].lists.size() != layer.n_lists) {
    return Malformed(layer);
  }
  std::copy(layers[l - 1].lists.begin(), layers[l - 1].lists.end(),
            layers[l].lists.begin());
  return Status();
}

// Reads the scores of all layers, whose lists have been read. They go to
// `sequence`, which has these lists; if it is NULL they are only checked. `row`
// has room for a KV head's.
Status LoadScores(const Plan& plan, std::span<const LayerPositions> layers,
                  uint32_t logical, Reader* in, std::span<float> row,
                  Sequence* sequence) {
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    const PlanLayer& layer = plan.layer(l);
    const uint32_t tail = layers[l].tail_position;
    const uint32_t n_rows = in->U32();
    const uint32_t end = in->U32();
    if (n_rows == 0 && end == 0) continue;
    if (n_rows != layer.geometry.n_kv_heads) {
      return InvalidArgument(
          "data: layer %u has scores of %u KV heads, but the plan's has %u",
          layer.number, n_rows, layer.geometry.n_kv_heads);
    }
    if (end == 0 || end < tail || end > logical) return Malformed(layer);
    for (uint32_t h = 0; h < n_rows; ++h) {
      const PositionList& list = layers[l].lists[layer.n_lists == 1 ? 0 : h];
      const size_t n = list.size() + (end - tail);
      if (n > in->n_left() / sizeof(float)) return Malformed(layer);
      if (sequence == nullptr) {
        in->Skip(n * sizeof(float));
        continue;
      }
      for (float& score : row.first(n)) {
        score = std::bit_cast<float>(in->U32());
      }
      KV_RETURN_IF_ERROR(sequence->sums().WriteRow(
          sequence->stream(), l, h, static_cast<uint32_t>(n), row.data()));
    }
    if (sequence != nullptr) sequence->sums().RestoreScores(l, end);
  }
  return Status();
}

}  // namespace

size_t SavedBytes(const Sequence& sequence) {
  size_t n = kHeaderBytes + (IsEdited(sequence) ? sizeof(uint32_t) : 0);
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    n += kLayerBytes;
    if (IsAsBefore(sequence, l)) continue;
    const LayerSlots& slots = sequence.slots()[l];
    const uint32_t tail = slots.stored - slots.n_kept;
    for (uint32_t list = 0; list < sequence.plan().layer(l).n_lists; ++list) {
      const uint32_t n_kept = sequence.slots().HostTokens(l).Of(list) - tail;
      n += sizeof(uint32_t) + n_kept * sizeof(int32_t);
    }
  }
  if (!HasScores(sequence)) return n;
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    n += kScoresBytes;
    const uint32_t end = sequence.sums().ScoresEnd(sequence.slots(), l);
    const uint32_t n_heads = sequence.plan().layer(l).geometry.n_kv_heads;
    for (uint32_t h = 0; end > 0 && h < n_heads; ++h) {
      n += ScoredSlots(sequence, l, h, end) * sizeof(float);
    }
  }
  return n;
}

Status SaveSequence(const Sequence& sequence, std::span<uint8_t> out) {
  const uint32_t n_layers = sequence.plan().n_layers();
  const bool has_scores = HasScores(sequence);
  // All that can fail runs before the first byte is written, except for copies
  // of scores from a device that breaks down.
  Array<float> row(sequence.plan().context());
  if (has_scores) {
    KV_RETURN_IF_ERROR(
        row.AllocateUncleared("scores", sequence.plan().max_tokens()));
  }
  for (uint32_t l = 0; l < n_layers; ++l) {
    SlotPositions positions;
    KV_RETURN_IF_ERROR(sequence.HostPositions(l, &positions));
  }
  Writer layers(out.data() + kHeaderBytes);
  for (uint32_t l = 0; l < n_layers; ++l) {
    KV_RETURN_IF_ERROR(SaveLayer(sequence, l, &layers));
  }
  if (has_scores) {
    KV_RETURN_IF_ERROR(SaveScores(sequence, {row.data(), row.size()}, &layers));
  }
  std::copy(std::begin(kMagic), std::end(kMagic), out.begin());
  Writer rest(out.data() + kCrcBegin);
  rest.U64(out.size());
  rest.U32(n_layers);
  rest.U32(sequence.logical_length());
  rest.U32(sequence.prompt().n_tokens());
  rest.U32(sequence.prompt().round());
  Writer checks(out.data() + sizeof kMagic);
  checks.U32(has_scores ? kVersionWithScores : kVersion);
  checks.U32(Crc32(out.subspan(kCrcBegin)));
  return Status();
}

Status LoadSequence(Sequence* sequence, std::span<const uint8_t> data) {
  const Plan& plan = sequence->plan();
  uint32_t version = 0;
  KV_RETURN_IF_ERROR(CheckHeader(data, &version));
  Reader in(data.subspan(kCrcBegin + sizeof(uint64_t)));
  const uint32_t n_layers = in.U32();
  const uint32_t logical = in.U32();
  const uint32_t n_prompt = in.U32();
  const uint32_t round = in.U32();
  if (n_layers != plan.n_layers()) {
    return InvalidArgument(
        "data: %u layers have full caches, but the plan has %u", n_layers,
        plan.n_layers());
  }
  if (logical > INT32_MAX) {
    return InvalidArgument("data: logical length %u > %d", logical, INT32_MAX);
  }
  if (n_prompt != Prompt::kNotEnded && n_prompt > logical) {
    return InvalidArgument("data: a prompt of %u tokens > logical length %u",
                           n_prompt, logical);
  }
  Positions positions(plan.context());
  Array<int32_t> all(plan.context());
  KV_RETURN_IF_ERROR(positions.Allocate(plan));
  KV_RETURN_IF_ERROR(
      all.AllocateUncleared("saved positions", in.n_left() / sizeof(int32_t)));
  int32_t* room = all.data();
  uint32_t edited_from = SlotTable::kNotEdited;
  for (uint32_t l = 0; l < n_layers; ++l) {
    KV_RETURN_IF_ERROR(LoadLayer(plan, l, logical, &in, &room,
                                 positions.layers(), &edited_from));
  }
  Reader scores = in;
  Array<float> row(plan.context());
  if (version == kVersionWithScores) {
    KV_RETURN_IF_ERROR(
        LoadScores(plan, positions.layers(), logical, &in, {}, nullptr));
    KV_RETURN_IF_ERROR(row.AllocateUncleared("scores", plan.max_tokens()));
  }
  if (!in.ok() || in.n_left() > 0) {
    return InvalidArgument("data does not end with its last layer");
  }
  if (Status status =
          sequence->Restore(positions.layers(), logical, edited_from);
      !status.ok()) {
    return Prefixed(status, "data: ");
  }
  sequence->RestorePrompt(positions.layers(), n_prompt, round);
  if (version != kVersionWithScores || !plan.ObservesScores() ||
      !sequence->sums().has_memory()) {
    return Status();
  }
  return LoadScores(plan, positions.layers(), logical, &scores,
                    {row.data(), row.size()}, sequence);
}

}  // namespace kvevict
