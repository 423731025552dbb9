#include "report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "maps.h"
#include "tables.h"

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;
using tools::Escaped;
using tools::HeatMap;

const char kHead[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
    "<meta name=\"color-scheme\" content=\"light dark\">"
    "<link rel=\"icon\" href=\"data:,\"><title>kvevict eval</title><style>"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:1200px;margin:0 auto;"
    "padding:1rem;color:#222;background:#fff}"
    "h1{font-size:1.5rem;line-height:1.2}h2{font-size:1.2rem}"
    ".pictures{display:grid;gap:1rem;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr))}"
    ".pictures svg{width:100%;max-width:40rem}"
    ".maps{grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}"
    "th,td{padding:.2rem .6rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid #ddd}"
    "th:first-child,td:first-child{text-align:left}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}"
    "th,td{border-color:#3a3a3a}}"
    "</style></head><body>\n";

// One series for each policy, in the order in which the user named them, so
// that a policy has its colour in all pictures.
template <typename Row>
std::vector<Series> SeriesOf(const json& document, const std::vector<Row>& rows,
                             const std::function<Mean(const Row&)>& value) {
  std::vector<Series> all;
  for (const json& policy : document["setup"]["policies"]) {
    Series series{policy, {}};
    for (const Row& row : rows) {
      const Mean mean = value(row);
      if (row.policy != series.name || !std::isfinite(mean.mean)) continue;
      series.points.push_back({row.share, mean.mean, mean.error.value_or(0)});
    }
    std::sort(series.points.begin(), series.points.end(),
              [](const Point& a, const Point& b) { return a.share < b.share; });
    all.push_back(std::move(series));
  }
  return all;
}

bool HasPoints(const Chart& chart) {
  return std::any_of(chart.series.begin(), chart.series.end(),
                     [](const Series& s) { return !s.points.empty(); });
}

Mean Percent(Mean mean) {
  mean.mean *= 100;
  if (mean.error) *mean.error *= 100;
  return mean;
}

Chart WindowsChart(const json& document, const Summary& summary,
                   const char* name, const char* title, const char* y_title,
                   const std::function<Mean(const Row&)>& value) {
  return {.name = name,
          .title = title,
          .y_title = y_title,
          .series = SeriesOf<Row>(document, summary.rows, value)};
}

std::vector<Chart> WindowsCharts(const json& document, const Summary& s) {
  std::vector<Chart> charts = {KlChart(document, s)};
  charts.push_back(WindowsChart(
      document, s, "agreement", "Predictions with the same most likely token",
      "agreement, %", [](const Row& row) { return Percent(row.agree); }));
  charts.back().reference = "full cache";
  charts.back().reference_y = 100;
  charts.push_back(WindowsChart(document, s, "perplexity",
                                "Perplexity (it can fall when quality does)",
                                "perplexity", [](const Row& row) {
                                  return Mean{row.perplexity, {}};
                                }));
  charts.back().reference = "full cache";
  charts.back().reference_y = s.full_perplexity;
  charts.push_back(WindowsChart(document, s, "evict-ms", "Time of an eviction",
                                "milliseconds", [](const Row& row) {
                                  return Mean{row.evict_ms, {}};
                                }));
  charts.back().log_y = true;
  return charts;
}

std::vector<Chart> TaskCharts(const json& document, const TaskSummary& tasks) {
  std::vector<Chart> charts;
  for (const bool seen : {true, false}) {
    const auto recall = [seen](const TaskRow& row) -> const Recall& {
      return seen ? row.seen : row.unseen;
    };
    const std::string when = seen ? "question seen" : "question unseen";
    charts.push_back({.name = seen ? "right-seen" : "right-unseen",
                      .title = "Right answers, " + when,
                      .y_title = "% of those that the full cache gets right",
                      .reference = "full cache",
                      .reference_y = 100,
                      .series = SeriesOf<TaskRow>(
                          document, tasks.rows, [&](const TaskRow& row) {
                            return Percent(recall(row).right);
                          })});
    charts.push_back({.name = seen ? "answer-seen" : "answer-unseen",
                      .title = "Log probability of the answer, " + when,
                      .y_title = "nats per token, less the full cache's",
                      .reference = "full cache",
                      .reference_y = 0,
                      .series = SeriesOf<TaskRow>(
                          document, tasks.rows,
                          [&](const TaskRow& row) { return recall(row).lp; })});
  }
  return charts;
}

std::string Pictures(const std::vector<Chart>& charts) {
  std::string out = "<div class=\"pictures\">\n";
  for (const Chart& chart : charts) {
    if (HasPoints(chart)) out += Svg(chart);
  }
  return out + "</div>\n";
}

std::string Paragraphs(const std::string& lines);

std::string Maps(const char* title, const char* note,
                 const std::vector<HeatMap>& maps,
                 const std::string& pictures) {
  if (maps.empty()) return "";
  std::string out = "<h2>" + std::string(title) + "</h2>\n";
  if (*note != '\0') out += Paragraphs(note);
  out += "<div class=\"pictures maps\">\n";
  for (const HeatMap& map : maps) out += tools::InlineSvg(pictures, map);
  return out + "</div>\n";
}

std::string Paragraphs(const std::string& lines) {
  std::string out = "<p>";
  for (const char c : Escaped(lines)) {
    out += c == '\n' ? std::string("<br>\n") : std::string(1, c);
  }
  return out + "</p>\n";
}

std::string Table(const Grid& grid) {
  std::string out = "<div class=\"wide\"><table><tr>";
  for (const std::string& title : grid.titles) {
    out += "<th>" + Escaped(title) + "</th>";
  }
  for (const auto& row : grid.rows) {
    out += "</tr>\n<tr>";
    for (const std::string& cell : row) out += "<td>" + Escaped(cell) + "</td>";
  }
  return out + "</tr></table></div>\n";
}

}  // namespace

