#include "core/kernels/topk.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/topk.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::ScalableTag<uint32_t>;

// Positive floats get the sign bit set, negative ones are inverted.
template <class V>
HWY_INLINE V KeyOf(V bits) {
  const hn::DFromV<V> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToFloat<decltype(d)> df;
  // -0 becomes +0. This tests bits, since an addition would flush denormals if
  // the caller's thread does.
  bits = hn::IfThenZeroElse(hn::Eq(bits, hn::Set(d, 0x80000000u)), bits);
  const auto sign = hn::BitCast(
      d, hn::ShiftRight<31>(hn::BitCast(di, bits)));  // all ones if negative
  const auto flip = hn::Or(sign, hn::Set(d, 0x80000000u));
  const auto nan = hn::IsNaN(hn::BitCast(df, bits));
  return hn::IfThenZeroElse(hn::RebindMask(d, nan), hn::Xor(bits, flip));
}

void ScoresToKeys(const float* scores, size_t n, uint32_t* keys) {
  const D32 d;
  const hn::RebindToFloat<D32> df;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    hn::StoreU(KeyOf(hn::BitCast(d, hn::LoadU(df, scores + i))), d, keys + i);
  }
  if (i < n) {
    const auto v = hn::LoadN(df, scores + i, n - i);
    hn::StoreN(KeyOf(hn::BitCast(d, v)), d, keys + i, n - i);
  }
}

// Appends to `out` the indices i in [0, n) with keys[i] > cut, and those with
// keys[i] == cut whose rank among equals is in [first, last).
void Emit(const uint32_t* keys, size_t n, uint32_t cut, size_t first,
          size_t last, int32_t* out) {
  const D32 d;
  const hn::RebindToSigned<D32> di;
  const size_t lanes = hn::Lanes(d);
  const auto vcut = hn::Set(d, cut);
  size_t rank = 0;  // rank of the next key equal to the cut
  const auto emit_each = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const bool equal = keys[i] == cut;
      if (keys[i] > cut || (equal && rank >= first && rank < last)) {
        *out++ = static_cast<int32_t>(i);
      }
      rank += equal;
    }
  };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, keys + i);
    const auto equal = hn::Eq(v, vcut);
    auto take = hn::Gt(v, vcut);
    if (const size_t n_equal = hn::CountTrue(d, equal); n_equal != 0) {
      const bool all = rank >= first && rank + n_equal <= last;
      const bool none = rank >= last || rank + n_equal <= first;
      if (!all && !none) {  // the cut runs through this vector
        emit_each(i, i + lanes);
        continue;
      }
      if (all) take = hn::Or(take, equal);
      rank += n_equal;
    }
    if (hn::AllFalse(d, take)) continue;
    const auto taken = hn::Compress(hn::Iota(di, static_cast<int32_t>(i)),
                                    hn::RebindMask(di, take));
    const size_t n_taken = hn::CountTrue(d, take);
    // Not a whole vector, which may reach past the end.
    hn::StoreN(taken, di, out, n_taken);
    out += n_taken;
  }
  emit_each(i, n);
}

// Counts the keys for each value of the digit at `shift`. Only keys whose bits
// from `prefix_shift` on equal `prefix` count.
void CountDigit(const uint32_t* keys, size_t n, uint32_t shift,
                uint32_t prefix_shift, uint32_t prefix, uint32_t* bins) {
  const D32 d;
  const size_t lanes = hn::Lanes(d);
  const uint32_t mask = (1u << (prefix_shift - shift)) - 1;
  const auto low = hn::Set(d, prefix << prefix_shift);
  const auto span = hn::Set(d, (1u << prefix_shift) - 1);
  // Matching keys are packed before they are counted, so that no branch depends
  // on a key: random ones would be mispredicted (2x on Zen 4).
  constexpr size_t kPacked = 256;
  uint32_t packed[kPacked + hn::MaxLanes(d)];
  size_t n_packed = 0;
  const auto count_packed = [&] {
    for (size_t j = 0; j < n_packed; ++j) ++bins[(packed[j] >> shift) & mask];
    n_packed = 0;
  };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, keys + i);
    const auto inside = hn::Le(hn::Sub(v, low), span);
    // Does not use the instruction that packs into memory, which is slow on Zen
    // 4.
    hn::StoreU(hn::Compress(v, inside), d, packed + n_packed);
    n_packed += hn::CountTrue(d, inside);
    if (n_packed >= kPacked) count_packed();
  }
  for (; i < n; ++i) {
    if (keys[i] >> prefix_shift == prefix) packed[n_packed++] = keys[i];
    if (n_packed >= kPacked) count_packed();
  }
  count_packed();
}

