// Exact and repeatable counts of what a kernel did.
#ifndef KVEVICT_TESTS_RIG_PTX_COUNTERS_H_
#define KVEVICT_TESTS_RIG_PTX_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

namespace kvevict::ptx {

struct Counters {
  uint64_t launches = 0;
  std::map<std::string, uint64_t> instructions;  // by opcode, of all threads

  // Accesses (instructions) of warps, and the sectors of 32 bytes that they touch.
  uint64_t global_loads = 0;
  uint64_t global_load_sectors = 0;
  uint64_t global_stores = 0;
  uint64_t global_store_sectors = 0;
  // A pass serves 32 banks of 4 bytes: 8-byte accesses need two, 16-byte four.
  // Conflicts are the passes beyond those.
  uint64_t shared_accesses = 0;
  uint64_t shared_conflicts = 0;

  // Instructions whose opcode begins like this: "mma.sync", "st.global.v4".
  uint64_t CountOf(const std::string& start) const {
    uint64_t sum = 0;
    for (auto i = instructions.lower_bound(start);
         i != instructions.end() && i->first.rfind(start, 0) == 0; ++i) {
      sum += i->second;
    }
    return sum;
  }
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_COUNTERS_H_
