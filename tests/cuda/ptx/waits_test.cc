// Kernels whose blocks wait for each other, in more orders of blocks and threads than
// other tests take: calls of the library on the mock driver against the same on the CPU.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "kvevict/kvevict.h"
#include "tests/gpu/mutants.h"
#include "tests/kernels/random.h"
#include "tests/paths.h"
#include "tests/rig/mock/mock.h"
#include "tests/rig/nvrtcs.h"

namespace kvevict {
namespace {

constexpr const char* kWaitingKernels[] = {
    "select_long_digit", "gather_chunks_1", "gather_chunks_2",
    "gather_chunks_4",   "gather_chunks_8", "gather_chunks_16"};

void Check(kvevict_status status) {
  if (status == KVEVICT_OK) return;
  std::fprintf(stderr, "%s\n", kvevict_last_error_message());
  std::exit(1);
}

template <class T>
void ExpectSame(const std::vector<T>& actual, const std::vector<T>& expected,
                const char* what, uint32_t turn) {
  if (actual == expected) return;
  std::fprintf(stderr, "%s, case %u: other results than the CPU's\n", what,
               turn);
  std::exit(1);
}

// Memory that any workspace may lie in.
class Workspace {
 public:
  explicit Workspace(size_t n_bytes) : lines_(n_bytes / sizeof(Line) + 1) {}
  void* data() { return lines_.data(); }
  size_t n_bytes() const { return lines_.size() * sizeof(Line); }

 private:
  struct alignas(256) Line {
    uint8_t bytes[256];
  };
  std::vector<Line> lines_;
};

// ---- Selection in lists that are longer than a block takes ----

enum ScoreKind : uint32_t { kAny, kFew, kEqual, kRare, kClose, kScoreKinds };

float DrawScore(uint32_t kind, Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kSpecials[] = {kNan, -kNan, kInfinity, -kInfinity,
                                 0.0f, -0.0f, 1e-44f,    -1e-44f};
  switch (kind) {
    case kAny:
      return random.Gaussian();
    case kFew:
      return static_cast<float>(random.Below(4));
    case kEqual:
      return -0.5f;
    case kRare:
      return kSpecials[random.Below(8)];
    default:
      return std::bit_cast<float>(0x3F800000u + random.Below(700));
  }
}

struct Selection {
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  std::vector<float> scores;
  std::vector<uint32_t> token_counts;
  uint32_t n_lists;
  uint32_t n_keep;

  std::vector<int32_t> RunOn(const kvevict_context* context) const {
    std::vector<int32_t> slots(size_t{n_lists} * n_keep, -1);
    kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
    keep.n_lists = n_lists;
    keep.slots = slots.data();
    keep.slots_len = slots.size();
    keep.count = n_keep;
    kvevict_workspace needed = KVEVICT_WORKSPACE_INIT;
    Check(
        kvevict_select_workspace(context, options.n_tokens, n_lists, &needed));
    Workspace workspace(needed.best_bytes);
    Check(kvevict_select(context, &options, &keep, workspace.data(),
                         workspace.n_bytes(), nullptr));
    return slots;
  }
};

Selection DrawSelection(uint32_t turn, Random& random) {
  constexpr uint32_t kSizes[] = {65537, 65540, 73725, 73728, 73731};
  Selection s;
  kvevict_select_options& o = s.options;
  o.n_tokens = kSizes[random.Below(5)];
  s.n_lists = 1 + random.Below(2);
  o.n_sink = random.Below(6);
  o.n_recent = random.Below(40);
  o.tie = random.Below(2) == 0 ? KVEVICT_TIE_LOWER_POSITION
                               : KVEVICT_TIE_HIGHER_POSITION;
  const uint32_t shortest = o.n_tokens / 2;
  if (s.n_lists > 1) {
    s.token_counts = {o.n_tokens, shortest + random.Below(shortest)};
    o.token_counts = s.token_counts.data();
  }
  const uint32_t least = o.n_sink + o.n_recent;
  const uint32_t choices[] = {least + 1, shortest,
                              least + random.Below(shortest - least)};
  s.n_keep = choices[random.Below(3)];
  s.scores.resize(size_t{s.n_lists} * o.n_tokens);
  for (float& score : s.scores) score = DrawScore(turn % kScoreKinds, random);
  o.scores = s.scores.data();
  o.scores_len = s.scores.size();
  return s;
}

void TestSelections(const kvevict_context* cpu, const kvevict_context* cuda,
                    uint32_t n_cases, Random& random) {
  const uint64_t before = mock::Launches("select_long_digit");
  for (uint32_t turn = 0; turn < n_cases; ++turn) {
    const Selection s = DrawSelection(turn, random);
    ExpectSame(s.RunOn(cuda), s.RunOn(cpu), "select", turn);
  }
  if (mock::Launches("select_long_digit") == before) std::exit(1);
}

// ---- Moves whose chunks wait for the ones before ----

// Planes K and V of rows whose units are as wide as said: contiguous, in blocks, or a
// ring.
struct Cache {
  static constexpr uint32_t kSlots = 500;
  static constexpr uint32_t kBlock = 20;
  enum Form : uint32_t { kContiguous, kBlocks, kRing };

