// Requests in one paged cache run on a thread each, share a prefix and sometimes
// find no free block. Each reads what it wrote, and all blocks come back.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "kvevict/batch.h"
#include "kvevict/paged.h"
#include "tests/thread/check.h"
#include "tests/thread/scenario.h"

namespace kvevict {
namespace {

constexpr uint32_t kThreads = 4;
constexpr uint32_t kLives = 4;
constexpr uint32_t kSteps = 50;
constexpr uint32_t kPrefix = 21;
constexpr uint32_t kMost = 90;    // tokens of a request that evicts
constexpr uint32_t kBlocks = 24;  // for each layer: fewer than kMaxTokens needs
constexpr size_t kRow = size_t{kKvHeads} * kHeadDim;

// Rows, and the tokens that they belong to.
struct Pair {
  kvevict_paged_sequence* cached = nullptr;
  kvevict_sequence* sequence = nullptr;

  Pair Fork() const {
    Pair fork;
    CHECK_OK(kvevict_paged_sequence_fork(cached, &fork.cached, nullptr));
    CHECK_OK(kvevict_sequence_fork(sequence, nullptr, &fork.sequence, nullptr));
    return fork;
  }
  void Destroy() const {
    kvevict_paged_sequence_destroy(cached);
    kvevict_sequence_destroy(sequence);
  }
};

// The number of a request's token in a layer, which no other row has.
uint32_t Number(uint32_t request, int32_t position, uint32_t layer) {
  const auto at = static_cast<uint32_t>(position);
  const uint32_t owner = at < kPrefix ? 99 : request;
  return (owner * 1000 + at) * 4 + layer + 1;
}

// The value of its elements, which 8 bits hold exactly. Values have the number
// throughout; keys in groups of tokens have one of two numbers by its bits.
float Value(uint32_t number) { return static_cast<float>(number); }
float Key(uint32_t number, uint32_t element) {
  return (number * 0x9E3779B1u >> element % 32 & 1) != 0 ? 255.0f : 0.0f;
}

uint32_t StoredBy(const kvevict_sequence* sequence, uint32_t layer) {
  uint32_t n = 0;
  CHECK_OK(kvevict_sequence_stored_length(sequence, layer, 0, &n));
  return n;
}

kvevict_paged_rows RowsAt(uint32_t layer, uint32_t first,
                          const std::vector<float>& k,
                          const std::vector<float>& v) {
  kvevict_paged_rows rows = KVEVICT_PAGED_ROWS_INIT;
  rows.layer = layer;
  rows.first_slot = first;
  rows.n_tokens = static_cast<uint32_t>(k.size() / kRow);
  rows.k = RowsOf(k.data(), kKvHeads);
  rows.v = RowsOf(v.data(), kKvHeads);
  return rows;
}

class Request {
 public:
  Request(const kvevict_plan* plan, const Pair& pair, uint32_t number)
      : number_(number),
        random_(number),
        workspace_(plan, KVEVICT_OPERATION_EVICT),
        pair_(pair),
        cached_(pair.cached),
        sequence_(pair.sequence) {}
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() { pair_.Destroy(); }

  Pair Fork() const { return pair_.Fork(); }

  // Returns whether there were blocks.
  bool Append(uint32_t n) {
    const kvevict_status status =
        kvevict_paged_sequence_append(cached_, n, nullptr);
    if (status == KVEVICT_ERROR_OUT_OF_MEMORY) return false;
    CHECK_OK(status);
    uint32_t position = 0;
    CHECK_OK(kvevict_sequence_logical_length(sequence_, &position));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<float> k(n * kRow), v(n * kRow);
      for (size_t i = 0; i < k.size(); ++i) {
        const uint32_t number =
            Number(number_, static_cast<int32_t>(position + i / kRow), layer);
        k[i] = Key(number, i % kHeadDim);
        v[i] = Value(number);
      }
      const kvevict_paged_rows rows =
          RowsAt(layer, StoredBy(sequence_, layer), k, v);
      CHECK_OK(kvevict_paged_sequence_write(cached_, &rows, 1, nullptr));
    }
    CHECK_OK(kvevict_sequence_append(sequence_, n, nullptr));
    return true;
  }

