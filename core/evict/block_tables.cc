#include "core/evict/block_tables.h"

#include "core/evict/call.h"
#include "core/policy/policy.h"
#include "core/view/block_numbers.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// The tables that list a layer's blocks, by id or by the address of one plane's
// blocks.
class Tables {
 public:
  // Table set `i` of the cache. exist() is false for the first `i` past the
  // last.
  Tables(const LayerCache& cache, uint32_t i)
      : cache_(cache), blocks_(cache.blocks()) {
    const kvevict_view& view = *cache.view;
    if (view.block_table != nullptr) {
      address_ = i == 0 ? reinterpret_cast<uintptr_t>(view.block_table) : 0;
      entry_bytes_ = sizeof(int32_t);
      return;
    }
    ForEachPlane(view, [&](const kvevict_plane& plane) {
      if (i-- == 0) address_ = plane.address_table;
    });
    entry_bytes_ = sizeof(uint64_t);
  }

  bool exist() const { return address_ != 0; }
  const LayerCache& cache() const { return cache_; }
  const char* name() const {
    return are_ids() ? "block_table" : "address_table";
  }
  TableJob Job(const MoveJob& move) const {
    return {reinterpret_cast<void*>(address_), are_ids(), &move};
  }

  bool AreOne(const Tables& other) const {
    return address_ == other.address_ && entry_bytes_ == other.entry_bytes_ &&
           blocks_.n_tables() == other.blocks_.n_tables() &&
           view().block_size == other.view().block_size &&
           stride() == other.stride();
  }
  // Whether entries of both overlap. Exact if strides are equal, conservative
  // otherwise.
  bool Meet(const Tables& other) const {
    if (address_ > other.address_) return other.Meet(*this);
    if (used() == 0 || other.used() == 0 || end() <= other.address_) {
      return false;
    }
    if (stride() == 0 || stride() != other.stride()) return true;
    const uint64_t apart = (other.address_ - address_) % stride();
    return apart < used() || stride() - apart < other.used();
  }

 private:
  const kvevict_view& view() const { return *cache_.view; }
  bool are_ids() const { return entry_bytes_ == sizeof(int32_t); }
  // Stride, extent in use and end, in bytes.
  uint64_t stride() const {
    return view().block_table_head_stride * entry_bytes_;
  }
  uint64_t used() const { return blocks_.MostUsed() * entry_bytes_; }
  uint64_t end() const { return address_ + blocks_.ExtentOf() * entry_bytes_; }

  const LayerCache& cache_;
  const BlockTables blocks_;
  uint64_t address_ = 0;
  uint32_t entry_bytes_ = 0;
};

// Calls visit(tables) for the layer's tables, at most the first `n`, until a
// call fails.
template <typename Visit>
Status ForEachTables(const LayerCache& cache, const Visit& visit,
                     uint32_t n = UINT32_MAX) {
  for (uint32_t i = 0; i < n; ++i) {
    const Tables tables(cache, i);
    if (!tables.exist()) break;
    KV_RETURN_IF_ERROR(visit(tables));
  }
  return Status();
}

// Checks the tables of two layers, or of two planes of one layer.
Status CheckTwo(const Plan& plan, const Tables& a, const Tables& b) {
  if (!a.Meet(b)) return Status();
  const LayerCache& earlier = a.cache();
  const LayerCache& later = b.cache();
  if (!a.AreOne(b)) {
    return InvalidArgument("by_table: %s overlaps that of views[%u]", b.name(),
                           earlier.number);
  }
  if (&earlier == &later) return Status();
  if (!plan.LayersKeepAlike()) {
    return Unsupported(
        "by_table: %s is also that of views[%u], but the layers keep different "
        "tokens",
        b.name(), earlier.number);
  }
  return Status();
}

// Layers that keep the same number may still have begun with different tokens.
Status CheckLoseAlike(const LayerOutcome& earlier, const LayerOutcome& later,
                      const Tables& a, const Tables& b) {
  if (!a.AreOne(b) ||
      (earlier.n_tokens == later.n_tokens && earlier.n_keep == later.n_keep)) {
    return Status();
  }
  return Unsupported(
      "by_table: %s is also that of views[%u], which keeps %u of %u tokens, "
      "not %u of %u",
      b.name(), a.cache().number, earlier.n_keep, earlier.n_tokens,
      later.n_keep, later.n_tokens);
}

