#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "chart.h"
#include "tools/pictures/gnuplot.h"

namespace kvevict::llama_cli::eval {
namespace {

using tools::GnuplotText;

// The values along an axis.
struct Ends {
  void Take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // gnuplot finds the ends itself, but warns if they are one value.
  std::string Range(char axis) const {
    if (low < high) return "";
    const double room = low == 0 ? 1 : std::abs(low) / 10;
    return fmt::format("set {}range [{:.6g}:{:.6g}]\n", axis, low - room,
                       high + room);
  }
  double low = INFINITY, high = -INFINITY;
};

std::string Script(const std::string& folder, const Chart& chart) {
  std::string data, plot;
  Ends x, y;
  for (const Series& series : chart.series) {
    if (series.points.empty()) continue;
    const std::string block = fmt::format("$s{}", &series - &chart.series[0]);
    data += block + " << END\n";
    for (const Point& p : series.points) {
      x.Take(100 * p.share);
      y.Take(p.y - p.error);
      y.Take(p.y + p.error);
      data +=
          fmt::format("{:.6g} {:.6g} {:.6g}\n", 100 * p.share, p.y, p.error);
    }
    data += "END\n";
    plot +=
        fmt::format("{}{} using 1:2:3 with yerrorlines pt {} title {}",
                    plot.empty() ? "plot " : ", ", block,
                    &series - &chart.series[0] + 1, GnuplotText(series.name));
  }
  if (plot.empty()) return "";
  if (!chart.reference.empty()) {
    plot += fmt::format(", {:.6g} dashtype 2 lc rgb \"#555555\" title {}",
                        chart.reference_y, GnuplotText(chart.reference));
  }
  return fmt::format(
      "reset\nset title {}\nset xlabel \"bytes of the cache that stay, %\"\n"
      "set ylabel {}\nset logscale x 2\n{}{}{}set key outside bottom center\n"
      "set grid\n{}"
      "set terminal pngcairo font \"sans,10\" size 800,600 noenhanced "
      "background \"#ffffff\"\nset output {}\n{}\nset output\n",
      GnuplotText(chart.title), GnuplotText(chart.y_title), x.Range('x'),
      y.Range('y'), chart.log_y ? "set logscale y\n" : "", data,
      GnuplotText(folder + "/" + chart.name + ".png"), plot);
}

}  // namespace

void DrawPngs(const std::string& folder, const std::vector<Chart>& charts) {
  std::string script;
  for (const Chart& chart : charts) script += Script(folder, chart);
  if (script.empty()) return;
  std::filesystem::create_directories(folder);
  tools::RunGnuplot(script);
}

}  // namespace kvevict::llama_cli::eval
