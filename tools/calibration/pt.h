// Calibration files of TriAttention's authors, as torch.save() writes them:
//   {"metadata": {"head_dim": int, "rope_style": "half", ...},
//    "stats": {"layer00_head00": {"q_mean_real": f32 [pairs],
//                                 "q_mean_imag": likewise,
//                                 "q_abs_mean": likewise}, ...}}
#ifndef KVEVICT_TOOLS_CALIBRATION_PT_H_
#define KVEVICT_TOOLS_CALIBRATION_PT_H_

#include <cstdint>
#include <span>
#include <string>

#include "tools/calibration/query_centers.h"

namespace kvevict::tools {

// Throws std::runtime_error that names the file. It must have every head of
// every layer.
QueryCenters ReadPt(const std::string& path, std::span<const uint8_t> bytes);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_CALIBRATION_PT_H_
