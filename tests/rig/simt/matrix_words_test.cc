// LoadMatrix4, LoadTransposed4 and MultiplyAccumulate16816: which lane holds which element. The
// places below come from the tables in the PTX manual, one by one.
#include <cstdint>
#include <vector>

#include "cuda/kernels/device.cuh"
#include "tests/rig/simt/run.h"
#include "tests/thread/check.h"

namespace kvevict::cuda {

struct MatrixParams {
  uint64_t a;    // u32 [32 lanes, 4]
  uint64_t b;    // u32 [32 lanes, 2]
  uint64_t c;    // f32 [32 lanes, 4], in and out
  uint64_t out;  // u32 [32 lanes, 4]
};

template <int kDType>
KV_DEVICE void Multiply(const MatrixParams& p) {
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
  const uint64_t lane = threadIdx.x;
  for (int i = 0; i < 4; ++i) {
    a[i] = LoadGlobal<uint32_t>(p.a + 16 * lane + 4 * i);
    c[i] = LoadGlobal<float>(p.c + 16 * lane + 4 * i);
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = LoadGlobal<uint32_t>(p.b + 8 * lane + 4 * i);
  }
  MultiplyAccumulate16816<kDType>(c, a, b);
  for (int i = 0; i < 4; ++i) StoreGlobal(p.c + 16 * lane + 4 * i, c[i]);
}

KV_KERNEL(multiply_f16, MatrixParams, 32, 1) { Multiply<kF16>(p); }
KV_KERNEL(multiply_bf16, MatrixParams, 32, 1) { Multiply<kBF16>(p); }

// Half h of row r of matrix m is 1000 m + 10 r + h.
template <class Load>
KV_DEVICE void StoreLoaded(const MatrixParams& p, const Load& load) {
  KV_SHARED(Bytes16, rows, 32);
  const unsigned lane = threadIdx.x;
  for (unsigned w = 0; w < 4; ++w) {
    const unsigned low = 1000 * (lane / 8) + 10 * (lane % 8) + 2 * w;
    rows[31 - lane].x[w] = (low + 1) << 16 | low;
  }
  BlockSync();
  uint32_t r[4];
  load(r, &rows[31 - lane]);
  for (unsigned m = 0; m < 4; ++m) {
    StoreGlobal(p.out + 16 * lane + 4 * m, r[m]);
  }
}
KV_KERNEL(load_matrix, MatrixParams, 32, 1) {
  StoreLoaded(p, [](auto& r, const Bytes16* row) { LoadMatrix4(r, row); });
}
KV_KERNEL(load_transposed, MatrixParams, 32, 1) {
  StoreLoaded(p, [](auto& r, const Bytes16* row) { LoadTransposed4(r, row); });
}

}  // namespace kvevict::cuda

namespace {

using kvevict::cuda::MatrixParams;
using kvevict::simt::AddressOf;
using kvevict::simt::RunAll;

struct Fragments {
  std::vector<uint32_t> a = std::vector<uint32_t>(128);
  std::vector<uint32_t> b = std::vector<uint32_t>(64);
  std::vector<float> c = std::vector<float>(128);

