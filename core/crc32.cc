#include "core/crc32.h"

#include <array>

namespace kvevict {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // reflected

constexpr std::array<uint32_t, 256> kOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}();

}  // namespace

uint32_t Crc32(std::span<const uint8_t> bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : bytes) crc = crc >> 8 ^ kOfByte[(crc ^ byte) & 255];
  return ~crc;
}

}  // namespace kvevict