Chart KlChart(const json& document, const Summary& summary) {
  Chart chart = WindowsChart(document, summary, "kl", "KL to the full cache",
                             "KL, nats (logarithmic)",
                             [](const Row& row) { return row.kl; });
  chart.log_y = true;
  return chart;
}

std::vector<Chart> Charts(const json& document, const Summary& summary,
                          const TaskSummary& tasks) {
  std::vector<Chart> charts;
  if (summary.n_windows > 0) charts = WindowsCharts(document, summary);
  if (tasks.n_contexts > 0) {
    for (Chart& chart : TaskCharts(document, tasks)) {
      charts.push_back(std::move(chart));
    }
  }
  return charts;
}

std::string Report(const json& document, const Summary& summary,
                   const TaskSummary& tasks, const std::string& pictures,
                   const std::string& no_maps) {
  std::string out = kHead;
  out += "<h1>What eviction costs " +
         Escaped(document["setup"]["model"].get<std::string>()) + "</h1>\n";
  if (summary.n_windows > 0) {
    out += Paragraphs(Verdict(document, summary));
  }
  if (tasks.n_contexts > 0) out += Paragraphs(TasksVerdict(tasks));
  if (summary.n_windows > 0) {
    out += Paragraphs(SetupText(document, summary));
    out += Pictures(WindowsCharts(document, summary));
    out += "<h2>Windows of text</h2>\n" + Table(WindowsGrid(summary));
    out += Paragraphs(Notes());
  }
  if (tasks.n_contexts > 0) {
    out += "<h2>Tasks</h2>\n" + Paragraphs(Ceilings(tasks));
    out += Pictures(TaskCharts(document, tasks));
    out += Table(TasksGrid(tasks));
  }
  if (!no_maps.empty()) {
    return out + Paragraphs("No heat maps: " + no_maps) + "</body></html>\n";
  }
  out += Maps(
      "A fact by its depth and the length of the text, question unseen",
      "Log probability per token of the answer, less the full cache's. "
      "0: nothing is lost. Dark: the fact is gone. An empty cell is a text "
      "too short for the policy's sinks and window.",
      NeedleMaps(document, false), pictures);
  out +=
      Maps("The same, question seen", "", NeedleMaps(document, true), pictures);
  out += Maps("Which rows stay",
              "The first window, by layer and position. Dark: nothing stays.",
              PositionMaps(document), pictures);
  out += Maps("Bytes by layer and KV head", "", ByteMaps(document), pictures);
  return out + "</body></html>\n";
}

}  // namespace kvevict::llama_cli::eval
