#include "core/sequence.h"

#include <algorithm>

#include "core/policy.h"

namespace kvevict {

Status Sequence::Create(const Plan& plan, Sequence** out) {
  Sequence* sequence = NewObject<Sequence>(plan.context(), plan);
  if (sequence == nullptr) {
    return OutOfMemory("sequence: no %zu bytes", sizeof(Sequence));
  }
  if (Status status = sequence->Allocate(); !status.ok()) {
    sequence->Destroy();
    return status;
  }
  *out = sequence;
  return Status();
}

Sequence::Sequence(const Plan& plan)
    : plan_(plan),
      layers_(plan.context()),
      ring_(plan),
      views_(plan.context()),
      caches_(plan.context()),
      evictions_(plan.context()),
      host_jobs_(plan.context()),
      counts_(plan.context()),
      lengths_(plan.context()),
      kept_a_(plan.context()),
      kept_b_(plan.context()),
      host_kept_(plan.context()),
      host_scores_(plan.context()),
      host_keep_(plan.context()) {}

void Sequence::Destroy() { DeleteObject(plan().context(), this); }

Status Sequence::Allocate() {
  const kvevict_geometry& g = plan().geometry();
  const bool on_host = plan().context().backend().on_host;
  const CheckedSize n_layers(g.n_layers);
  KV_RETURN_IF_ERROR(layers_.Allocate("slots of the layers", n_layers));
  KV_RETURN_IF_ERROR(views_.Allocate("views of the layers", n_layers));
  KV_RETURN_IF_ERROR(caches_.Allocate("caches of the layers", n_layers));
  if (!TouchesNothing(plan().policy())) {
    KV_RETURN_IF_ERROR(lengths_.Allocate("lengths", n_layers * CheckedSize(2)));
  }
  KV_RETURN_IF_ERROR(counts_.Allocate("counts of the layers", n_layers));
  KV_RETURN_IF_ERROR(ring_.Allocate());
  if (!TouchesNothing(plan().policy())) {
    const CheckedSize n_kept(plan().keep_capacity());
    KV_RETURN_IF_ERROR(evictions_.Allocate("evictions of the layers",
                                           n_layers * CheckedSize(2)));
    KV_RETURN_IF_ERROR(
        kept_a_.AllocateUncleared("positions of the slots", n_kept));
    KV_RETURN_IF_ERROR(
        kept_b_.AllocateUncleared("positions of the slots", n_kept));
    if (!on_host) {
      KV_RETURN_IF_ERROR(
          host_kept_.AllocateUncleared("positions of the slots", n_kept));
    }
    if (plan().context().options().select_on_host != 0) {
      KV_RETURN_IF_ERROR(host_jobs_.Allocate("jobs on the host", n_layers));
      KV_RETURN_IF_ERROR(host_scores_.AllocateUncleared(
          "scores on the host", CheckedSize(plan().n_scores())));
      KV_RETURN_IF_ERROR(
          host_keep_.AllocateUncleared("keep lists on the host", n_kept));
    }
  }
  kept_ = kept_a_.data();
  return Status();
}

Status Sequence::Reset() {
  std::fill(counts_.begin(), counts_.end(), 0);
  KV_RETURN_IF_ERROR(SetDeviceLengths(0));
  logical_length_ = 0;
  n_listed_ = 0;
  std::fill(layers_.begin(), layers_.end(), LayerSlots());
  ring_.Reset();
  return Status();
}

// ---- Lengths ----

Status Sequence::CheckAppend(uint32_t n_tokens) const {
  uint32_t longest = 0;
  for (const LayerSlots& layer : layers_) {
    longest = std::max(longest, layer.stored);
  }
  const uint32_t max_tokens = plan().geometry().max_tokens;
  if (n_tokens > max_tokens - longest) {
    return InvalidArgument("n_tokens %u + %u stored > max_tokens %u", n_tokens,
                           longest, max_tokens);
  }
  if (n_tokens > INT32_MAX - logical_length_) {
    return InvalidArgument("n_tokens %u + logical length %u > %d", n_tokens,
                           logical_length_, INT32_MAX);
  }
  return Status();
}

Status Sequence::Append(uint32_t n_tokens) {
  KV_RETURN_IF_ERROR(CheckAppend(n_tokens));
  if (n_tokens == 0) return Status();
  if (lengths_.data() != nullptr) {
    const Context& context = plan().context();
    KV_RETURN_IF_ERROR(context.backend().advance_lengths(
        context, stream_,
        {lengths_.data(), plan().geometry().n_layers, n_tokens}));
  }
  for (LayerSlots& layer : layers_) layer.stored += n_tokens;
  logical_length_ += n_tokens;
  return Status();
}

Status Sequence::Replayed(uint32_t n_tokens) {
  // Graphs are CUDA's. Elsewhere nothing has run that observed or appended.
  if (plan().context().backend().on_host) {
    return Unsupported(
        "replayed: the context is on the CPU, where no graphs run");
  }
  KV_RETURN_IF_ERROR(CheckAppend(n_tokens));
  ring_.Replayed(logical_length_, n_tokens);
  for (LayerSlots& layer : layers_) layer.stored += n_tokens;
  logical_length_ += n_tokens;
  return Status();
}

Status Sequence::Trim(uint32_t n_tokens) {
  if (n_tokens > logical_length_) {
    return InvalidArgument("n_tokens %u > logical length %u", n_tokens,
                           logical_length_);
  }
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    // What was evicted before cannot come back.
    if (n_tokens < layers_[l].tail_position) {
      return InvalidArgument(
          "n_tokens %u < %u, the logical length when layer %u was evicted",
          n_tokens, layers_[l].tail_position, l);
    }
  }
  const uint32_t n_removed = logical_length_ - n_tokens;
  if (n_removed == 0) return Status();
  for (size_t l = 0; l < layers_.size(); ++l) {
    counts_[l] = layers_[l].stored - n_removed;
  }
  KV_RETURN_IF_ERROR(SetDeviceLengths(n_tokens));
  for (LayerSlots& layer : layers_) layer.stored -= n_removed;
  ring_.Cut(n_tokens);
  logical_length_ = n_tokens;
  return Status();
}

