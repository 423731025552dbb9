// Random lives of sequences in a paged cache, on the GPU and on the CPU: the same blocks
// and the same rows to the last byte, and one sequence's eviction changes no other.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "tests/gpu/checks.h"
#include "tests/gpu/paged_engine.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kLayers = PagedEngine::kLayers;
constexpr uint32_t kMaxTokens = PagedEngine::kMaxTokens;
constexpr uint32_t kMostSequences = 5;
using Bytes = PagedEngine::Bytes;

// Keep sets that do not depend on how a device rounds.
constexpr PagedCase kCases[] = {
    // Biases that the test writes: the fits change none, since queries are NaN.
    {"random:sink=0,budget=33,heads=adaptive,reference=2,fit=bias-values", 2},
    {"streaming-llm:budget=40,sink=4", 3},
    {"random:budget=33,scope=head", 2},
    {"random:budget=0.5,sink=0,scope=layer", 1},
    // Evicts by table if block sizes divide it.
    {"random:budget=0.5,sink=0,scope=layer,select_block=24", 1},
    {"streaming-llm:budget=50,sink=4", 2, 4},
    {"random:budget=45,sink=1,scope=head", 2, 8}};

class Life {
 public:
  Life(const Gpu& gpu, const PagedCase& c, uint64_t seed, Report* report)
      : random_(seed),
        options_(Options(c)),
        has_biases_(c.has_biases()),
        cpu_(nullptr, c, options_),
        gpu_(&gpu, c, options_),
        report_(report) {
    Add();
    if (!has_biases_) return;
    Append(0);
    SetBiases(0);
  }

  void Step() {
    const size_t i = Below(n_);
    switch (Below(has_biases_ ? 10 : 9)) {
      case 0:
        if (n_ < kMostSequences) {
          Below(3) == 0 ? Add() : Fork(i);
        } else {
          Remove(i);
        }
        break;
      case 1:
        Trim(i);
        break;
      case 2:
        Overwrite(i);
        break;
      case 3:
      case 4:
        Evict();
        break;
      case 8:
        Edit(i);
        break;
      case 9:
        SetBiases(i);
        break;
      default:
        Append(i);
    }
    ExpectSame();
  }
  void End() {
    while (n_ > 0) Remove(n_ - 1);
    const kvevict_paged_cache_usage usage = gpu_.Usage();
    report_->FailIf(usage.n_free != usage.n_blocks, "blocks are lost");
  }
  uint32_t n_evictions() const { return n_evictions_; }
  uint32_t n_refused() const { return n_refused_; }
  uint32_t n_edits() const { return n_edits_; }
  // How many biases that are not 0 were compared.
  uint32_t n_biases() const { return n_biases_; }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  kvevict_paged_cache_options Options(const PagedCase& c) {
    kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
    options.block_size = 1 + Below(16);
    if (c.group_tokens != 0) {
      options.block_size = c.group_tokens * (1 + Below(3));
      options.group_tokens = c.group_tokens;
      options.recent_tokens = Below(12);
      options.recent_dtype = static_cast<kvevict_dtype>(Below(4));
    }
    options.n_blocks = c.n_fit * kMaxTokens / options.block_size + 2;
    options.layout = static_cast<kvevict_block_layout>(Below(2));
    return options;
  }

