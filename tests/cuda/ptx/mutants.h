// PTX with one word of its memory order removed or made weaker.
#ifndef KVEVICT_TESTS_CUDA_PTX_MUTANTS_H_
#define KVEVICT_TESTS_CUDA_PTX_MUTANTS_H_

#include <string>
#include <vector>

namespace kvevict::ptx {

struct Mutant {
  std::string entry;
  std::string what;  // "gather_chunks_16, line 12: bar.sync 0 left out"
  std::string ptx;
};

// One mutant per fence, barrier, wait, order and scope of a statement, and one
// per way to weaken it.
std::vector<Mutant> MutantsOf(const std::string& ptx);

// Lets the program run on once per mutant of an entry, each time in a process of
// its own that uses the returned PTX. At the end the caller's own process goes on
// with the original PTX. A mutant is noticed if its process fails. The program
// fails at the end if one was not.
std::string TryMutants(const std::string& ptx, const std::string& entry);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_CUDA_PTX_MUTANTS_H_
