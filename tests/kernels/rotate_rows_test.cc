// Rotates keys and compares with long double, in any layout and on every target.
#include "core/kernels/rotate_rows.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/view/rope.h"
#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr uint32_t kPairs[] = {1,  2,  3,  7,   8,   16, 17,
                               32, 37, 64, 128, 200, 256};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

struct Case {
  DType dtype;
  uint32_t n_pairs, dim;
  bool is_interleaved;
  std::vector<float> inv_freq, rows;
  std::vector<int32_t> offsets;

  uint32_t n_rows() const { return static_cast<uint32_t>(offsets.size()); }
  uint32_t First(uint32_t f) const { return is_interleaved ? 2 * f : f; }
  uint32_t Second(uint32_t f) const {
    return is_interleaved ? 2 * f + 1 : f + n_pairs;
  }
};

// Near and far offsets of both signs, some of them shared by neighbours.
Case Draw(DType dtype, uint32_t n_pairs, bool is_interleaved, Random& random) {
  Case c = {dtype,
            n_pairs,
            2 * n_pairs + random.Below(2) * random.Below(9),
            is_interleaved,
            {},
            {},
            {}};
  for (uint32_t f = 0; f < n_pairs; ++f) {
    const double base = random.Below(2) == 0 ? 1e4 : 5e5;
    c.inv_freq.push_back(
        static_cast<float>(std::pow(base, -static_cast<double>(f) / n_pairs)));
  }
  if (n_pairs > 2) c.inv_freq[2] = -0.25f;
  for (uint32_t r = 0; r < 14; ++r) {
    const auto far = static_cast<int32_t>(random.Below(1u << 31));
    const int32_t kinds[] = {0,
                             -static_cast<int32_t>(random.Below(5000)),
                             far,
                             -far,
                             static_cast<int32_t>(random.Below(3)),
                             r == 0 ? 7 : c.offsets.back()};
    c.offsets.push_back(kinds[random.Below(6)]);
    for (uint32_t i = 0; i < c.dim; ++i) c.rows.push_back(random.Gaussian());
  }
  c.rows = RoundTo(dtype, c.rows);
  return c;
}

std::vector<uint64_t> Turns(const Case& c) {
  std::vector<uint64_t> turns;
  for (float w : c.inv_freq) turns.push_back(TurnsOf(w));
  return turns;
}

void Rotate(SimdTarget simd, const Case& c, const std::vector<int32_t>& offsets,
            const RowStore& store) {
  const std::vector<uint64_t> turns = Turns(c);
  RotateRowsInPlace(simd, {&store.source(), 1, 0, c.n_rows(), offsets.data(),
                           turns.data(), c.n_pairs, c.is_interleaved});
}

float Element(const RowStore& store, uint32_t row, uint32_t i) {
  return ElementOf(store.source(), row, i);
}

// The most that storing a number changes.
double StoredBound(DType dtype, double v) {
  if (dtype == DType::kF32) return 0.0;
  if (dtype == DType::kBF16) return std::abs(v) * 0x1p-8;
  return std::max(std::abs(v) * 0x1p-11, 0x1p-25);
}

void Expect(const Case& c, const RowStore& store, const char* what) {
  for (uint32_t r = 0; r < c.n_rows(); ++r) {
    const float* const row = &c.rows[size_t{r} * c.dim];
    for (uint32_t i = 2 * c.n_pairs; i < c.dim; ++i) {
      cr_assert(Element(store, r, i) == row[i], "%s: element %u moved", what,
                i);
    }
    for (uint32_t f = 0; f < c.n_pairs; ++f) {
      // The product has 31 + 24 bits, so it is exact.
      const long double angle =
          static_cast<long double>(c.offsets[r]) * c.inv_freq[f];
      const auto cosine = static_cast<double>(std::cos(angle));
      const auto sine = static_cast<double>(std::sin(angle));
      const double re = row[c.First(f)], im = row[c.Second(f)];
      const double expected[] = {re * cosine - im * sine,
                                 re * sine + im * cosine};
      const uint32_t at[] = {c.First(f), c.Second(f)};
      for (int k = 0; k < 2; ++k) {
        // Cosines and sines err by 1.2e-7 and three roundings.
        const double bound = (std::abs(re) + std::abs(im)) * 2e-7 * 1.5 +
                             StoredBound(c.dtype, expected[k]);
        const double v = Element(store, r, at[k]);
        cr_assert(std::abs(v - expected[k]) <= bound,
                  "%s, %u pairs, dtype %d: pair %u turned by %d is %.9g, not "
                  "%.9g",
                  what, c.n_pairs, static_cast<int>(c.dtype), f, c.offsets[r],
                  v, expected[k]);
      }
    }
  }
}

