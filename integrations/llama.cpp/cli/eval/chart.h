// Line charts: as SVG, in light and dark, and as PNG.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_CHART_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_CHART_H_

#include <string>
#include <vector>

namespace kvevict::llama_cli::eval {

struct Point {
  double share = 0;  // on the x axis, in (0, 1], logarithmic
  double y = 0;
  double error = 0;  // drawn as a bar; 0: none
};

struct Series {
  std::string name;
  std::vector<Point> points;  // by share
};

struct Chart {
  std::string name;  // of files, without an ending
  std::string title, y_title;
  bool log_y = false;
  // A line over the whole width, e.g. of the full cache; with "" none.
  std::string reference = {};
  double reference_y = 0;
  std::vector<Series> series;
};

// Writes name.png of every chart that has points to `folder`, drawn by gnuplot.
void DrawPngs(const std::string& folder, const std::vector<Chart>& charts);

// A picture of its own, or a part of a page, with a legend.
std::string Svg(const Chart& chart);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_CHART_H_
