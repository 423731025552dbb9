#include "tools/pictures/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "tools/engine/platform.h"
#include "tools/pictures/gnuplot.h"

namespace kvevict::tools {
namespace {

constexpr int kWidth = 480, kHeight = 320;
constexpr size_t kMostLabels = 12;

// Labels at their places, not more than there is room for.
std::string Ticks(const char* axis, const std::vector<std::string>& labels,
                  bool downwards) {
  const size_t step = (labels.size() + kMostLabels - 1) / kMostLabels;
  std::string out;
  for (size_t i = 0; i < labels.size(); i += step) {
    if (labels[i].empty()) continue;
    out +=
        fmt::format("{}{} {}", out.empty() ? "" : ", ", GnuplotText(labels[i]),
                    downwards ? labels.size() - 1 - i : i);
  }
  return fmt::format("set {}tics ({}) scale 0\n", axis, out);
}

std::string Script(const std::string& folder, const HeatMap& map) {
  const size_t n_rows = map.rows.size();
  size_t n_columns = 0;  // layers may have different numbers of heads
  for (const auto& row : map.rows) n_columns = std::max(n_columns, row.size());
  // gnuplot's images have two rows and two columns at least; more than the map
  // has lie outside of the axes. A cell without a value stays empty.
  std::string data;
  for (size_t y = 0; y < std::max<size_t>(n_rows, 2); ++y) {
    for (size_t x = 0; x < std::max<size_t>(n_columns, 2); ++x) {
      const bool known =
          y < n_rows && x < map.rows[y].size() && std::isfinite(map.rows[y][x]);
      data +=
          fmt::format("{} {} {}\n", x,
                      static_cast<double>(n_rows) - 1 - static_cast<double>(y),
                      known ? fmt::format("{:.6g}", map.rows[y][x]) : "NaN");
    }
  }
  std::string plot = "plot $cells using 1:2:3 with image notitle";
  if (map.has_numbers) {
    // Light letters on dark cells.
    const double middle = (map.low + map.high) / 2;
    for (const auto& [sign, colour] :
         {std::pair{"<", "#ffffff"}, {">=", "#101010"}}) {
      plot += fmt::format(
          ", '' using 1:2:(valid(3) && $3 {} {} ? sprintf(\"%.1f\", abs($3) < "
          "0.05 ? 0 : $3) : "
          "\"\") with "
          "labels tc rgb \"{}\" notitle",
          sign, middle, colour);
    }
  }
  std::string out = fmt::format(
      "reset\nset title {}\nset xlabel {}\nset ylabel {}\nset cblabel {} "
      "offset 1,0\n"
      "set cbrange [{}:{}]\nset xrange [-0.5:{}]\nset yrange [-0.5:{}]\n"
      "set palette defined (0 \"#1b1f5e\", 1 \"#2a7fb8\", 2 \"#66c2a4\", 3 "
      "\"#f7e27c\")\n{}{}$cells << END\n{}END\n",
      GnuplotText(map.title), GnuplotText(map.x_title),
      GnuplotText(map.y_title), GnuplotText(map.unit), map.low, map.high,
      static_cast<double>(n_columns) - 0.5, static_cast<double>(n_rows) - 0.5,
      Ticks("x", map.x_labels, false), Ticks("y", map.y_labels, true), data);
  const std::string path = folder + "/" + map.name;
  for (const auto& [terminal, ending] :
       {std::pair{"svg font \"sans-serif,12\"", "svg"},
        {"pngcairo font \"sans,10\"", "png"}}) {
    out += fmt::format(
        "set terminal {} size {},{} noenhanced background \"#ffffff\"\nset "
        "output {}\n{}\nset output\n",
        terminal, kWidth, kHeight, GnuplotText(path + "." + ending), plot);
  }
  return out;
}

void Replace(std::string& text, const std::string& what,
             const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

std::string Read(const std::string& path) {
  std::ifstream file(PathOf(path), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::vector<std::string> NumberLabels(size_t n) {
  std::vector<std::string> labels;
  for (size_t i = 0; i < n; ++i) labels.push_back(std::to_string(i));
  return labels;
}

HeatMap ByteMap(std::vector<std::vector<double>> rows, double row_bytes) {
  HeatMap map;
  map.x_title = "KV head";
  map.y_title = "layer";
  map.unit = "KiB";
  map.rows = std::move(rows);
  map.high = 1e-3;  // an empty cache has colours too
  size_t n_heads = 0;
  for (auto& layer : map.rows) {
    n_heads = std::max(n_heads, layer.size());
    for (double& n : layer) {
      n *= row_bytes / 1024;
      map.high = std::max(map.high, n);
    }
  }
  map.x_labels = NumberLabels(n_heads);
  map.y_labels = NumberLabels(map.rows.size());
  map.has_numbers = n_heads <= 8 && map.rows.size() <= 16;
  return map;
}

void DrawHeatMaps(const std::string& folder, const std::vector<HeatMap>& maps) {
  if (maps.empty()) return;
  std::filesystem::create_directories(PathOf(folder));
  std::string script;
  for (const HeatMap& map : maps) script += Script(folder, map);
  RunGnuplot(script);
  // Cells stay sharp where a browser enlarges them.
  for (const HeatMap& map : maps) {
    const std::string path = folder + "/" + map.name + ".svg";
    std::string svg = Read(path);
    Replace(svg, "<image ", "<image style=\"image-rendering:pixelated\" ");
    std::ofstream(PathOf(path), std::ios::binary) << svg;
  }
}

std::string InlineSvg(const std::string& folder, const HeatMap& map) {
  std::string svg = Read(folder + "/" + map.name + ".svg");
  const size_t begin = svg.find("<svg");
  if (begin == std::string::npos) return "";
  svg.erase(0, begin);
  // Without sizes it takes the width of its place.
  Replace(svg,
          fmt::format("width=\"{}\" height=\"{}\"\n viewBox", kWidth, kHeight),
          "role=\"img\" viewBox");
  Replace(svg, "<title>Gnuplot</title>",
          "<title>" + Escaped(map.title) + "</title>");
  Replace(svg, "fill=\"#ffffff\"/>", "fill=\"none\"/>");
  Replace(svg, "black", "currentColor");
  // Several pictures share a page.
  Replace(svg, "id=\"gnuplot_", "data-part=\"" + map.name + "_");
  for (const char* prefix : {"gpDot", "gpPt", "textbox", "greybox"}) {
    Replace(svg, "id='" + std::string(prefix),
            "id='" + map.name + "-" + prefix);
    Replace(svg, "#" + std::string(prefix), "#" + map.name + "-" + prefix);
  }
  return svg;
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace kvevict::tools
