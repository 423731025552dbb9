#include "chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tools/pictures/heat_map.h"

namespace kvevict::llama_cli::eval {
namespace {

using tools::Escaped;

// Narrow enough that a telephone shows its letters in a readable size.
constexpr double kWidth = 480, kPlotHeight = 260;
constexpr double kLeft = 58, kRight = 14, kTop = 34, kBottom = 46;
constexpr double kLegendLine = 18;
constexpr size_t kLegendColumns = 2, kColours = 8;

// Colours that remain apart for colour-blind eyes, on white and on black.
const char kStyle[] =
    "<style>"
    ".kv{--ink:#222;--faint:#ddd;--paper:#fff;--c0:#0072b2;--c1:#d55e00;"
    "--c2:#009e73;--c3:#cc79a7;--c4:#b8860b;--c5:#56b4e9;--c6:#7b3fa0;"
    "--c7:#777;font:12px system-ui,sans-serif}"
    "@media(prefers-color-scheme:dark){.kv{--ink:#e6e6e6;--faint:#3a3a3a;"
    "--paper:#161616;--c0:#4aa8e0;--c1:#ff8a3c;--c2:#2fcf9f;--c3:#e9a3c9;"
    "--c4:#e8c33c;--c5:#9bd5f7;--c6:#bb8be0;--c7:#aaa}}"
    ".kv text{fill:var(--ink)}.kv .grid{stroke:var(--faint)}"
    ".kv .paper{fill:var(--paper)}.kv .full{stroke:var(--ink)}"
    ".kv .line{fill:none;stroke-width:2}"
    "</style>";

class Axis {
 public:
  Axis(double low, double high, bool is_log)
      : low_(is_log ? std::log(low) : low),
        high_(is_log ? std::log(high) : high),
        is_log_(is_log) {
    if (high_ <= low_) high_ = low_ + 1;
  }
  // In [0, 1].
  double At(double value) const {
    return ((is_log_ ? std::log(value) : value) - low_) / (high_ - low_);
  }

 private:
  double low_, high_;
  bool is_log_;
};

struct Scale {
  Axis x, y;
  std::vector<double> x_ticks, y_ticks;
  double X(double share) const {
    return kLeft + x.At(share) * (kWidth - kLeft - kRight);
  }
  double Y(double value) const {
    return kTop + (1 - std::clamp(y.At(value), 0.0, 1.0)) * kPlotHeight;
  }
};

Scale ScaleOf(const Chart& chart) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  std::set<double> shares;
  for (const Series& series : chart.series) {
    for (const Point& p : series.points) {
      shares.insert(p.share);
      low = std::min(low, chart.log_y ? p.y : p.y - p.error);
      high = std::max(high, p.y + p.error);
    }
  }
  if (!chart.reference.empty()) {
    low = std::min(low, chart.reference_y);
    high = std::max(high, chart.reference_y);
  }
  std::vector<double> ticks;
  if (chart.log_y) {
    for (double decade = 1e-6; decade < 1e8; decade *= 10) {
      for (const double step : {1.0, 2.0, 5.0}) ticks.push_back(decade * step);
    }
  } else {
    const double range = std::max(high - low, 1e-9);
    double step = std::pow(10, std::floor(std::log10(range)));
    if (range / step < 2) step /= 5;
    if (range / step < 4) step /= 2;
    for (double t = std::floor(low / step) * step; t < high + step; t += step) {
      ticks.push_back(t);
    }
  }
  // The axis begins and ends at a tick.
  const auto first = std::upper_bound(ticks.begin(), ticks.end(), low);
  const auto begin = first == ticks.begin() ? first : first - 1;
  auto end = std::lower_bound(ticks.begin(), ticks.end(), high);
  if (end != ticks.end()) ++end;
  ticks.assign(begin, end);
  if (shares.size() == 1) shares.insert(1);
  return {Axis(*shares.begin(), *shares.rbegin(), true),
          Axis(ticks.front(), ticks.back(), chart.log_y),
          {shares.begin(), shares.end()},
          ticks};
}

std::string Grid(const Chart& chart, const Scale& scale) {
  std::string out;
  for (const double tick : scale.y_ticks) {
    const double y = scale.Y(tick);
    out += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>",
        kLeft, y, kWidth - kRight, kLeft - 6, y + 4,
        std::abs(tick) < 1e-12 ? 0 : tick);
  }
  for (const double share : scale.x_ticks) {
    const double x = scale.X(share);
    out += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:g}</text>",
        x, kTop, kTop + kPlotHeight, x, kTop + kPlotHeight + 16, 100 * share);
  }
  out += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">bytes of the "
      "cache that stay, %</text>",
      (kLeft + kWidth - kRight) / 2, kTop + kPlotHeight + 36);
  out += fmt::format(
      "<text x=\"14\" y=\"{0:.1f}\" text-anchor=\"middle\" "
      "transform=\"rotate(-90 14 {0:.1f})\">{1}</text>",
      kTop + kPlotHeight / 2, Escaped(chart.y_title));
  return out;
}

