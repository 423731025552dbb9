// The words of PTX's memory model that the executor knows.
#ifndef KVEVICT_TESTS_RIG_PTX_ORDER_H_
#define KVEVICT_TESTS_RIG_PTX_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvevict::ptx {

enum class Order : uint8_t {
  kWeak,
  kRelaxed,  // from here on an access is strong
  kAcquire,
  kRelease,
  kAcquireRelease
};

inline bool IsStrong(Order order) { return order != Order::kWeak; }
inline bool Acquires(Order order) {
  return order == Order::kAcquire || order == Order::kAcquireRelease;
}
inline bool Releases(Order order) {
  return order == Order::kRelease || order == Order::kAcquireRelease;
}

// The threads that it concerns.
enum class Scope : uint8_t { kBlock, kGpu };

// A thread's place in the order. Its block's earlier generations, which end at
// barriers, come before it, and so do its own lower serial numbers.
struct Mark {
  uint64_t block = 0;
  uint32_t thread = 0;
  uint32_t generation = 0;
  uint64_t serial = 0;  // 0: nowhere
};

inline bool ComesBefore(const Mark& access, const Mark& mark) {
  return access.block == mark.block &&
         (access.generation < mark.generation ||
          (access.thread == mark.thread && access.serial < mark.serial));
}

// The events before a thread besides its own block's earlier generations.
class Knowledge {
 public:
  void Add(const Mark& mark) {
    for (Mark& known : marks_) {
      if (known.block != mark.block || known.thread != mark.thread) continue;
      if (known.serial < mark.serial) known = mark;
      return;
    }
    marks_.push_back(mark);
  }
  void Add(const Knowledge& other) {
    for (const Mark& mark : other.marks_) Add(mark);
  }
  void Clear() { marks_.clear(); }
  bool empty() const { return marks_.empty(); }
  bool Has(const Mark& access) const {
    return std::any_of(marks_.begin(), marks_.end(), [&](const Mark& mark) {
      return ComesBefore(access, mark);
    });
  }

 private:
  std::vector<Mark> marks_;
};

// A released value in memory carries these.
struct Release {
  Mark mark;
  Scope scope;
  uint32_t known;  // Knowledge of the releasing thread
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_ORDER_H_
