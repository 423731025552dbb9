// The work that waits in a context, on its streams.
#ifndef KVEVICT_TESTS_RIG_MOCK_QUEUE_H_
#define KVEVICT_TESTS_RIG_MOCK_QUEUE_H_

#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "tests/rig/mock/api.h"

namespace kvevict::mock {

struct Stream;

// A step on a stream or a node of a graph.
using Work = std::function<CUresult()>;

class Queue {
 public:
  // Appends to a stream; NULL is the legacy default stream, which takes turns with
  // those that are blocking. Returns the step's number, from 1.
  uint64_t Push(const Stream* stream, bool blocking, Work work);
  // Later work on the stream also follows that step.
  void PushWait(const Stream* stream, bool blocking, uint64_t step);

  // Runs a stream's steps and those of other streams that they follow. Chance
  // chooses among steps that may run, so that only a requested order holds. The
  // first result that is not success ends it.
  CUresult Run(const Stream* stream, bool blocking) {
    return Run(Take(stream, blocking));
  }
  CUresult RunAll() { return Run(std::exchange(steps_, {})); }

  size_t size() const { return steps_.size(); }
  void clear() { steps_.clear(); }

 private:
  struct Step {
    uint64_t number;
    const Stream* stream;  // may be gone, so it is not looked into
    bool blocking;
    uint64_t after;  // another step's number, or 0
    Work work;
  };

  std::vector<Step> Take(const Stream* stream, bool blocking);
  CUresult Run(std::vector<Step> steps);

  std::vector<Step> steps_;  // in the order of their numbers
  uint64_t last_number_ = 0;
  std::minstd_rand random_;
};

}  // namespace kvevict::mock

#endif  // KVEVICT_TESTS_RIG_MOCK_QUEUE_H_
