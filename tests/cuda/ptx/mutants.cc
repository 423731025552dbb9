#include "tests/cuda/ptx/mutants.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>

namespace kvevict::ptx {
namespace {

// A line that matches, and its replacement: nothing, or something weaker.
struct Weakening {
  const char* pattern;
  const char* instead;
};
constexpr Weakening kWeakenings[] = {
    {R"(\b(bar\.sync|bar\.warp\.sync|barrier\.sync)[^;]*;)", ""},
    {R"(\bbar\.red\.or\.pred[ \t]+([^,]+),[^,]+,([^;]+);)", "mov.pred $1, $2;"},
    {R"(\b(membar|fence)\.[^;]*;)", ""},
    {R"(\bcp\.async\.wait_(group|all)[^;]*;)", ""},
    {R"(\bmembar\.(gl|sys))", "membar.cta"},
    {R"(\bfence\.sc\b)", "fence.acq_rel"},
    {R"(\b(ld|st|atom|red)((?:\.\w+)*)\.(acquire|release|acq_rel)\b)",
     "$1$2.relaxed"},
    {R"(\b(atom|red)((?:\.\w+)*)\.acq_rel\b)", "$1$2.acquire"},
    {R"(\b(atom|red)((?:\.\w+)*)\.acq_rel\b)", "$1$2.release"},
    {R"(\b(ld|st|atom|red|fence)((?:\.\w+)*)\.(gpu|sys)\b)", "$1$2.cta"},
};

std::string StatementOf(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t");
  const size_t end = line.find(';');
  return begin == std::string::npos ? "" : line.substr(begin, end - begin);
}

bool is_mutant = false;
int n_mutants = 0;
int n_survivors = 0;

void EndWithVerdict() {
  if (is_mutant) return;
  std::printf("%d mutants, %d not noticed\n", n_mutants, n_survivors);
  std::fflush(nullptr);
  if (n_survivors != 0) _exit(1);
}

// A mutant prints nothing. One that hangs is stopped and counts as noticed.
void BecomeMutant() {
  is_mutant = true;
  const int null = open("/dev/null", O_WRONLY);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
  constexpr unsigned kMostSeconds = 300;
  alarm(kMostSeconds);
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
      const std::string is = StatementOf(weaker);
      mutants.push_back(
          {entry,
           entry + ", line " + std::to_string(number) + ": " +
               StatementOf(line) + (is.empty() ? " left out" : " made " + is),
           ptx.substr(0, begin) + weaker + ptx.substr(begin + line.size())});
    }
    begin += line.size() + 1;
  }
  return mutants;
}

std::string TryMutants(const std::string& ptx, const std::string& entry) {
  if (is_mutant) return ptx;
  static const int registered = std::atexit(EndWithVerdict);
  static_cast<void>(registered);
  for (const Mutant& mutant : MutantsOf(ptx)) {
    if (mutant.entry != entry) continue;
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      BecomeMutant();
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

}  // namespace kvevict::ptx
