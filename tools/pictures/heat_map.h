// Heat maps, which gnuplot draws.
#ifndef KVEVICT_TOOLS_PICTURES_HEAT_MAP_H_
#define KVEVICT_TOOLS_PICTURES_HEAT_MAP_H_

#include <string>
#include <vector>

namespace kvevict::tools {

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

// Labels 0, 1, ..., n - 1.
std::vector<std::string> NumberLabels(size_t n);

// Makes bytes by layer and KV head of how many rows of `row_bytes` each holds.
HeatMap ByteMap(std::vector<std::vector<double>> rows, double row_bytes);

// Writes name.svg and name.png of every map to `folder`. Throws if gnuplot
// fails.
void DrawHeatMaps(const std::string& folder, const std::vector<HeatMap>& maps);

// The SVG of a map that was drawn, as a part of a page: its letters have the
// page's colour.
std::string InlineSvg(const std::string& folder, const HeatMap& map);

// Text for HTML and SVG.
std::string Escaped(const std::string& text);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_PICTURES_HEAT_MAP_H_
