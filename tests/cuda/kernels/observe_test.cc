// f32 query rows are rounded to the ring's elements. Rows that are copied are compared
// with the CPU's by the library's calls.
#include "cuda/kernels/observe.cu"

#include "tests/cuda/kernels/launch.h"

namespace kvevict {
namespace {

// Elements within heads within rows, or heads outermost, with gaps everywhere, and rows
// or elements from the end. Returns the bytes of the source, `first` the offset of its
// first element.
size_t DrawSource(cuda::ObserveParams* p, int64_t* first, Random& random) {
  p->n_rows = 1 + random.Below(5);
  p->n_heads = 1 + random.Below(5);
  p->n_elements =
      random.Below(2) == 0 ? 8u << random.Below(4) : 1 + random.Below(70);
  const auto gap = [&] {
    return random.Below(3) == 0 ? int64_t{4} * random.Below(5) : 0;
  };
  p->from_element_stride = random.Below(4) == 0 ? 4 + gap() : 4;
  const int64_t run = p->n_elements * p->from_element_stride;
  int64_t size;
  if (random.Below(3) == 0) {
    p->from_row_stride = run + gap();
    p->from_head_stride = p->n_rows * p->from_row_stride + gap();
    size = p->n_heads * p->from_head_stride;
  } else {
    p->from_head_stride = run + gap();
    p->from_row_stride = p->n_heads * p->from_head_stride + gap();
    size = p->n_rows * p->from_row_stride;
  }
  *first = 0;
  if (random.Below(4) == 0) {
    *first += (p->n_rows - 1) * p->from_row_stride;
    p->from_row_stride = -p->from_row_stride;
  }
  if (random.Below(8) == 0) {
    *first += (p->n_elements - 1) * p->from_element_stride;
    p->from_element_stride = -p->from_element_stride;
  }
  return static_cast<size_t>(size);
}

// An element and what it becomes: just off the middle between two, or in the middle,
// which goes to the even one. NaN and infinity stay what they are.
void DrawElement(uint32_t dtype, Random& random, uint32_t* from, uint16_t* to) {
  const bool is_f16 = dtype == cuda::kF16;
  if (random.Below(20) == 0) {
    const bool is_nan = random.Below(2) == 0;
    *from = is_nan ? 0x7fc00000 : 0x7f800000;
    *to = is_nan ? (is_f16 ? 0x7e00 : 0x7fc0) : (is_f16 ? 0x7c00 : 0x7f80);
    return;
  }
  const uint32_t n_bits = is_f16 ? 13 : 16;  // that are cut off
  const uint32_t sign = random.Below(2) << 31;
  // Exponents of numbers that stay normal.
  const uint32_t size =
      (120 + random.Below(15)) << 23 |
      static_cast<uint32_t>(random.Next() & 0x7fffff) >> n_bits << n_bits;
  const uint32_t half = 1u << (n_bits - 1);
  const bool is_half = random.Below(3) == 0;
  const uint32_t up = is_half ? size >> n_bits & 1 : random.Below(2);
  *from = sign | size | (is_half ? half : up != 0 ? half + 1 : half - 1);
  const uint32_t nearest = (size >> n_bits) + up;
  *to = static_cast<uint16_t>(sign >> 16 |
                              (is_f16 ? nearest - (112u << 10) : nearest));
}

void Check(uint32_t dtype, Random& random, uint32_t turn) {
  cuda::ObserveParams p = {};
  int64_t first = 0;
  std::vector<uint32_t> from(DrawSource(&p, &first, random) / 4 + 1);
  std::vector<uint16_t> rounded(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    DrawElement(dtype, random, &from[i], &rounded[i]);
  }
  p.ring_rows = p.n_rows + random.Below(4);
  p.first_position = random.Below(1000);
  std::vector<uint16_t> ring(size_t{p.ring_rows} * p.n_heads * p.n_elements,
                             0xA5A5);
  std::vector<uint16_t> expected = ring;
  for (uint32_t r = 0; r < p.n_rows; ++r) {
    const uint32_t to = (p.first_position + r) % p.ring_rows;
    for (uint32_t h = 0; h < p.n_heads; ++h) {
      for (uint32_t e = 0; e < p.n_elements; ++e) {
        const int64_t byte = first + r * p.from_row_stride +
                             h * p.from_head_stride + e * p.from_element_stride;
        expected[(to * p.n_heads + h) * p.n_elements + e] =
            rounded[static_cast<size_t>(byte / 4)];
      }
    }
  }
  p.from[0] = Address(from.data()) + static_cast<uint64_t>(first);
  p.rings = Address(ring.data());
  p.element_bytes = p.unit = 2;
  p.rounds_to = dtype;
  p.n_layers = 1;
  Run(cuda::observe_rows, {cuda::ObserveBlocks(p), p.n_rows, 1},
      cuda::kObserveThreads, p, Schedule(turn));
  ExpectSame(ring, expected, "rounded", turn);
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("observe"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    kvevict::Check(turn % 2 == 0 ? kvevict::cuda::kF16 : kvevict::cuda::kBF16,
                   random, turn);
  }
}