// Shapes tell series apart where colours do not.
std::string Marker(size_t index, double x, double y) {
  const std::string fill =
      fmt::format("style=\"fill:var(--c{})\"", index % kColours);
  switch (index % 4) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" {}>", x,
                         y, fill);
    case 1:
      return fmt::format("<path d=\"M{:.1f} {:.1f}h7v7h-7z\" {}>", x - 3.5,
                         y - 3.5, fill);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4 7h-8z\" {}>", x, y - 4.5,
                         fill);
    default:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4 4-4 4-4-4z\" {}>", x,
                         y - 4, fill);
  }
}

std::string CloseMarker(size_t index) {
  return index % 4 == 0 ? "</circle>" : "</path>";
}

std::string Line(const Series& series, size_t index, const Scale& scale) {
  std::string path, out;
  const std::string stroke =
      fmt::format("style=\"stroke:var(--c{})\"", index % kColours);
  for (const Point& p : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L',
                        scale.X(p.share), scale.Y(p.y));
    if (p.error > 0) {
      // Below 0 a logarithmic axis has nothing.
      out +=
          fmt::format("<path class=\"line\" {} d=\"M{:.1f} {:.1f}V{:.1f}\"/>",
                      stroke, scale.X(p.share), scale.Y(p.y + p.error),
                      scale.Y(std::max(p.y - p.error, p.y * 1e-3)));
    }
  }
  out += fmt::format("<path class=\"line\" {} d=\"{}\"/>", stroke, path);
  for (const Point& p : series.points) {
    out += Marker(index, scale.X(p.share), scale.Y(p.y));
    out += fmt::format("<title>{}, {:g} %: {:.4g} ± {:.2g}</title>",
                       Escaped(series.name), 100 * p.share, p.y, p.error);
    out += CloseMarker(index);
  }
  return out;
}

std::string Legend(const Chart& chart) {
  std::string out;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const double x = kLeft + static_cast<double>(i % kLegendColumns) *
                                 (kWidth - kLeft) / kLegendColumns;
    const double y = kTop + kPlotHeight + kBottom + 8 +
                     kLegendLine * static_cast<double>(i / kLegendColumns);
    out += Marker(i, x, y - 4) + CloseMarker(i);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + 10, y,
                       Escaped(chart.series[i].name));
  }
  return out;
}

}  // namespace

std::string Svg(const Chart& chart) {
  const size_t n_lines =
      (chart.series.size() + kLegendColumns - 1) / kLegendColumns;
  const double height =
      kTop + kPlotHeight + kBottom + kLegendLine * static_cast<double>(n_lines);
  const Scale scale = ScaleOf(chart);
  std::string out = fmt::format(
      "<svg class=\"kv\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 "
      "{:g} {:g}\" role=\"img\" aria-label=\"{}\">{}<rect class=\"paper\" "
      "width=\"100%\" height=\"100%\"/>",
      kWidth, height, Escaped(chart.title), kStyle);
  out += fmt::format(
      "<text x=\"{}\" y=\"20\" font-size=\"14\" font-weight=\"600\">{}</text>",
      kLeft, Escaped(chart.title));
  out += Grid(chart, scale);
  if (!chart.reference.empty()) {
    const double y = scale.Y(chart.reference_y);
    out += fmt::format(
        "<path class=\"full\" stroke-dasharray=\"4 3\" d=\"M{:.1f} "
        "{:.1f}H{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>",
        // Above the line, unless the title is there.
        kLeft, y, kWidth - kRight, kLeft + 4, y > kTop + 14 ? y - 5 : y + 14,
        Escaped(chart.reference));
  }
  for (size_t i = 0; i < chart.series.size(); ++i) {
    out += Line(chart.series[i], i, scale);
  }
  return out + Legend(chart) + "</svg>\n";
}

}  // namespace kvevict::llama_cli::eval
