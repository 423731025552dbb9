// Entry points of a pool of blocks and the sequences that hold them.
#include "capi/batch.h"
#include "kvevict/paged.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace kvevict::capi {

Status CheckGoesWith(const PagedSequence& cached, const Sequence& sequence) {
  const Plan& plan = sequence.plan();
  const Plan& of_cache = cached.cache().plan();
  if (&plan.context() != &of_cache.context()) {
    return InvalidArgument("sequence: its context is not the cache's");
  }
  if (plan.n_layers() != of_cache.n_layers()) {
    return InvalidArgument(
        "sequence: %u layers of its plan have full caches, of the cache's %u",
        plan.n_layers(), of_cache.n_layers());
  }
  return Status();
}

Status CheckStoredIn(const PagedSequence& cached, const Sequence& sequence) {
  KV_RETURN_IF_ERROR(CheckGoesWith(cached, sequence));
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    const uint32_t stored = sequence.slots()[l].stored;
    if (stored == cached.length(l)) continue;
    return InvalidArgument("layer %u: cached holds %u rows, sequence stores %u",
                           sequence.plan().layer(l).number, cached.length(l),
                           stored);
  }
  return Status();
}

static void SetHeld(PagedSequence& cached, const Sequence& sequence) {
  const Plan& plan = sequence.plan();
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    for (uint32_t h = 0; h < plan.layer(l).geometry.n_kv_heads; ++h) {
      cached.SetHeld(l, h, sequence.Stored(l, h));
    }
  }
}

void FitRows(PagedSequence& cached, const Sequence& sequence) {
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    cached.Shrink(l, sequence.slots()[l].stored);
  }
  SetHeld(cached, sequence);
}

// Whether evictions can drop whole blocks without changing rows.
static bool CanDropBlocks(const PagedCache& cache, const Plan& plan) {
  if (!cache.rows_stand_alone()) return false;
  const Policy& policy = plan.policy();
  if (BlocksOf(policy).size % cache.block_size() != 0) return false;
  if (plan.RewritesRows() || policy.rotate != 0) return false;
  for (const PlanLayer& layer : plan.layers()) {
    if (layer.n_lists != 1) return false;
  }
  return true;
}

Status CopyPagedEviction(const PagedSequence& cached, const Sequence& sequence,
                         const kvevict_evict_options* options,
                         kvevict_evict_options* out) {
  for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
    sequence.call().views()[l] = cached.View(l);
  }
  KV_RETURN_IF_ERROR(CopyOptions(sequence, options, out));
  if (out->undo != nullptr) {
    return InvalidArgument(
        "options.undo is not NULL: make a fork before the eviction instead");
  }
  if (out->destinations != nullptr) {
    return InvalidArgument(
        "options.destinations is not NULL: only kvevict_sequence_evict() takes "
        "them");
  }
  if (CanDropBlocks(cached.cache(), sequence.plan())) out->by_table = 1;
  return Status();
}

}  // namespace kvevict::capi

