#include "tables.h"

#include <fmt/format.h>

#include <cmath>

#include "tools/engine/text_table.h"

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;

std::string MiB(uint64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20));
}

std::string OrDash(bool there_is, const std::string& text) {
  return there_is ? text : "-";
}

}  // namespace

Grid WindowsGrid(const Summary& s) {
  Grid grid{{"policy", "KV %", "KV MiB", "KL, nats", "agree %", "perplexity",
             "Δ nats/token", "mass %", "evict ms", "tokens/s"},
            {}};
  grid.rows.push_back({"full cache", "100", MiB(s.full_bytes), "0", "100",
                       fmt::format("{:.2f}", s.full_perplexity), "0", "100",
                       "-",
                       OrDash(s.full_tokens_per_s > 0,
                              fmt::format("{:.0f}", s.full_tokens_per_s))});
  for (const Row& row : s.rows) {
    grid.rows.push_back(
        {row.policy, fmt::format("{:g}", 100 * row.share), MiB(row.bytes),
         WithError(row.kl, 4), WithError(row.agree, 1, 100),
         fmt::format("{:.2f}", row.perplexity),
         WithError(row.nll_difference, 3),
         OrDash(row.mass.has_value(),
                fmt::format("{:.1f}", 100 * row.mass.value_or(0))),
         fmt::format("{:.1f}", row.evict_ms),
         OrDash(row.tokens_per_s > 0,
                fmt::format("{:.0f}", row.tokens_per_s))});
  }
  return grid;
}

Grid TasksGrid(const TaskSummary& s) {
  Grid grid{{"policy", "KV %", "seen, right %", "seen, Δ nats", "seen, KL",
             "unseen, right %", "unseen, Δ nats", "unseen, KL"},
            {}};
  for (const TaskRow& row : s.rows) {
    // Nothing is right if the full cache answers nothing.
    const auto right = [](const Mean& mean) {
      return OrDash(std::isfinite(mean.mean), WithError(mean, 0, 100));
    };
    grid.rows.push_back({row.policy, fmt::format("{:g}", 100 * row.share),
                         right(row.seen.right), WithError(row.seen.lp, 2),
                         WithError(row.seen.kl, 3), right(row.unseen.right),
                         WithError(row.unseen.lp, 2),
                         WithError(row.unseen.kl, 3)});
  }
  return grid;
}

std::string AsText(const Grid& grid) {
  std::vector<tools::TextTable::Column> columns;
  for (const std::string& title : grid.titles) columns.push_back({title});
  columns.front().align = tools::TextTable::Align::kLeft;
  tools::TextTable table(columns);
  for (const auto& row : grid.rows) table.AddRow(row);
  return table.ToString();
}

std::string AsMarkdown(const Grid& grid) {
  std::string text, rule;
  for (const std::string& title : grid.titles) {
    text += "| " + title + " ";
    rule += rule.empty() ? "|---" : "|---:";
  }
  text += "|\n" + rule + "|\n";
  for (const auto& row : grid.rows) {
    for (const std::string& cell : row) {
      text += &cell == &row.front() && cell != "full cache"
                  ? "| `" + cell + "` "
                  : "| " + cell + " ";
    }
    text += "|\n";
  }
  return text;
}

std::string SetupText(const json& document, const Summary& s) {
  const json& setup = document["setup"];
  std::string texts;
  for (const json& text : setup["texts"]) {
    texts += (texts.empty() ? "" : ", ") + text["name"].get<std::string>();
  }
  std::string out = fmt::format(
      "{} on {}: {} window{} of {} tokens and {} predictions behind {}; cache "
      "{}, prefill {:.1f} s",
      setup["model"].get<std::string>(), texts, s.n_windows,
      s.n_windows == 1 ? "" : "s", setup["prompt"].get<uint32_t>(),
      setup["predict"].get<uint32_t>() - 1, s.n_windows == 1 ? "it" : "them",
      setup["cache_type"].get<std::string>(), s.prefill_s);
  const uint64_t peak = document["timings"]["peak_bytes"];
  if (peak > 0) {
    out += fmt::format("; the process took {} MiB at most", peak >> 20);
  }
  out += "\n";
  for (const json& why : setup["left_out"]) {
    out += "Left out: " + why.get<std::string>() + "\n";
  }
  return out;
}

std::string Notes() {
  return "KL: of the full cache's predictions from the evicted one's. agree: "
         "the most likely token is the same.\n"
         "Ranked by both, since perplexity can fall when quality does. mass: "
         "the share of the policy's own scores that stays.\n";
}

std::string Ceilings(const TaskSummary& s) {
  std::string kinds;
  size_t n_right = 0, n_asked = 0;
  for (const Ceiling& c : s.ceilings) {
    kinds += fmt::format("{}{} {}/{}", kinds.empty() ? "" : ", ", c.kind,
                         c.n_right, c.n_asked);
    n_right += c.n_right;
    n_asked += c.n_asked;
  }
  std::string out = fmt::format(
      "{} context{} with tasks. The full cache answers {} of {} questions: {}. "
      "Only these count as right.\nseen: asked before the eviction; unseen: "
      "after it. Δ nats: log probability per token of the answer, less the "
      "full cache's. KL: of the full cache's predictions of these tokens from "
      "the evicted one's.\n",
      s.n_contexts, s.n_contexts == 1 ? "" : "s", n_right, n_asked, kinds);
  for (const std::string& why : s.left_out) out += "Left out: " + why + "\n";
  return out;
}

}  // namespace kvevict::llama_cli::eval
