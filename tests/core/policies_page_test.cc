// docs/policies.md has a row for every preset that agrees with the list of core/.
#include <criterion/criterion.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/policy/policy_text.h"
#include "tests/paths.h"

namespace kvevict {
namespace {

std::vector<std::string> ReadLines() {
  const std::string path = std::string(test_source_dir) + "/docs/policies.md";
  std::ifstream page(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(page, line);) lines.push_back(line);
  cr_assert(lines.size() > 50, "%s", path.c_str());
  return lines;
}

// The table row that begins with a word; empty if there is none.
std::string RowOf(const std::vector<std::string>& lines,
                  const std::string& word) {
  for (const std::string& line : lines) {
    if (line.starts_with("| `" + word + "` |")) return line;
  }
  return {};
}

// The row says what it reproduces, what it fixes, and what the source does with equal
// scores.
Test(policies_page, has_every_preset) {
  const std::vector<std::string> lines = ReadLines();
  for (const Preset& preset : Presets()) {
    const std::string row = RowOf(lines, preset.name);
    const std::string fixes = " | `" + std::string(preset.policy_text) + "` | ";
    const size_t at = row.find(fixes);
    const size_t ties = at == row.npos ? at : at + fixes.size();
    cr_expect(at != row.npos && at > std::strlen(preset.name) + 9 &&
                  row.size() > ties + 4 && row.ends_with(" |"),
              "%s: the row is '%s'", preset.name, row.c_str());
  }
}

}  // namespace
}  // namespace kvevict
