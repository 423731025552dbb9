// Secures tokens by their attention mass, with the results of
// core/cpu/secure_mass.cc for the same masses.
#include "secure_mass.h"

#include "device.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

constexpr float kUnits = 0x1p31f;  // of the mass of a head

struct SecureShared {
  SelectShared select;
  float sums[kSelectThreads];
};

KV_DEVICE uint32_t UnitsOf(float mass, float factor) {
  const float units = Multiply(mass, factor);
  return units > 0.0f && units <= kUnits ? static_cast<uint32_t>(units) : 0;
}

KV_DEVICE float LoadAt(uint64_t row, uint32_t i) {
  return LoadGlobal<float>(row + uint64_t{i} * sizeof(float));
}

// Slots before the window.
KV_DEVICE uint32_t PastOf(const SecureParams& p, const SelectLayer& layer,
                          uint32_t list) {
  return TokensOf(p.lists, layer, list) - p.lists.n_recent;
}

KV_DEVICE uint64_t MassesOf(const SelectLayer& layer, uint32_t list) {
  return layer.scores + uint64_t{list} * layer.n_tokens * sizeof(float);
}

// The sum of n masses as core/kernels/raise_to_mean.cc adds them, for all
// threads.
KV_DEVICE float SumMasses(uint64_t masses, uint32_t n, float* sums) {
  const uint32_t thread = threadIdx.x;
  float sum = 0.0f;
  for (uint32_t i = thread; i < n; i += kSelectThreads)
    sum += LoadAt(masses, i);
  sums[thread] = sum;
  for (uint32_t half = kSelectThreads / 2; half > 0; half /= 2) {
    BlockSync();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  BlockSync();
  return sums[0];
}

// The units of the masses above the digit of this thread's bins, of which `own`
// are its own. For all threads.
KV_DEVICE uint32_t CountBefore(const Keys& keys, uint64_t masses, uint32_t n,
                               float factor, uint32_t target,
                               SecureShared& shared) {
  SelectShared& select = shared.select;
  uint32_t low = 0;
  uint32_t above = 0;
  for (uint32_t round = 0; round < 3; ++round) {
    ZeroBins(select);
    BlockSync();
    for (uint32_t i = threadIdx.x; i < n; i += kSelectThreads) {
      const float mass = LoadAt(masses, i);
      uint32_t bits;
      memcpy(&bits, &mass, sizeof(bits));
      const uint32_t over = KeyOfScore(bits) - low;
      if (over > SpanBefore(round)) continue;
      AtomicAddShared(&select.bins[over >> DigitShift(round)],
                      UnitsOf(mass, factor));
    }
    // Without a digit that reaches the target it is the lowest one.
    if (threadIdx.x == 0) select.cut = {low, 0, 0};
    BlockSync();
    const uint32_t first = FirstBin();
    uint32_t bins[kBinsPerThread];
    uint32_t own = 0;
#pragma unroll
    for (uint32_t j = 0; j < kBinsPerThread; ++j) {
      bins[j] = select.bins[first + j];
      own += bins[j];
    }
    uint32_t before = above + CountAbove(own, select);
#pragma unroll
    for (uint32_t j = kBinsPerThread; j-- > 0;) {
      const bool is_lowest = first + j == 0;
      if (before < target && (before + bins[j] >= target || is_lowest)) {
        select.cut = {low + ((first + j) << DigitShift(round)), before, 0};
      }
      before += bins[j];
    }
    BlockSync();
    low = select.cut.low;
    above = select.cut.needed;
  }
  // Window slots have the forced key, which is in both counts.
  TallyWarps(keys, WarpPart(0, keys.Size()), low, select);
  const Tally tally = SumTallies(select, kWarps);
  const float at_cut = ToFloat<kF32>(low >> 31 != 0 ? low ^ 0x80000000u : ~low);
  const uint32_t units = low == kNanKey ? 0 : UnitsOf(at_cut, factor);
  uint32_t n_taken = tally.equal;
  if (units > 0) {
    const uint32_t n_fit = (target - above - 1) / units;
    if (n_fit < n_taken) n_taken = n_fit;
  }
  return tally.greater + n_taken;
}

// Gives the selected slots before the window the highest score.
struct ToHighest {
  uint64_t scores;
  uint32_t n;
  float highest;

  KV_DEVICE void operator()(uint32_t, uint32_t place) const {
    if (place >= n) return;
    StoreGlobal(scores + uint64_t{place} * sizeof(float), highest);
  }
};

}  // namespace