namespace {

kvevict_paged_sequence* HandleOf(PagedSequence* sequence) {
  return reinterpret_cast<kvevict_paged_sequence*>(sequence);
}

Status CopyPoolOptions(const kvevict_plan* plan,
                       const kvevict_paged_cache_options* options,
                       kvevict_paged_cache_options* out) {
  KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
  return CopyIn("options", options, out);
}

// Calls act(rows) with copies of a call's rows.
template <typename Act>
Status WithRows(const PagedSequence& sequence, const kvevict_paged_rows* rows,
                size_t rows_len, const Act& act) {
  KV_RETURN_IF_ERROR(CheckArray("rows", rows, rows_len));
  if (rows_len > KVEVICT_MAX_JOBS) {
    return InvalidArgument("rows_len %zu > %d", rows_len, KVEVICT_MAX_JOBS);
  }
  PagedRows copied[KVEVICT_MAX_JOBS];
  KV_RETURN_IF_ERROR(ForEachStruct(
      "rows", rows, rows_len, [&](size_t i, const kvevict_paged_rows* in) {
        kvevict_paged_rows one = KVEVICT_PAGED_ROWS_INIT;
        KV_RETURN_IF_ERROR(CopyIn("rows", in, &one));
        copied[i] = {0, one.first_slot, one.n_tokens, one.k, one.v};
        return FindLayer(sequence.cache().plan(), one.layer, &copied[i].layer);
      }));
  return act(std::span<const PagedRows>(copied, rows_len));
}

Status CheckItemOfPaged(const kvevict_paged_eviction& item,
                        const PagedCache& cache) {
  KV_RETURN_IF_ERROR(CheckNotNull("cached", item.cached));
  const PagedSequence& cached = Core(item.cached);
  const Sequence& sequence = Core(item.sequence);
  if (&cached.cache() != &cache) {
    return InvalidArgument("cached: its cache is not that of items[0]");
  }
  return CheckStoredIn(cached, sequence);
}

// Checks an item and fills the sequence's views.
Status CheckPagedEvict(const kvevict_paged_eviction& item, void* workspace,
                       size_t workspace_bytes) {
  Sequence& sequence = Core(item.sequence);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  KV_RETURN_IF_ERROR(
      CopyPagedEviction(Core(item.cached), sequence, item.options, &options));
  return CheckEvict(&sequence.call(), options, workspace, workspace_bytes);
}

// Marks as wanted the shared blocks that a checked eviction will write to.
void WantWritten(PagedSequence& cached, const Sequence& sequence) {
  if (!WritesViews(sequence.call())) return;
  const Plan& plan = sequence.plan();
  const bool to_any = plan.RewritesRows() || IsByTable(sequence.call()) ||
                      CountsByScore(plan.policy()) ||
                      SplitsByScore(plan.policy());
  for (const LayerOutcome& layer : sequence.call().outcomes()) {
    if (!layer.loses) continue;
    const uint32_t n_moved = layer.n_keep - cached.n_recent(layer.layer);
    cached.WantOwn(layer.layer, 0, to_any ? layer.n_tokens : n_moved);
  }
}

// The items of a call.
class PagedItems {
 public:
  PagedItems(const kvevict_paged_eviction* items, size_t n)
      : items_(items), n_(n) {}

  PagedSequence& CachedOf(size_t i) const { return Core(Item(i)->cached); }
  Sequence& SequenceOf(size_t i) const { return Core(Item(i)->sequence); }
  // Checks that none of the first `n` items has this cached sequence.
  Status CheckIsNew(const kvevict_paged_sequence* cached, size_t n) const {
    for (size_t i = 0; i < n; ++i) {
      if (Item(i)->cached != cached) continue;
      return InvalidArgument("cached: items[%zu] has it too", i);
    }
    return Status();
  }
  // Makes the blocks that items will write to their own.
  Status OwnWritten(Stream stream) const {
    if (n_ == 0) return Status();
    const PagedCache& cache = CachedOf(0).cache();
    {
      const PagedCache::Lock lock(cache);
      for (size_t i = 0; i < n_; ++i) WantWritten(CachedOf(i), SequenceOf(i));
      if (Status status = cache.CheckWanted(); !status.ok()) {
        GiveUp(0);
        return status;
      }
      for (size_t i = 0; i < n_; ++i) CachedOf(i).TakeWanted();
    }
    for (size_t i = 0; i < n_; ++i) {
      if (Status status = CachedOf(i).CopyTaken(stream); !status.ok()) {
        const PagedCache::Lock lock(cache);
        GiveUp(i + 1);
        return status;
      }
    }
    return Status();
  }

