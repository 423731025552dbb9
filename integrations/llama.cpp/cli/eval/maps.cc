#include "maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;
using tools::HeatMap;

// Nats per token of the answer: below this the fact is lost.
constexpr double kLost = -4;

// Mean over a needle's questions of the answer's log probability less the full
// cache's. A short text may have no room for a policy: NaN.
double Difference(const json& needle, const std::string& policy,
                  const char* mode) {
  for (const json& row : needle["evicted"]) {
    if (row["policy"] != policy) continue;
    const json& evicted = row[mode]["lp"];
    const json& full = needle["full"][mode]["lp"];
    double sum = 0;
    for (size_t q = 0; q < full.size(); ++q) {
      sum += evicted[q].get<double>() - full[q].get<double>();
    }
    return sum / static_cast<double>(full.size());
  }
  return std::nan("");
}

// Rows of the first window at the second largest budget, or the only one.
std::vector<json> KeptOfFirstWindow(const json& document) {
  std::vector<json> kept;
  const json& windows = document["windows"];
  if (windows.empty()) return kept;
  std::set<double, std::greater<>> shares;
  for (const json& row : windows[0]["evicted"]) {
    if (row.contains("kept")) shares.insert(row["share"].get<double>());
  }
  if (shares.empty()) return kept;
  const double share =
      shares.size() > 1 ? *std::next(shares.begin()) : *shares.begin();
  for (const json& row : windows[0]["evicted"]) {
    if (row.contains("kept") && row["share"] == share) kept.push_back(row);
  }
  return kept;
}

std::string Title(const json& row) {
  return fmt::format("{}, {:g} %", row["policy"].get<std::string>(),
                     100 * row["share"].get<double>());
}

}  // namespace

std::vector<HeatMap> NeedleMaps(const json& document, bool seen) {
  std::vector<HeatMap> maps;
  const json& needles = document["needles"];
  if (needles.empty()) return maps;
  std::set<uint32_t> lengths;
  std::set<double> depths;
  for (const json& needle : needles) {
    lengths.insert(needle["length"].get<uint32_t>());
    depths.insert(needle["depth"].get<double>());
  }
  const double keep = document["setup"]["needle_keep"];
  for (const json& policy : document["setup"]["policies"]) {
    HeatMap map;
    map.name =
        fmt::format("needle-{}-{}", seen ? "seen" : "unseen", maps.size());
    map.title = fmt::format("{}, {:g} %", policy.get<std::string>(), keep);
    map.x_title = "tokens of the text";
    map.y_title = "depth of the fact, %";
    map.unit = "nats per token";
    map.low = kLost;
    map.high = 0;
    map.has_numbers = true;
    for (const uint32_t length : lengths) {
      map.x_labels.push_back(std::to_string(length));
    }
    for (const double depth : depths) {
      map.y_labels.push_back(fmt::format("{:g}", 100 * depth));
      std::vector<double> row;
      for (const uint32_t length : lengths) {
        double sum = 0;
        size_t n = 0;
        for (const json& needle : needles) {
          if (needle["length"] != length || needle["depth"] != depth) continue;
          sum += Difference(needle, policy, seen ? "seen" : "unseen");
          ++n;
        }
        row.push_back(sum / static_cast<double>(n));
      }
      map.rows.push_back(std::move(row));
    }
    maps.push_back(std::move(map));
  }
  return maps;
}

std::vector<HeatMap> PositionMaps(const json& document) {
  std::vector<HeatMap> maps;
  for (const json& row : KeptOfFirstWindow(document)) {
    HeatMap map;
    map.name = fmt::format("kept-{}", maps.size());
    map.title = Title(row);
    map.x_title = "position";
    map.y_title = "layer";
    map.unit = "share of rows that stay";
    map.rows = row["kept"]["shares"].get<std::vector<std::vector<double>>>();
    map.y_labels = tools::NumberLabels(map.rows.size());
    const size_t n_parts = map.rows[0].size();
    const auto n_prompt = document["setup"]["prompt"].get<size_t>();
    for (size_t i = 0; i < n_parts; ++i) {
      map.x_labels.push_back(std::to_string(i * n_prompt / n_parts));
    }
    maps.push_back(std::move(map));
  }
  return maps;
}

std::vector<HeatMap> ByteMaps(const json& document) {
  std::vector<HeatMap> maps;
  for (const json& row : KeptOfFirstWindow(document)) {
    const auto rows =
        row["kept"]["rows"].get<std::vector<std::vector<double>>>();
    double n_rows = 0;
    for (const auto& layer : rows) {
      n_rows += std::accumulate(layer.begin(), layer.end(), 0.0);
    }
    HeatMap map = tools::ByteMap(rows, row["bytes"].get<double>() / n_rows);
    map.name = fmt::format("bytes-{}", maps.size());
    map.title = Title(row);
    maps.push_back(std::move(map));
  }
  const bool alike =
      std::all_of(maps.begin(), maps.end(),
                  [&](const HeatMap& m) { return m.rows == maps[0].rows; });
  if (maps.size() > 1 && alike) {
    maps.resize(1);
    maps[0].title =
        "every policy" + maps[0].title.substr(maps[0].title.rfind(','));
  }
  return maps;
}

}  // namespace kvevict::llama_cli::eval
