// Attention sums after a chunk have the bits of the CPU's kernels. The sums of single
// calls, in a ring, are those of the library's calls.
#include "cuda/kernels/attention_sums.cu"

#include <algorithm>
#include <cmath>

#include "core/kernels/attention_sums.h"
#include "core/kernels/pool1d.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

constexpr uint32_t kStride = 700;  // the most slots
constexpr uint32_t kBlocks = 2;    // of 256 slots each, fewer than there are
constexpr uint32_t kUntouched = 0xA5A5A5A5u;

struct Case {
  uint32_t n_rows;   // of sums
  uint32_t n_terms;  // rows of the chunk for each
  uint32_t n_lists;
  uint32_t pool;
  Reduce reduce;
  uint32_t n_new;
  bool begins;
  bool has_table;  // other slots' counts than here
  bool only_new = false;
};

constexpr Case kCases[] = {
    {1, 1, 1, 1, Reduce::kSum, 1, false, false},
    {1, 6, 1, 7, Reduce::kSum, 1, false, true},
    {2, 3, 2, 1, Reduce::kMean, 5, false, true},
    {4, 1, 2, 3, Reduce::kMax, 40, true, false},
    {6, 2, 2, 2, Reduce::kMax, 1, true, true},
    {3, 1, 1, 600, Reduce::kMean, 17, false, false},
    {2, 1, 2, 1, Reduce::kMean, 1, false, true, true},
    {4, 1, 1, 1, Reduce::kSum, 260, false, false, true},
};

std::vector<float> SomeFloats(size_t n, Random& random) {
  std::vector<float> floats(n);
  for (float& v : floats) {
    v = random.Below(60) == 0
            ? DrawRare(random)
            : static_cast<float>(random.Below(1u << 24)) * 0x1p-24f;
  }
  return floats;
}

struct Layer {
  std::vector<float> from;
  std::vector<float> sums;
  std::vector<uint32_t> n_before;  // per list
};

// Computes a row of sums by the CPU's kernels.
void Expect(const Case& c, const float* from, uint32_t head_stride,
            uint32_t n_before, float* sums) {
  if (c.only_new) {  // as if there were no other slots
    sums += n_before;
    n_before = 0;
  }
  const uint32_t n = n_before + c.n_new;
  std::vector<float> rows(n + c.pool, -kInfinity);
  ReduceRows(SimdTargetAt(0), from, c.n_terms, head_stride, n, c.reduce,
             rows.data());
  AddForwardMax(SimdTargetAt(0), rows.data(), n, c.pool,
                c.begins ? 0 : n_before, sums);
}

void TestAddSums() {
  Random random(TestSeed("attention_sums/add"));
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    const uint32_t head_stride = kStride + 3;
    const uint32_t n_before[] = {0, 300, kStride - c.n_new};
    const uint32_t more = 4000000000u;  // wraps
    std::vector<Layer> layers;
    std::vector<uint32_t> table;
    for (const uint32_t n : n_before) {
      Layer layer;
      layer.from =
          SomeFloats(size_t{c.n_rows} * c.n_terms * head_stride, random);
      layer.sums = SomeFloats(size_t{c.n_rows} * kStride, random);
      for (uint32_t list = 0; list < c.n_lists; ++list) {
        layer.n_before.push_back(c.has_table ? n - std::min(n, 9 * list) : n);
        table.push_back(layer.n_before.back() - more);
        table.push_back(77);  // step 2
      }
      layers.push_back(layer);
    }
    cuda::AddSumsParams p = {};
    p.head_stride = head_stride;
    p.stride = kStride;
    if (c.has_table) {
      p.tokens = {Address(table.data()), 2, 0};
      p.more = more;
    }
    p.n_lists = c.n_lists;
    p.rows_per_list = c.n_rows / c.n_lists;
    p.n_terms = c.n_terms;
    p.n_new = c.n_new;
    p.pool = c.pool;
    p.only_new = c.only_new;
    p.is_max = c.reduce == Reduce::kMax;
    p.scale =
        c.reduce == Reduce::kMean ? 1.0f / static_cast<float>(c.n_terms) : 1.0f;
    std::vector<std::vector<float>> expected;
    for (size_t l = 0; l < layers.size(); ++l) {
      Layer& layer = layers[l];
      p.layers[l] = {Address(layer.from.data()),
                     Address(layer.sums.data()),
                     0,
                     c.has_table ? kUntouched : layer.n_before[0],
                     static_cast<int32_t>(2 * c.n_lists * l),
                     c.begins,
                     0};
      std::vector<float> sums = layer.sums;
      for (uint32_t row = 0; row < c.n_rows; ++row) {
        const uint32_t list = c.n_lists == 1 ? 0 : row / (c.n_rows / c.n_lists);
        Expect(c, &layer.from[size_t{row} * c.n_terms * head_stride],
               head_stride, layer.n_before[list], &sums[row * kStride]);
      }
      expected.push_back(sums);
    }
    Run(cuda::add_sums,
        {kBlocks, c.n_rows, static_cast<uint32_t>(layers.size())},
        cuda::kAddSumsThreads, p, Schedule(turn));
    for (size_t l = 0; l < layers.size(); ++l) {
      ExpectSame(layers[l].sums, expected[l], "add_sums", turn);
    }
    ++turn;
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestAddSums(); }
