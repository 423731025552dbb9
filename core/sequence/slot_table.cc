#include "core/sequence/slot_table.h"

#include <algorithm>

#include "core/policy/policy.h"

namespace kvevict {

namespace {

// Whether two layers have the same lists in memory, as layers with a shared
// cache have.
bool AreOne(const LayerPositions& a, const LayerPositions& b) {
  return std::equal(a.lists.begin(), a.lists.end(), b.lists.begin(),
                    b.lists.end(), [](PositionList x, PositionList y) {
                      return x.data() == y.data() && x.size() == y.size();
                    });
}

}  // namespace

SlotTable::SlotTable(const Plan& plan)
    : plan_(plan),
      layers_(plan.context()),
      stored_(plan.context()),
      lengths_(plan.context()),
      kept_(plan.context()),
      maps_(plan.context()),
      device_counts_{DeviceArray<uint32_t>(plan.context()),
                     DeviceArray<uint32_t>(plan.context())},
      counts_{Array<uint32_t>(plan.context()), Array<uint32_t>(plan.context())},
      before_(plan.context()),
      counts_before_(plan.context()) {}

Status SlotTable::Allocate() {
  const CheckedSize n_layers(plan_.n_layers());
  const CheckedSize all_lists(plan_.n_lists());
  KV_RETURN_IF_ERROR(layers_.Allocate("slots of the layers", n_layers));
  KV_RETURN_IF_ERROR(stored_.Allocate("lengths on the host", all_lists));
  if (TouchesNothing(plan_.policy())) return Status();
  KV_RETURN_IF_ERROR(lengths_.Allocate("lengths", all_lists * CheckedSize(2)));
  KV_RETURN_IF_ERROR(kept_.Grow(KeptByPlan()));
  KV_RETURN_IF_ERROR(maps_.Allocate("maps of the layers", n_layers));
  KV_RETURN_IF_ERROR(before_.Allocate("slots before an eviction", n_layers));
  if (!plan_.IsRagged()) return Status();
  KV_RETURN_IF_ERROR(
      counts_before_.Allocate("counts before an eviction", all_lists));
  for (int i = 0; i < 2; ++i) {
    KV_RETURN_IF_ERROR(
        device_counts_[i].Allocate("counts of the lists", all_lists));
    KV_RETURN_IF_ERROR(counts_[i].Allocate("counts of the lists", all_lists));
  }
  return Status();
}

CheckedSize SlotTable::KeptByPlan() const {
  return TouchesNothing(plan_.policy()) ? 0 : plan_.keep_capacity();
}

Status SlotTable::Kept::Grow(CheckedSize n) {
  if (n.ok() && n.value() <= capacity) return Status();
  constexpr const char* kWhat = "positions of the slots";
  Kept larger(context);
  for (DeviceArray<int32_t>& array : larger.of) {
    KV_RETURN_IF_ERROR(array.AllocateUncleared(kWhat, n));
  }
  if (!context.backend().on_host) {
    KV_RETURN_IF_ERROR(larger.host.AllocateUncleared(kWhat, n));
  }
  larger.capacity = n.value();
  Swap(larger);
  return Status();
}

void SlotTable::Kept::Swap(Kept& other) {
  for (int i = 0; i < 2; ++i) of[i].Swap(other.of[i]);
  host.Swap(other.host);
  std::swap(capacity, other.capacity);
}

// ---- Starting ----

Status SlotTable::Restart(Stream stream, uint32_t n_tokens) {
  std::fill(stored_.begin(), stored_.end(), n_tokens);
  KV_RETURN_IF_ERROR(SendLengths(stream, n_tokens));
  Forget();
  LayerSlots slots;
  slots.stored = n_tokens;
  std::fill(layers_.begin(), layers_.end(), slots);
  logical_ = n_tokens;
  edited_from_ = kNotEdited;
  n_listed_ = 0;
  return Status();
}

LayerSlots SlotTable::SlotsOf(uint32_t layer, const LayerPositions& positions,
                              uint32_t logical) const {
  LayerSlots slots;
  slots.tail_position = positions.tail_position;
  slots.n_kept_in_row = UINT32_MAX;
  slots.is_merged = positions.is_merged;
  for (uint32_t list = 0; list < n_lists(layer); ++list) {
    const PositionList listed = positions.Listed(list);
    const auto n = static_cast<uint32_t>(listed.size());
    slots.is_ragged = slots.is_ragged || (list > 0 && n != slots.n_kept);
    slots.n_kept = std::max(slots.n_kept, n);
    slots.n_kept_in_row = std::min(
        slots.n_kept_in_row, kvevict::CountInRow(listed, slots.tail_position));
  }
  slots.stored = slots.n_kept + (logical - slots.tail_position);
  return slots;
}

Status SlotTable::Fill(Stream stream, std::span<const LayerPositions> layers,
                       uint32_t logical, uint32_t edited_from) {
  const Context& context = plan_.context();
  Array<LayerSlots> next(context);
  KV_RETURN_IF_ERROR(next.Allocate("slots of the layers", layers.size()));
  CheckedSize n(0);
  for (uint32_t l = 0; l < layers.size(); ++l) {
    next[l] = SlotsOf(l, layers[l], logical);
    if (plan_.scope() == KVEVICT_SCOPE_MODEL && l > 0) continue;  // one list
    if (l > 0 && next[l].n_kept == next[l - 1].n_kept &&
        AreOne(layers[l], layers[l - 1])) {
      next[l].kept_offset = next[l - 1].kept_offset;
      continue;
    }
    next[l].kept_offset = n.value();
    n = n + CheckedSize(n_lists(l)) * CheckedSize(next[l].n_kept);
  }
  // The listed positions of layers that the next eviction leaves alone stay
  // beside all that it may list.
  Kept larger(context);
  const CheckedSize room = KeptByPlan() + n;
  const bool grows =
      !n.ok() || (n.value() > 0 && room.value() > kept_.capacity);
  if (grows) KV_RETURN_IF_ERROR(larger.Grow(room));
  Status status = Send(stream, layers, {next.data(), next.size()}, logical,
                       n.value(), grows ? larger : kept_);
  if (!status.ok()) {
    CountStored();
    return status;
  }
  if (grows) kept_.Swap(larger);
  Forget();
  now_ = 1 - now_;
  std::copy(next.begin(), next.end(), layers_.begin());
  logical_ = logical;
  edited_from_ = edited_from;
  n_listed_ = n.value();
  return Status();
}

Status SlotTable::Send(Stream stream, std::span<const LayerPositions> layers,
                       std::span<const LayerSlots> next, uint32_t logical,
                       size_t n_listed, const Kept& kept) {
  const Context& context = plan_.context();
  int32_t* const device = kept.of[1 - now_].data();
  const bool on_host = context.backend().on_host;
  int32_t* const host = on_host ? device : kept.host.data();
  host_kept_is_current_ = false;
  for (uint32_t l = 0; l < layers.size(); ++l) {
    for (uint32_t list = 0; list < n_lists(l); ++list) {
      const PositionList listed = layers[l].Listed(list);
      const auto n = static_cast<uint32_t>(listed.size());
      if (plan_.IsRagged()) NextCounts(l)[list] = n;
      stored_[FirstList(l) + list] = n + (logical - next[l].tail_position);
      std::copy(listed.begin(), listed.end(),
                host + next[l].kept_offset + uint64_t{list} * next[l].n_kept);
    }
  }
  if (!on_host && n_listed > 0) {
    KV_RETURN_IF_ERROR(context.backend().write(
        context, stream, host, n_listed * sizeof(int32_t), device));
  }
  if (plan_.IsRagged()) KV_RETURN_IF_ERROR(SendNextCounts(stream));
  return SendLengths(stream, logical);
}

Status SlotTable::CopyFrom(Stream stream, const SlotTable& other) {
  const Context& context = plan_.context();
  const auto copy = [&](const auto& from, size_t n, const auto& to) {
    return n == 0 ? Status()
                  : context.backend().copy(context, stream, from.data(),
                                           n * sizeof(*from.data()), to.data());
  };
  KV_RETURN_IF_ERROR(
      copy(other.kept_.of[other.now_], other.n_listed_, kept_.of[now_]));
  KV_RETURN_IF_ERROR(copy(other.device_counts_[other.now_],
                          other.counts_[0].size(), device_counts_[now_]));
  std::copy(other.counts_[other.now_].begin(), other.counts_[other.now_].end(),
            counts_[now_].begin());
  std::copy(other.layers_.begin(), other.layers_.end(), layers_.begin());
  std::copy(other.stored_.begin(), other.stored_.end(), stored_.begin());
  logical_ = other.logical_;
  edited_from_ = other.edited_from_;
  n_listed_ = other.n_listed_;
  host_kept_is_current_ = false;
  return SendLengths(stream, logical_);
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
    KV_RETURN_IF_ERROR(context.backend().advance_counts(
        context, stream,
        {lengths_.data(), static_cast<uint32_t>(2 * stored_.size()),
         n_tokens}));
  }
  CountAppended(n_tokens);
  return Status();
}