Status Sequence::SetDeviceLengths(uint32_t logical) {
  if (lengths_.data() == nullptr) return Status();
  const Context& context = plan().context();
  return context.backend().set_lengths(context, stream_,
                                       {lengths_.data(), counts(), logical});
}

// ---- Query rows ----

QueryChunk Sequence::ChunkOf(uint32_t n_rows, uint32_t first_position) const {
  if (first_position != KVEVICT_POSITION_NEXT) {
    return {n_rows, first_position, nullptr};
  }
  const uint32_t* lengths = lengths_.data();
  return {n_rows, logical_length_, lengths == nullptr ? nullptr : lengths + 1};
}

Status Sequence::Observe(uint32_t first_layer,
                         std::span<const kvevict_plane> queries,
                         uint32_t n_rows, uint32_t first_position) {
  return ring_.Observe(stream_, first_layer, queries,
                       ChunkOf(n_rows, first_position));
}

Status Sequence::ObserveLse(uint32_t layer, const kvevict_plane& row_lse,
                            uint32_t n_rows, uint32_t first_position) {
  return ring_.ObserveLse(stream_, layer, row_lse,
                          ChunkOf(n_rows, first_position));
}

Status Sequence::CheckWindow(uint32_t layer) const {
  const uint32_t window = plan().policy().obs_window;
  const LayerSlots& slots = layers_[layer];
  if (window > slots.stored) {
    return InvalidArgument("layer %u: window %u > %u stored tokens", layer,
                           window, slots.stored);
  }
  KV_RETURN_IF_ERROR(ring_.CheckWindow(layer, logical_length_));
  if (slots.stored - slots.n_kept + slots.n_kept_in_row >= window) {
    return Status();
  }
  SlotPositions positions;
  KV_RETURN_IF_ERROR(HostPositions(layer, &positions));
  bool whole = true;
  for (uint32_t list = 0; list < plan().n_lists(); ++list) {
    // Positions ascend, so this one in place means that all after it are.
    whole = whole && positions.PositionOf(list, slots.stored - window) ==
                         static_cast<int32_t>(logical_length_ - window);
  }
  if (whole) return Status();
  return Unsupported(
      "layer %u: tokens of the last window %u positions were evicted", layer,
      window);
}

