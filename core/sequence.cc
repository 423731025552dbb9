#include "core/sequence.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "core/policy.h"
#include "core/view.h"

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
      captured_(plan.context()),
      ring_(plan.context()),
      kept_a_(plan.context()),
      kept_b_(plan.context()) {}

void Sequence::Destroy() { DeleteObject(plan().context(), this); }

Status Sequence::Allocate() {
  const kvevict_geometry& g = plan().geometry();
  KV_RETURN_IF_ERROR(layers_.Allocate("slots of the layers", g.n_layers));
  if (plan().CapturesQueries()) {
    const CheckedSize rows =
        CheckedSize(g.n_layers) * CheckedSize(plan().policy().obs_window);
    KV_RETURN_IF_ERROR(captured_.Allocate("captured ranges", g.n_layers));
    KV_RETURN_IF_ERROR(
        ring_.Allocate("query ring", rows * CheckedSize(RingRowBytes())));
  }
  if (SignalOf(plan().policy()) != Signal::kNone) {
    KV_RETURN_IF_ERROR(
        kept_a_.Allocate("positions of the slots", plan().keep_capacity()));
    KV_RETURN_IF_ERROR(
        kept_b_.Allocate("positions of the slots", plan().keep_capacity()));
  }
  kept_ = kept_a_.data();
  return Status();
}

uint32_t Sequence::LongestLayer() const {
  uint32_t longest = 0;
  for (const LayerSlots& layer : layers_) {
    longest = std::max(longest, layer.stored);
  }
  return longest;
}

void Sequence::Reset() {
  logical_length_ = 0;
  std::fill(layers_.begin(), layers_.end(), LayerSlots());
  std::fill(captured_.begin(), captured_.end(), CapturedRange());
}

Status Sequence::Append(uint32_t n_tokens) {
  const uint32_t longest = LongestLayer();
  const uint32_t max_tokens = plan().geometry().max_tokens;
  if (n_tokens > max_tokens - longest) {
    return InvalidArgument("n_tokens %u + %u stored > max_tokens %u", n_tokens,
                           longest, max_tokens);
  }
  if (n_tokens > INT32_MAX - logical_length_) {
    return InvalidArgument("n_tokens %u + logical length %u > %d", n_tokens,
                           logical_length_, INT32_MAX);
  }
  for (LayerSlots& layer : layers_) layer.stored += n_tokens;
  logical_length_ += n_tokens;
  return Status();
}

// ---- Query ring ----

uint64_t Sequence::RingRowBytes() const {
  const kvevict_geometry& g = plan().geometry();
  return uint64_t{g.n_q_heads} * g.k_head_dim *
         ElementBytes(static_cast<DType>(g.q_dtype));
}

int64_t Sequence::query_head_stride() const {
  const kvevict_geometry& g = plan().geometry();
  return int64_t{g.k_head_dim} * ElementBytes(static_cast<DType>(g.q_dtype));
}

uint8_t* Sequence::RingRow(uint32_t layer, uint32_t position) const {
  const uint64_t window = plan().policy().obs_window;
  return ring_.data() + (layer * window + position % window) * RingRowBytes();
}

Status Sequence::Capture(uint32_t layer, const kvevict_plane& queries,
                         uint32_t n_rows, uint32_t first_position) {
  if (!plan().CapturesQueries()) return Status();
  const kvevict_geometry& g = plan().geometry();
  KV_RETURN_IF_ERROR(plan().CheckCanScore());
  KV_RETURN_IF_ERROR(
      ValidateQueries(queries, g.q_dtype, g.k_head_dim, g.n_q_heads, n_rows));
  if (n_rows > INT32_MAX || first_position > INT32_MAX - n_rows) {
    return InvalidArgument("first_position %u + n_rows %u > %d", first_position,
                           n_rows, INT32_MAX);
  }
  if (n_rows == 0) return Status();
  const uint32_t end = first_position + n_rows;
  const uint32_t window = plan().policy().obs_window;
  const uint32_t n_copied = std::min(n_rows, window);
  const uint32_t element = ElementBytes(static_cast<DType>(g.q_dtype));
  const int64_t stride = ElementStride(queries);
  const uint8_t* base = reinterpret_cast<const uint8_t*>(queries.data);
  for (uint32_t position = end - n_copied; position < end; ++position) {
    uint8_t* to = RingRow(layer, position);
    for (uint32_t h = 0; h < g.n_q_heads; ++h) {
      const uint8_t* from =
          base +
          int64_t{position - first_position} * queries.token_stride_bytes +
          int64_t{h} * queries.head_stride_bytes;
      if (stride == element) {
        std::memcpy(to, from, uint64_t{g.k_head_dim} * element);
      } else {
        for (uint32_t e = 0; e < g.k_head_dim; ++e) {
          std::memcpy(to + uint64_t{e} * element, from + e * stride, element);
        }
      }
      to += uint64_t{g.k_head_dim} * element;
    }
  }
  // Rows that follow on, or replace known ones, extend what is known; others
  // start afresh.
  CapturedRange& known = captured_[layer];
  if (first_position > known.end || first_position < known.begin) {
    known.begin = first_position;
  }
  known.end = end;
  known.begin = std::max(known.begin, end - std::min(end, window));
  return Status();
}