void SlotTable::CountAppended(uint32_t n_tokens) {
  for (LayerSlots& layer : layers_) layer.stored += n_tokens;
  for (uint32_t& stored : stored_) stored += n_tokens;
  logical_ += n_tokens;
}

Status SlotTable::CheckTrim(Stream stream, uint32_t new_length) const {
  if (new_length > logical_) {
    return InvalidArgument("new_length %u > logical length %u", new_length,
                           logical_);
  }
  const uint32_t last = LastEvicted();
  if (new_length >= layers_[last].tail_position) return Status();
  uint32_t prefix = 0;
  KV_RETURN_IF_ERROR(ExactPrefix(stream, &prefix));
  if (new_length <= prefix) return Status();
  return InvalidArgument(
      "new_length %u: layer %u has lost some of its first %u tokens, so only "
      "lengths up to %u and from %u on are exact",
      new_length, plan_.layer(last).number, layers_[last].tail_position, prefix,
      layers_[last].tail_position);
}

Status SlotTable::Trim(Stream stream, uint32_t new_length) {
  KV_RETURN_IF_ERROR(CheckTrim(stream, new_length));
  if (new_length < layers_[LastEvicted()].tail_position) {
    return Restart(stream, new_length);
  }
  const uint32_t n_removed = logical_ - new_length;
  if (n_removed == 0) return Status();
  for (uint32_t& stored : stored_) stored -= n_removed;
  KV_RETURN_IF_ERROR(SendLengths(stream, new_length));
  for (LayerSlots& layer : layers_) layer.stored -= n_removed;
  logical_ = new_length;
  if (new_length <= edited_from_) edited_from_ = kNotEdited;
  if (new_length < logical_before_) Forget();
  return Status();
}

