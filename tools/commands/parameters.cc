// The library's tables of policies and parameters as a page of the documentation,
// and for `inspect`.
#include "tools/commands/parameters.h"
#include "kvevict/experimental.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "tools/engine/policy.h"

namespace kvevict::tools {
namespace {

std::vector<kvevict_policy_info> Policies() {
  std::vector<kvevict_policy_info> rows;
  kvevict_policy_info info = {};
  info.struct_size = sizeof(info);
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    rows.push_back(info);
  }
  return rows;
}

std::vector<kvevict_parameter_info> ParametersOf(const char* policy) {
  std::vector<kvevict_parameter_info> rows;
  kvevict_parameter_info row = {};
  row.struct_size = sizeof(row);
  for (uint32_t i = 0; kvevict_parameter_at(policy, i, &row) == KVEVICT_OK;
       ++i) {
    rows.push_back(row);
  }
  return rows;
}

// The policies that have a parameter, or those that lack it if these are fewer.
std::string WhoHas(const std::string& key) {
  std::vector<std::string> have, lack;
  for (const kvevict_policy_info& policy : Policies()) {
    const auto rows = ParametersOf(policy.name);
    const bool has =
        std::any_of(rows.begin(), rows.end(),
                    [&](const auto& row) { return row.key == key; });
    (has ? have : lack).push_back(fmt::format("`{}`", policy.name));
  }
  return have.size() > lack.size()
             ? fmt::format("all but {}", fmt::join(lack, ", "))
             : fmt::format("{}", fmt::join(have, ", "));
}

// The policies with a default of their own: "`tova` none, `h2o` sum".
std::string OwnDefaults(const kvevict_parameter_info& row) {
  std::vector<std::string> own;
  for (const kvevict_policy_info& policy : Policies()) {
    for (const kvevict_parameter_info& its : ParametersOf(policy.name)) {
      if (std::string_view(its.key) != row.key ||
          std::string_view(its.default_text) == row.default_text) {
        continue;
      }
      own.push_back(fmt::format("`{}` {}", policy.name, its.default_text));
    }
  }
  return own.empty() ? "" : fmt::format(" ({})", fmt::join(own, ", "));
}

}  // namespace

std::vector<kvevict_parameter_info> Parameters() {
  return ParametersOf(nullptr);
}

std::string ValuesOf(const kvevict_parameter_info& row) {
  const auto range = [&] {
    constexpr double kMost = 1e38;
    const std::string zero = row.takes_zero != 0 ? "0 or " : "";
    if (row.least < -kMost) return std::string("any");
    if (row.most > kMost) {
      return fmt::format("{} {}",
                         row.excludes_least != 0 ? ">" : ">=", row.least);
    }
    return fmt::format("{}{}{}, {}]", zero, row.excludes_least != 0 ? "(" : "[",
                       row.least, row.most);
  };
  switch (row.type) {
    case KVEVICT_PARAMETER_NUMBER:
      return "number " + range();
    case KVEVICT_PARAMETER_COUNT:
      return "count " + range();
    case KVEVICT_PARAMETER_COUNT_OR_SHARE:
      return fmt::format("count {}, or share (0, 1)", range());
    case KVEVICT_PARAMETER_SEED:
      return "whole number < 2^64";
    default:
      break;
  }
  std::string words = row.words;
  for (size_t at = 0; (at = words.find('|', at)) != words.npos; at += 2) {
    words.replace(at, 1, ", ");
  }
  return words;
}

std::vector<std::string> InputsOf(const char* policy) {
  static constexpr const char* kNames[] = {"K",
                                           "V",
                                           "queries",
                                           "log-sum-exps",
                                           "scores",
                                           "sums",
                                           "query mean",
                                           "query covariance",
                                           "key filter",
                                           "token weights",
                                           "query centers",
                                           "reference queries",
                                           "positions"};
  static_assert(std::size(kNames) == KVEVICT_INPUT_POSITIONS + 1);
  const Policy of_name(policy);
  std::vector<std::string> inputs;
  for (kvevict_input i = {}; i <= KVEVICT_INPUT_POSITIONS;
       i = static_cast<kvevict_input>(i + 1)) {
    const kvevict_need need = of_name.Need(i);
    if (need == KVEVICT_NEED_REQUIRED) inputs.emplace_back(kNames[i]);
    if (need == KVEVICT_NEED_OPTIONAL) {
      inputs.push_back(fmt::format("[{}]", kNames[i]));
    }
  }
  return inputs;
}

std::string ParametersPage() {
  std::string page =
      "# Policies and parameters\n\n"
      "The library's own tables, as `kvevict inspect --parameters` prints "
      "them.\n\n"
      "## Policies\n\n"
      "Every policy keeps the tokens that must stay. `keeps` says which it "
      "keeps besides. An input in brackets is read\nif it is given. "
      "`kvevict_policy_need()` tells what the policy of a text reads. `its own "
      "defaults` are those that\ndiffer from the defaults below.\n\n"
      "| policy | keeps | reads | its own defaults | source |\n"
      "|---|---|---|---|---|\n";
  for (const kvevict_policy_info& p : Policies()) {
    const std::string defaults = p.defaults;
    page += fmt::format("| `{}` | {} | {} | {} | {} |\n", p.name, p.summary,
                        fmt::join(InputsOf(p.name), ", "),
                        defaults.empty() ? "" : "`" + defaults + "`", p.paper);
  }
  page +=
      "\n## Parameters\n\n"
      "One name holds everywhere: in the text form "
      "(`snapkv:budget=2048,sink=4`), in C (`kvevict_policy_set()`),\n"
      "C#, Java and Go. Policies with a default of their own stand behind the "
      "general one.\n";
  for (const kvevict_parameter_info& row : Parameters()) {
    page += fmt::format(
        "\n## `{}`\n\n{}\n\nValues: {}. Default: `{}`{}. Policies: {}.\n",
        row.key, row.doc, ValuesOf(row), row.default_text, OwnDefaults(row),
        WhoHas(row.key));
  }
  return page;
}

}  // namespace kvevict::tools
