// What waits to run in a context, on its streams.
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
  // What comes after on the stream comes after that step too.
  void PushWait(const Stream* stream, bool blocking, uint64_t step);

  // Runs a stream's steps and those that they come after, of other streams no
  // more. Of steps that may run chance chooses, so that an order which nothing
  // asked for is not kept. The first result that is not success ends it.
  CUresult Run(const Stream* stream, bool blocking) {
    return Run(Take(stream, blocking));
  }
  CUresult RunAll() { return Run(std::exchange(steps_, {})); }

  size_t size() const { return steps_.size(); }
  void clear() { steps_.clear(); }

 private:
  struct Step {
    uint64_t number;
    const Stream* stream;  // not looked into: it may be gone
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
