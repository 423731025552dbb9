// Heat maps, which gnuplot draws.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_HEAT_MAP_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_HEAT_MAP_H_

#include <string>
#include <vector>

namespace kvevict::llama_cli::eval {

struct HeatMap {
  std::string name;  // of files, without an ending
  std::string title, x_title, y_title;
  std::string unit;                       // of the values, beside the colours
  std::vector<std::vector<double>> rows;  // the first row is at the top
  // Labels of columns and rows; empty ones are left out.
  std::vector<std::string> x_labels, y_labels;
  double low = 0, high = 1;  // the ends of the colours
  bool has_numbers = false;  // in every cell
};

// "gnuplot 5.4 ...", or "" where there is none.
std::string GnuplotVersion();

// Writes name.svg and name.png of every map to `folder`. Throws if gnuplot
// fails.
void DrawHeatMaps(const std::string& folder, const std::vector<HeatMap>& maps);

// The SVG of a map that was drawn, as a part of a page: its letters have the
// page's colour.
std::string InlineSvg(const std::string& folder, const HeatMap& map);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_HEAT_MAP_H_