  void Add() {
    cpu_.Add();
    gpu_.Add();
    ++n_;
  }
  void Fork(size_t i) {
    cpu_.Fork(i);
    gpu_.Fork(i);
    ++n_;
  }
  void Remove(size_t i) {
    cpu_.Remove(i);
    gpu_.Remove(i);
    --n_;
  }
  // Both devices answer alike: whether there were blocks.
  bool Same(kvevict_status cpu, kvevict_status gpu) {
    if (cpu != KVEVICT_ERROR_OUT_OF_MEMORY) Check(cpu);
    if (gpu != KVEVICT_ERROR_OUT_OF_MEMORY) Check(gpu);
    report_->FailIf(cpu != gpu, fmt::format("status {} and {}", cpu, gpu));
    n_refused_ += cpu != KVEVICT_OK;
    return cpu == KVEVICT_OK;
  }
  bool Write(size_t i, uint32_t layer, uint32_t first, uint32_t n) {
    Bytes bytes(n * cpu_.RowBytes(layer));
    FillWithValues(random_(), KVEVICT_DTYPE_BF16, bytes.size() / 2,
                   bytes.data());
    const kvevict_status status = cpu_.Write(i, layer, first, n, bytes);
    return Same(status, gpu_.Write(i, layer, first, n, bytes));
  }
  uint32_t LongestOf(size_t i) const {
    uint32_t most = 0;
    for (uint32_t l = 0; l < kLayers; ++l) {
      most = std::max(most, cpu_.Length(i, l));
    }
    return most;
  }
  void Append(size_t i) {
    const uint32_t n = std::min(1 + Below(20), kMaxTokens - LongestOf(i));
    if (n == 0) return;
    std::vector<std::vector<uint32_t>> first(kLayers);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t head = 0; head < cpu_.n_kv_heads(l); ++head) {
        first[l].push_back(cpu_.Stored(i, l, head));
      }
    }
    const kvevict_status status = cpu_.Append(i, n);
    if (!Same(status, gpu_.Append(i, n))) return;
    cpu_.Note(i, n);
    gpu_.Note(i, n);
    WriteNew(i, first, n);
  }
  // Writes the rows of n tokens from each head's first new slot on. A write also
  // clears biases, so these are compared before.
  void WriteNew(size_t i, const std::vector<std::vector<uint32_t>>& first,
                uint32_t n) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      ExpectSameBiases(i, l);
      if (has_biases_) ExpectZeros(i, l, first[l], n);
      for (size_t head = 0; head < first[l].size(); ++head) {
        if (head > 0 && first[l][head] == first[l][head - 1]) continue;
        (void)Write(i, l, first[l][head], n);
      }
    }
  }
  void ExpectZeros(size_t i, uint32_t layer, const std::vector<uint32_t>& first,
                   uint32_t n) const {
    const std::vector<float> biases = gpu_.Biases(i, layer);
    auto head_begin = biases.begin();
    for (uint32_t head = 0; head < first.size(); ++head) {
      const auto begin = head_begin + first[head];
      report_->FailIf(std::count(begin, begin + n, 0.0f) != n,
                      fmt::format("sequence {}, layer {}, head {}: new biases",
                                  i, layer, head));
      head_begin += gpu_.Stored(i, layer, head);
    }
  }
  // Replaces some tokens. Those behind them are not rotated, which would round.
  void Edit(size_t i) {
    if (options_.group_tokens != 0) return;
    kvevict_edit edit = KVEVICT_EDIT_INIT;
    edit.positions = KVEVICT_EDIT_RENUMBER;
    edit.first = Below(cpu_.Logical(i) + 1);
    edit.end = std::min(cpu_.Logical(i), edit.first + Below(8));
    edit.n_new = std::min(Below(8), kMaxTokens - LongestOf(i));
    const kvevict_status status = cpu_.Edit(i, edit);
    const kvevict_status on_gpu = gpu_.Edit(i, edit);
    report_->FailIf(status != on_gpu,
                    fmt::format("edit: status {} and {}", status, on_gpu));
    if (status != KVEVICT_OK || edit.n_new == 0) return;
    ++n_edits_;
    std::vector<std::vector<uint32_t>> first(kLayers);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t head = 0; head < cpu_.n_kv_heads(l); ++head) {
        first[l].push_back(cpu_.SlotOf(i, l, head, edit.first));
      }
    }
    WriteNew(i, first, edit.n_new);
  }
  // Writes biases, as a fit does.
  void SetBiases(size_t i) {
    const kvevict_status status = cpu_.Own(i, 0);
    if (!Same(status, gpu_.Own(i, 0))) return;
    for (uint32_t l = 0; l < kLayers; ++l) {
      std::vector<float> biases(cpu_.Biases(i, l).size());
      FillWithValues(random_(), KVEVICT_DTYPE_F32, biases.size(),
                     biases.data());
      cpu_.SetBiases(i, l, biases);
      gpu_.SetBiases(i, l, biases);
    }
  }
  void Overwrite(size_t i) {
    const uint32_t layer = Below(kLayers);
    const uint32_t held = cpu_.Length(i, layer);
    if (held == 0) return;
    const uint32_t first = Below(held);
    if (Below(2) == 0) {
      const kvevict_status status = cpu_.Own(i, first);
      if (!Same(status, gpu_.Own(i, first))) return;
    }
    // The rows end where a group does, so none is cut.
    const uint32_t n = 1 + Below(held - first);
    (void)Write(i, layer, first, options_.group_tokens != 0 ? held - first : n);
  }
  void Trim(size_t i) {
    const uint32_t n = Below(LongestOf(i) + 1);
    report_->FailIf(cpu_.Trim(i, n) != gpu_.Trim(i, n), "trim");
  }
  // Evicts some sequences; the rows of the others stay as they are.
  void Evict() {
    std::vector<size_t> chosen;
    std::vector<Bytes> others;
    for (size_t i = 0; i < n_; ++i) {
      if (Below(2) == 0) {
        chosen.push_back(i);
        continue;
      }
      for (uint32_t l = 0; l < kLayers; ++l) others.push_back(gpu_.Read(i, l));
    }
    const kvevict_status status = cpu_.Evict(chosen);
    n_evictions_ += Same(status, gpu_.Evict(chosen)) && !chosen.empty();
    auto before = others.begin();
    for (size_t i = 0; i < n_; ++i) {
      if (std::find(chosen.begin(), chosen.end(), i) != chosen.end()) continue;
      for (uint32_t l = 0; l < kLayers; ++l) {
        report_->FailIf(gpu_.Read(i, l) != *before++,
                        fmt::format("sequence {}, layer {}: changed by "
                                    "another's eviction",
                                    i, l));
      }
    }
  }
  void ExpectSameBiases(size_t i, uint32_t layer) {
    if (!has_biases_) return;
    const std::vector<float> biases = cpu_.Biases(i, layer);
    report_->FailIf(biases != gpu_.Biases(i, layer),
                    fmt::format("sequence {}, layer {}: biases", i, layer));
    n_biases_ += biases.size() - std::count(biases.begin(), biases.end(), 0.0f);
  }
  void ExpectSame() {
    const kvevict_paged_cache_usage cpu = cpu_.Usage(), gpu = gpu_.Usage();
    report_->FailIf(cpu.n_free != gpu.n_free || cpu.n_shared != gpu.n_shared ||
                        cpu.n_slots != gpu.n_slots,
                    fmt::format("{} free and {}, {} shared and {}", cpu.n_free,
                                gpu.n_free, cpu.n_shared, gpu.n_shared));
    for (size_t i = 0; i < n_; ++i) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        const std::string at = fmt::format("sequence {}, layer {}: ", i, l);
        report_->FailIf(cpu_.Length(i, l) != gpu_.Length(i, l), at + "length");
        report_->FailIf(cpu_.Blocks(i, l) != gpu_.Blocks(i, l), at + "blocks");
        report_->FailIf(cpu_.Read(i, l) != gpu_.Read(i, l), at + "rows");
        ExpectSameBiases(i, l);
      }
    }
  }

  std::mt19937_64 random_;
  const kvevict_paged_cache_options options_;
  const bool has_biases_;
  PagedEngine cpu_;
  PagedEngine gpu_;
  Report* const report_;
  uint32_t n_ = 0;  // sequences
  uint32_t n_evictions_ = 0;
  uint32_t n_refused_ = 0;
  uint32_t n_edits_ = 0;
  uint32_t n_biases_ = 0;
};

}  // namespace

