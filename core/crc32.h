// The CRC-32 of zlib, gzip and PNG.
#ifndef KVEVICT_CORE_CRC32_H_
#define KVEVICT_CORE_CRC32_H_

#include <cstdint>
#include <span>

namespace kvevict {

uint32_t Crc32(std::span<const uint8_t> bytes);

}  // namespace kvevict

#endif  // KVEVICT_CORE_CRC32_H_
