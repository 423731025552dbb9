#include "kept.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "upstream.h"

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;

constexpr uint32_t kMostParts = 64;

}  // namespace

json KeptRows(const kvevict_sequence* sequence, uint32_t n_prompt) {
  const uint32_t n_parts = std::min(n_prompt, kMostParts);
  json shares = json::array(), rows = json::array();
  for (uint32_t layer = 0;; ++layer) {
    std::vector<double> kept(n_parts);
    json lengths = json::array();
    uint32_t length = 0;
    // Past the last layer and head the call fails.
    for (uint32_t head = 0; kvevict_sequence_stored_length(
                                sequence, layer, head, &length) == KVEVICT_OK;
         ++head) {
      std::vector<int32_t> positions(length);
      size_t n = 0;
      Check(kvevict_sequence_keep_positions(sequence, layer, head,
                                            positions.data(), length, &n));
      for (const int32_t p : positions) {
        const uint64_t part = static_cast<uint64_t>(p) * n_parts / n_prompt;
        if (part < n_parts) kept[part] += 1;
      }
      lengths.push_back(length);
    }
    if (lengths.empty()) break;
    json parts = json::array();
    for (uint32_t i = 0; i < n_parts; ++i) {
      // The positions p with p * n_parts / n_prompt == i.
      const auto first = [&](uint64_t part) {
        return (part * n_prompt + n_parts - 1) / n_parts;
      };
      const auto n_rows =
          static_cast<double>((first(i + 1) - first(i)) * lengths.size());
      parts.push_back(std::round(kept[i] / n_rows * 1000) / 1000);
    }
    shares.push_back(std::move(parts));
    rows.push_back(std::move(lengths));
  }
  return {{"shares", std::move(shares)}, {"rows", std::move(rows)}};
}

}  // namespace kvevict::llama_cli::eval