void CheckPaged(const Gpu& gpu, const Effort& effort, Report* report) {
  uint32_t n_evictions = 0, n_refused = 0, n_edits = 0;
  uint64_t seed = effort.seed * 100;
  for (const PagedCase& c : kCases) {
    report->Check(fmt::format("paged cache, {}", c.policy), [&] {
      // At least one life, and as many as it takes until blocks ran out.
      const uint64_t n_lives = effort.full ? 8 : 1;
      for (uint64_t life = 0;
           life < n_lives || (n_refused == 0 && life < 4 * n_lives); ++life) {
        Life one(gpu, c, ++seed, report);
        // Fits take many launches.
        const uint32_t n_steps = effort.full ? 100 : c.has_biases() ? 25 : 50;
        for (uint32_t step = 0; step < n_steps; ++step) one.Step();
        one.End();
        n_evictions += one.n_evictions();
        n_refused += one.n_refused();
        n_edits += one.n_edits();
        report->FailIf(c.has_biases() && one.n_biases() == 0, "biases are 0");
      }
    });
  }
  report->Check("paged cache: evictions, edits, and blocks that ran out", [&] {
    report->FailIf(
        n_evictions == 0 || n_edits == 0 || n_refused == 0,
        fmt::format("{}, {} and {}", n_evictions, n_edits, n_refused));
  });
}

}  // namespace kvevict::gpu
