#include "tests/cuda/gates/summary.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "tests/cuda/gates/prediction.h"

namespace kvevict::cuda {
namespace {

// The distinct values are in the order of their first appearance.
template <class T>
std::vector<T> Distinct(const std::vector<KernelFigures>& all,
                        T KernelFigures::*member) {
  std::vector<T> values;
  for (const KernelFigures& f : all) {
    if (std::find(values.begin(), values.end(), f.*member) == values.end()) {
      values.push_back(f.*member);
    }
  }
  return values;
}

// A row is a kernel with all its variants.
struct Row {
  uint32_t n_threads = 0;
  std::map<std::string, uint32_t> registers;   // the most, by libnvrtc
  std::map<int, uint32_t> least_threads;       // at work, by architecture
  std::map<std::string, size_t> module_bytes;  // the most, by libnvrtc
};

template <class Map, class Key, class Value>
void KeepMost(Map& map, const Key& key, Value value) {
  const auto [at, is_new] = map.emplace(key, value);
  if (!is_new) at->second = std::max(at->second, value);
}
template <class Map, class Key, class Value>
void KeepLeast(Map& map, const Key& key, Value value) {
  const auto [at, is_new] = map.emplace(key, value);
  if (!is_new) at->second = std::min(at->second, value);
}

void PrintPrediction(const Gpu& gpu, const KernelFigures& sums,
                     const KernelFigures& scores) {
  const PassTime passes[] = {PredictPass(gpu, *sums.slots, sums.n_blocks),
                             PredictPass(gpu, *scores.slots, scores.n_blocks)};
  double longest = 0;
  double sum = 0;
  std::printf("| %s |", gpu.name);
  for (const PassTime& pass : passes) {
    longest += pass.Longest();
    sum += pass.Sum();
    std::printf(" %.2f, %.2f, %.2f, %.2f |", pass.issue, pass.tensor,
                pass.exponentials, pass.memory);
  }
  std::printf(" %.2f to %.2f | %.2f |\n", longest, sum, PredictCompaction(gpu));
}

}  // namespace

void Summary::Print() const {
  PrintKernels();
  PrintPredictions();
}

void Summary::PrintKernels() const {
  const auto nvrtcs = Distinct(all_, &KernelFigures::nvrtc);
  const auto architectures = Distinct(all_, &KernelFigures::sm);
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, Row> rows;
  for (const KernelFigures& f : all_) {
    const auto key = std::make_pair(f.form, f.kernel);
    if (rows.find(key) == rows.end()) order.push_back(key);
    Row& row = rows[key];
    row.n_threads = std::max(row.n_threads, f.n_threads);
    KeepMost(row.registers, f.nvrtc, f.n_registers);
    KeepMost(row.module_bytes, f.nvrtc, f.module_bytes);
    KeepLeast(row.least_threads, f.sm, f.threads_at_work());
  }
  std::stable_sort(
      order.begin(), order.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });

  std::printf("\n| module | kernel | threads |");
  for (const std::string& n : nvrtcs) std::printf(" registers %s |", n.c_str());
  for (const std::string& n : nvrtcs) std::printf(" bytes %s |", n.c_str());
  for (const int sm : architectures) std::printf(" at work sm_%d |", sm);
  std::printf("\n|");
  for (size_t i = 0; i < 3 + 2 * nvrtcs.size() + architectures.size(); ++i) {
    std::printf("---|");
  }
  std::string form;
  for (const auto& key : order) {
    const Row& row = rows.at(key);
    const bool is_first = key.first != form;
    form = key.first;
    std::printf("\n| %s | %s | %u |", is_first ? form.c_str() : "",
                key.second.c_str(), row.n_threads);
    for (const std::string& n : nvrtcs) {
      const auto at = row.registers.find(n);
      std::printf(" %u |", at == row.registers.end() ? 0 : at->second);
    }
    for (const std::string& n : nvrtcs) {
      const auto at = row.module_bytes.find(n);
      if (is_first && at != row.module_bytes.end()) {
        std::printf(" %zu |", at->second);
      } else {
        std::printf(" |");
      }
    }
    for (const int sm : architectures) {
      const auto at = row.least_threads.find(sm);
      std::printf(" %u |", at == row.least_threads.end() ? 0 : at->second);
    }
  }
  std::printf("\n");
}

void Summary::PrintPredictions() const {
  bool has_head = false;
  for (const Gpu& gpu : kGpus) {
    // The first libnvrtc, the newest, counts.
    const auto find = [&](const char* kernel) {
      return std::find_if(
          all_.begin(), all_.end(), [&](const KernelFigures& f) {
            return f.sm == gpu.sm && f.slots && f.kernel == kernel;
          });
    };
    const auto sums = find("window_lse");
    const auto scores = find("window_scores");
    if (sums == all_.end() || scores == all_.end()) continue;
    if (!std::exchange(has_head, true)) {
      std::printf(
          "\nPredicted, in ms: %u layers, %u KV heads of %u, %u query heads to "
          "each, window %u, %u tokens to %u\n"
          "| GPU | window_lse: issue, tensor, exp2, memory | window_scores | "
          "both "
          "| compaction |\n|---|---|---|---|---|\n",
          kFlagship.n_layers, kFlagship.n_kv_heads, kFlagship.head_dim,
          kFlagship.group, kFlagship.window, kFlagship.n_tokens,
          kFlagship.n_keep);
    }
    PrintPrediction(gpu, *sums, *scores);
  }
}

}  // namespace kvevict::cuda
