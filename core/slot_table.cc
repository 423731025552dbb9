#include "core/slot_table.h"

#include <algorithm>

#include "core/policy.h"

namespace kvevict {

SlotTable::SlotTable(const Plan& plan)
    : plan_(plan),
      layers_(plan.context()),
      stored_(plan.context()),
      lengths_(plan.context()),
      kept_{DeviceArray<int32_t>(plan.context()),
            DeviceArray<int32_t>(plan.context())},
      device_counts_{DeviceArray<uint32_t>(plan.context()),
                     DeviceArray<uint32_t>(plan.context())},
      counts_{Array<uint32_t>(plan.context()), Array<uint32_t>(plan.context())},
      host_kept_(plan.context()) {}

Status SlotTable::Allocate() {
  const CheckedSize n_layers(plan_.n_layers());
  const CheckedSize all_lists(plan_.n_lists());
  KV_RETURN_IF_ERROR(layers_.Allocate("slots of the layers", n_layers));
  KV_RETURN_IF_ERROR(stored_.Allocate("lengths on the host", all_lists));
  if (TouchesNothing(plan_.policy())) return Status();
  const CheckedSize n_kept(plan_.keep_capacity());
  KV_RETURN_IF_ERROR(lengths_.Allocate("lengths", all_lists * CheckedSize(2)));
  for (int i = 0; i < 2; ++i) {
    KV_RETURN_IF_ERROR(
        kept_[i].AllocateUncleared("positions of the slots", n_kept));
    if (!plan_.IsRagged()) continue;
    KV_RETURN_IF_ERROR(
        device_counts_[i].Allocate("counts of the lists", all_lists));
    KV_RETURN_IF_ERROR(counts_[i].Allocate("counts of the lists", all_lists));
  }
  if (plan_.context().backend().on_host) return Status();
  return host_kept_.AllocateUncleared("positions of the slots", n_kept);
}

Status SlotTable::Reset(Stream stream) {
  std::fill(stored_.begin(), stored_.end(), 0);
  KV_RETURN_IF_ERROR(SendLengths(stream, 0));
  std::fill(layers_.begin(), layers_.end(), LayerSlots());
  std::fill(counts_[now_].begin(), counts_[now_].end(), 0);
  logical_ = 0;
  n_listed_ = 0;
  return Status();
}

// ---- Lengths ----

uint32_t SlotTable::Longest() const {
  uint32_t longest = 0;
  for (const LayerSlots& layer : layers_) {
    longest = std::max(longest, layer.stored);
  }
  return longest;
}

Status SlotTable::CheckAppend(uint32_t n_tokens) const {
  const uint32_t longest = Longest();
  const uint32_t max_tokens = plan_.max_tokens();
  if (n_tokens > max_tokens - longest) {
    return InvalidArgument("n_tokens %u + %u stored > max_tokens %u", n_tokens,
                           longest, max_tokens);
  }
  if (n_tokens > INT32_MAX - logical_) {
    return InvalidArgument("n_tokens %u + logical length %u > %d", n_tokens,
                           logical_, INT32_MAX);
  }
  return Status();
}

Status SlotTable::Append(Stream stream, uint32_t n_tokens) {
  KV_RETURN_IF_ERROR(CheckAppend(n_tokens));
  if (n_tokens == 0) return Status();
  if (lengths_.data() != nullptr) {
    const Context& context = plan_.context();
    KV_RETURN_IF_ERROR(context.backend().advance_lengths(
        context, stream,
        {lengths_.data(), static_cast<uint32_t>(stored_.size()), n_tokens}));
  }
  CountAppended(n_tokens);
  return Status();
}

void SlotTable::CountAppended(uint32_t n_tokens) {
  for (LayerSlots& layer : layers_) layer.stored += n_tokens;
  for (uint32_t& stored : stored_) stored += n_tokens;
  logical_ += n_tokens;
}

Status SlotTable::Trim(Stream stream, uint32_t n_tokens) {
  if (n_tokens > logical_) {
    return InvalidArgument("n_tokens %u > logical length %u", n_tokens,
                           logical_);
  }
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    // What was evicted before cannot come back.
    if (n_tokens < layers_[l].tail_position) {
      return InvalidArgument(
          "n_tokens %u < %u, the logical length when layer %u was evicted",
          n_tokens, layers_[l].tail_position, plan_.layer(l).number);
    }
  }
  const uint32_t n_removed = logical_ - n_tokens;
  if (n_removed == 0) return Status();
  for (uint32_t& stored : stored_) stored -= n_removed;
  KV_RETURN_IF_ERROR(SendLengths(stream, n_tokens));
  for (LayerSlots& layer : layers_) layer.stored -= n_removed;
  logical_ = n_tokens;
  return Status();
}

void SlotTable::CountStored() {
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    const LayerSlots& layer = layers_[l];
    for (uint32_t list = 0; list < n_lists(l); ++list) {
      const size_t i = FirstList(l) + list;
      stored_[i] = layer.stored;
      if (layer.is_ragged) stored_[i] -= layer.n_kept - counts_[now_][i];
    }
  }
}

Status SlotTable::SendLengths(Stream stream, uint32_t logical) {
  if (lengths_.data() == nullptr) return Status();
  const Context& context = plan_.context();
  Status status = context.backend().set_lengths(
      context, stream,
      {lengths_.data(), {stored_.data(), stored_.size()}, logical});
  if (!status.ok()) CountStored();
  return status;
}