 private:
  const kvevict_paged_eviction* Item(size_t i) const {
    const auto address = reinterpret_cast<uintptr_t>(items_);
    return reinterpret_cast<const kvevict_paged_eviction*>(
        address + i * items_->struct_size);
  }
  void GiveUp(size_t first) const {
    for (size_t i = first; i < n_; ++i) CachedOf(i).GiveUp();
  }

  const kvevict_paged_eviction* const items_;
  const size_t n_;
};

}  // namespace

extern "C" {

// ---- The pool ----

kvevict_status kvevict_paged_cache_bytes(
    const kvevict_plan* plan, const kvevict_paged_cache_options* options,
    size_t* out_bytes) noexcept {
  return Guard([&] {
    kvevict_paged_cache_options o = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
    KV_RETURN_IF_ERROR(CopyPoolOptions(plan, options, &o));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    return PagedCache::FindBytes(Core(plan), o, out_bytes);
  });
}

kvevict_status kvevict_paged_cache_create(
    const kvevict_plan* plan, const kvevict_paged_cache_options* options,
    kvevict_paged_cache** out_cache) noexcept {
  return Guard([&] {
    kvevict_paged_cache_options o = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
    KV_RETURN_IF_ERROR(CopyPoolOptions(plan, options, &o));
    KV_RETURN_IF_ERROR(CheckNotNull("out_cache", out_cache));
    PagedCache* cache = nullptr;
    KV_RETURN_IF_ERROR(PagedCache::Create(Core(plan), o, &cache));
    *out_cache = reinterpret_cast<kvevict_paged_cache*>(cache);
    return Status();
  });
}

void kvevict_paged_cache_destroy(kvevict_paged_cache* cache) noexcept {
  if (cache != nullptr) Core(cache).Unref();
}

kvevict_status kvevict_paged_cache_get_usage(
    const kvevict_paged_cache* cache, kvevict_paged_cache_usage* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("cache", cache));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    kvevict_paged_cache_usage usage{};
    Core(cache).FillUsage(&usage);
    CopyOut(usage, out);
    return Status();
  });
}

// ---- Sequences ----

kvevict_status kvevict_paged_sequence_create(
    kvevict_paged_cache* cache,
    kvevict_paged_sequence** out_sequence) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("cache", cache));
    KV_RETURN_IF_ERROR(CheckNotNull("out_sequence", out_sequence));
    PagedSequence* sequence = nullptr;
    KV_RETURN_IF_ERROR(PagedSequence::Create(Core(cache), &sequence));
    *out_sequence = HandleOf(sequence);
    return Status();
  });
}

kvevict_status kvevict_paged_sequence_fork(
    const kvevict_paged_sequence* sequence,
    kvevict_paged_sequence** out_sequence, kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("out_sequence", out_sequence));
    PagedSequence* fork = nullptr;
    KV_RETURN_IF_ERROR(Core(sequence).Fork(stream, &fork));
    *out_sequence = HandleOf(fork);
    return Status();
  });
}

void kvevict_paged_sequence_destroy(kvevict_paged_sequence* sequence) noexcept {
  if (sequence != nullptr) Core(sequence).Destroy();
}

kvevict_status kvevict_paged_sequence_append(kvevict_paged_sequence* sequence,
                                             uint32_t n_tokens,
                                             kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).Append(n_tokens, stream);
  });
}

kvevict_status kvevict_paged_sequence_truncate(kvevict_paged_sequence* sequence,
                                               uint32_t new_length) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    PagedSequence& s = Core(sequence);
    for (uint32_t l = 0; l < s.cache().plan().n_layers(); ++l) {
      s.Shrink(l, new_length);
    }
    return Status();
  });
}

