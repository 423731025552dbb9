// Observed query rows are copied as byte by byte.
#include "cuda/kernels/observe.cu"

#include <cstring>

#include "tests/cuda/kernels/launch.h"

namespace kvevict {
namespace {

struct Source {
  uint32_t n_rows;
  uint32_t n_heads;
  uint32_t n_elements;
  uint32_t element_bytes;
  int64_t row_stride;
  int64_t head_stride;
  int64_t element_stride;
  size_t bytes;  // from the lowest address on
  size_t first;  // the offset of row 0, head 0, element 0
};

// Elements lie within heads within rows, or heads are outermost, with gaps
// everywhere, and rows or elements from the end.
Source RandomSource(Random& random) {
  Source s = {};
  s.n_rows = 1 + random.Below(5);
  s.n_heads = 1 + random.Below(5);
  s.n_elements =
      random.Below(2) == 0 ? 8u << random.Below(4) : 1 + random.Below(70);
  s.element_bytes = 1u << random.Below(3);
  const auto gap = [&] {
    return random.Below(3) == 0 ? int64_t{random.Below(20)} : 0;
  };
  s.element_stride = s.element_bytes;
  if (random.Below(4) == 0) s.element_stride += gap();
  const int64_t run = s.n_elements * s.element_stride;
  const bool rows_inside = random.Below(3) == 0;
  int64_t size;
  if (rows_inside) {
    s.row_stride = run + gap();
    s.head_stride = s.n_rows * s.row_stride + gap();
    size = s.n_heads * s.head_stride;
  } else {
    s.head_stride = run + gap();
    s.row_stride = s.n_heads * s.head_stride + gap();
    size = s.n_rows * s.row_stride;
  }
  if (random.Below(4) == 0) {
    s.first += static_cast<size_t>((s.n_rows - 1) * s.row_stride);
    s.row_stride = -s.row_stride;
  }
  if (random.Below(8) == 0) {
    s.first += static_cast<size_t>((s.n_elements - 1) * s.element_stride);
    s.element_stride = -s.element_stride;
  }
  s.bytes = static_cast<size_t>(size);
  return s;
}

// Copies a source whose bytes begin at `from` to a ring of window rows.
void ObserveByBytes(const Source& s, const uint8_t* from, uint32_t position,
                    uint32_t window, uint8_t* ring) {
  const size_t row_bytes = size_t{s.n_heads} * s.n_elements * s.element_bytes;
  for (uint32_t r = 0; r < s.n_rows; ++r) {
    uint8_t* to = ring + (position + r) % window * row_bytes;
    for (uint32_t h = 0; h < s.n_heads; ++h) {
      for (uint32_t e = 0; e < s.n_elements; ++e) {
        for (uint32_t b = 0; b < s.element_bytes; ++b) {
          *to++ = from[static_cast<int64_t>(s.first) + r * s.row_stride +
                       h * s.head_stride + e * s.element_stride + b];
        }
      }
    }
  }
}

// Returns the unit that was used.
uint32_t ObserveAndCompare(Random& random, uint32_t turn) {
  const Source s = RandomSource(random);
  const uint32_t n_layers = 1 + random.Below(3);
  const uint32_t window = s.n_rows + random.Below(4);
  const uint32_t position = random.Below(1000);
  const bool from_memory = random.Below(2) == 0;
  const size_t ring_offset = random.Below(8) == 0 ? random.Below(16) : 0;
  const size_t ring_bytes =
      size_t{window} * s.n_heads * s.n_elements * s.element_bytes;

  std::vector<uint8_t> rings(ring_offset + n_layers * ring_bytes, 0xA5);
  std::vector<uint8_t> expected = rings;
  std::vector<uint8_t> from[3];
  cuda::ObserveParams p = {};
  for (uint32_t l = 0; l < n_layers; ++l) {
    const size_t from_offset = random.Below(6) == 0 ? random.Below(16) : 0;
    from[l].resize(from_offset + s.bytes);
    for (uint8_t& b : from[l]) b = static_cast<uint8_t>(random.Next());
    p.from[l] = Address(from[l].data() + from_offset + s.first);
    ObserveByBytes(s, from[l].data() + from_offset, position, window,
                   expected.data() + ring_offset + l * ring_bytes);
  }

  const uint32_t in_memory = position / 3;
  p.rings = Address(rings.data() + ring_offset);
  p.position_address = from_memory ? Address(&in_memory) : 0;
  p.from_row_stride = s.row_stride;
  p.from_head_stride = s.head_stride;
  p.from_element_stride = s.element_stride;
  p.first_position = from_memory ? position - in_memory : position;
  p.n_rows = s.n_rows;
  p.n_heads = s.n_heads;
  p.n_elements = s.n_elements;
  p.element_bytes = s.element_bytes;
  p.ring_rows = window;
  p.n_layers = n_layers;
  p.unit = cuda::ObserveUnit(p);
  Run(cuda::observe_rows, {cuda::ObserveBlocks(p), s.n_rows, n_layers},
      cuda::kObserveThreads, p, Schedule(turn));
  ExpectSame(rings, expected, "observe", turn);
  return p.unit;
}

// f32 in any strides, halfway between elements of the ring and beside, NaN and
// infinity.
void ObserveAndRound(uint32_t dtype, Random& random, uint32_t turn) {
  Source s = RandomSource(random);
  while (s.element_bytes != 4 || s.row_stride % 4 != 0 ||
         s.head_stride % 4 != 0 || s.element_stride % 4 != 0) {
    s = RandomSource(random);
  }
  // The bits that are cut off, and the exponents of numbers that stay normal.
  const uint32_t n_bits = dtype == cuda::kF16 ? 13 : 16;
  std::vector<uint32_t> from(s.bytes / 4 + 1);
  std::vector<uint16_t> rounded(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const uint32_t sign = random.Below(2) << 31;
    const uint32_t size =
        (120 + random.Below(15)) << 23 |
        static_cast<uint32_t>(random.Next() & 0x7fffff) >> n_bits << n_bits;
    const uint32_t half = 1u << (n_bits - 1);
    const uint32_t odd = size >> n_bits & 1;
    const uint32_t up = random.Below(2);
    // Just off the middle, or in the middle, which goes to the even one.
    const uint32_t kind = random.Below(3);
    const uint32_t rest = kind == 0 ? half : up != 0 ? half + 1 : half - 1;
    const uint32_t nearest = (size >> n_bits) + (kind == 0 ? odd : up);
    from[i] = sign | size | rest;
    rounded[i] = static_cast<uint16_t>(
        dtype == cuda::kBF16 ? sign >> 16 | nearest
                             : sign >> 16 | (nearest - (112u << 10)));
    if (random.Below(20) == 0) {
      const bool is_nan = random.Below(2) == 0;
      from[i] = is_nan ? 0x7fc00000 : 0x7f800000;
      const uint16_t infinity = dtype == cuda::kF16 ? 0x7c00 : 0x7f80;
      const uint16_t nan = dtype == cuda::kF16 ? 0x7e00 : 0x7fc0;
      rounded[i] = is_nan ? nan : infinity;
    }
  }
  const uint32_t window = s.n_rows + random.Below(4);
  const uint32_t position = random.Below(1000);
  std::vector<uint16_t> ring(size_t{window} * s.n_heads * s.n_elements, 0xA5A5);
  std::vector<uint16_t> expected = ring;
  for (uint32_t r = 0; r < s.n_rows; ++r) {
    for (uint32_t h = 0; h < s.n_heads; ++h) {
      for (uint32_t e = 0; e < s.n_elements; ++e) {
        const int64_t byte = static_cast<int64_t>(s.first) + r * s.row_stride +
                             h * s.head_stride + e * s.element_stride;
        expected[((position + r) % window * s.n_heads + h) * s.n_elements + e] =
            rounded[static_cast<size_t>(byte / 4)];
      }
    }
  }
  cuda::ObserveParams p = {};
  p.from[0] = Address(from.data()) + s.first;
  p.rings = Address(ring.data());
  p.from_row_stride = s.row_stride;
  p.from_head_stride = s.head_stride;
  p.from_element_stride = s.element_stride;
  p.first_position = position;
  p.n_rows = s.n_rows;
  p.n_heads = s.n_heads;
  p.n_elements = s.n_elements;
  p.element_bytes = p.unit = 2;
  p.rounds_to = dtype;
  p.ring_rows = window;
  p.n_layers = 1;
  Run(cuda::observe_rows, {cuda::ObserveBlocks(p), s.n_rows, 1},
      cuda::kObserveThreads, p, Schedule(turn));
  ExpectSame(ring, expected, "rounded", turn);
}

void TestObserve() {
  Random random(TestSeed("observe"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    ObserveAndRound(turn % 2 == 0 ? cuda::kF16 : cuda::kBF16, random, turn);
  }
  uint32_t units = 0;
  for (uint32_t turn = 0; turn < 300; ++turn) {
    units |= ObserveAndCompare(random, turn);
  }
  if (units != 31) Fail("units of 1 to 16 bytes were to be used: %u", units);
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestObserve(); }
