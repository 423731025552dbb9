#include "tools/engine/eviction_cells.h"

#include <fmt/format.h>

namespace kvevict::tools {

std::vector<TextTable::Column> EvictionColumns(bool decodes, bool quantized) {
  std::vector<TextTable::Column> columns = {
      {"policy", TextTable::Align::kLeft}, {"KV MiB"}, {"after"}, {"shrink"}};
  if (quantized) columns.push_back({"of f32"});
  columns.push_back({"evict ms"});
  if (!decodes) return columns;
  for (const char* title : {"at end", "evictions", "ms each"}) {
    columns.push_back({title});
  }
  return columns;
}

std::vector<std::string> EvictionCells(const std::string& policy,
                                       const Evictions& evictions, bool decodes,
                                       bool quantized, int mib_digits) {
  const auto mib = [&](uint64_t bytes) {
    return fmt::format("{:.{}f}", static_cast<double>(bytes) / (1 << 20),
                       mib_digits);
  };
  const Evictor::Report& prompt = evictions.of_prompt;
  std::vector<std::string> cells = {policy, mib(prompt.bytes_before),
                                    mib(prompt.bytes_after),
                                    fmt::format("{:.1f}", evictions.Shrink())};
  if (quantized)
    cells.push_back(fmt::format("{:.1f}", evictions.ShrinkOfF32()));
  cells.push_back(fmt::format("{:.2f}", prompt.milliseconds));
  if (!decodes) return cells;
  cells.push_back(mib(evictions.bytes_at_end));
  cells.push_back(fmt::format("{}", evictions.n));
  cells.push_back(fmt::format("{:.3f}", evictions.MillisecondsEach()));
  return cells;
}

}  // namespace kvevict::tools
