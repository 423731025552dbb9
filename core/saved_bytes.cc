#include "core/saved_bytes.h"

#include <algorithm>

#include "core/crc32.h"

namespace kvevict {
namespace {

constexpr size_t kCrcBegin = 16;

}  // namespace

void WriteSavedHeader(const SavedKind& kind, std::span<uint8_t> all) {
  std::copy(std::begin(kind.magic), std::end(kind.magic), all.begin());
  SavedWriter(all.data() + kCrcBegin).U64(all.size());
  SavedWriter checks(all.data() + sizeof kind.magic);
  checks.U32(kind.version);
  checks.U32(Crc32(all.subspan(kCrcBegin)));
}

Status CheckSavedHeader(const SavedKind& kind, std::span<const uint8_t> all,
                        size_t least_bytes) {
  if (all.size() < least_bytes) {
    return InvalidArgument("data_len %zu < %zu of the least %s", all.size(),
                           least_bytes, kind.what);
  }
  if (!std::equal(std::begin(kind.magic), std::end(kind.magic), all.begin())) {
    return InvalidArgument("data does not begin with the magic of a %s",
                           kind.what);
  }
  SavedReader header(all.subspan(sizeof kind.magic));
  if (const uint32_t version = header.U32(); version != kind.version) {
    return InvalidArgument("data: version %u, but this library reads %u",
                           version, kind.version);
  }
  const uint32_t saved_crc = header.U32();
  if (const uint64_t n_bytes = header.U64(); n_bytes != all.size()) {
    return InvalidArgument("data_len %zu is not the %llu bytes that were saved",
                           all.size(),
                           static_cast<unsigned long long>(n_bytes));
  }
  if (const uint32_t crc = Crc32(all.subspan(kCrcBegin)); crc != saved_crc) {
    return InvalidArgument("data: CRC-32 %08x is not the saved %08x: damaged",
                           crc, saved_crc);
  }
  return Status();
}

}  // namespace kvevict
