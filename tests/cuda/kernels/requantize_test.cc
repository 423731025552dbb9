// Rows of any dtype stored in any other, byte by byte as in core/kernels. Built for
// all dtypes, or with KV_DTYPES 0 for those that are not quantized.
#include "cuda/kernels/requantize.cu"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/kernels/requantize.h"
#include "core/view/view.h"
#include "cuda/row_layout.h"
#include "tests/cuda/kernels/launch.h"
#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"

namespace kvevict {
namespace {

const std::vector<DType> kScored = [] {
  std::vector<DType> scored;
  for (const DTypeInfo& info : kDTypes) {
    if (info.can_score) scored.push_back(info.dtype);
  }
  return scored;
}();
constexpr uint32_t kBlock = 4;  // tokens

// Keys of a dtype in one of several layouts, with their scales.
struct Cache {
  Cache(DType dtype, uint32_t n_heads, uint32_t dim, uint32_t n_tokens,
        Random& random) {
    const DTypeInfo& info = InfoOf(dtype);
    view.n_kv_heads = n_heads;
    const uint32_t kind = random.Below(3);
    if (kind == 2) {
      const uint32_t n = n_tokens / kBlock + 1;
      for (uint32_t b = 0; b < n; ++b) {
        table.push_back(static_cast<int32_t>(n - 1 - b));
      }
      view.block_size = kBlock;
      view.block_table = table.data();
      view.block_table_len = n;
    }
    const auto lay = [&](kvevict_plane* plane, DType of, uint32_t n_elements) {
      plane->dtype = static_cast<kvevict_dtype>(of);
      plane->head_dim = n_elements;
      auto row = static_cast<int64_t>(PackedBytes(of, n_elements));
      const bool apart = ElementBytes(of) != 0 && random.Below(4) == 0;
      if (apart) {
        plane->element_stride_bytes = 3 * ElementBytes(of);
        row *= 3;
      }
      const int64_t n_rows = kind == 2 ? kBlock : n_tokens;
      const bool by_heads = random.Below(2) == 0;
      plane->token_stride_bytes = by_heads ? row : row * n_heads;
      plane->head_stride_bytes = by_heads ? row * n_rows : row;
      if (kind == 2) plane->block_stride_bytes = row * n_heads * n_rows;
      begins.push_back(memory.size());
      planes.push_back(plane);
      const size_t n_blocks = kind == 2 ? table.size() : 1;
      memory.resize(memory.size() + 16 +
                    n_blocks * static_cast<size_t>(row * n_heads * n_rows) /
                        16 * 16 +
                    16);
    };
    lay(&view.k, dtype, dim);
    stays = info.scale != Scale::kNone && random.Below(4) == 0;
    const bool has_scale = info.scale == Scale::kNeeded ||
                           (info.scale == Scale::kOptional && random.Below(2));
    const bool has_minimum =
        info.takes_minimum && (dtype != DType::kI8 || random.Below(2) == 0);
    const auto number = [&](kvevict_role role) {
      kvevict_plane* const plane = &companions[view.n_companions++];
      lay(plane, static_cast<DType>(1 + random.Below(3)), 1);
      plane->role = role;
      plane->element_stride_bytes = 0;
      if (!stays) return;
      plane->token_stride_bytes = plane->block_stride_bytes = 0;
    };
    if (has_scale) number(KVEVICT_ROLE_KEY_SCALE);
    if (has_scale && has_minimum) number(KVEVICT_ROLE_KEY_MINIMUM);
    view.companions = companions;
    // None is NaN, whose bits do not matter.
    const bool halves = info.scale != Scale::kNeeded;
    for (uint8_t& byte : memory) {
      byte = static_cast<uint8_t>(random.Next() & (halves ? 0xBF : 0xFF));
    }
    Place();
  }
  Cache(const Cache& other)
      : view(other.view),
        memory(other.memory),
        table(other.table),
        begins(other.begins),
        stays(other.stays) {
    std::copy_n(other.companions, 2, companions);
    planes.push_back(&view.k);
    for (uint32_t i = 0; i < view.n_companions; ++i) {
      planes.push_back(&companions[i]);
    }
    view.companions = companions;
    view.block_table = table.empty() ? nullptr : table.data();
    Place();
  }
  void Place() {
    for (size_t i = 0; i < planes.size(); ++i) {
      planes[i]->data = Address(memory.data() + begins[i]);
    }
  }
  // Sets a scale of the cache, for rows that stay as they are.
  void SetNumber(uint32_t i, uint32_t head, uint32_t token, float v) {
    const RowSource rows = HeadRows(view, view.k, head);
    const RowNumbers& of = companions[i].role == KVEVICT_ROLE_KEY_SCALE
                               ? rows.scale
                               : rows.minimum;
    auto* const at = const_cast<uint8_t*>(rows.Number(of, token));
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof(bits));
    if (of.dtype == DType::kF16) {  // a power of two
      bits = ((bits >> 23 & 255) - 112) << 10 | (bits >> 16 & 0x8000u);
    } else if (of.dtype == DType::kBF16) {
      bits >>= 16;
    }
    std::memcpy(at, &bits, ElementBytes(of.dtype));
  }

