#include "tools/commands/replay_pictures.h"

#include <algorithm>
#include <string>

namespace kvevict::tools {
namespace {

constexpr uint32_t kMostParts = 64;

// The share of each part of the context that stays, mean over heads.
std::vector<double> Shares(const ReplayLayer& layer, uint32_t n_tokens) {
  const uint32_t n_parts = std::min(n_tokens, kMostParts);
  std::vector<double> kept(n_parts), all(n_parts);
  const auto part = [&](uint32_t position) {
    return static_cast<size_t>(uint64_t{position} * n_parts / n_tokens);
  };
  const auto n_heads = static_cast<double>(layer.heads.size());
  for (uint32_t p = 0; p < n_tokens; ++p) all[part(p)] += n_heads;
  for (const ReplayHead& head : layer.heads) {
    for (const int32_t p : head.positions) {
      kept[part(static_cast<uint32_t>(p))] += 1;
    }
  }
  for (uint32_t i = 0; i < n_parts; ++i) kept[i] /= all[i];
  return kept;
}

}  // namespace

std::vector<HeatMap> ReplayMaps(const Replayed& replayed, uint32_t n_tokens,
                                const std::string& title, size_t number) {
  HeatMap kept;
  std::vector<std::vector<double>> counts;
  double n_rows = 0;
  for (const ReplayLayer& layer : replayed.layers) {
    kept.rows.push_back(Shares(layer, n_tokens));
    auto& heads = counts.emplace_back();
    for (const ReplayHead& head : layer.heads) {
      heads.push_back(static_cast<double>(head.positions.size()));
      n_rows += heads.back();
    }
  }
  kept.name = "kept-" + std::to_string(number);
  kept.title = title;
  kept.x_title = "position";
  kept.y_title = "layer";
  kept.unit = "share of rows that stay";
  kept.y_labels = NumberLabels(kept.rows.size());
  const size_t n_parts = kept.rows[0].size();
  for (size_t i = 0; i < n_parts; ++i) {
    kept.x_labels.push_back(std::to_string(i * n_tokens / n_parts));
  }
  HeatMap bytes =
      ByteMap(counts, static_cast<double>(replayed.report.bytes_after) /
                          std::max(n_rows, 1.0));
  bytes.name = "bytes-" + std::to_string(number);
  bytes.title = title;
  return {kept, bytes};
}

}  // namespace kvevict::tools