// ---- Slots and positions ----

SlotPositions Sequence::DevicePositions(uint32_t layer) const {
  const LayerSlots& l = layers_[layer];
  return {l.n_kept == 0 ? nullptr : kept_ + l.kept_offset, l.n_kept,
          plan().n_lists(), l.tail_position};
}

Status Sequence::HostPositions(uint32_t layer, SlotPositions* out) const {
  *out = DevicePositions(layer);
  const Context& context = plan().context();
  if (context.backend().on_host || out->n_kept == 0) return Status();
  if (!host_kept_is_current_) {
    KV_RETURN_IF_ERROR(context.backend().read(context, stream_, kept_,
                                              n_listed_ * sizeof(int32_t),
                                              host_kept_.data()));
    host_kept_is_current_ = true;
  }
  out->kept = host_kept_.data() + layers_[layer].kept_offset;
  return Status();
}

std::span<kvevict_view> Sequence::views() const {
  return {views_.data(), views_.size()};
}

std::span<LayerCache> Sequence::caches() const {
  return {caches_.data(), caches_.size()};
}

std::span<LayerEviction> Sequence::evictions() const {
  return {evictions_.data(), layers_.size()};
}

std::span<LayerEviction> Sequence::active() const {
  return {evictions_.data() + layers_.size(), layers_.size()};
}

std::span<uint32_t> Sequence::counts() const {
  return {counts_.data(), counts_.size()};
}

HostCopy Sequence::host_copy() const {
  return {host_scores_.data(),
          host_keep_.data(),
          {host_jobs_.data(), host_jobs_.size()}};
}

Status Sequence::Commit(std::span<LayerEviction> layers, uint32_t n_in_row) {
  int32_t* next = kept_ == kept_a_.data() ? kept_b_.data() : kept_a_.data();
  const Context& context = plan().context();
  const uint32_t n_lists = plan().n_lists();
  const bool one_list = EffectiveScope(plan().policy()) == KVEVICT_SCOPE_MODEL;
  size_t offset = 0;
  size_t n_mapped = 0;
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    const LayerEviction layer = layers[l];
    LayerSlots& slots = layers_[l];
    const uint32_t owner = one_list ? 0 : layer.owner;
    if (owner != l) {  // owners come first
      slots = layers_[owner];
      continue;
    }
    MapJob map{
        DevicePositions(l), {nullptr, n_lists, slots.n_kept}, next + offset};
    if (layer.n_keep < layer.n_tokens) {
      map.keep = layer.move.keep;
      slots.stored = slots.n_kept = layer.n_keep;
      slots.n_kept_in_row = std::min(n_in_row, layer.n_keep);
      slots.tail_position = logical_length_;
    }
    slots.kept_offset = offset;
    offset += uint64_t{n_lists} * slots.n_kept;
    layers[n_mapped++].map = map;
  }
  kept_ = next;
  n_listed_ = offset;
  host_kept_is_current_ = false;
  KV_RETURN_IF_ERROR(context.backend().map_positions(
      context, stream_,
      {Jobs<MapJob>(layers.first(n_mapped), &LayerEviction::map)}));
  for (size_t l = 0; l < layers_.size(); ++l) counts_[l] = layers_[l].stored;
  return SetDeviceLengths(logical_length_);
}

}  // namespace kvevict