  kvevict_view view = KVEVICT_VIEW_INIT;
  kvevict_plane companions[2] = {};
  std::vector<uint8_t> memory;
  std::vector<int32_t> table;
  std::vector<size_t> begins;
  std::vector<kvevict_plane*> planes;
  bool stays = false;
};

// Rows of f32 with everything that is not finite, of one size, or far apart.
float DrawElement(Random& random, uint32_t kind) {
  const float v = random.Gaussian();
  switch (kind) {
    case 0:
      return random.Below(20) == 0 ? kNan : v;
    case 1:
      return random.Below(20) == 0 ? -kInfinity : v;
    case 2:
      return 2.5f;
    case 3:
      return random.Below(2) == 0 ? 0.0f : -0.0f;
    case 4:
      return std::ldexp(v, static_cast<int>(random.Below(200)) - 100);
    case 5:
      return static_cast<float>(random.Below(511)) - 255.0f;
    case 6:
      return 1000.0f + v;
    default:
      return v;
  }
}

void Fill(Cache& cache, DType dtype, uint32_t dim, uint32_t n_tokens,
          Random& random) {
  for (uint32_t h = 0; h < cache.view.n_kv_heads; ++h) {
    const RowSource rows = HeadRows(cache.view, cache.view.k, h);
    for (uint32_t t = 0; t < n_tokens; ++t) {
      for (uint32_t i = 0; i < cache.view.n_companions; ++i) {
        const int size = -static_cast<int>(random.Below(8));
        cache.SetNumber(i, h, t, std::ldexp(i == 0 ? 1.0f : -1.0f, size));
      }
      const uint32_t kind = random.Below(9);
      for (uint32_t e = 0; e < dim && dtype == DType::kF32; ++e) {
        const float v = DrawElement(random, kind);
        std::memcpy(const_cast<uint8_t*>(rows.Row(t)) + rows.Element(e), &v,
                    sizeof(v));
      }
    }
  }
}

void Check(DType from_dtype, DType to_dtype, Random& random, uint32_t turn) {
  constexpr uint32_t kDims[] = {32, 64, 96, 128, 288};
  const uint32_t dim = kDims[random.Below(5)];
  const uint32_t n_heads = 1 + random.Below(2);
  const uint32_t n_tokens = 1 + random.Below(23);
  const uint32_t first_slot = random.Below(5);
  Cache from(from_dtype, n_heads, dim, n_tokens, random);
  Fill(from, from_dtype, dim, n_tokens, random);
  Cache to(to_dtype, n_heads, dim, first_slot + n_tokens, random);
  if (to.stays) {
    Fill(to, to_dtype, 0, 1, random);
  }
  Cache expected(to);
  const bool all = random.Below(3) == 0;
  std::vector<int32_t> keep;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    if (all || random.Below(2) == 0) keep.push_back(static_cast<int32_t>(t));
  }
  const auto n_keep = static_cast<uint32_t>(keep.size());
  for (uint32_t h = 0; h < n_heads; ++h) {
    RequantizeRowsArgs args;
    args.from[0] = HeadRows(from.view, from.view.k, h);
    args.to[0] = HeadRows(expected.view, expected.view.k, h);
    args.keep = keep.data();
    args.end = n_keep;
    args.first_row = first_slot;
    RequantizeRows(SimdTargetAt(0), args);
  }
  cuda::RequantizeParams p = {};
  p.from = cuda::RowsOf(from.view, from.view.k);
  p.to = cuda::RowsOf(to.view, to.view.k);
  p.n_lists = 1;
  const auto base = [](const kvevict_view& view, bool minimum) {
    return cuda::NumbersOf(view, view.k, minimum).base;
  };
  p.planes[0] = {cuda::BaseOf(from.view.k),
                 cuda::BaseOf(to.view.k),
                 Address(from.table.data()),
                 Address(to.table.data()),
                 all ? 0 : Address(keep.data()),
                 base(from.view, false),
                 base(from.view, true),
                 base(to.view, false),
                 base(to.view, true),
                 0,
                 0,
                 n_keep,
                 0,
                 first_slot,
                 0};
  Run(cuda::requantize_rows, {n_keep / cuda::kRequantizeRows + 1, n_heads, 1},
      cuda::kRequantizeThreads, p, Schedule(turn));
  for (size_t i = 0; i < to.memory.size(); ++i) {
    if (to.memory[i] == expected.memory[i]) continue;
    Fail("turn %u, %s to %s, dim %u: byte %zu is %02x, not the CPU's %02x",
         turn, InfoOf(from_dtype).name, InfoOf(to_dtype).name, dim, i,
         to.memory[i], expected.memory[i]);
  }
}

void TestRequantizing() {
  if (!HasFusedArithmetic(SimdTargetAt(0))) return;
  Random random(TestSeed("requantize"));
  uint32_t turn = 0;
  for (const DType from : kScored) {
    for (const DType to : kScored) {
      const uint32_t bits =
          1u << static_cast<int>(from) | 1u << static_cast<int>(to);
      if ((bits & ~cuda::kDTypesOfRows) != 0) continue;
      for (uint32_t i = 0; i < (from == DType::kF32 ? 12u : 3u); ++i) {
        Check(from, to, random, turn++);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestRequantizing(); }
