// Zip archives as PyTorch writes them, without compression.
#ifndef KVEVICT_TOOLS_CALIBRATION_ZIP_H_
#define KVEVICT_TOOLS_CALIBRATION_ZIP_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace kvevict::tools {

bool IsZip(std::span<const uint8_t> bytes);

// The entries by name, in place. Throws std::runtime_error that names the file,
// for one that is damaged (every entry has a checksum), compressed, or larger
// than 4 GiB.
std::map<std::string, std::span<const uint8_t>> ReadZip(
    const std::string& path, std::span<const uint8_t> bytes);

// The checksum of zip.
uint32_t Crc32(std::span<const uint8_t> bytes);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_CALIBRATION_ZIP_H_
