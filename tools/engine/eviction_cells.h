// The first cells that a demo shows of a policy: its evictions, whatever else
// is measured.
#ifndef KVEVICT_TOOLS_ENGINE_EVICTION_CELLS_H_
#define KVEVICT_TOOLS_ENGINE_EVICTION_CELLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/engine/evictor.h"
#include "tools/engine/text_table.h"

namespace kvevict::tools {

struct Evictions {
  Evictor::Report of_prompt;
  // During decoding.
  uint64_t bytes_at_end = 0;
  uint32_t n = 0;
  double milliseconds = 0;  // of all of them
  double to_f32 = 1;        // size of f32 rows relative to the stored ones

  double Shrink() const {
    return static_cast<double>(of_prompt.bytes_before) /
           static_cast<double>(of_prompt.bytes_after);
  }
  // Relative to the prompt in f32.
  double ShrinkOfF32() const { return Shrink() * to_f32; }
  double MillisecondsEach() const { return n == 0 ? 0.0 : milliseconds / n; }
};

std::vector<TextTable::Column> EvictionColumns(bool decodes, bool quantized);
// A cell for each of these columns, with mib_digits digits after a MiB's point.
std::vector<std::string> EvictionCells(const std::string& policy,
                                       const Evictions& evictions, bool decodes,
                                       bool quantized, int mib_digits);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_EVICTION_CELLS_H_