Status Sequence::CheckWindow(uint32_t layer) const {
  const uint32_t window = plan().policy().obs_window;
  const CapturedRange& known = captured_[layer];
  const LayerSlots& slots = layers_[layer];
  if (window > slots.stored) {
    return InvalidArgument("layer %u: obs_window %u > %u stored tokens", layer,
                           window, slots.stored);
  }
  if (known.end != logical_length_ || known.end - known.begin < window) {
    return InvalidArgument(
        "layer %u: captured queries are of positions [%u, %u), obs_window %u "
        "needs [%u, %u)",
        layer, known.begin, known.end, window, logical_length_ - window,
        logical_length_);
  }
  for (uint32_t list = 0; list < plan().n_lists(); ++list) {
    // Positions ascend, so this one in place means that all after it are.
    if (PositionOf(layer, list, slots.stored - window) !=
        static_cast<int32_t>(logical_length_ - window)) {
      return Unsupported(
          "layer %u: tokens of the last obs_window %u positions were evicted",
          layer, window);
    }
  }
  return Status();
}

void Sequence::FillWindowTable(std::span<int32_t> table) const {
  const uint32_t window = plan().policy().obs_window;
  for (uint32_t w = 0; w < window; ++w) {
    table[w] = static_cast<int32_t>((logical_length_ - window + w) % window);
  }
}

RowSource Sequence::Window(uint32_t layer, const int32_t* table) const {
  RowSource rows;
  rows.base = RingRow(layer, 0);
  rows.element_stride =
      ElementBytes(static_cast<DType>(plan().geometry().q_dtype));
  rows.dtype = static_cast<DType>(plan().geometry().q_dtype);
  // The ring is a paged cache with one row per block.
  rows.block_size = 1;
  rows.block_table = table;
  rows.block_stride = static_cast<int64_t>(RingRowBytes());
  return rows;
}

// ---- Slots and positions ----

int32_t Sequence::PositionOf(uint32_t layer, uint32_t list,
                             uint32_t slot) const {
  const LayerSlots& l = layers_[layer];
  if (slot >= l.n_kept) {
    return static_cast<int32_t>(l.tail_position + (slot - l.n_kept));
  }
  return kept_[l.kept_offset + uint64_t{list} * l.n_kept + slot];
}

int64_t Sequence::SlotOf(uint32_t layer, uint32_t list,
                         int32_t position) const {
  const LayerSlots& l = layers_[layer];
  if (position >= static_cast<int64_t>(l.tail_position)) {
    const int64_t slot = int64_t{position} - l.tail_position + l.n_kept;
    return slot < l.stored ? slot : -1;
  }
  const int32_t* begin = kept_ + l.kept_offset + uint64_t{list} * l.n_kept;
  const int32_t* end = begin + l.n_kept;
  const int32_t* found = std::lower_bound(begin, end, position);
  return found != end && *found == position ? found - begin : -1;
}

void Sequence::Commit(std::span<const LayerJob> jobs) {
  int32_t* next = kept_ == kept_a_.data() ? kept_b_.data() : kept_a_.data();
  const uint32_t n_lists = plan().n_lists();
  const bool one_list = EffectiveScope(plan().policy()) == KVEVICT_SCOPE_MODEL;
  size_t offset = 0;
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    const LayerJob& job = jobs[l];
    const uint32_t owner = one_list ? 0 : job.owner;
    if (owner != l) {  // owners come first
      layers_[l] = layers_[owner];
      continue;
    }
    const bool evicted = job.n_keep < job.n_tokens;
    const uint32_t n_kept = evicted ? job.n_keep : layers_[l].n_kept;
    int32_t* positions = next + offset;
    for (uint32_t list = 0; list < n_lists; ++list) {
      const int32_t* keep = job.keep + uint64_t{list} * n_kept;
      for (uint32_t i = 0; i < n_kept; ++i) {
        *positions++ = PositionOf(l, list, evicted ? keep[i] : i);
      }
    }
    layers_[l].kept_offset = offset;
    offset += uint64_t{n_lists} * n_kept;
    if (evicted) {
      layers_[l].stored = n_kept;
      layers_[l].n_kept = n_kept;
      layers_[l].tail_position = logical_length_;
    }
  }
  kept_ = next;
}

}  // namespace kvevict
