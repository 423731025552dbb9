// Calls for many sequences: all are checked before the first one changes.
#ifndef KVEVICT_CAPI_BATCH_H_
#define KVEVICT_CAPI_BATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "capi/sequence.h"
#include "core/evict/evict.h"
#include "kvevict/batch.h"
#include "kvevict/paged.h"

namespace kvevict::capi {

template <typename T>
inline constexpr T kDefault{};
template <>
inline constexpr kvevict_sequence_tokens kDefault<kvevict_sequence_tokens> =
    KVEVICT_SEQUENCE_TOKENS_INIT;
template <>
inline constexpr kvevict_sequence_length kDefault<kvevict_sequence_length> =
    KVEVICT_SEQUENCE_LENGTH_INIT;
template <>
inline constexpr kvevict_sequence_observations
    kDefault<kvevict_sequence_observations> =
        KVEVICT_SEQUENCE_OBSERVATIONS_INIT;
template <>
inline constexpr kvevict_sequence_eviction kDefault<kvevict_sequence_eviction> =
    KVEVICT_SEQUENCE_EVICTION_INIT;
template <>
inline constexpr kvevict_paged_eviction kDefault<kvevict_paged_eviction> =
    KVEVICT_PAGED_EVICTION_INIT;

template <typename Item>
Status CheckItem(const Item& item) {
  if constexpr (requires { item.reserved; }) {
    KV_RETURN_IF_ERROR(CheckReserved("item", item.reserved));
  }
  return CheckNotNull("sequence", item.sequence);
}

// Checks that the workspace of a batch overlaps no cache of its sequences,
// which have been checked.
template <typename Items>
Status CheckWorkspaceApart(const Items& items, size_t n,
                           const void* workspace) {
  size_t n_bytes = 0;
  for (size_t i = 0; i < n; ++i) {
    n_bytes = std::max(n_bytes, WorkspaceBytes(items.SequenceOf(i).call()));
  }
  for (size_t i = 0; i < n; ++i) {
    Status status =
        CheckWorkspaceApart(items.SequenceOf(i).call(), workspace, n_bytes);
    if (!status.ok()) return Prefixed(status, "items[%zu]: ", i);
  }
  return Status();
}

// The items of a call. While it lives their sequences are marked, so that none
// is given twice, and they are on the call's stream. They stay on it if the
// call succeeds.
template <typename Item>
class Batch {
 public:
  Batch(const Item* items, size_t n, Stream stream)
      : items_(items), n_(n), stream_(stream) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    for (size_t i = 0; i < n_entered_; ++i) SequenceOf(i).LeaveBatch(succeeds_);
  }

  // Calls check(item) for all items, then between(), and then run(item) for
  // each.
  template <typename Check, typename Between, typename Run>
  Status Do(const Check& check, const Between& between, const Run& run) {
    KV_RETURN_IF_ERROR(CheckArray("items", items_, n_));
    KV_RETURN_IF_ERROR(ForEach([&](size_t i, const Item& item) {
      KV_RETURN_IF_ERROR(Enter(i, item));
      return check(item);
    }));
    KV_RETURN_IF_ERROR(between());
    KV_RETURN_IF_ERROR(
        ForEach([&](size_t, const Item& item) { return run(item); }));
    succeeds_ = true;
    return Status();
  }
  template <typename Check, typename Run>
  Status Do(const Check& check, const Run& run) {
    return Do(
        check, [] { return Status(); }, run);
  }

  Sequence& SequenceOf(size_t i) const {
    const auto address = reinterpret_cast<uintptr_t>(items_);
    return Core(reinterpret_cast<const Item*>(address + i * items_->struct_size)
                    ->sequence);
  }

 private:
  template <typename Visit>
  Status ForEach(const Visit& visit) const {
    return ForEachStruct("items", items_, n_, [&](size_t i, const Item* in) {
      Item item = kDefault<Item>;
      KV_RETURN_IF_ERROR(CopyIn("item", in, &item));
      return visit(i, item);
    });
  }

  Status Enter(size_t i, const Item& item) {
    KV_RETURN_IF_ERROR(CheckItem(item));
    Sequence& sequence = Core(item.sequence);
    if (sequence.item() != Sequence::kNoItem) {
      return InvalidArgument("sequence: items[%zu] has it too",
                             sequence.item());
    }
    if (&sequence.plan().context() != &SequenceOf(0).plan().context()) {
      return InvalidArgument("sequence: its context is not that of items[0]");
    }
    sequence.EnterBatch(i, stream_);
    ++n_entered_;
    return Status();
  }

  const Item* const items_;
  const size_t n_;
  const Stream stream_;
  size_t n_entered_ = 0;
  bool succeeds_ = false;
};

}  // namespace kvevict::capi

#endif  // KVEVICT_CAPI_BATCH_H_