uint32_t CountGreater(const uint32_t* keys, size_t n, uint32_t key) {
  const D32 d;
  const size_t lanes = hn::Lanes(d);
  const auto vkey = hn::Set(d, key);
  auto counts = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto greater = hn::Gt(hn::LoadU(d, keys + i), vkey);
    counts = hn::Sub(counts, hn::VecFromMask(d, greater));
  }
  uint32_t count = hn::ReduceSum(d, counts);
  for (; i < n; ++i) count += keys[i] > key;
  return count;
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(ScoresToKeys);
HWY_EXPORT(Emit);
HWY_EXPORT(CountDigit);
HWY_EXPORT(CountGreater);

// Counts the first digit of all keys. There are several copies of the bins, so
// that equal adjacent keys do not wait for each other's increment.
void CountFirstDigit(const uint32_t* keys, size_t n, uint32_t* bins) {
  constexpr size_t kCopies = 4;
  uint32_t copies[kCopies][kMaxKeyBins];
  std::memset(copies, 0, sizeof(copies));
  size_t i = 0;
  for (; i + kCopies <= n; i += kCopies) {
    for (size_t c = 0; c < kCopies; ++c) {
      ++copies[c][keys[i + c] >> kKeyDigits[0].shift];
    }
  }
  for (; i < n; ++i) ++copies[0][keys[i] >> kKeyDigits[0].shift];
  for (size_t b = 0; b < kMaxKeyBins; ++b) {
    bins[b] = copies[0][b] + copies[1][b] + copies[2][b] + copies[3][b];
  }
}

}  // namespace

void ScoresToKeys(SimdTarget simd, const float* scores, size_t n,
                  uint32_t* keys) {
  KV_DISPATCH(simd, ScoresToKeys)(scores, n, keys);
}

void CountKeyDigit(SimdTarget simd, const uint32_t* keys, size_t n,
                   const KeyDigit& digit, uint32_t prefix, uint32_t* bins) {
  if (digit.shift == kKeyDigits[0].shift) return CountFirstDigit(keys, n, bins);
  std::memset(bins, 0, sizeof(*bins) << digit.n_bits);
  KV_DISPATCH(simd, CountDigit)
  (keys, n, digit.shift, digit.shift + digit.n_bits, prefix, bins);
}

uint32_t CountGreater(SimdTarget simd, const uint32_t* keys, size_t n,
                      uint32_t key) {
  return KV_DISPATCH(simd, CountGreater)(keys, n, key);
}

// Works digit by digit.
KeyCut FindKeyCut(SimdTarget simd, const uint32_t* keys, size_t n, size_t k) {
  uint32_t bins[kMaxKeyBins];
  KeyCut cut = {0, n, k};  // among keys that share the digits so far
  for (const KeyDigit& digit : kKeyDigits) {
    CountKeyDigit(simd, keys, n, digit, cut.key, bins);
    uint32_t b = (1u << digit.n_bits) - 1;
    while (bins[b] < cut.n_needed) cut.n_needed -= bins[b--];
    cut.key = (cut.key << digit.n_bits) + b;
    cut.n_equal = bins[b];
  }
  return cut;
}

void SelectTopK(SimdTarget simd, const uint32_t* keys, size_t n, size_t k,
                Tie tie, int32_t* out) {
  if (k == 0) return;
  const KeyCut cut = FindKeyCut(simd, keys, n, k);
  const size_t first = tie == Tie::kLower ? 0 : cut.n_equal - cut.n_needed;
  KV_DISPATCH(simd, Emit)
  (keys, n, cut.key, first, first + cut.n_needed, out);
}

}  // namespace kvevict
#endif  // HWY_ONCE