Status CheckBlocks(const Plan& plan, const PlanLayer& layer,
                   const kvevict_view& view) {
  if (view.block_size == 0) {
    return Unsupported(
        "by_table: block_size is 0, and rows without blocks must move");
  }
  if (view.ring_slots != 0) {
    return Unsupported(
        "by_table: ring_slots %u is not 0, and a ring may begin within a block",
        view.ring_slots);
  }
  const uint32_t size = BlocksOf(plan.policy()).size;
  if (size % view.block_size != 0) {
    return Unsupported(
        "by_table: select_block %u is no multiple of block_size %u, so parts "
        "of blocks would go",
        size, view.block_size);
  }
  if (layer.n_lists == 1 || view.block_table_head_stride != 0) return Status();
  return Unsupported(
      "by_table: block_table_head_stride is 0, but %u heads keep lists of "
      "their own",
      layer.n_lists);
}

}  // namespace

Status CheckTables(const Plan& plan, std::span<const kvevict_view> views) {
  if (TouchesNothing(plan.policy())) return Status();
  for (uint32_t l = 0; l < views.size(); ++l) {
    Status status = CheckBlocks(plan, plan.layer(l), views[l]);
    if (status.ok()) continue;
    return Prefixed(status, "views[%u]: ", plan.layer(l).number);
  }
  return Status();
}

// Checks that tables overlap only where layers share one table.
Status CheckTables(EvictCall& call) {
  KV_RETURN_IF_ERROR(CheckTables(call.plan, call.views()));
  if (!call.LosesTokens()) return Status();
  KV_RETURN_IF_ERROR(CheckMoveByRow(call, "by_table"));
  for (uint32_t l = 0; l < call.layers.size(); ++l) {
    if (call.Cache(l).owner != l) continue;
    uint32_t n = 0;  // earlier tables of the layer
    Status status = ForEachTables(call.Cache(l), [&](const Tables& tables) {
      const auto check = [&](const Tables& before) {
        return CheckTwo(call.plan, before, tables);
      };
      for (uint32_t m = 0; m < l; ++m) {
        if (call.Cache(m).owner != m) continue;
        KV_RETURN_IF_ERROR(
            ForEachTables(call.Cache(m), [&](const Tables& before) {
              KV_RETURN_IF_ERROR(check(before));
              return CheckLoseAlike(call.layers[m], call.layers[l], before,
                                    tables);
            }));
      }
      return ForEachTables(call.Cache(l), check, n++);
    });
    if (status.ok()) continue;
    return Prefixed(status, "views[%u]: ", call.plan.layer(l).number);
  }
  // With no jobs this only checks that the operation can run.
  return call.backend().drop_blocks(call.context, call.stream(), {});
}

namespace {

// Whether an earlier layer or plane has the same tables, which were then
// dropped from already.
bool IsDropped(const EvictCall& call, uint32_t i_layer, uint32_t i_tables) {
  const Tables tables(call.Cache(call.active[i_layer].layer), i_tables);
  bool found = false;
  const auto look = [&](const Tables& before) {
    found = found || before.AreOne(tables);
    return Status();
  };
  for (uint32_t i = call.plan.LayersKeepAlike() ? 0 : i_layer; i < i_layer;
       ++i) {
    (void)ForEachTables(call.Cache(call.active[i].layer), look);
  }
  (void)ForEachTables(tables.cache(), look, i_tables);
  return found;
}

}  // namespace

// Each pass takes table set `i` of every layer.
Status DropBlocks(const EvictCall& call) {
  for (uint32_t i = 0;; ++i) {
    bool exist = false;
    for (uint32_t a = 0; a < call.active.size(); ++a) {
      LayerEviction& layer = call.active[a];
      const Tables tables(call.Cache(layer.layer), i);
      layer.table = TableJob();
      exist = exist || tables.exist();
      if (tables.exist() && !IsDropped(call, a, i)) {
        layer.table = tables.Job(layer.move);
      }
    }
    if (!exist) return Status();
    KV_RETURN_IF_ERROR(call.backend().drop_blocks(
        call.context, call.stream(),
        {Jobs<TableJob>(call.active, &LayerEviction::table)}));
  }
}

}  // namespace kvevict