ListCounts SlotTable::DeviceTokens(uint32_t layer) const {
  const LayerSlots& l = layers_[layer];
  if (!l.is_ragged) return l.stored;
  return {l.stored, lengths_.data() + 2 * FirstList(layer), 2};
}

ListCounts SlotTable::HostTokens(uint32_t layer) const {
  const LayerSlots& l = layers_[layer];
  if (!l.is_ragged) return l.stored;
  return {l.stored, stored_.data() + FirstList(layer)};
}

// ---- Positions ----

SlotPositions SlotTable::DevicePositions(uint32_t layer) const {
  const LayerSlots& l = layers_[layer];
  SlotPositions positions;
  positions.kept = l.n_kept == 0 ? nullptr : kept_[now_].data() + l.kept_offset;
  positions.n_kept = l.n_kept;
  if (l.is_ragged) {
    positions.n_kept.each = device_counts_[now_].data() + FirstList(layer);
  }
  positions.n_lists = n_lists(layer);
  positions.tail_position = l.tail_position;
  return positions;
}

Status SlotTable::HostPositions(Stream stream, uint32_t layer,
                                SlotPositions* out) const {
  const LayerSlots& l = layers_[layer];
  *out = DevicePositions(layer);
  if (l.is_ragged) out->n_kept.each = counts_[now_].data() + FirstList(layer);
  const Context& context = plan_.context();
  if (context.backend().on_host || l.n_kept == 0) return Status();
  if (!host_kept_is_current_) {
    KV_RETURN_IF_ERROR(
        context.backend().read(context, stream, kept_[now_].data(),
                               n_listed_ * sizeof(int32_t), host_kept_.data()));
    host_kept_is_current_ = true;
  }
  out->kept = host_kept_.data() + l.kept_offset;
  return Status();
}

// ---- Evictions ----

std::span<uint32_t> SlotTable::NextCounts(uint32_t layer) const {
  return {counts_[1 - now_].data() + FirstList(layer), n_lists(layer)};
}

void SlotTable::LeaveCounts(uint32_t layer) const {
  const LayerSlots& l = layers_[layer];
  for (uint32_t list = 0; list < n_lists(layer); ++list) {
    NextCounts(layer)[list] =
        l.is_ragged ? counts_[now_][FirstList(layer) + list] : l.n_kept;
  }
}

void SlotTable::CopyCounts(uint32_t from, uint32_t layer) const {
  std::copy_n(NextCounts(from).begin(), n_lists(layer),
              NextCounts(layer).begin());
}

Status SlotTable::SendNextCounts(Stream stream) const {
  const Array<uint32_t>& next = counts_[1 - now_];
  const Context& context = plan_.context();
  return context.backend().set_counts(
      context, stream,
      {device_counts_[1 - now_].data(), {next.data(), next.size()}});
}

Status SlotTable::ReadNextCounts(Stream stream) const {
  const Array<uint32_t>& next = counts_[1 - now_];
  const Context& context = plan_.context();
  return context.backend().read(context, stream,
                                device_counts_[1 - now_].data(),
                                next.size() * sizeof(uint32_t), next.data());
}

uint32_t* SlotTable::DeviceNextCounts(uint32_t layer) const {
  return device_counts_[1 - now_].data() + FirstList(layer);
}

ListCounts SlotTable::DeviceNext(uint32_t layer, uint32_t most) const {
  if (!plan_.IsRagged()) return most;
  return {most, DeviceNextCounts(layer)};
}

ListCounts SlotTable::HostNext(uint32_t layer, uint32_t most) const {
  if (!plan_.IsRagged()) return most;
  return {most, counts_[1 - now_].data() + FirstList(layer)};
}

bool SlotTable::AreUneven(uint32_t layer) const {
  if (!plan_.IsRagged()) return false;
  const std::span<uint32_t> next = NextCounts(layer);
  return std::any_of(next.begin(), next.end(),
                     [&](uint32_t count) { return count != next[0]; });
}

Status SlotTable::Commit(Stream stream, std::span<LayerOutcome> layers,
                         uint32_t n_in_row) {
  const Context& context = plan_.context();
  const bool one_list = plan_.scope() == KVEVICT_SCOPE_MODEL;
  size_t offset = 0;
  size_t n_mapped = 0;
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    const LayerOutcome layer = layers[l];
    LayerSlots& slots = layers_[l];
    const uint32_t owner = one_list ? 0 : layer.owner;
    if (owner != l) {  // owners come first
      slots = layers_[owner];
      continue;
    }
    MapJob map{DevicePositions(l), {}, kept_[1 - now_].data() + offset};
    map.keep = KeepLists::Packed(nullptr, n_lists(l), map.slots.n_kept);
    if (layer.loses) {
      map.keep = layer.keep;
      slots.stored = slots.n_kept = layer.n_keep;
      slots.n_kept_in_row = std::min(n_in_row, layer.n_keep);
      slots.tail_position = logical_;
      slots.is_ragged = AreUneven(l);
    }
    slots.kept_offset = offset;
    offset += uint64_t{n_lists(l)} * slots.n_kept;
    layers[n_mapped++].map = map;
  }
  KV_RETURN_IF_ERROR(context.backend().map_positions(
      context, stream,
      {Jobs<MapJob>(layers.first(n_mapped), &LayerOutcome::map)}));
  now_ = 1 - now_;
  n_listed_ = offset;
  host_kept_is_current_ = false;
  CountStored();
  return SendLengths(stream, logical_);
}

}  // namespace kvevict