  void Multiply(void (*kernel)(const MatrixParams&)) {
    const std::vector<float> before = c;
    RunAll([&](auto options) {
      c = before;
      return kvevict::simt::Launch(
          kernel, {}, {32}, 0,
          MatrixParams{AddressOf(a), AddressOf(b), AddressOf(c), 0}, options);
    });
  }
};

// An element: its lane, the half of the lane's registers, its row and column.
struct Place {
  unsigned lane;
  unsigned half;
  unsigned row;
  unsigned col;
};

constexpr Place kPlacesOfA[] = {
    {0, 0, 0, 0},   {0, 1, 0, 1},    {1, 0, 0, 2},    {3, 1, 0, 7},
    {4, 0, 1, 0},   {31, 1, 7, 7},   {0, 2, 8, 0},    {5, 3, 9, 3},
    {31, 3, 15, 7}, {0, 4, 0, 8},    {2, 5, 0, 13},   {30, 4, 7, 12},
    {0, 6, 8, 8},   {13, 6, 11, 10}, {31, 7, 15, 15}, {17, 5, 4, 11},
};
constexpr Place kPlacesOfB[] = {
    {0, 0, 0, 0},   {0, 1, 1, 0},   {1, 0, 2, 0},  {3, 1, 7, 0},
    {4, 0, 0, 1},   {31, 1, 7, 7},  {0, 2, 8, 0},  {2, 3, 13, 0},
    {31, 3, 15, 7}, {18, 2, 12, 4}, {29, 0, 2, 7}, {14, 3, 13, 3},
};
constexpr Place kPlacesOfC[] = {
    {0, 0, 0, 0}, {0, 1, 0, 1}, {3, 1, 0, 7},   {4, 0, 1, 0},   {31, 1, 7, 7},
    {0, 2, 8, 0}, {5, 3, 9, 3}, {31, 3, 15, 7}, {18, 2, 12, 4}, {22, 1, 5, 5},
};

float At(const std::vector<float>& c, unsigned row, unsigned col) {
  // One formula suffices here: kPlacesOfC checks it.
  return c[(row % 8 * 4 + col / 2) * 4 + row / 8 * 2 + col % 2];
}

void Set(std::vector<uint32_t>& registers, unsigned per_lane,
         const Place& place, uint32_t bits) {
  registers[place.lane * per_lane + place.half / 2] |= bits
                                                       << (place.half % 2 * 16);
}

constexpr uint32_t kTwo = 0x4000;  // in both types
constexpr uint32_t kThreeF16 = 0x4200;
constexpr uint32_t kThreeBf16 = 0x4040;

void PlacesOfCAreThoseOfTheManual() {
  for (const Place& place : kPlacesOfC) {
    CHECK(place.lane * 4 + place.half ==
          (place.row % 8 * 4 + place.col / 2) * 4 + place.row / 8 * 2 +
              place.col % 2);
  }
}

// One element of A meets one of B: their product is in one place of C if they
// share k, and otherwise in none.
void OneElementMeetsOneElement() {
  for (const Place& a : kPlacesOfA) {
    for (const Place& b : kPlacesOfB) {
      Fragments f;
      Set(f.a, 4, a, kTwo);
      Set(f.b, 2, b, kThreeF16);
      f.c.assign(128, 1.0f);
      f.Multiply(kvevict::cuda::multiply_f16);
      for (unsigned row = 0; row < 16; ++row) {
        for (unsigned col = 0; col < 8; ++col) {
          const bool meet = a.col == b.row && row == a.row && col == b.col;
          CHECK(At(f.c, row, col) == (meet ? 7.0f : 1.0f));
        }
      }
    }
  }
}

// Every element of A is 2, of B 3: sums of 16 products.
void AllElementsAdd() {
  Fragments f;
  f.a.assign(128, kTwo << 16 | kTwo);
  f.b.assign(64, kThreeBf16 << 16 | kThreeBf16);
  for (unsigned i = 0; i < 128; ++i) f.c[i] = static_cast<float>(i);
  f.Multiply(kvevict::cuda::multiply_bf16);
  for (unsigned i = 0; i < 128; ++i) {
    CHECK(f.c[i] == 96.0f + static_cast<float>(i));
  }
}

void RowsOfMatricesGoToLanes() {
  std::vector<uint32_t> out(128);
  RunAll([&](auto options) {
    return kvevict::simt::Launch(kvevict::cuda::load_matrix, {}, {32}, 0,
                                 MatrixParams{0, 0, 0, AddressOf(out)},
                                 options);
  });
  const struct {
    unsigned lane, matrix, low;
  } expected[] = {
      {0, 0, 0},    {1, 0, 2},     {3, 0, 6},     {4, 0, 10},   {31, 0, 76},
      {0, 1, 1000}, {9, 1, 1022},  {31, 1, 1076}, {5, 2, 2012}, {28, 2, 2070},
      {0, 3, 3000}, {14, 3, 3034}, {31, 3, 3076},
  };
  for (const auto& e : expected) {
    CHECK(out[4 * e.lane + e.matrix] == ((e.low + 1) << 16 | e.low));
  }
}

// A lane has elements of one column, those of two rows.
void ColumnsOfMatricesGoToLanes() {
  std::vector<uint32_t> out(128);
  RunAll([&](auto options) {
    return kvevict::simt::Launch(kvevict::cuda::load_transposed, {}, {32}, 0,
                                 MatrixParams{0, 0, 0, AddressOf(out)},
                                 options);
  });
  const struct {
    unsigned lane, matrix, low;
  } expected[] = {
      {0, 0, 0},    {1, 0, 20},    {3, 0, 60},    {4, 0, 1},    {31, 0, 67},
      {0, 1, 1000}, {9, 1, 1022},  {31, 1, 1067}, {5, 2, 2021}, {28, 2, 2007},
      {0, 3, 3000}, {14, 3, 3043}, {31, 3, 3067},
  };
  for (const auto& e : expected) {
    CHECK(out[4 * e.lane + e.matrix] == ((e.low + 10) << 16 | e.low));
  }
}

}  // namespace

int main() {
  PlacesOfCAreThoseOfTheManual();
  OneElementMeetsOneElement();
  AllElementsAdd();
  RowsOfMatricesGoToLanes();
  ColumnsOfMatricesGoToLanes();
  return 0;
}
