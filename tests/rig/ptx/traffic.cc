#include "tests/rig/ptx/traffic.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace kvevict::ptx {
namespace {

constexpr uint32_t kSectorBytes = 32;
constexpr uint32_t kBanks = 32;

// The number of accesses to the bank with the most different words.
uint32_t Passes(std::vector<uint64_t>& words) {
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  std::array<uint32_t, kBanks> asked = {};
  for (const uint64_t word : words) ++asked[word % kBanks];
  return *std::max_element(asked.begin(), asked.end());
}

}  // namespace

void Traffic::Flush(Counters& counters) {
  if (notes_.empty()) return;
  std::stable_sort(notes_.begin(), notes_.end(),
                   [](const Entry& a, const Entry& b) {
                     return std::tie(a.instruction, a.access, a.lane) <
                            std::tie(b.instruction, b.access, b.lane);
                   });
  for (size_t k = 1; k < notes_.size(); ++k) {
    const Entry& before = notes_[k - 1];
    if (std::tie(before.instruction, before.access, before.lane) ==
        std::tie(notes_[k].instruction, notes_[k].access, notes_[k].lane)) {
      notes_[k].turn = before.turn + 1;
    }
  }
  const auto key = [](const Entry& n) {
    return std::tie(n.instruction, n.access, n.turn);
  };
  std::stable_sort(
      notes_.begin(), notes_.end(),
      [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
  for (size_t begin = 0, end = 0; begin < notes_.size(); begin = end) {
    while (end < notes_.size() && key(notes_[end]) == key(notes_[begin])) ++end;
    Count(&notes_[begin], end - begin, counters);
  }
  notes_.clear();
}

void Traffic::Count(const Entry* notes, size_t n, Counters& counters) {
  if (notes->access == Access::kGlobalLoad ||
      notes->access == Access::kGlobalStore) {
    std::vector<uint64_t> sectors;
    for (size_t k = 0; k < n; ++k) {
      sectors.push_back(notes[k].address / kSectorBytes);
    }
    std::sort(sectors.begin(), sectors.end());
    const auto count = static_cast<uint64_t>(
        std::unique(sectors.begin(), sectors.end()) - sectors.begin());
    const bool load = notes->access == Access::kGlobalLoad;
    (load ? counters.global_loads : counters.global_stores) += 1;
    (load ? counters.global_load_sectors : counters.global_store_sectors) +=
        count;
    return;
  }
  // Lanes are served in groups whose accesses fill one pass at best.
  const uint32_t lanes_per_pass = notes->bytes <= 4 ? 32 : 128 / notes->bytes;
  counters.shared_accesses += 1;
  for (size_t begin = 0, end = 0; begin < n; begin = end) {
    const uint32_t group = notes[begin].lane / lanes_per_pass;
    std::vector<uint64_t> words;
    for (; end < n && notes[end].lane / lanes_per_pass == group; ++end) {
      for (uint32_t byte = 0; byte < notes[end].bytes; byte += 4) {
        words.push_back((notes[end].address + byte) / 4);
      }
    }
    counters.shared_conflicts += Passes(words) - 1;
  }
}

}  // namespace kvevict::ptx