TestSuite(rotate_rows);

Test(rotate_rows, matches_long_double_in_every_layout) {
  Random random(TestSeed("rotate_rows/matches_long_double"));
  for (DType dtype : kDTypes) {
    for (uint32_t n_pairs : kPairs) {
      for (const RowLayout& layout : EveryLayout(dtype)) {
        const Case c = Draw(dtype, n_pairs, random.Below(2) == 0, random);
        ForEachTarget([&](SimdTarget simd) {
          const RowStore store(c.rows, c.dim, layout);
          Rotate(simd, c, c.offsets, store);
          Expect(c, store, simd.name);
        });
      }
    }
  }
}

// Only elements that rotate are written, and not those rotated by 0.
Test(rotate_rows, leaves_other_bytes_alone) {
  Random random(TestSeed("rotate_rows/leaves_other_bytes_alone"));
  for (DType dtype : kDTypes) {
    for (const RowLayout& layout : EveryLayout(dtype)) {
      Case c = Draw(dtype, 9, random.Below(2) == 0, random);
      c.dim += 3;
      c.rows.resize(size_t{c.dim} * c.n_rows(), 1.5f);
      ForEachTarget([&](SimdTarget simd) {
        const RowStore before(c.rows, c.dim, layout);
        const RowStore store(c.rows, c.dim, layout);
        const std::vector<int32_t> none(c.n_rows());
        Rotate(simd, c, none, store);
        cr_assert(std::ranges::equal(store.bytes(), before.bytes()), "%s",
                  layout.name);
        Rotate(simd, c, c.offsets, store);
        // After restoring the elements that rotate, all bytes are as before.
        for (uint32_t r = 0; r < c.n_rows(); ++r) {
          for (uint32_t i = 0; i < 2 * c.n_pairs; ++i) {
            const auto offset_of = [&](const RowStore& s) {
              return const_cast<uint8_t*>(s.source().Row(r)) +
                     s.source().Element(i);
            };
            std::memcpy(offset_of(store), offset_of(before),
                        static_cast<size_t>(ElementBytes(dtype)));
          }
        }
        cr_assert(std::ranges::equal(store.bytes(), before.bytes()),
                  "%s: bytes beside the pairs were written", layout.name);
      });
    }
  }
}

Test(rotate_rows, turns_by_a_and_b_as_by_their_sum) {
  Random random(TestSeed("rotate_rows/turns_by_a_and_b"));
  for (uint32_t n_pairs : kPairs) {
    Case c = Draw(DType::kF32, n_pairs, random.Below(2) == 0, random);
    std::vector<int32_t> a, b;
    for (int32_t& offset : c.offsets) {
      offset /= 2;
      a.push_back(static_cast<int32_t>(random.Below(1u << 30)));
      b.push_back(offset - a.back());
    }
    ForEachTarget([&](SimdTarget simd) {
      const RowStore in_two(c.rows, c.dim, {}), in_one(c.rows, c.dim, {});
      Rotate(simd, c, a, in_two);
      Rotate(simd, c, b, in_two);
      Rotate(simd, c, c.offsets, in_one);
      for (uint32_t r = 0; r < c.n_rows(); ++r) {
        for (uint32_t f = 0; f < c.n_pairs; ++f) {
          for (uint32_t i : {c.First(f), c.Second(f)}) {
            const double size = std::abs(Element(in_one, r, c.First(f))) +
                                std::abs(Element(in_one, r, c.Second(f)));
            const double v = Element(in_two, r, i);
            const double one = Element(in_one, r, i);
            cr_assert(std::abs(v - one) <= 9e-7 * size, "%.9g, not %.9g", v,
                      one);
          }
        }
      }
    });
  }
}