uint32_t SlotTable::LastEvicted() const {
  uint32_t last = 0;
  for (uint32_t l = 1; l < layers_.size(); ++l) {
    if (layers_[l].tail_position > layers_[last].tail_position) last = l;
  }
  return last;
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
  positions.kept =
      l.n_kept == 0 ? nullptr : kept_.of[now_].data() + l.kept_offset;
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
        context.backend().read(context, stream, kept_.of[now_].data(),
                               n_listed_ * sizeof(int32_t), kept_.host.data()));
    host_kept_is_current_ = true;
  }
  out->kept = kept_.host.data() + l.kept_offset;
  return Status();
}

Status SlotTable::ExactPrefix(Stream stream, uint32_t* out) const {
  uint32_t prefix = std::min(logical_, edited_from_);
  for (uint32_t l = 0; l < layers_.size() && prefix > 0; ++l) {
    if (layers_[l].is_merged) prefix = 0;
    SlotPositions positions;
    KV_RETURN_IF_ERROR(HostPositions(stream, l, &positions));
    for (uint32_t list = 0; list < n_lists(l); ++list) {
      prefix =
          std::min(prefix, positions.PrefixOf(list, HostTokens(l).Of(list)));
    }
  }
  *out = prefix;
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

Status SlotTable::Commit(Stream stream, std::span<const LayerOutcome> layers,
                         uint32_t n_in_row) {
  const Context& context = plan_.context();
  const bool one_list = plan_.scope() == KVEVICT_SCOPE_MODEL;
  size_t offset = 0;
  size_t n_mapped = 0;
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    const LayerOutcome& layer = layers[l];
    LayerSlots& slots = layers_[l];
    const uint32_t owner = one_list ? 0 : layer.owner;
    if (owner != l) {  // owners come first
      slots = layers_[owner];
      continue;
    }
    MapJob map{DevicePositions(l), {}, kept_.of[1 - now_].data() + offset};
    map.keep = KeepLists::Packed(nullptr, n_lists(l), map.slots.n_kept);
    if (layer.loses) {
      map.keep = layer.keep;
      slots.n_kept_in_row = std::min({n_in_row, layer.n_keep, CountInRow(l)});
      slots.stored = slots.n_kept = layer.n_keep;
      slots.tail_position = logical_;
      slots.is_ragged = AreUneven(l);
      slots.is_merged = slots.is_merged || plan_.RewritesRows();
    }
    slots.kept_offset = offset;
    offset += uint64_t{n_lists(l)} * slots.n_kept;
    maps_[n_mapped++] = map;
  }
  KV_RETURN_IF_ERROR(context.backend().map_positions(
      context, stream, {std::span<const MapJob>(maps_.data(), n_mapped)}));
  now_ = 1 - now_;
  n_listed_ = offset;
  host_kept_is_current_ = false;
  CountStored();
  return SendLengths(stream, logical_);
}

}  // namespace kvevict