  // Checks that each row is its position's.
  void Check() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const uint32_t n = StoredBy(sequence_, layer);
      std::vector<float> k(n * kRow), v(n * kRow);
      const kvevict_paged_rows rows = RowsAt(layer, 0, k, v);
      CHECK_OK(kvevict_paged_sequence_read(cached_, &rows, 1, nullptr));
      std::vector<int32_t> positions(n);
      for (uint32_t head = 0; head < kKvHeads; ++head) {
        size_t n_positions = 0;
        CHECK_OK(kvevict_sequence_keep_positions(
            sequence_, layer, head, positions.data(), n, &n_positions));
        CHECK(n_positions == n);
        for (uint32_t slot = 0; slot < n; ++slot) {
          const uint32_t number = Number(number_, positions[slot], layer);
          for (uint32_t e = 0; e < kHeadDim; ++e) {
            const size_t at = slot * kRow + head * kHeadDim + e;
            CHECK(k[at] == Key(number, e) && v[at] == Value(number));
          }
        }
      }
    }
  }

  bool Evict() {
    kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
    item.cached = cached_;
    item.sequence = sequence_;
    const kvevict_status status = kvevict_paged_evict(
        &item, 1, workspace_.data(), workspace_.size(), nullptr);
    if (status == KVEVICT_ERROR_OUT_OF_MEMORY) return false;
    CHECK_OK(status);
    return true;
  }

  // Returns whether there were blocks.
  bool Step() {
    const uint32_t n = 1 + static_cast<uint32_t>(random_() % 9);
    if (StoredBy(sequence_, 0) + n > kMost || random_() % 8 == 0) {
      return Evict();
    }
    return Append(n);
  }

  void Fill() {
    while (Append(5)) {
    }
  }

 private:
  const uint32_t number_;
  std::mt19937_64 random_;
  const Workspace workspace_;
  const Pair pair_;
  kvevict_paged_sequence* const cached_;
  kvevict_sequence* const sequence_;
};

kvevict_paged_cache_usage UsageOf(const kvevict_paged_cache* cache) {
  kvevict_paged_cache_usage usage{};
  usage.struct_size = sizeof usage;
  CHECK_OK(kvevict_paged_cache_get_usage(cache, &usage));
  return usage;
}

// A thread's work with a sequence of its own that holds the prefix. Returns how
// often no block was free.
uint32_t Live(const kvevict_plan* plan, const kvevict_paged_cache* cache,
              const Pair& prefix, uint32_t thread) {
  uint32_t n_refused = 0;
  for (uint32_t life = 0; life < kLives; ++life) {
    Request request(plan, prefix.Fork(), 1 + thread * kLives + life);
    for (uint32_t step = 0; step < kSteps; ++step) {
      n_refused += request.Step() ? 0 : 1;
      request.Check();
      CHECK(UsageOf(cache).n_sequences <= 2 * kThreads);
    }
    request.Fill();
    request.Check();
    n_refused += 1;
  }
  prefix.Destroy();
  return n_refused;
}

kvevict_paged_cache_options PoolOf(uint32_t n_blocks) {
  kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
  options.n_blocks = n_blocks;
  options.block_size = 8;
  return options;
}

// Keys in groups of tokens and unquantized last rows, as in KIVI.
kvevict_paged_cache_options KiviPool() {
  kvevict_paged_cache_options options = PoolOf(kBlocks - 6);
  options.group_tokens = 4;
  options.recent_tokens = 11;
  return options;
}

void Run(const char* policy, kvevict_dtype dtype,
         const kvevict_paged_cache_options& options) {
  uint32_t n_threads = 1;
  kvevict_context* context = NewContext(&n_threads);
  kvevict_plan* plan = NewPlan(context, policy, dtype);
  kvevict_paged_cache* cache = nullptr;
  CHECK_OK(kvevict_paged_cache_create(plan, &options, &cache));
  std::vector<Pair> prefixes;
  {
    Pair pair;
    CHECK_OK(kvevict_paged_sequence_create(cache, &pair.cached));
    CHECK_OK(kvevict_sequence_create(plan, &pair.sequence));
    Request first(plan, pair, 0);
    CHECK(first.Append(kPrefix));
    for (uint32_t t = 0; t < kThreads; ++t) prefixes.push_back(first.Fork());
  }
  std::atomic<uint32_t> n_refused{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back(
        [&, t] { n_refused += Live(plan, cache, prefixes[t], t); });
  }
  for (std::thread& thread : threads) thread.join();
  const kvevict_paged_cache_usage usage = UsageOf(cache);
  CHECK(usage.n_free == usage.n_blocks && usage.n_sequences == 0);
  CHECK(usage.n_slots == 0 && usage.n_shared == 0);
  kvevict_paged_cache_destroy(cache);
  kvevict_plan_destroy(plan);
  kvevict_context_destroy(context);
  std::printf("%s, %s rows: %u threads, %u times no block was free\n", policy,
              options.group_tokens == 0 ? "f32" : "grouped", kThreads,
              n_refused.load());
}

}  // namespace
}  // namespace kvevict

int main() {
  for (const char* policy :
       {"knorm:budget=40,sink=4", "random:budget=30,sink=0"}) {
    kvevict::Run(policy, KVEVICT_DTYPE_F32, kvevict::PoolOf(kvevict::kBlocks));
    kvevict::Run(policy, KVEVICT_DTYPE_U8, kvevict::KiviPool());
  }
}
