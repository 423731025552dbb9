#include "core/doors/checks.h"

#include "core/backend.h"
#include "core/view/view.h"

namespace kvevict {

Status CheckTokenCount(uint32_t n_tokens, uint32_t least, uint32_t most,
                       const char* most_name) {
  if (n_tokens >= least && n_tokens <= most) return Status();
  return InvalidArgument("n_tokens %u is not in [%u, %s %u]", n_tokens, least,
                         most_name, most);
}

Status CheckCounts(const Context& context, const char* name,
                   const ListCounts& counts, uint32_t n_lists) {
  if (!context.backend().on_host || counts.each == nullptr) return Status();
  for (uint32_t list = 0; list < n_lists; ++list) {
    if (counts.Of(list) <= counts.most) continue;
    return InvalidArgument("%s[%u] %u > %u", name, list, counts.Of(list),
                           counts.most);
  }
  return Status();
}

Status CheckFits(CheckedSize bytes) {
  if (bytes.ok()) return Status();
  return InvalidArgument("workspace: more bytes than size_t holds");
}

Status CheckListCount(const char* name, uint32_t n_lists) {
  if (n_lists >= 1 && n_lists <= kMaxHeads) return Status();
  return InvalidArgument("%s %u is not in [1, %u]", name, n_lists, kMaxHeads);
}

Status CheckKeepLists(const kvevict_keep_lists& keep, KeepLists* out) {
  if (keep.reserved != 0) {
    return InvalidArgument("keep.reserved %u is not 0", keep.reserved);
  }
  const uint64_t stride = keep.list_stride == 0 ? keep.count : keep.list_stride;
  if (stride < keep.count) {
    return InvalidArgument("keep.list_stride %llu < count %u",
                           static_cast<unsigned long long>(stride), keep.count);
  }
  KV_RETURN_IF_ERROR(CheckListCount("keep.n_lists", keep.n_lists));
  const CheckedSize end = CheckedSize(keep.n_lists - 1) * CheckedSize(stride) +
                          CheckedSize(keep.count);
  if (!end.ok() || end.value() > keep.slots_len) {
    return InvalidArgument(
        "keep.slots_len %zu < %llu: %u lists of up to %u slots begin %llu "
        "apart",
        keep.slots_len, static_cast<unsigned long long>(end.value()),
        keep.n_lists, keep.count, static_cast<unsigned long long>(stride));
  }
  if (stride > UINT32_MAX) {
    return InvalidArgument("keep.list_stride %llu > %u",
                           static_cast<unsigned long long>(stride), UINT32_MAX);
  }
  if (keep.count > 0 && keep.slots == nullptr) {
    return InvalidArgument("keep.slots is NULL, but count is %u", keep.count);
  }
  *out = {keep.slots, keep.n_lists, {keep.count, keep.counts}, stride};
  return Status();
}

Status CheckAscending(std::span<const int32_t> slots, uint32_t n_tokens,
                      uint32_t first_slot) {
  int64_t least = first_slot;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < least || slots[i] >= int64_t{n_tokens}) {
      return InvalidArgument(
          "[%zu] %d is not in [%lld, n_tokens %u): they must ascend", i,
          slots[i], static_cast<long long>(least), n_tokens);
    }
    least = int64_t{slots[i]} + 1;
  }
  return Status();
}

}  // namespace kvevict
