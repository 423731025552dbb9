#include "tests/bench/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

namespace kvevict::bench {
namespace {

using JsonValue = nlohmann::ordered_json;

// Six digits are more than two runs agree in.
double Rounded(double value) { return std::stod(fmt::format("{:.6g}", value)); }

JsonValue ToJson(const Samples& samples) {
  if (samples.empty()) return nullptr;
  return {{"median", Rounded(samples.Median())},
          {"min", Rounded(samples.Min())},
          {"max", Rounded(samples.Max())}};
}

// Limits that moved by more than this make a run hard to compare with another.
constexpr double kStable = 0.10;

bool IsStable(const Samples& s) {
  return s.Max() - s.Min() <= kStable * s.Median();
}

bool AreStable(const Limits& limits) {
  for (const auto& [key, samples] : limits.samples()) {
    if (!IsStable(samples)) return false;
  }
  return true;
}

std::string GoalText(const Comparison& c) {
  if (!c.goal) return "";
  return fmt::format("{} {:.3g} / {:.3g}",
                     c.goal->at_most ? "<=" : ">=", c.goal->floor,
                     c.goal->goal);
}

}  // namespace

Verdict Judge(const Comparison& c) {
  if (!c.goal || c.ratio.empty()) return Verdict::kNone;
  const double ratio = c.ratio.Median();
  const auto holds = [&](double bound) {
    return c.goal->at_most ? ratio <= bound : ratio >= bound;
  };
  if (holds(c.goal->goal)) return Verdict::kGoal;
  return holds(c.goal->floor) ? Verdict::kFloor : Verdict::kFloorMissed;
}

const char* VerdictText(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFloorMissed:
      return "floor missed";
    case Verdict::kFloor:
      return "floor";
    case Verdict::kGoal:
      return "goal";
    default:
      return "";
  }
}

void Row::Add(const Timing& timing, double units) {
  rate.Add(units / timing.cpu);
  milliseconds.Add(1e3 * timing.cpu);
  wall_milliseconds.Add(1e3 * timing.wall);
}

Comparison& Row::Against(const std::string& what, std::optional<Goal> goal) {
  return comparisons.emplace_back(Comparison{what, goal, {}});
}

Row& Report::AddRow(const std::string& name, uint32_t n_threads,
                    const std::string& rate_unit) {
  Row row;
  row.name = name;
  row.n_threads = n_threads;
  row.rate_unit = rate_unit;
  return rows_.emplace_back(std::move(row));
}

bool Report::missed_a_floor() const {
  for (const Row& row : rows_) {
    for (const Comparison& c : row.comparisons) {
      if (Judge(c) == Verdict::kFloorMissed) return true;
    }
  }
  return false;
}

std::string Report::Table(const Machine& machine, const Limits& limits) const {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "Machine\n  {}, {} CPUs, SIMD target {}\n", machine.cpu,
                 machine.n_cpus, machine.simd);
  fmt::format_to(out, "  bf16 dot: {}\n",
                 machine.has_bf16_dot ? "there, no kernel uses it" : "none");
  fmt::format_to(out, "  limits were {} (within {:.0f} %)\n",
                 AreStable(limits) ? "stable" : "NOT stable", 100 * kStable);

  fmt::format_to(out, "\n{:<38} {:>7} {:>10} {:>10} {:>10}\n",
                 "Limits, per thread", "threads", "median", "min", "max");
  for (const auto& [key, s] : limits.samples()) {
    fmt::format_to(out, "  {:<36} {:>7} {:>10.4g} {:>10.4g} {:>10.4g}\n",
                   key.first, key.second, s.Median(), s.Min(), s.Max());
  }

  fmt::format_to(out, "\n{:<46} {:>9} {:>9} {:>9} {:>14}  {}\n", "Kernels",
                 "median", "min", "max", "floor / goal", "verdict");
  for (const Row& row : rows_) {
    fmt::format_to(out, "{}, {} thread{}\n", row.name, row.n_threads,
                   row.n_threads == 1 ? "" : "s");
    const auto line = [&](const std::string& what, const Samples& s,
                          const std::string& goal, const char* verdict) {
      if (s.empty()) return;
      fmt::format_to(out, "    {:<42} {:>9.4g} {:>9.4g} {:>9.4g} {:>14}  {}\n",
                     what, s.Median(), s.Min(), s.Max(), goal, verdict);
    };
    line("ms of CPU time", row.milliseconds, "", "");
    line("ms of wall time", row.wall_milliseconds, "", "");
    line(row.rate_unit + " per thread", row.rate, "", "");
    for (const Comparison& c : row.comparisons) {
      line("x " + c.against, c.ratio, GoalText(c), VerdictText(Judge(c)));
    }
    if (!row.note.empty()) fmt::format_to(out, "    {}\n", row.note);
  }
  return text;
}

// A line has a limit, a row or one of its comparisons.
std::string Report::Json(const Machine& machine, const Limits& limits) const {
  const JsonValue about = {{"cpu", machine.cpu},
                           {"n_cpus", machine.n_cpus},
                           {"simd", machine.simd},
                           {"targets", machine.targets},
                           {"has_bf16_dot", machine.has_bf16_dot},
                           {"limits_stable", AreStable(limits)}};
  std::vector<std::string> of_limits, of_rows;
  for (const auto& [key, samples] : limits.samples()) {
    const JsonValue limit = {{"name", key.first},
                             {"n_threads", key.second},
                             {"per_thread", ToJson(samples)}};
    of_limits.push_back(limit.dump());
  }
  for (const Row& row : rows_) {
    std::vector<std::string> comparisons;
    for (const Comparison& c : row.comparisons) {
      JsonValue item = {{"against", c.against}, {"ratio", ToJson(c.ratio)}};
      if (c.goal) {
        item["floor"] = c.goal->floor;
        item["goal"] = c.goal->goal;
        item["at_most"] = c.goal->at_most;
        item["verdict"] = VerdictText(Judge(c));
      }
      comparisons.push_back("\n    " + item.dump());
    }
    const JsonValue head = {{"name", row.name},
                            {"n_threads", row.n_threads},
                            {"cpu_ms", ToJson(row.milliseconds)},
                            {"wall_ms", ToJson(row.wall_milliseconds)},
                            {"rate_unit", row.rate_unit},
                            {"rate_per_thread", ToJson(row.rate)},
                            {"note", row.note}};
    std::string text = head.dump();
    text.pop_back();
    of_rows.push_back(fmt::format("{},\"comparisons\":[{}]}}", text,
                                  fmt::join(comparisons, ",")));
  }
  return fmt::format(
      "{{\"machine\":{},\n\"limits\":[\n  {}],\n\"rows\":[\n  {}]}}",
      about.dump(), fmt::join(of_limits, ",\n  "), fmt::join(of_rows, ",\n  "));
}

}  // namespace kvevict::bench