// Finds what the heads of a layer have in common. Grid (n_layers). Reads scores
// once.
KV_KERNEL(secure_shared, SecureParams, kSelectThreads, 4) {
  KV_SHARED(float, values, kSelectThreads);
  const SecureLayer& layer = p.layers[blockIdx.x];
  float bias = 0.0f;
  float highest = -ToFloat<kF32>(kInfinityBits);
  for (uint32_t head = 0; head < p.lists.n_lists; ++head) {
    const uint32_t n = PastOf(p, layer.select, head);
    const uint64_t scores =
        layer.scores + uint64_t{head} * layer.select.n_tokens * sizeof(float);
    for (uint32_t i = threadIdx.x; i < n; i += kSelectThreads) {
      const float score = LoadAt(scores, i);
      if (score > highest) highest = score;
    }
    if (threadIdx.x != 0) continue;
    for (uint32_t i = n > p.lists.n_recent ? n - p.lists.n_recent : 0; i < n;
         ++i) {
      bias += LoadAt(MassesOf(layer.select, head), i);
    }
  }
  values[threadIdx.x] = highest;
  for (uint32_t half = kSelectThreads / 2; half > 0; half /= 2) {
    BlockSync();
    if (threadIdx.x >= half) continue;
    const float other = values[threadIdx.x + half];
    if (other > values[threadIdx.x]) values[threadIdx.x] = other;
  }
  if (threadIdx.x != 0) return;
  const float share = p.has_bias != 0
                          ? p.mass - bias / static_cast<float>(p.lists.n_lists)
                          : p.mass;
  const uint64_t out = p.shared + uint64_t{blockIdx.x} * 8;
  StoreGlobal(out, values[0]);
  StoreGlobal(out + 4, share);
}

// Grid (n_kv_heads, n_layers); a block has one list. 9.4 KiB shared. Reads
// masses about eight times, the first time from memory.
KV_KERNEL(secure_mass, SecureParams, kSelectThreads, 3) {
  KV_SHARED(SecureShared, shared, 1);
  const SecureLayer& layer = p.layers[blockIdx.y];
  const uint32_t list = blockIdx.x;
  const Keys keys(p, layer.select, list);
  const uint32_t n = PastOf(p, layer.select, list);
  const uint64_t masses = MassesOf(layer.select, list);
  const uint64_t of_layer = p.shared + uint64_t{blockIdx.y} * 8;
  const float highest = LoadGlobal<float>(of_layer);
  const float share = LoadGlobal<float>(of_layer + 4);
  const auto even = static_cast<uint32_t>(n * layer.share);
  const float total = SumMasses(masses, n, shared->sums);
  if (even <= p.lists.n_recent || !(share > 0.0f) || !(total > 0.0f)) return;
  const uint32_t most = even - p.lists.n_recent;
  const uint32_t n_window = keys.words.n - n;
  const uint32_t target = static_cast<uint32_t>(share * kUnits);
  if (target == 0) return;
  uint32_t count =
      CountBefore(keys, masses, n, kUnits / total, target, *shared) - n_window;
  if (count > most) count = most;
  if (count == 0) return;
  const Cut cut =
      BlockCut(keys, keys.words.n, n_window + count, shared->select);
  BlockEmit(keys, 0, keys.Size(), cut, EqualsTaken(false, cut), {0, 0},
            ToHighest{layer.scores + uint64_t{list} * layer.select.n_tokens *
                                         sizeof(float),
                      n, highest},
            shared->select);
}

}  // namespace kvevict::cuda
