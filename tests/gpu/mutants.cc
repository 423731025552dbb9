#include "tests/gpu/mutants.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace kvevict::ptx {
namespace {

// A line that matches, and its replacement: nothing, or something weaker.
struct Weakening {
  const char* pattern;
  const char* instead;
};
constexpr Weakening kWeakenings[] = {
    {R"(\b(bar\.sync|bar\.warp\.sync)[^;]*;)", ""},
    {R"(\bbar\.red\.or\.pred[ \t]+([^,]+),[^,]+,([^;]+);)", "mov.pred $1, $2;"},
    {R"(\bcp\.async\.wait_group[^;]*;)", ""},
    {R"(\b(ld|st|atom|red)((?:\.\w+)*)\.(acquire|release|acq_rel)\b)",
     "$1$2.relaxed"},
    {R"(\b(atom|red)((?:\.\w+)*)\.acq_rel\b)", "$1$2.acquire"},
    {R"(\b(atom|red)((?:\.\w+)*)\.acq_rel\b)", "$1$2.release"},
    {R"(\b(ld|st|atom|red)((?:\.\w+)*)\.gpu\b)", "$1$2.cta"},
};

std::string StatementOf(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t");
  const size_t end = line.find(';');
  return begin == std::string::npos ? "" : line.substr(begin, end - begin);
}

// What a statement does, whatever its registers.
std::string WithoutRegisters(const std::string& statement) {
  static const std::regex kRegister(R"(%[a-z]+\d+)");
  return std::regex_replace(statement, kRegister, "%");
}

bool BlocksWait(const std::string& entry) {
  return entry.starts_with("gather_chunks_") || entry == "select_long_digit";
}

// That of the process, "" in the first one.
std::string key_of_mutant;
uint64_t part_tried = 0;
uint64_t n_parts = 1;
int n_mutants = 0;
int n_survivors = 0;

// It prints nothing. One that hangs is stopped by the interpreter.
void BecomeMutant(const Mutant& mutant) {
  key_of_mutant = mutant.key;
  const int null = open("/dev/null", O_WRONLY);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
}

}  // namespace

std::vector<Mutant> MutantsOf(const std::string& ptx) {
  static const auto* kPatterns = [] {
    auto* patterns = new std::vector<std::regex>();
    for (const Weakening& w : kWeakenings) patterns->emplace_back(w.pattern);
    return patterns;
  }();
  static const std::regex kEntry(R"(\.entry (\w+))");
  std::vector<Mutant> mutants;
  std::map<std::string, std::string>
      orders;  // an entry's statements that order
  std::istringstream lines(ptx);
  std::string line;
  std::string entry;
  size_t begin = 0;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, kEntry)) entry = match[1];
    for (size_t k = 0; k < std::size(kWeakenings); ++k) {
      const std::string weaker =
          std::regex_replace(line, (*kPatterns)[k], kWeakenings[k].instead);
      if (weaker == line) continue;
      const std::string was = StatementOf(line);
      const std::string is = StatementOf(weaker);
      orders[entry] += WithoutRegisters(was) + ';';
      mutants.push_back(
          {entry,
           entry + ", line " + std::to_string(number) + ": " + was +
               (is.empty() ? " left out" : " made " + is),
           std::to_string(orders[entry].size()),
           ptx.substr(0, begin) + weaker + ptx.substr(begin + line.size())});
    }
    begin += line.size() + 1;
  }
  for (Mutant& mutant : mutants) {
    mutant.key = mutant.entry + ' ' + mutant.key + ' ' + orders[mutant.entry];
  }
  return mutants;
}

std::string TryMutants(const std::string& ptx, const std::string& entry) {
  static std::set<std::string> tried;
  for (const Mutant& mutant : MutantsOf(ptx)) {
    if (!key_of_mutant.empty()) {
      if (mutant.key == key_of_mutant) return mutant.ptx;
      continue;
    }
    if (entry.empty() ? BlocksWait(mutant.entry) : mutant.entry != entry) {
      continue;
    }
    if (std::hash<std::string>()(mutant.key) % n_parts != part_tried) continue;
    if (!tried.insert(mutant.key).second) continue;
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      BecomeMutant(mutant);
      return mutant.ptx;
    }
    int status = 0;
    waitpid(child, &status, 0);
    const bool noticed = status != 0;
    ++n_mutants;
    n_survivors += noticed ? 0 : 1;
    std::printf("%s: %s\n", noticed ? "noticed" : "NOT NOTICED",
                mutant.what.c_str());
  }
  return ptx;
}

void TryOnlyPart(uint64_t part, uint64_t of) {
  part_tried = part;
  n_parts = of;
}

bool AllMutantsWereNoticed() {
  if (!key_of_mutant.empty()) return true;
  std::printf("%d mutants, %d not noticed\n", n_mutants, n_survivors);
  return n_mutants > 0 && n_survivors == 0;
}

}  // namespace kvevict::ptx
