// TRIA, a plain file of query centers that an engine can map. Little-endian:
//   u32 magic 0x54524941, version (1 or 2), layers, query heads, KV heads,
//   head_dim, pairs; f32 theta of RoPE, attention scale; zeros up to byte 64
//   version 2: f32 [layers], the factor of a layer's budget
//   f32 [layers, query heads, 4, pairs]: the mean's real and imaginary part,
//   the mean length, and the mean's length divided by the mean length
// kvevict_signal_inputs.query_centers can point to its rows: those of heads are
// 4 * pairs floats apart.
#ifndef KVEVICT_TOOLS_CALIBRATION_TRIA_H_
#define KVEVICT_TOOLS_CALIBRATION_TRIA_H_

#include <cstdint>
#include <span>
#include <string>

#include "tools/calibration/query_centers.h"

namespace kvevict::tools {

bool IsTria(std::span<const uint8_t> bytes);

// Throws std::runtime_error that names the file.
QueryCenters ReadTria(const std::string& path, std::span<const uint8_t> bytes);

// The offset of the rows in version 2.
size_t TriaTableOffset(const QueryCenters& centers);

// The bytes of version 2, with budgets multiplied by 1.
std::string WriteTria(const QueryCenters& centers);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_CALIBRATION_TRIA_H_
