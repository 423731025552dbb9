// The format is saved_bytes.h's header and, little-endian:
//
//   u32 n_layers with a full cache   u32 logical length
//   u32 tokens of the prompt, or 2^32 - 1   u32 round
//   u32 first position whose row was computed with other tokens before it, or
//   2^32 - 1   u32 1 if scores follow the layers
//   per layer: u32 number   u32 n_lists   u32 tail position   u32 flags
//              u32 slots of the prompt
//              unless kAsBefore: u32 counts[n_lists], i32 positions per list
//   scores, per layer: u32 n_kv_heads, or 0 without scores   u32 position at
//              which they end   f32 scores of each KV head's slots up to there
#include "core/sequence/saved_sequence.h"

#include <algorithm>
#include <bit>

#include "core/saved_bytes.h"

namespace kvevict {
namespace {

constexpr SavedKind kKind = {
    {'K', 'V', 'E', 'V', 'S', 'E', 'Q', 0x1A}, 1, "saved sequence"};
constexpr size_t kFirstBytes = kSavedHeaderBytes + 6 * sizeof(uint32_t);
constexpr size_t kLayerBytes = 20;
constexpr size_t kScoresBytes = 8;  // of each layer, before its scores

enum LayerFlags : uint32_t {
  kMerged = 1,    // rows may have been merged
  kAsBefore = 2,  // the lists are those of the layer before
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

// Reads all scores into `row`, one KV head after the other, and writes them.
Status SaveScores(const Sequence& sequence, std::span<float> row,
                  SavedWriter* out) {
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

Status SaveLayer(const Sequence& sequence, uint32_t l, SavedWriter* out) {
  const PlanLayer& layer = sequence.plan().layer(l);
  const LayerSlots& slots = sequence.slots()[l];
  const bool as_before = IsAsBefore(sequence, l);
  out->U32(layer.number);
  out->U32(layer.n_lists);
  out->U32(slots.tail_position);
  out->U32((slots.is_merged ? kMerged : 0u) | (as_before ? kAsBefore : 0u));
  // Evictions may leave fewer slots than the prompt had. More than are stored
  // would have no meaning.
  out->U32(std::min(sequence.prompt().SlotsOf(l), slots.stored));
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

Status Malformed(const PlanLayer& layer) {
  return InvalidArgument("data: layer %u contradicts itself", layer.number);
}

// Writes positions to *room and advances it.
Status LoadLists(const PlanLayer& layer, SavedReader* in, int32_t** room,
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

Status LoadLayer(const Plan& plan, uint32_t l, uint32_t logical,
                 SavedReader* in, int32_t** room,
                 std::span<LayerPositions> layers) {
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
  if (layers[l].tail_position > logical || flags > (kMerged | kAsBefore)) {
    return Malformed(layer);
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
                  uint32_t logical, SavedReader* in, std::span<float> row,
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
  size_t n = kFirstBytes;
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
  SavedWriter writer(out.data() + kSavedHeaderBytes);
  writer.U32(n_layers);
  writer.U32(sequence.logical_length());
  writer.U32(sequence.prompt().n_tokens());
  writer.U32(sequence.prompt().round());
  writer.U32(sequence.slots().edited_from());
  writer.U32(has_scores ? 1 : 0);
  for (uint32_t l = 0; l < n_layers; ++l) {
    KV_RETURN_IF_ERROR(SaveLayer(sequence, l, &writer));
  }
  if (has_scores) {
    KV_RETURN_IF_ERROR(SaveScores(sequence, {row.data(), row.size()}, &writer));
  }
  WriteSavedHeader(kKind, out);
  return Status();
}

Status LoadSequence(Sequence* sequence, std::span<const uint8_t> data) {
  const Plan& plan = sequence->plan();
  KV_RETURN_IF_ERROR(CheckSavedHeader(kKind, data, kFirstBytes));
  SavedReader in(data.subspan(kSavedHeaderBytes));
  const uint32_t n_layers = in.U32();
  const uint32_t logical = in.U32();
  const uint32_t n_prompt = in.U32();
  const uint32_t round = in.U32();
  const uint32_t edited_from = in.U32();
  const uint32_t has_scores = in.U32();
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
  if (edited_from != SlotTable::kNotEdited && edited_from >= logical) {
    return InvalidArgument("data: edited from position %u >= logical length %u",
                           edited_from, logical);
  }
  if (has_scores > 1) {
    return InvalidArgument("data: %u in place of 0 or 1 for scores",
                           has_scores);
  }
  Positions positions(plan.context());
  Array<int32_t> all(plan.context());
  KV_RETURN_IF_ERROR(positions.Allocate(plan));
  KV_RETURN_IF_ERROR(
      all.AllocateUncleared("saved positions", in.n_left() / sizeof(int32_t)));
  int32_t* room = all.data();
  for (uint32_t l = 0; l < n_layers; ++l) {
    KV_RETURN_IF_ERROR(
        LoadLayer(plan, l, logical, &in, &room, positions.layers()));
  }
  SavedReader scores = in;
  Array<float> row(plan.context());
  if (has_scores != 0) {
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
  if (has_scores == 0 || !plan.ObservesScores() ||
      !sequence->sums().has_memory()) {
    return Status();
  }
  return LoadScores(plan, positions.layers(), logical, &scores,
                    {row.data(), row.size()}, sequence);
}

}  // namespace kvevict
