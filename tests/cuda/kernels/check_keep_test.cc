// Wrong slots in keep lists are counted.
#include "cuda/kernels/check_keep.cu"

#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

constexpr uint32_t kTokens = 3000;

// Strictly ascending below kTokens.
std::vector<int32_t> GoodLists(uint32_t n_lists, uint32_t n_keep,
                               Random& random) {
  std::vector<int32_t> lists;
  for (uint32_t list = 0; list < n_lists; ++list) {
    uint32_t slot = random.Below(3);
    for (uint32_t i = 0; i < n_keep; ++i) {
      lists.push_back(static_cast<int32_t>(slot));
      slot += 1 + random.Below(2);
    }
  }
  return lists;
}

// Counts slots that are not above the one before, below 0, or not below kTokens.
uint32_t CountWrong(const std::vector<int32_t>& lists, uint32_t n_keep) {
  uint32_t n_wrong = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    const int32_t before = i % n_keep == 0 ? -1 : lists[i - 1];
    n_wrong += lists[i] <= before || lists[i] < 0 ||
               lists[i] >= static_cast<int32_t>(kTokens);
  }
  return n_wrong;
}

uint32_t Check(const std::vector<int32_t>& lists, uint32_t n_lists,
               uint32_t n_keep, uint32_t turn, uint32_t n_tokens = kTokens,
               bool any_order = false, uint32_t first_slot = 0) {
  uint32_t n_wrong = 0;
  cuda::CheckKeepParams p = {};
  p.keep = Address(lists.data());
  p.n_wrong = Address(&n_wrong);
  p.n_tokens = n_tokens;
  p.n_keep = p.keep_stride = n_keep;
  p.any_order = any_order ? 1 : 0;
  p.first_slot = first_slot;
  constexpr uint32_t kThreads = cuda::kCheckKeepThreads;
  Run(cuda::check_keep, {(n_keep + kThreads - 1) / kThreads, n_lists}, kThreads,
      p, Schedule(turn, 1 + turn % 4));
  return n_wrong;
}

void TestCounts() {
  Random random(TestSeed("check_keep/counts"));
  constexpr uint32_t kLengths[] = {1, 2, 255, 256, 257, 700};
  for (uint32_t turn = 0; turn < 36; ++turn) {
    const uint32_t n_lists = 1 + turn % 3;
    const uint32_t n_keep = kLengths[turn % std::size(kLengths)];
    std::vector<int32_t> lists = GoodLists(n_lists, n_keep, random);
    if (const uint32_t n = Check(lists, n_lists, n_keep, turn); n != 0) {
      Fail("case %u: %u wrong in good lists", turn, n);
    }
    for (uint32_t i = 0; i <= random.Below(4); ++i) {
      int32_t& slot = lists[random.Below(static_cast<uint32_t>(lists.size()))];
      const int32_t bad[] = {
          -1,        INT32_MIN, static_cast<int32_t>(kTokens),
          INT32_MAX, slot - 1,  slot + 3};
      slot = bad[random.Below(std::size(bad))];
    }
    const uint32_t expected = CountWrong(lists, n_keep);
    if (const uint32_t n = Check(lists, n_lists, n_keep, turn); n != expected) {
      Fail("case %u: %u wrong, not %u", turn, n, expected);
    }
  }
}

// Lists have counts of their own and lie apart. What lies between is not read.
void TestOwnCounts() {
  Random random(TestSeed("check_keep/own_counts"));
  ListTable counts(3, true, 1);
  counts.AddLayer(0, 300, random);
  std::vector<int32_t> lists(3 * 310, -1);
  for (uint32_t list = 0; list < 3; ++list) {
    const auto good = GoodLists(1, counts.Of(0, list), random);
    std::copy(good.begin(), good.end(), lists.begin() + 310 * list);
  }
  uint32_t n_wrong = 0;
  cuda::CheckKeepParams p = {};
  p.keep = Address(lists.data());
  p.n_wrong = Address(&n_wrong);
  p.counts = counts.table();
  p.n_tokens = kTokens;
  p.n_keep = 300;
  p.keep_stride = 310;
  const auto run = [&] {
    Run(cuda::check_keep, {2, 3}, cuda::kCheckKeepThreads, p, Schedule(3));
  };
  run();
  if (n_wrong != 0) Fail("%u wrong in good lists", n_wrong);
  lists[310 + counts.Of(0, 1) - 1] = 5000;
  run();
  if (n_wrong != 1) Fail("%u wrong, not 1", n_wrong);
}

// Lists are in any order, as for a reorder.
void TestAnyOrder() {
  const auto count = [](const std::vector<int32_t>& slots, bool any_order) {
    const auto n = static_cast<uint32_t>(slots.size());
    return Check(slots, 1, n, n, 9, any_order);
  };
  if (count({3, 8, 3, 0, 1}, true) != 0) Fail("right slots are wrong");
  if (count({3, 9, -1, 0, 1}, true) != 2) Fail("wrong slots are right");
  if (count({0, 8}, false) != 0) Fail("ascending slots are wrong");
  if (count({3, 8, 3, 0, 1}, false) != 2) Fail("slots that go down are right");
}

// Lists have the slots of a tail.
void TestFirstSlot() {
  const auto count = [](const std::vector<int32_t>& slots) {
    const auto n = static_cast<uint32_t>(slots.size());
    return Check(slots, 1, n, n, 9, false, 5);
  };
  if (count({5, 8}) != 0) Fail("slots of the tail are wrong");
  if (count({4, 8}) != 1) Fail("a slot before the tail is right");
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestCounts();
  kvevict::TestOwnCounts();
  kvevict::TestAnyOrder();
  kvevict::TestFirstSlot();
}