  std::vector<uint8_t> k;
  std::vector<uint8_t> v;
  std::vector<int32_t> table;
  kvevict_view view = KVEVICT_VIEW_INIT;
  uint32_t row_bytes;

  Cache(uint32_t unit, uint32_t n_heads, Form form, Random& random)
      : row_bytes(n_heads * 41 * unit) {
    for (auto* plane : {&k, &v}) {
      plane->resize(size_t{kSlots} * row_bytes);
      for (uint8_t& byte : *plane) byte = static_cast<uint8_t>(random.Next());
    }
    view.n_kv_heads = n_heads;
    view.k = PlaneAt(k.data(), unit, form);
    view.v = PlaneAt(v.data(), unit, form);
    if (form == kBlocks) {
      table.resize(kSlots / kBlock);
      std::iota(table.begin(), table.end(), 0);
      for (size_t i = table.size(); i > 1; --i) {
        std::swap(table[i - 1], table[random.Below(static_cast<uint32_t>(i))]);
      }
      view.block_size = kBlock;
      view.block_table = table.data();
      view.block_table_len = table.size();
    }
    if (form == kRing) {
      view.ring_slots = kSlots;
      view.ring_first = 1 + random.Below(kSlots - 1);
    }
  }

  kvevict_plane PlaneAt(const uint8_t* data, uint32_t unit, Form form) const {
    return form == kBlocks
               ? kvevict_plane_token_major_blocks(data, KVEVICT_DTYPE_OPAQUE,
                                                  kBlock, view.n_kv_heads,
                                                  41 * unit)
               : kvevict_plane_token_major(data, KVEVICT_DTYPE_OPAQUE,
                                           view.n_kv_heads, 41 * unit);
  }

