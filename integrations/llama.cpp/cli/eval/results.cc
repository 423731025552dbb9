#include "results.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;

// The first key in which two setups differ; "" if they are alike.
std::string Difference(const json& a, const json& b) {
  for (const auto& [key, value] : a.items()) {
    if (!b.contains(key) || b[key] != value) return key;
  }
  return a.size() == b.size() ? "" : "its keys";
}

}  // namespace

Results::Results(std::string path, json setup) : path_(std::move(path)) {
  if (std::ifstream file(path_); file) {
    document_ = json::parse(file, nullptr, false);
    if (document_.is_discarded() || !document_.contains("setup") ||
        !document_.contains("timings")) {
      throw std::runtime_error(
          path_ +
          ": no results of an evaluation; --out names another folder, --fresh "
          "begins anew");
    }
    const std::string key = Difference(setup, document_["setup"]);
    if (!key.empty()) {
      throw std::runtime_error(
          fmt::format("{}: results of another evaluation, which differs in "
                      "{}; --out names another folder, --fresh begins anew",
                      path_, key));
    }
    return;
  }
  document_ = {{"setup", std::move(setup)},
               {"windows", json::array()},
               {"tasks", json::array()},
               {"needles", json::array()},
               {"timings",
                {{"windows", json::array()},
                 {"tasks", json::array()},
                 {"needles", json::array()},
                 {"peak_bytes", 0}}}};
}

void Results::Add(const char* kind, Measured item) {
  document_[kind].push_back(std::move(item.results));
  document_["timings"][kind].push_back(std::move(item.timings));
  Write();
}

void Results::SetPeakBytes(uint64_t bytes) {
  json& peak = document_["timings"]["peak_bytes"];
  peak = std::max(bytes, peak.get<uint64_t>());
  Write();
}

void Results::Write() const {
  const std::string part = path_ + ".part";
  std::ofstream file(part);
  file << document_.dump(1) << "\n";
  file.close();
  if (!file) throw std::runtime_error(part + ": cannot be written");
  std::filesystem::rename(part, path_);
}

}  // namespace kvevict::llama_cli::eval
