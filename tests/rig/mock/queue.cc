#include "tests/rig/mock/queue.h"

#include <algorithm>
#include <set>

namespace kvevict::mock {

namespace {

// The streams that have a step before, or after, those looked at next.
class Seen {
 public:
  void Add(const Stream* stream, bool blocking) {
    streams_.insert(stream);
    blocking_ = blocking_ || blocking;
  }
  // Whether one of them orders a step of this stream.
  bool OrdersWith(const Stream* stream, bool blocking) const {
    return streams_.count(stream) > 0 || (stream == nullptr && blocking_) ||
           (blocking && streams_.count(nullptr) > 0);
  }

 private:
  std::set<const Stream*> streams_;
  bool blocking_ = false;
};

}  // namespace

uint64_t Queue::Push(const Stream* stream, bool blocking, Work work) {
  steps_.push_back({++last_number_, stream, blocking, 0, std::move(work)});
  return last_number_;
}

void Queue::PushWait(const Stream* stream, bool blocking, uint64_t step) {
  Push(stream, blocking, [] { return CUDA_SUCCESS; });
  steps_.back().after = step;
}

// Takes the steps that a step at the stream's end would follow.
std::vector<Queue::Step> Queue::Take(const Stream* stream, bool blocking) {
  Seen behind;
  behind.Add(stream, blocking);
  std::set<uint64_t> awaited;
  std::vector<Step> taken;
  std::vector<Step> left;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const bool is_needed = behind.OrdersWith(step->stream, step->blocking) ||
                           awaited.count(step->number) > 0;
    if (is_needed) {
      behind.Add(step->stream, step->blocking);
      awaited.insert(step->after);
    }
    (is_needed ? taken : left).push_back(std::move(*step));
  }
  std::reverse(taken.begin(), taken.end());
  std::reverse(left.begin(), left.end());
  steps_ = std::move(left);
  return taken;
}

CUresult Queue::Run(std::vector<Step> steps) {
  while (!steps.empty()) {
    std::vector<std::vector<Step>::iterator> ready;
    Seen before;
    std::set<uint64_t> numbers;
    for (auto step = steps.begin(); step != steps.end(); ++step) {
      if (!before.OrdersWith(step->stream, step->blocking) &&
          numbers.count(step->after) == 0) {
        ready.push_back(step);
      }
      before.Add(step->stream, step->blocking);
      numbers.insert(step->number);
    }
    const auto next = ready[random_() % ready.size()];
    const Work work = std::move(next->work);
    steps.erase(next);
    const CUresult result = work();
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace kvevict::mock