  // The rows of slots from `first` on, which the layout spreads.
  std::vector<uint8_t> Rows(uint32_t first, uint32_t n) const {
    std::vector<uint8_t> rows;
    for (uint32_t slot = first; slot < first + n; ++slot) {
      uint32_t row = slot;
      if (view.ring_slots != 0) row = (slot + view.ring_first) % kSlots;
      if (!table.empty()) {
        row = static_cast<uint32_t>(table[slot / kBlock]) * kBlock +
              slot % kBlock;
      }
      for (const auto* plane : {&k, &v}) {
        const auto begin = plane->begin() + size_t{row} * row_bytes;
        rows.insert(rows.end(), begin, begin + row_bytes);
      }
    }
    return rows;
  }
};

// Most lists are the last slots, so every chunk waits for the one before.
std::vector<int32_t> DrawKeep(uint32_t first, Random& random) {
  std::vector<int32_t> slots(Cache::kSlots - first);
  std::iota(slots.begin(), slots.end(), first);
  const uint32_t n_gone = 1 + random.Below(50);
  if (random.Below(4) != 0) return {slots.begin() + n_gone, slots.end()};
  for (uint32_t i = 0; i < n_gone; ++i) {
    slots.erase(slots.begin() +
                random.Below(static_cast<uint32_t>(slots.size())));
  }
  return slots;
}

void Move(const kvevict_context* context, const Cache& cache, uint32_t first,
          std::vector<int32_t> slots) {
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.slots = slots.data();
  keep.slots_len = slots.size();
  keep.count = static_cast<uint32_t>(slots.size());
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = Cache::kSlots;
  move.first_slot = first;
  move.view = &cache.view;
  move.keep = &keep;
  kvevict_workspace needed = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_compact_workspace(context, &move, 1, &needed));
  Workspace workspace(needed.best_bytes);
  Check(kvevict_compact(context, &move, 1, workspace.data(),
                        workspace.n_bytes(), nullptr));
}

void TestMoves(const kvevict_context* cpu, const kvevict_context* cuda,
               uint32_t n_cases, Random& random) {
  for (uint32_t turn = 0; turn < n_cases; ++turn) {
    const uint32_t unit = 1u << turn % 5;
    const auto form = static_cast<Cache::Form>(turn / 5 % 3);
    const uint32_t first = turn % 3 == 0 ? 0 : random.Below(100);
    const std::vector<int32_t> slots = DrawKeep(first, random);
    const auto n = static_cast<uint32_t>(slots.size());
    const uint64_t seed = random.Next();
    const auto rows_after = [&](const kvevict_context* context) {
      Random same(seed);
      Cache cache(unit, 1 + same.Below(2), form, same);
      Move(context, cache, first, slots);
      return cache.Rows(0, first + n);
    };
    ExpectSame(rows_after(cuda), rows_after(cpu), "compact", turn);
  }
  for (const char* kernel : kWaitingKernels) {
    if (std::string_view(kernel).starts_with("gather") &&
        mock::Launches(kernel) == 0) {
      std::fprintf(stderr, "%s was not launched\n", kernel);
      std::exit(1);
    }
  }
}

// ---- The program ----

std::string MutantOf(const std::string& ptx) {
  for (const char* kernel : kWaitingKernels) {
    std::string mutant = ptx::TryMutants(ptx, kernel);
    if (mutant != ptx) return mutant;
  }
  return ptx;
}

int Run(int sm, bool with_mutants) {
  const std::vector<const cuda::Nvrtc*> nvrtcs = cuda::FindNvrtcsFor(sm);
  if (nvrtcs.empty()) {
    std::printf("skipped: no libnvrtc here compiles for sm_%d\n", sm);
    return 77;
  }
  // GPUs before sm_80 may need the oldest.
  const cuda::Nvrtc& nvrtc = sm < 80 ? *nvrtcs.back() : *nvrtcs.front();
  Random random(TestSeed("waits"));
  for (uint32_t resident_blocks = 1; resident_blocks <= 4; ++resident_blocks) {
    mock::Settings settings;
    settings.host_memory = true;
    settings.driver_version =
        std::max(settings.driver_version, nvrtc.version());
    settings.compute_capability = sm + 1;
    settings.seed = random.Next();
    settings.resident_blocks = resident_blocks;
    if (with_mutants) settings.instead_of = &MutantOf;
    mock::Reset(settings);
    kvevict_context* cpu = nullptr;
    Check(kvevict_context_create(nullptr, &cpu));
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    options.device = KVEVICT_DEVICE_CUDA;
    options.libcuda_path = test_mock_cuda;
    options.libnvrtc_path = nvrtc.name().c_str();
    options.kernel_cache_dir = test_kernel_cache;
    kvevict_context* cuda = nullptr;
    Check(kvevict_context_create(&options, &cuda));
    TestMoves(cpu, cuda, 60, random);
    TestSelections(cpu, cuda, 5, random);
    kvevict_context_destroy(cuda);
    kvevict_context_destroy(cpu);
    for (const std::string& problem : mock::Problems()) {
      std::fprintf(stderr, "%s\n", problem.c_str());
      return 1;
    }
  }
  return with_mutants && !ptx::AllMutantsWereNoticed() ? 1 : 0;
}

}  // namespace
}  // namespace kvevict

int main(int, char** argv) {
  const std::string_view how = argv[1];
  return kvevict::Run(how == "70" ? 70 : 80, how == "mutants");
}
