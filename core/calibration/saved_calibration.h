// The bytes of a calibration.
#ifndef KVEVICT_CORE_CALIBRATION_SAVED_CALIBRATION_H_
#define KVEVICT_CORE_CALIBRATION_SAVED_CALIBRATION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/calibration/calibration.h"
#include "core/status.h"

namespace kvevict {

size_t SavedBytes(const Calibration& calibration);
// Writes SavedBytes() bytes.
void SaveCalibration(const Calibration& calibration, std::span<uint8_t> out);
// Adds saved sums. Adds nothing if it fails.
Status LoadCalibration(Calibration* calibration, std::span<const uint8_t> data);

}  // namespace kvevict

#endif  // KVEVICT_CORE_CALIBRATION_SAVED_CALIBRATION_H_
