// The kernels of an eviction have a cost on the machine, counted on their PTX
// at the sizes they are made for: an 8B model's 4 query heads of 128 per KV
// head, a window of 64, bf16, one KV head of one layer.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "cuda/kernel_text.h"
#include "cuda/kernels/attention_mma.h"
#include "cuda/kernels/pool1d.h"
#include "cuda/kernels/pool_select.h"
#include "cuda/kernels/topk.h"
#include "cuda/kernels/window_attention.h"
#include "tests/cuda/gates/prediction.h"
#include "tests/kernels/random.h"
#include "tests/rig/nvrtcs.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/launch.h"
#include "tests/rig/ptx/module.h"

namespace kvevict {
namespace {

constexpr uint32_t kTokens = 4096;
constexpr uint32_t kKeep = 512;
constexpr uint32_t kSectorBytes = 32;

// Memory like the driver's.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : lines_(n * sizeof(T) / sizeof(Line) + 1) {}
  T* data() { return reinterpret_cast<T*>(lines_.data()); }
  uint64_t address() { return reinterpret_cast<uint64_t>(lines_.data()); }

 private:
  struct alignas(256) Line {
    uint8_t bytes[256];
  };
  std::vector<Line> lines_;
};

std::map<std::string, ptx::Counters> counted;  // by kernel
int failures = 0;

// Runs a kernel on the PTX that the newest NVRTC makes of its module, and counts.
template <class Params>
void Launch(cuda::ModuleId module, const std::vector<std::string>& options,
            const char* kernel, const ptx::LaunchShape& shape,
            const Params& params) {
  static const std::vector<const cuda::Nvrtc*> kNvrtcs =
      cuda::FindNvrtcsFor(80);
  if (kNvrtcs.empty()) {
    std::printf("skipped: no libnvrtc here compiles for sm_80\n");
    std::exit(77);
  }
  cuda::Compiled compiled;
  const Status status =
      kNvrtcs.front()->Compile(*cuda::ProgramText(module), cuda::IncludeTexts(),
                               options, {.sm = 80, .ptx = true}, &compiled);
  if (!status.ok()) ptx::Fail(LastErrorMessage());
  ptx::Memory memory;
  memory.AllowHostAddresses();
  const ptx::Module loaded(compiled.image.c_str(), memory);
  ptx::Launch(*loaded.Find(kernel), shape,
              {reinterpret_cast<const uint8_t*>(&params), sizeof(params)},
              memory, {.resident_blocks = 1}, counted[kernel]);
}

void Expect(const char* kernel, const char* what, double is, double most) {
  std::printf("%s: %s: %.1f, at most %.1f%s\n", kernel, what, is, most,
              is <= most ? "" : " FAILED");
  failures += is > most;
}

double Each(uint64_t count, uint64_t n) {
  return static_cast<double>(count) / static_cast<double>(n);
}

const ptx::Counters& Counted(const char* kernel) { return counted[kernel]; }

// ---- Scoring ----

constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kRows = 4 * 64;
constexpr uint32_t kScoredTokens = 768;
constexpr uint32_t kSplits = 2;

void Score() {
  Random random(1);
  DeviceArray<uint16_t> queries(kRows * kHeadDim);
  DeviceArray<uint16_t> keys(kScoredTokens * kHeadDim);
  for (uint32_t i = 0; i < kRows * kHeadDim; ++i) {
    queries.data()[i] = static_cast<uint16_t>(0x3E00 + random.Below(256));
  }
  for (uint32_t i = 0; i < kScoredTokens * kHeadDim; ++i) {
    keys.data()[i] = static_cast<uint16_t>(0x3E00 + random.Below(256));
  }
  DeviceArray<float> partial(kSplits * kRows);
  DeviceArray<float> scores(kScoredTokens);
  cuda::ScoreParams p = {};
  p.keys.row_stride = p.query_head_stride = kHeadDim * 2;
  p.query_row_stride = 4 * kHeadDim * 2;
  p.keys.element_stride = p.query_element_stride = 2;
  p.partial_lse = partial.address();
  p.scale_log2e = 0.1f;
  p.weight_scale = 1.0f;
  p.n_kv_heads = 1;
  p.ring_rows = 64;
  p.n_splits = kSplits;
  p.keys_per_split = kScoredTokens / kSplits;
  p.layers[0].queries = queries.address();
  p.layers[0].keys = keys.address();
  p.layers[0].scores = scores.address();
  p.layers[0].n_tokens = kScoredTokens;
  const cuda::WindowAttentionShape shape = cuda::ShapeWindowAttention(
      true, cuda::kBF16, kHeadDim, 64, 4, cuda::TileKeys(true, kHeadDim, 90));
  for (const char* kernel : {"window_lse", "window_scores"}) {
    Launch(cuda::ModuleId::window_attention,
           {"-DKV_Q_DTYPE=3", "-DKV_K_DTYPE=3", "-DKV_HEAD_DIM=128",
            "-DKV_WINDOW=64", "-DKV_GROUP=4", "-DKV_PAGED=0", "-DKV_RAGGED=0",
            "-DKV_OUT=0", "-DKV_TILE_KEYS=128", "-DKV_USE_MMA=1"},
           kernel, {{kSplits}, {shape.threads}, shape.dynamic_shared_bytes}, p);
  }
}

void ExpectOfScoring() {
  // Counts whole sectors. Every split reads the queries once more.
  constexpr uint32_t kKeySectors = kScoredTokens * kHeadDim * 2 / kSectorBytes;
  constexpr uint32_t kQuerySectors =
      kSplits * kRows * kHeadDim * 2 / kSectorBytes;
  constexpr uint32_t kSums = kSplits * kRows * 4 / kSectorBytes;
  constexpr uint64_t kPairs = uint64_t{kScoredTokens} * kRows;
  const struct {
    const char* name;
    uint32_t load_sectors;
    uint32_t store_sectors;
    double instructions;
  } kExpected[] = {
      {"window_lse", kKeySectors + kQuerySectors, kSums, 12.5},
      {"window_scores", kKeySectors + kQuerySectors + kSplits * kSums,
       kScoredTokens * 4 / kSectorBytes, 14.0}};
  for (const auto& e : kExpected) {
    const ptx::Counters& c = Counted(e.name);
    Expect(e.name, "bank conflicts", Each(c.shared_conflicts, 1), 0);
    Expect(e.name, "sectors loaded", Each(c.global_load_sectors, 1),
           e.load_sectors);
    Expect(e.name, "sectors stored", Each(c.global_store_sectors, 1),
           e.store_sectors);
    Expect(e.name, "products of 16 x 8 x 16 per pair",
           Each(c.CountOf("mma.sync") / 32 * 16 * 8 * 16, kPairs * kHeadDim),
           1);
    Expect(e.name, "exponentials per pair", Each(c.CountOf("ex2"), kPairs),
           1.1);
    Expect(e.name, "instructions per key and row", Each(c.CountOf(""), kPairs),
           e.instructions);
  }
}

// ---- Attention ----

constexpr uint32_t kQueries = 16;
constexpr uint32_t kGroup = 4;
constexpr uint32_t kAttendedRows = kQueries * kGroup;

void Attend() {
  Random random(1);
  DeviceArray<uint16_t> queries(kAttendedRows * kHeadDim);
  DeviceArray<uint16_t> rows(2 * kScoredTokens * kHeadDim);
  for (uint32_t i = 0; i < kAttendedRows * kHeadDim; ++i) {
    queries.data()[i] = static_cast<uint16_t>(0x3E00 + random.Below(256));
  }
  for (uint32_t i = 0; i < 2 * kScoredTokens * kHeadDim; ++i) {
    rows.data()[i] = static_cast<uint16_t>(0x3E00 + random.Below(256));
  }
  DeviceArray<float> states(kAttendedRows * cuda::AttendStateFloats(kHeadDim));
  cuda::AttendParams p = {};
  p.keys.layout.row_stride = kHeadDim * 2;
  p.keys.layout.element_stride = 2;
  p.keys.dtype = cuda::kBF16;
  p.keys.head_dim = p.keys.n_elements = kHeadDim;
  p.keys.wide = 16;
  p.queries = p.values = p.keys;
  p.queries.layout.row_stride = kGroup * kHeadDim * 2;
  p.queries.layout.head_stride = kHeadDim * 2;
  p.states = states.address();
  p.n_queries = kQueries;
  p.group = kGroup;
  p.n_blocks = kAttendedRows / cuda::kAttendRows;
  p.n_splits = p.most_splits = 1;
  p.non_causal = 1;
  p.query_scale = 0.1f;
  p.layers[0].queries = queries.address();
  p.layers[0].keys = rows.address();
  p.layers[0].values = rows.address() + kScoredTokens * kHeadDim * 2;
  p.layers[0].n_tokens = kScoredTokens;
  const cuda::AttendMmaShape shape = cuda::ShapeAttendMma(
      cuda::kBF16, cuda::kBF16, cuda::kBF16, kHeadDim, kHeadDim, 4);
  Launch(cuda::ModuleId::attention_mma,
         {"-DKV_Q_DTYPE=3", "-DKV_K_DTYPE=3", "-DKV_V_DTYPE=3",
          "-DKV_HEAD_DIM=128", "-DKV_V_DIM=128", "-DKV_ROW_WARPS=4"},
         "attend_mma", {{1}, {cuda::kAttendMmaThreads}, shape.shared_bytes}, p);
}

void ExpectOfAttention() {
  constexpr uint32_t kCacheSectors =
      2 * kScoredTokens * kHeadDim * 2 / kSectorBytes;
  constexpr uint32_t kQuerySectors =
      kAttendedRows * kHeadDim * 2 / kSectorBytes;
  constexpr uint64_t kPairs = uint64_t{kScoredTokens} * kAttendedRows;
  const ptx::Counters& c = Counted("attend_mma");
  Expect("attend_mma", "bank conflicts", Each(c.shared_conflicts, 1), 0);
  Expect("attend_mma", "sectors loaded", Each(c.global_load_sectors, 1),
         kCacheSectors + kQuerySectors);
  // Weights are two parts.
  Expect("attend_mma", "products of 16 x 8 x 16 per pair",
         Each(c.CountOf("mma.sync") / 32 * 16 * 8 * 16, kPairs * kHeadDim), 3);
  Expect("attend_mma", "exponentials per pair", Each(c.CountOf("ex2"), kPairs),
         1.1);
  Expect("attend_mma", "instructions per key and row",
         Each(c.CountOf(""), kPairs), 64);
}

// ---- Pooling and selection ----

void PoolAndSelect() {
  Random random(1);
  DeviceArray<float> scores(kTokens);
  for (uint32_t i = 0; i < kTokens; ++i) {
    scores.data()[i] = std::exp(random.Gaussian());
  }
  DeviceArray<int32_t> keep(kKeep);
  // It comes first, since the other form pools in place.
  cuda::PoolSelectParams both = {};
  both.lists.n_lists = 1;
  both.lists.n_sink = 4;
  both.lists.n_recent = 64;
  both.kernel = 7;
  both.n_unpooled = 64;
  both.layers[0] = {scores.address(), keep.address(), kTokens, kKeep, 0, 0};
  Launch(cuda::ModuleId::pool_select, {}, "pool_select",
         {{1}, {cuda::kSelectThreads}, cuda::PoolSelectBytes(kTokens)}, both);

  cuda::PoolParams pool = {};
  pool.n_rows = 1;
  pool.n_terms = 1;
  pool.n_unpooled = 64;
  pool.kernel = 7;
  pool.layers[0] = {scores.address(), kTokens, 0};
  Launch(cuda::ModuleId::pool1d, {}, "pool_rows", {{1}, {cuda::kPoolThreads}},
         pool);

  cuda::SelectParams select = {};
  select.lists = both.lists;
  select.layers[0] = both.layers[0];
  Launch(cuda::ModuleId::topk, {}, "select_topk", {{1}, {cuda::kSelectThreads}},
         select);
}

void ExpectOfPoolAndSelect() {
  constexpr uint32_t kSectors = kTokens * 4 / kSectorBytes;
  const ptx::Counters& pool = Counted("pool_rows");
  Expect("pool_rows", "bank conflicts", Each(pool.shared_conflicts, 1), 0);
  Expect("pool_rows", "sectors loaded", Each(pool.global_load_sectors, 1),
         kSectors);
  // Outputs are half a kernel behind the loads: a warp's 128 bytes begin within
  // a sector.
  Expect("pool_rows", "sectors per warp's store",
         Each(pool.global_store_sectors, pool.global_stores), 5);
  Expect("pool_rows", "instructions per score", Each(pool.CountOf(""), kTokens),
         60);

  const ptx::Counters& both = Counted("pool_select");
  Expect("pool_select", "sectors loaded", Each(both.global_load_sectors, 1),
         kSectors);
  // Only the bins conflict, once per digit.
  Expect("pool_select", "bank conflicts", Each(both.shared_conflicts, 1), 480);
  Expect("pool_select", "instructions per score",
         Each(both.CountOf(""), kTokens), 142);

  // There are four sweeps and the one that writes.
  const ptx::Counters& select = Counted("select_topk");
  Expect("select_topk", "sectors loaded", Each(select.global_load_sectors, 1),
         5 * kSectors);
  Expect("select_topk", "instructions per score",
         Each(select.CountOf(""), kTokens), 130);
}

// A lower bound of the time, as if PTX were machine code.
void PrintIssueTimes() {
  const cuda::Flagship& f = cuda::kFlagship;
  const double n_scores =
      static_cast<double>(f.n_layers) * f.n_kv_heads * f.n_tokens;
  for (const cuda::Gpu& gpu : cuda::kGpus) {
    const double per_us =
        gpu.n_multiprocessors * gpu.ghz * 1e3 * cuda::kIssuesPerClock * 32;
    const auto us = [&](const char* kernel) {
      return Each(Counted(kernel).CountOf(""), kTokens) * n_scores / per_us;
    };
    std::printf(
        "%s: %u lists of %u scores: pool_select issues for %.0f us, pool_rows "
        "and "
        "select_topk for %.0f us\n",
        gpu.name, f.n_layers * f.n_kv_heads, f.n_tokens, us("pool_select"),
        us("pool_rows") + us("select_topk"));
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  using namespace kvevict;
  Score();
  Attend();
  PoolAndSelect();
  ExpectOfScoring();
  ExpectOfAttention();
  ExpectOfPoolAndSelect();
  PrintIssueTimes();
  return failures == 0 ? 0 : 1;
}
