// `kvevict calibration`: reads the query centers that triattention scores by,
// and writes them in a form that an engine can map.
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "tools/calibration/query_centers.h"
#include "tools/calibration/tria.h"
#include "tools/commands/checks.h"
#include "tools/commands/commands.h"
#include "tools/engine/platform.h"

namespace kvevict::tools {
namespace {

struct CalibrationOptions {
  std::string file;
  std::string out;
  uint32_t n_kv_heads = 0;
  double theta = 0;
  double attn_scale = 0;
  bool json = false;
};

// Fills in what a file of the authors leaves out from options, since it is in
// the model's configuration.
void FillIn(const CalibrationOptions& options, QueryCenters* centers) {
  if (options.n_kv_heads != 0) {
    if (centers->n_q_heads % options.n_kv_heads != 0) {
      throw std::invalid_argument(
          fmt::format("--kv-heads {} does not divide {} query heads",
                      options.n_kv_heads, centers->n_q_heads));
    }
    centers->n_kv_heads = options.n_kv_heads;
  }
  if (options.theta != 0) centers->theta = static_cast<float>(options.theta);
  if (options.attn_scale != 0) {
    centers->attn_scale = static_cast<float>(options.attn_scale);
  }
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(PathOf(path), std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file) {
    throw std::system_error(errno, std::generic_category(), path);
  }
}

// The quantile `share` of sorted numbers.
float Share(const std::vector<float>& sorted, double share) {
  return sorted[static_cast<size_t>(static_cast<double>(sorted.size() - 1) *
                                    share)];
}

std::string ToJson(const QueryCenters& c, const std::vector<float>& parts) {
  const nlohmann::ordered_json document = {
      {"n_layers", c.n_layers},
      {"n_q_heads", c.n_q_heads},
      {"n_kv_heads", c.n_kv_heads},
      {"head_dim", c.head_dim},
      {"n_pairs", c.n_pairs},
      {"theta", c.theta},
      {"attn_scale", c.attn_scale},
      {"concentration",
       {{"p05", Share(parts, 0.05)},
        {"median", Share(parts, 0.5)},
        {"p95", Share(parts, 0.95)}}},
      {"tria",
       {{"table_offset", TriaTableOffset(c)},
        {"layer_bytes", size_t{c.n_q_heads} * 4 * c.n_pairs * sizeof(float)},
        {"head_bytes", size_t{4} * c.n_pairs * sizeof(float)},
        {"row_bytes", c.n_pairs * sizeof(float)}}}};
  return document.dump(2) + "\n";
}

std::string ToText(const QueryCenters& c, const std::vector<float>& parts) {
  const auto known = [](double number) {
    return number == 0 ? std::string("not said") : fmt::format("{}", number);
  };
  return fmt::format(
      "{} layers of {} query heads (KV heads {}), {} pairs of {} elements\n"
      "theta {}, attention scale {}\n"
      "length of the mean by the mean length: median {:.2f}, 5% below {:.2f}, "
      "5% above {:.2f}\n",
      c.n_layers, c.n_q_heads, known(c.n_kv_heads), c.n_pairs, c.head_dim,
      known(c.theta), known(c.attn_scale), Share(parts, 0.5),
      Share(parts, 0.05), Share(parts, 0.95));
}

CLI::Validator Positive() {
  return Checked([](std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value > 0 &&
        std::isfinite(value)) {
      return "";
    }
    return "'" + text + "' is not a number > 0";
  });
}

}  // namespace

void AddCalibrationCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<CalibrationOptions>();
  CLI::App* calibration = app.add_subcommand(
      "calibration",
      "Reads a calibration file of the policy triattention, a .pt of its "
      "authors or TRIA, and checks it");
  calibration->add_option("file", options->file, "The file")
      ->type_name("FILE")
      ->check(File())
      ->required();
  calibration
      ->add_option("--out", options->out,
                   "Write it as TRIA of version 2, which engines can map")
      ->type_name("FILE");
  calibration
      ->add_option("--kv-heads", options->n_kv_heads,
                   "KV heads of a layer, which a .pt does not tell")
      ->type_name("N")
      ->check(WholeNumber(1, 65535));
  calibration
      ->add_option("--theta", options->theta,
                   "Base of RoPE's frequencies, which a .pt does not tell")
      ->type_name("X")
      ->check(Positive());
  calibration
      ->add_option("--attn-scale", options->attn_scale,
                   "Factor of cosine and sine, which a .pt does not tell")
      ->type_name("X")
      ->check(Positive());
  calibration->add_flag("--json", options->json,
                        "One JSON document instead of text");
  calibration->callback([options, &action] {
    action = [options] {
      QueryCenters centers = ReadQueryCenters(options->file);
      FillIn(*options, &centers);
      if (!options->out.empty()) WriteFile(options->out, WriteTria(centers));
      const std::vector<float> parts = Concentrations(centers);
      return options->json ? ToJson(centers, parts) : ToText(centers, parts);
    };
  });
}

}  // namespace kvevict::tools