kvevict_status kvevict_paged_sequence_fit(
    kvevict_paged_sequence* sequence, const kvevict_sequence* stored) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("stored", stored));
    PagedSequence& cached = Core(sequence);
    const Sequence& s = Core(stored);
    if (Status status = CheckGoesWith(cached, s); !status.ok()) {
      return Prefixed(status, "stored: ");
    }
    for (uint32_t l = 0; l < s.plan().n_layers(); ++l) {
      if (s.slots()[l].stored <= cached.length(l)) continue;
      return InvalidArgument("stored: %u slots of layer %u > %u rows held",
                             s.slots()[l].stored, s.plan().layer(l).number,
                             cached.length(l));
    }
    FitRows(cached, s);
    return Status();
  });
}

kvevict_status kvevict_paged_sequence_length(
    const kvevict_paged_sequence* sequence, uint32_t layer,
    uint32_t* out_slots) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("out_slots", out_slots));
    uint32_t place = 0;
    KV_RETURN_IF_ERROR(FindLayer(Core(sequence).cache().plan(), layer, &place));
    *out_slots = Core(sequence).length(place);
    return Status();
  });
}

kvevict_status kvevict_paged_sequence_view(
    const kvevict_paged_sequence* sequence, uint32_t layer,
    kvevict_view* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    uint32_t place = 0;
    KV_RETURN_IF_ERROR(FindLayer(Core(sequence).cache().plan(), layer, &place));
    kvevict_view view = Core(sequence).View(place);
    view.n_shared_blocks = Core(sequence).CountShared(place);
    return CopyOutWhole<kvevict_view>("out", view, KVEVICT_VIEW_INIT, out);
  });
}

kvevict_status kvevict_paged_sequence_own(kvevict_paged_sequence* sequence,
                                          uint32_t first_slot,
                                          kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return Core(sequence).Own(first_slot, stream);
  });
}

// ---- Rows ----

kvevict_status kvevict_paged_sequence_write(kvevict_paged_sequence* sequence,
                                            const kvevict_paged_rows* rows,
                                            size_t rows_len,
                                            kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return WithRows(Core(sequence), rows, rows_len,
                    [&](std::span<const PagedRows> copied) {
                      return Core(sequence).Write(copied, stream);
                    });
  });
}

kvevict_status kvevict_paged_sequence_read(
    const kvevict_paged_sequence* sequence, const kvevict_paged_rows* rows,
    size_t rows_len, kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return WithRows(Core(sequence), rows, rows_len,
                    [&](std::span<const PagedRows> copied) {
                      return Core(sequence).Read(copied, stream);
                    });
  });
}

// ---- Eviction ----

kvevict_status kvevict_paged_evict(const kvevict_paged_eviction* items,
                                   size_t items_len, void* workspace,
                                   size_t workspace_bytes,
                                   kvevict_stream stream) noexcept {
  return Guard([&] {
    Batch batch(items, items_len, stream);
    const PagedItems paged(items, items_len);
    size_t n_checked = 0;
    return batch.Do(
        [&](const kvevict_paged_eviction& item) {
          KV_RETURN_IF_ERROR(CheckNotNull("cached", item.cached));
          KV_RETURN_IF_ERROR(CheckItemOfPaged(item, paged.CachedOf(0).cache()));
          KV_RETURN_IF_ERROR(paged.CheckIsNew(item.cached, n_checked++));
          return CheckPagedEvict(item, workspace, workspace_bytes);
        },
        [&] {
          KV_RETURN_IF_ERROR(CheckWorkspaceApart(paged, items_len, workspace));
          return paged.OwnWritten(stream);
        },
        [&](const kvevict_paged_eviction& item) {
          const Sequence& sequence = Core(item.sequence);
          KV_RETURN_IF_ERROR(RunEvict(&Core(item.sequence).call()));
          if (IsByTable(sequence.call())) {
            KV_RETURN_IF_ERROR(Core(item.cached).ReadTables(stream));
          }
          for (uint32_t l = 0; l < sequence.plan().n_layers(); ++l) {
            Core(item.cached).ShrinkBeforeRecent(l, sequence.slots()[l].stored);
          }
          SetHeld(Core(item.cached), sequence);
          return Status();
        });
  });
}

}  // extern "C"