// Rotating from slots equals rotating by the difference, from any row on.
Test(rotate_rows, from_slots_is_by_the_difference) {
  Random random(TestSeed("rotate_rows/from_slots"));
  for (DType dtype : kDTypes) {
    Case c = Draw(dtype, 8, random.Below(2) == 0, random);
    constexpr uint32_t kFirst = 3;
    std::vector<int32_t> slots, differences;
    for (uint32_t r = kFirst; r < c.n_rows(); ++r) {
      slots.push_back(static_cast<int32_t>(r + random.Below(3) * 70));
      differences.push_back(static_cast<int32_t>(r) - slots.back());
    }
    const std::vector<uint64_t> turns = Turns(c);
    ForEachTarget([&](SimdTarget simd) {
      const RowStore by_slots(c.rows, c.dim, {}),
          by_difference(c.rows, c.dim, {});
      const uint32_t n = c.n_rows() - kFirst;
      RotateRowsInPlace(
          simd, {&by_slots.source(), 1, kFirst, n, slots.data(), turns.data(),
                 c.n_pairs, c.is_interleaved, true});
      RotateRowsInPlace(
          simd, {&by_difference.source(), 1, kFirst, n, differences.data(),
                 turns.data(), c.n_pairs, c.is_interleaved, false});
      cr_assert(std::ranges::equal(by_slots.bytes(), by_difference.bytes()));
    });
  }
}

Test(rotate_rows, is_the_same_on_every_target_with_fused_arithmetic) {
  Random random(TestSeed("rotate_rows/is_the_same"));
  for (DType dtype : kDTypes) {
    for (uint32_t n_pairs : kPairs) {
      const Case c = Draw(dtype, n_pairs, random.Below(2) == 0, random);
      std::vector<uint8_t> first;
      ForEachTarget([&](SimdTarget simd) {
        if (!HasFusedArithmetic(simd)) return;
        RowLayout packed;
        packed.dtype = dtype;
        const RowStore store(c.rows, c.dim, packed);
        Rotate(simd, c, c.offsets, store);
        const std::vector<uint8_t> bytes(store.bytes().begin(),
                                         store.bytes().end());
        if (first.empty()) first = bytes;
        cr_assert(bytes == first, "%s, %u pairs", simd.name, n_pairs);
      });
    }
  }
}

Test(rotate_rows, spreads_what_is_not_finite_over_its_pair_alone) {
  Random random(TestSeed("rotate_rows/spreads"));
  for (bool is_interleaved : {false, true}) {
    Case c = Draw(DType::kF32, 17, is_interleaved, random);
    std::fill(c.offsets.begin(), c.offsets.end(), 5);
    c.rows[c.First(3)] = std::numeric_limits<float>::quiet_NaN();
    c.rows[c.Second(8)] = std::numeric_limits<float>::infinity();
    ForEachTarget([&](SimdTarget simd) {
      const RowStore store(c.rows, c.dim, {});
      Rotate(simd, c, c.offsets, store);
      for (uint32_t f = 0; f < c.n_pairs; ++f) {
        const bool is_finite = std::isfinite(Element(store, 0, c.First(f))) &&
                               std::isfinite(Element(store, 0, c.Second(f)));
        cr_assert(is_finite == (f != 3 && f != 8), "pair %u", f);
      }
    });
  }
}

// Frequencies as fractions of a full turn, against long double.
Test(rotate_rows, turns_are_exact_to_the_last_bit_or_two) {
  Random random(TestSeed("rotate_rows/turns_are_exact"));
  const long double pi = std::acos(-1.0L);
  std::vector<float> all = {0.0f, 1.0f, 0.5f, 65536.0f, 0x1p-149f, 0x1p-70f};
  for (int i = 0; i < 2000; ++i) {
    all.push_back(std::ldexp(
        0.5f + 0.5f * static_cast<float>(random.Below(1u << 23)) * 0x1p-23f,
        17 - static_cast<int>(random.Below(80))));
  }
  for (float w : all) {
    const long double turns = static_cast<long double>(w) / (2.0L * pi);
    const long double part = turns - std::floor(turns);
    const auto found = static_cast<long double>(TurnsOf(w)) * 0x1p-64L;
    const long double off = std::abs(found - part);
    // The bound includes long double's own error, which has 64 bits.
    const long double bound = 0x1p-64L + turns * 0x1p-62L;
    cr_assert(std::min(off, 1.0L - off) <= bound, "%a", static_cast<double>(w));
    cr_assert(TurnsOf(-w) + TurnsOf(w) == 0, "%a", static_cast<double>(w));
  }
}

}  // namespace
}  // namespace kvevict
