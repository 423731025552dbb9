#include "core/paged/paged_sequence.h"

#include <algorithm>

#include "core/view/view.h"

namespace kvevict {

PagedSequence::PagedSequence(const PagedCache& cache)
    : cache_(cache),
      tables_(cache.context()),
      replaced_(cache.context()),
      device_tables_(cache.context()),
      recent_(cache.context()),
      companions_(cache.context()),
      n_recent_(cache.context()),
      held_(cache.context()),
      lengths_(cache.context()) {}

Status PagedSequence::Create(const PagedCache& cache, PagedSequence** out) {
  const Context& context = cache.context();
  auto* sequence = NewObject<PagedSequence>(context, cache);
  if (sequence == nullptr) return OutOfMemory("paged sequence: no memory");
  const Status status = sequence->Allocate();
  if (!status.ok()) {
    DeleteObject(context, sequence);
    return status;
  }
  const PagedCache::Lock lock(cache);
  cache.CountSequence(1);
  *out = sequence;
  return Status();
}

Status PagedSequence::Allocate() {
  table_stride_ = cache_->BlocksFor(cache_->plan().max_tokens());
  const CheckedSize n = CheckedSize(n_layers()) * CheckedSize(table_stride_);
  KV_RETURN_IF_ERROR(tables_.Allocate("block tables", n));
  KV_RETURN_IF_ERROR(replaced_.Allocate("block tables", n));
  std::fill(replaced_.begin(), replaced_.end(), kNone);
  if (!cache_->context().backend().on_host) {
    KV_RETURN_IF_ERROR(device_tables_.AllocateUncleared("block tables", n));
  }
  KV_RETURN_IF_ERROR(AllocateRecent());
  if (kHasBiases && FitsBiases(cache_->plan().policy())) {
    for (const PlanLayer& layer : cache_->plan().layers()) {
      held_stride_ = std::max(held_stride_, layer.geometry.n_kv_heads);
    }
    KV_RETURN_IF_ERROR(held_.Allocate(
        "lengths", CheckedSize(n_layers()) * CheckedSize(held_stride_)));
  }
  // This comes last, because a sequence that has lengths is counted.
  return lengths_.Allocate("lengths", CheckedSize(n_layers()));
}

Status PagedSequence::AllocateRecent() {
  const CheckedSize n(n_layers());
  KV_RETURN_IF_ERROR(n_recent_.Allocate("lengths", n));
  if (cache_->most_recent() == 0) return Status();
  KV_RETURN_IF_ERROR(
      companions_.Allocate("companions", n * CheckedSize(kMostCompanions)));
  KV_RETURN_IF_ERROR(recent_.AllocateUncleared(
      "recent rows", CheckedSize(cache_->recent_bytes())));
  auto begin = reinterpret_cast<uint64_t>(recent_.data());
  for (uint32_t l = 0; l < n_layers(); ++l) {
    const PagedCache::Group& group = cache_->GroupOf(l);
    kvevict_plane* const recent =
        std::copy_n(group.numbers, group.view.n_companions,
                    &companions_[size_t{l} * kMostCompanions]);
    std::copy_n(group.recent, NRecentPlanes(l), recent);
    for (uint32_t i = 0; i < NRecentPlanes(l); ++i) recent[i].data += begin;
    begin += group.recent_bytes;
  }
  return Status();
}

PagedSequence::~PagedSequence() {
  if (lengths_.size() == 0) return;
  for (uint32_t l = 0; l < n_layers(); ++l) Shrink(l, 0);
  const PagedCache::Lock lock(*cache_);
  cache_->CountSequence(-1);
}

void PagedSequence::Destroy() {
  const Retained<PagedCache> alive(*cache_);
  DeleteObject(alive->context(), this);
}

uint32_t PagedSequence::NRecentPlanes(uint32_t layer) const {
  return IsPresent(cache_->GroupOf(layer).view.v) ? 2 : 1;
}

kvevict_view PagedSequence::View(uint32_t layer) const {
  kvevict_view view = CodedView(layer);
  if (companions_.size() == 0) return view;
  view.companions = &companions_[size_t{layer} * kMostCompanions];
  view.n_companions += NRecentPlanes(layer);
  view.first_recent = NCoded(layer);
  return view;
}

kvevict_view PagedSequence::RecentView(uint32_t layer) const {
  const kvevict_view& coded = cache_->GroupOf(layer).view;
  const kvevict_plane* const recent =
      &companions_[size_t{layer} * kMostCompanions + coded.n_companions];
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = coded.n_kv_heads;
  view.k = recent[0];
  if (NRecentPlanes(layer) > 1) view.v = recent[1];
  view.k.role = view.v.role = KVEVICT_ROLE_NONE;
  return view;
}

kvevict_view PagedSequence::CodedView(uint32_t layer) const {
  kvevict_view view = cache_->GroupOf(layer).view;
  const int32_t* const tables =
      device_tables_.data() != nullptr ? device_tables_.data() : tables_.data();
  view.block_table = tables + size_t{layer} * table_stride_;
  view.block_table_len = cache_->BlocksFor(NCoded(layer));
  return view;
}

uint32_t PagedSequence::CountShared(uint32_t layer) const {
  const PagedCache::Lock lock(*cache_);
  if (cache_->GroupOf(layer).n_shared == 0) return 0;
  uint32_t n = cache_->BlocksFor(NCoded(layer));
  while (n > 0 && !cache_->IsShared(layer, Table(layer)[n - 1])) --n;
  return n;
}

Status PagedSequence::ShowTables(Stream stream) const {
  if (device_tables_.data() == nullptr) return Status();
  return cache_->context().backend().write(
      cache_->context(), stream, tables_.data(),
      tables_.size() * sizeof(int32_t), device_tables_.data());
}

Status PagedSequence::ReadTables(Stream stream) {
  if (device_tables_.data() == nullptr) return Status();
  return cache_->context().backend().read(
      cache_->context(), stream, device_tables_.data(),
      tables_.size() * sizeof(int32_t), tables_.data());
}

Status PagedSequence::Fork(Stream stream, PagedSequence** out) const {
  PagedSequence* fork = nullptr;
  KV_RETURN_IF_ERROR(Create(*cache_, &fork));
  {
    const PagedCache::Lock lock(*cache_);
    for (uint32_t l = 0; l < n_layers(); ++l) {
      const uint32_t n = cache_->BlocksFor(NCoded(l));
      for (uint32_t b = 0; b < n; ++b) cache_->Share(l, Table(l)[b]);
      // NOLINTNEXTLINE: the table exists, since Create() has not failed
      std::copy_n(Table(l), n, fork->Table(l));
      fork->lengths_[l] = lengths_[l];
      fork->n_recent_[l] = n_recent_[l];
      std::copy_n(Held(l), held_stride_, fork->Held(l));
      cache_->CountSlots(lengths_[l]);
    }
  }
  Status status = fork->ShowTables(stream);
  if (status.ok() && recent_.data() != nullptr) {
    const Context& context = cache_->context();
    status =
        context.backend().copy(context, stream, recent_.data(),
                               cache_->recent_bytes(), fork->recent_.data());
  }
  if (!status.ok()) {
    fork->Destroy();
    return status;
  }
  *out = fork;
  return Status();
}

void PagedSequence::Shrink(uint32_t layer, uint32_t n_slots) {
  if (n_slots >= lengths_[layer]) return;
  const uint32_t n_coded = std::min(n_slots, NCoded(layer));
  ShrinkTo(layer, n_coded, n_slots - n_coded);
}

void PagedSequence::ShrinkBeforeRecent(uint32_t layer, uint32_t n_slots) {
  if (n_slots >= lengths_[layer]) return;
  ShrinkTo(layer, n_slots - n_recent_[layer], n_recent_[layer]);
}

void PagedSequence::ShrinkTo(uint32_t layer, uint32_t n_coded,
                             uint32_t n_recent) {
  const PagedCache::Lock lock(*cache_);
  for (uint32_t b = cache_->BlocksFor(n_coded);
       b < cache_->BlocksFor(NCoded(layer)); ++b) {
    cache_->Release(layer, Table(layer)[b]);
  }
  const uint32_t n_slots = n_coded + n_recent;
  cache_->CountSlots(int64_t{n_slots} - lengths_[layer]);
  lengths_[layer] = n_slots;
  n_recent_[layer] = n_recent;
  for (uint32_t head = 0; head < held_stride_; ++head) {
    SetHeld(layer, head, std::min(Held(layer)[head], n_slots));
  }
}

void PagedSequence::SetHeld(uint32_t layer, uint32_t head, uint32_t n_slots) {
  if (head < held_stride_) Held(layer)[head] = n_slots;
}

uint32_t PagedSequence::FirstNew(uint32_t layer) const {
  const uint32_t n_heads =
      std::min(held_stride_, cache_->GroupOf(layer).view.n_kv_heads);
  uint32_t first = NCoded(layer);
  for (uint32_t head = 0; head < n_heads; ++head) {
    first = std::min(first, Held(layer)[head]);
  }
  return first;
}

// ---- Blocks of its own ----

template <typename Visit>
void PagedSequence::ForEachReplaced(const Visit& visit) const {
  uint32_t left = n_replaced_;
  for (size_t i = 0; left > 0; ++i) {
    if (replaced_[i] == kNone) continue;
    --left;
    visit(static_cast<uint32_t>(i / table_stride_), i);
  }
}

void PagedSequence::WantOwn(uint32_t layer, uint32_t begin, uint32_t end) {
  const uint32_t end_block = cache_->BlocksFor(std::min(end, NCoded(layer)));
  for (uint32_t b = begin / cache_->block_size(); b < end_block; ++b) {
    int32_t& replaced = replaced_[size_t{layer} * table_stride_ + b];
    if (replaced != kNone || !cache_->IsShared(layer, Table(layer)[b])) {
      continue;
    }
    // Until the copy is taken only the other holders are counted. So if several
    // sequences want to own the same block together, the last one that holds it
    // needs no copy.
    cache_->Release(layer, Table(layer)[b]);
    replaced = kWanted;
    ++n_replaced_;
    cache_->Want(layer, 1);
  }
}

void PagedSequence::TakeWanted() {
  ForEachReplaced([&](uint32_t layer, size_t i) {
    cache_->Share(layer, tables_[i]);
    replaced_[i] = tables_[i];
    tables_[i] = cache_->Take(layer);
  });
}

Status PagedSequence::CopyTaken(Stream stream, bool has_grown) {
  if (n_replaced_ == 0 && !has_grown) return Status();
  const Context& context = cache_->context();
  const Backend& backend = context.backend();
  Status status;
  ForEachReplaced([&](uint32_t layer, size_t i) {
    const auto copy = [&](const kvevict_plane& plane, size_t n_bytes) {
      if (!status.ok()) return;
      auto* const blocks = reinterpret_cast<uint8_t*>(plane.data);
      status =
          backend.copy(context, stream, blocks + size_t(replaced_[i]) * n_bytes,
                       n_bytes, blocks + size_t(tables_[i]) * n_bytes);
    };
    PagedCache::ForEachBlockOf(cache_->GroupOf(layer), copy);
  });
  if (status.ok()) status = ShowTables(stream);
  const PagedCache::Lock lock(*cache_);
  if (!status.ok()) {
    GiveUp();
    return status;
  }
  ForEachReplaced([&](uint32_t layer, size_t i) {
    cache_->Release(layer, replaced_[i]);
    replaced_[i] = kNone;
  });
  n_replaced_ = 0;
  return Status();
}

void PagedSequence::GiveUp() {
  ForEachReplaced([&](uint32_t layer, size_t i) {
    if (replaced_[i] == kWanted) {
      cache_->Share(layer, tables_[i]);
    } else {
      cache_->Release(layer, tables_[i]);
      tables_[i] = replaced_[i];
    }
    replaced_[i] = kNone;
  });
  n_replaced_ = 0;
}

// Calls want_blocks(), which marks the wanted blocks, and makes these the
// sequence's own.
template <typename Blocks>
Status PagedSequence::Replace(const Blocks& want_blocks, Stream stream) {
  {
    const PagedCache::Lock lock(*cache_);
    want_blocks();
    if (Status status = cache_->CheckWanted(); !status.ok()) {
      GiveUp();
      return status;
    }
    TakeWanted();
  }
  return CopyTaken(stream);
}

Status PagedSequence::Own(uint32_t first_slot, Stream stream) {
  return Replace(
      [&] {
        for (uint32_t l = 0; l < n_layers(); ++l) {
          WantOwn(l, first_slot, lengths_[l]);
        }
      },
      stream);
}

Status PagedSequence::OwnBlocksOf(std::span<const PagedRows> rows,
                                  Stream stream) {
  return Replace(
      [&] {
        for (const PagedRows& one : rows) {
          if (one.n_tokens == 0 || one.first_slot >= NCoded(one.layer))
            continue;
          WantOwn(one.layer, one.first_slot, one.first_slot + one.n_tokens);
        }
      },
      stream);
}

Status PagedSequence::Append(uint32_t n_tokens, Stream stream) {
  const uint32_t most = cache_->plan().max_tokens();
  for (uint32_t l = 0; l < n_layers(); ++l) {
    if (n_tokens <= most - lengths_[l]) continue;
    return InvalidArgument("n_tokens %u + %u held by layer %u > max_tokens %u",
                           n_tokens, lengths_[l],
                           cache_->plan().layer(l).number, most);
  }
  if (n_tokens == 0) return Status();
  const auto n_coded = [&](uint32_t l) {  // after appending
    return cache_->CodedOf(NCoded(l), lengths_[l] + n_tokens);
  };
  KV_RETURN_IF_ERROR(Grow(
      int64_t{n_layers()} * n_tokens, n_coded,
      [&](uint32_t l) {
        if (n_coded(l) != NCoded(l)) WantOwn(l, FirstNew(l), NCoded(l));
      },
      [&] {
        for (uint32_t l = 0; l < n_layers(); ++l) {
          KV_RETURN_IF_ERROR(Quantize(l, n_coded(l), stream));
        }
        return has_biases() ? ClearAppended(n_tokens, stream) : Status();
      },
      stream));
  for (uint32_t l = 0; l < n_layers(); ++l) {
    const uint32_t n = n_coded(l);
    lengths_[l] += n_tokens;
    n_recent_[l] = lengths_[l] - n;
    for (uint32_t head = 0; head < held_stride_; ++head) {
      Held(l)[head] += n_tokens;
    }
  }
  return Status();
}

Status PagedSequence::MakeRoom(std::span<const Room> layers, Stream stream) {
  const auto n_after = [&](uint32_t l) {
    return std::max(lengths_[l], layers[l].n_slots);
  };
  int64_t n_slots = 0;
  for (uint32_t l = 0; l < n_layers(); ++l) n_slots += n_after(l) - lengths_[l];
  KV_RETURN_IF_ERROR(Grow(
      n_slots, n_after,
      [&](uint32_t l) { WantOwn(l, layers[l].first, lengths_[l]); },
      [] { return Status(); }, stream));
  for (uint32_t l = 0; l < n_layers(); ++l) lengths_[l] = n_after(l);
  return Status();
}

template <typename Coded, typename WantBlocks, typename Then>
Status PagedSequence::Grow(int64_t n_slots, const Coded& n_coded,
                           const WantBlocks& own, const Then& then,
                           Stream stream) {
  const auto n_blocks = [&](uint32_t l) {
    return cache_->BlocksFor(NCoded(l));
  };
  const auto n_after = [&](uint32_t l) {
    return cache_->BlocksFor(n_coded(l));
  };
  bool has_grown = false;
  {
    const PagedCache::Lock lock(*cache_);
    for (uint32_t l = 0; l < n_layers(); ++l) {
      own(l);
      cache_->Want(l, n_after(l) - n_blocks(l));
    }
    if (Status status = cache_->CheckWanted(); !status.ok()) {
      GiveUp();
      return status;
    }
    TakeWanted();
    for (uint32_t l = 0; l < n_layers(); ++l) {
      for (uint32_t b = n_blocks(l); b < n_after(l); ++b) {
        Table(l)[b] = cache_->Take(l);
        has_grown = true;
      }
    }
    cache_->CountSlots(n_slots);
  }
  Status status = CopyTaken(stream, has_grown);
  if (status.ok()) status = then();
  if (status.ok()) return status;
  const PagedCache::Lock lock(*cache_);
  for (uint32_t l = 0; l < n_layers(); ++l) {
    for (uint32_t b = n_blocks(l); b < n_after(l); ++b) {
      cache_->Release(l, Table(l)[b]);
    }
  }
  cache_->CountSlots(-n_slots);
  return status;
}

}  // namespace kvevict
