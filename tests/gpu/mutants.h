// PTX with one word of its memory order removed or made weaker.
#ifndef KVEVICT_TESTS_GPU_MUTANTS_H_
#define KVEVICT_TESTS_GPU_MUTANTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvevict::ptx {

struct Mutant {
  std::string entry;
  std::string what;  // "gather_chunks_16, line 12: bar.sync 0 left out"
  // The same in all texts whose entry of this name has the same statements that order
  // memory: variants for other shapes and dtypes.
  std::string key;
  std::string ptx;
};

// One mutant per barrier, wait, order and scope of a statement, and one
// per way to weaken it.
std::vector<Mutant> MutantsOf(const std::string& ptx);

// Lets the program run on once per mutant of a module's text that was not tried before,
// each time in a process of its own, which changes this text and all later ones with a
// mutant of this key. The caller's own process goes on with the text as it is. A mutant is
// noticed if its process fails. Only those of one entry, or if it is "" all but those whose
// blocks wait for each other: these need many launches, see tests/cuda/ptx.
std::string TryMutants(const std::string& ptx, const std::string& entry);

// Only the mutants of one part of `of`, so that several programs share them.
void TryOnlyPart(uint64_t part, uint64_t of);

// Prints a sum, and returns whether there were mutants and all were noticed. True in a
// mutant, which has noticed nothing.
bool AllMutantsWereNoticed();

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_GPU_MUTANTS_H_
