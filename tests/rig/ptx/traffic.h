// The cost of a warp's memory accesses on the machine: 32-byte sectors of
// global memory, passes through the banks of shared memory.
//
// Lanes run one after another, so the access of a warp is put together
// afterwards: the n-th execution of an instruction by each lane since the warp
// last met belongs to one access. The counts therefore do not depend on the
// schedule.
#ifndef KVEVICT_TESTS_RIG_PTX_TRAFFIC_H_
#define KVEVICT_TESTS_RIG_PTX_TRAFFIC_H_

#include <cstdint>
#include <vector>

#include "tests/rig/ptx/counters.h"

namespace kvevict::ptx {

enum class Access : uint8_t {
  kGlobalLoad,
  kGlobalStore,
  kSharedLoad,
  kSharedStore
};

class Traffic {
 public:
  void Note(uint32_t instruction, uint32_t lane, Access access,
            uint64_t address, uint32_t bytes) {
    notes_.push_back({instruction, static_cast<uint16_t>(lane), access,
                      static_cast<uint8_t>(bytes), address, 0});
  }

  // The warp has met: adds the noted accesses to the counters.
  void Flush(Counters& counters);

 private:
  struct Entry {
    uint32_t instruction;
    uint16_t lane;
    Access access;
    uint8_t bytes;
    uint64_t address;
    uint32_t turn;  // executions by the lane before
  };
  static void Count(const Entry* notes, size_t n, Counters& counters);

  std::vector<Entry> notes_;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_TRAFFIC_H_
