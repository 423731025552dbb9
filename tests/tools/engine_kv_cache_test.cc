// Rows go where the view says, and each layer has its own length.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/tools/engine_test_util.h"
#include "tests/tools/float_bits.h"
#include "tools/engine/kv_cache.h"

namespace kvevict::tools {
namespace {

constexpr kvevict_dtype kDtypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                     KVEVICT_DTYPE_BF16};

KvShape Shape(kvevict_dtype dtype) {
  return {.n_layers = 3,
          .n_kv_heads = 2,
          .k_head_dim = 5,
          .v_head_dim = 3,
          .dtype = dtype,
          .capacity = 11};
}

// The element that a reader of the view finds.
float Element(const kvevict_plane& plane, uint32_t slot, uint32_t head,
              uint32_t e) {
  const char* at = reinterpret_cast<const char*>(plane.data) +
                   slot * plane.token_stride_bytes +
                   head * plane.head_stride_bytes + RowBytes(plane.dtype, e);
  if (plane.dtype == KVEVICT_DTYPE_F32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return plane.dtype == KVEVICT_DTYPE_F16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

float Rounded(kvevict_dtype dtype, float value) {
  if (dtype == KVEVICT_DTYPE_F16) return F16ToF32(F32ToF16(value));
  if (dtype == KVEVICT_DTYPE_BF16) return Bf16ToF32(F32ToBf16(value));
  return value;
}

// Rows are wider than the cache's and come in two steps.
Test(engine_kv_cache, append_writes_what_the_view_describes) {
  for (kvevict_dtype dtype : kDtypes) {
    KvCache cache(Shape(dtype));
    constexpr size_t kKStride = 13;
    constexpr size_t kVStride = 7;
    const std::vector<float> k = RandomFloats(11 * kKStride, 1);
    const std::vector<float> v = RandomFloats(11 * kVStride, 2);
    cache.Append(1, 4, k.data(), kKStride, v.data(), kVStride);
    cache.Append(1, 7, k.data() + 4 * kKStride, kKStride,
                 v.data() + 4 * kVStride, kVStride);
    cr_assert(cache.length(0) == 0);
    cr_assert(cache.length(1) == 11);

    const kvevict_view view = cache.View(1);
    cr_assert(kvevict_view_validate(&view, 11) == KVEVICT_OK, "%s",
              kvevict_last_error_message());
    cr_assert(view.n_kv_heads == 2);
    cr_assert(view.k.head_dim == 5 && view.v.head_dim == 3);
    for (uint32_t slot = 0; slot < 11; ++slot) {
      for (uint32_t i = 0; i < 10; ++i) {
        const float expected = Rounded(dtype, k[slot * kKStride + i]);
        cr_expect(Element(view.k, slot, i / 5, i % 5) == expected);
      }
      for (uint32_t i = 0; i < 6; ++i) {
        const float expected = Rounded(dtype, v[slot * kVStride + i]);
        cr_expect(Element(view.v, slot, i / 3, i % 3) == expected);
      }
    }
  }
}

// Heads of different lengths go on after their own rows, and so do copies.
Test(engine_kv_cache, heads_may_hold_different_numbers) {
  const std::vector<float> rows = RandomFloats(160, 4);
  const uint32_t lengths[] = {3, 7};
  KvCache first(Shape(KVEVICT_DTYPE_F32));
  const std::vector<float> values = rows;
  first.Append(1, 8, rows.data(), 10, values.data(), 6);
  first.set_lengths(1, lengths);
  KvCache cache(Shape(KVEVICT_DTYPE_F32));
  cache.CopyFrom(first);
  cache.Append(1, 2, rows.data() + 100, 10, values.data() + 100, 6);
  cr_expect(cache.length(1) == 9);
  cr_expect(cache.lengths(1)[0] == 5 && cache.lengths(1)[1] == 9);
  // (5 + 9) rows of 5 + 3 elements of 4 bytes.
  cr_expect(cache.bytes_in_use() == 14 * 8 * 4);
  const kvevict_view view = cache.View(1);
  for (uint32_t head = 0; head < 2; ++head) {
    for (uint32_t slot = 0; slot < lengths[head] + 2; ++slot) {
      const bool is_new = slot >= lengths[head];
      const uint32_t row = is_new ? slot - lengths[head] : slot;
      for (uint32_t e = 0; e < 5; ++e) {
        const float expected =
            rows[(is_new ? 100 : 0) + row * 10 + head * 5 + e];
        cr_expect(Element(view.k, slot, head, e) == expected);
      }
      for (uint32_t e = 0; e < 3; ++e) {
        const float expected =
            rows[(is_new ? 100 : 0) + row * 6 + head * 3 + e];
        cr_expect(Element(view.v, slot, head, e) == expected);
      }
    }
  }
  cache.set_length(1, 7);  // the two added tokens are forgotten
  cr_expect(cache.bytes_in_use() == first.bytes_in_use());
}

// A row read back errs by half a step, and by the rounding of f16 scales.
Test(engine_kv_cache, quantized_rows_have_a_scale_and_a_minimum) {
  for (kvevict_dtype dtype : {KVEVICT_DTYPE_U8, KVEVICT_DTYPE_U4}) {
    KvShape shape = {.n_layers = 2,
                     .n_kv_heads = 2,
                     .k_head_dim = 8,
                     .v_head_dim = 4,
                     .dtype = dtype,
                     .capacity = 9};
    const uint32_t code_bits = dtype == KVEVICT_DTYPE_U8 ? 8 : 4;
    const std::vector<float> k = RandomFloats(9 * 16, 5);
    const std::vector<float> v = RandomFloats(9 * 8, 6);
    KvCache first(shape);
    first.Append(1, 9, k.data(), 16, v.data(), 8);
    KvCache cache(shape);
    cache.CopyFrom(first);
    const kvevict_view view = cache.View(1);
    cr_assert(kvevict_view_validate(&view, 9) == KVEVICT_OK, "%s",
              kvevict_last_error_message());
    // A scale and a minimum of 2 bytes for K and V each.
    const size_t row_bytes = 12 * code_bits / 8 + 8;
    cr_expect(cache.bytes_in_use() == 9 * 2 * row_bytes);
    cr_expect(cache.times_smaller_than_f32() ==
              48.0 / static_cast<double>(row_bytes));
    for (uint32_t row = 0; row < 9 * 2; ++row) {
      const float* from = &k[row * 8];
      const auto [least, most] = std::minmax_element(from, from + 8);
      const float step = (*most - *least) / ((1u << code_bits) - 1);
      const uint32_t slot = row / 2, head = row % 2;
      const float scale = Element(view.companions[0], slot, head, 0);
      const float minimum = Element(view.companions[1], slot, head, 0);
      for (uint32_t e = 0; e < 8; ++e) {
        uint8_t code;
        std::memcpy(&code,
                    reinterpret_cast<const char*>(view.k.data) +
                        slot * view.k.token_stride_bytes +
                        head * view.k.head_stride_bytes + e * code_bits / 8,
                    1);
        if (code_bits == 4) code = e % 2 == 0 ? code >> 4 : code & 15;
        cr_expect(std::fabs(minimum + scale * code - from[e]) <=
                  step / 2 + 0.01f);
      }
    }
  }
}

// Groups are quantized once 6 rows follow them, which stay as they are, however
// rows come. The same holds after an eviction.
Test(engine_kv_cache, the_last_rows_wait_until_a_group_is_full) {
  KvShape shape = {.n_layers = 1,
                   .n_kv_heads = 1,
                   .k_head_dim = 8,
                   .v_head_dim = 8,
                   .dtype = KVEVICT_DTYPE_U4,
                   .capacity = 40};
  shape.layout = {.group_tokens = 4, .recent_tokens = 6};
  const std::vector<float> k = RandomFloats(40 * 8, 8);
  const std::vector<float> v = RandomFloats(40 * 8, 9);
  for (uint32_t step : {1u, 3u, 7u, 40u}) {
    KvCache cache(shape);
    for (uint32_t n = 0; n < 40;) {
      const uint32_t more = std::min(step, 40 - n);
      cache.Append(0, more, &k[n * 8], 8, &v[n * 8], 8);
      n += more;
      const kvevict_view view = cache.View(0);
      cr_assert(kvevict_view_validate(&view, n) == KVEVICT_OK, "%s",
                kvevict_last_error_message());
      cr_expect(view.first_recent == (n < 6 ? 0 : (n - 6) / 4 * 4));
      for (uint32_t i = view.first_recent * 8; i < n * 8; ++i) {
        const uint32_t slot = i / 8 - view.first_recent;
        cr_expect(Element(view.companions[4], slot, 0, i % 8) == k[i]);
        cr_expect(Element(view.companions[5], slot, 0, i % 8) == v[i]);
      }
    }
    // 32 of 40 are in groups of 4, whose keys share 16 scales and minima; values have 2
    // each.
    cr_expect(cache.bytes_in_use() == 32 * (4 + 4 + 4) + 8 * 32 + 8 * 64);
    const uint32_t kept = 17;
    cache.set_lengths(0, std::span(&kept, 1));
    cr_expect(cache.View(0).first_recent == 9);
    cache.set_length(0, 5);
    cr_expect(cache.View(0).first_recent == 5);
  }
}

// Rows in blocks are found through the table, also after some were taken back.
Test(engine_kv_cache, blocks_hold_what_one_piece_holds) {
  KvShape shape = Shape(KVEVICT_DTYPE_F32);
  KvCache whole(shape);
  shape.layout.block_size = 4;
  KvCache first(shape);
  const std::vector<float> rows = RandomFloats(110, 7);
  const std::vector<float> values = rows;
  for (KvCache* cache : {&whole, &first}) {
    cache->Append(2, 7, rows.data(), 10, values.data(), 6);
    cache->set_length(2, 5);
    cache->Append(2, 5, rows.data() + 50, 10, values.data() + 50, 6);
  }
  KvCache cache(shape);
  cache.CopyFrom(first);
  cr_expect(cache.length(2) == 10);
  cr_expect(cache.bytes_in_use() == 12 * 2 * 8 * 4);  // whole blocks
  const kvevict_view view = cache.View(2), flat = whole.View(2);
  cr_assert(kvevict_view_validate(&view, 10) == KVEVICT_OK, "%s",
            kvevict_last_error_message());
  cr_expect(view.block_table[0] != 0);
  for (uint32_t slot = 0; slot < 10; ++slot) {
    const auto row =
        static_cast<uint32_t>(view.block_table[slot / 4]) * 4 + slot % 4;
    for (uint32_t i = 0; i < 10; ++i) {
      cr_expect(Element(view.k, row, i / 5, i % 5) ==
                Element(flat.k, slot, i / 5, i % 5));
    }
    for (uint32_t i = 0; i < 6; ++i) {
      cr_expect(Element(view.v, row, i / 3, i % 3) ==
                Element(flat.v, slot, i / 3, i % 3));
    }
  }
}

// New rows have a bias of 0, whatever was there, and copies have the same.
Test(engine_kv_cache, new_rows_have_no_bias) {
  const std::vector<float> rows = RandomFloats(110, 8);
  const std::vector<float> values = rows;
  for (const uint32_t block_size : {0u, 4u}) {
    KvShape shape = Shape(KVEVICT_DTYPE_F32);
    shape.layout.block_size = block_size;
    KvCache plain(shape);
    shape.has_biases = true;
    KvCache first(shape), copy(shape), of_plain(shape);
    const auto bias = [](const KvCache& cache, uint32_t slot,
                         uint32_t head) -> float& {
      const kvevict_view view = cache.View(1);
      const uint32_t row =
          view.block_size == 0
              ? slot
              : static_cast<uint32_t>(view.block_table[slot / 4]) * 4 +
                    slot % 4;
      const kvevict_plane& plane = view.companions[0];
      cr_assert(plane.role == KVEVICT_ROLE_BIAS);
      return *reinterpret_cast<float*>(plane.data +
                                       row * plane.token_stride_bytes +
                                       head * plane.head_stride_bytes);
    };
    for (KvCache* cache : {&first, &plain, &of_plain}) {
      cache->Append(1, 6, rows.data(), 10, values.data(), 6);
    }
    const kvevict_view view = first.View(1);
    cr_assert(kvevict_view_validate(&view, 6) == KVEVICT_OK, "%s",
              kvevict_last_error_message());
    for (uint32_t slot = 0; slot < 6; ++slot) {
      bias(first, slot, 0) = bias(first, slot, 1) = bias(of_plain, slot, 1) = 1;
    }
    const uint32_t lengths[] = {3, 5};
    first.set_lengths(1, lengths);
    first.Append(1, 1, rows.data(), 10, values.data(), 6);
    copy.CopyFrom(first);
    of_plain.CopyFrom(plain);
    for (uint32_t head = 0; head < 2; ++head) {
      for (uint32_t slot = 0; slot <= lengths[head]; ++slot) {
        cr_expect(bias(first, slot, head) == (slot < lengths[head]));
        cr_expect(bias(copy, slot, head) == (slot < lengths[head]));
        cr_expect(bias(of_plain, slot, head) == 0.0f);
      }
    }
  }
}

Test(engine_kv_cache, counts_and_copies_the_slots_in_use) {
  const std::vector<float> rows = RandomFloats(110, 3);
  const std::vector<float> values = rows;
  KvCache from(Shape(KVEVICT_DTYPE_F16));
  for (uint32_t layer = 0; layer < 3; ++layer) {
    from.Append(layer, 8 + layer, rows.data(), 10, values.data() + layer, 6);
  }
  from.set_length(2, 4);
  // (8 + 9 + 4) slots of 2 heads with 5 + 3 elements of 2 bytes.
  cr_expect(from.bytes_in_use() == 21 * 2 * 8 * 2);

  KvCache to(Shape(KVEVICT_DTYPE_F16));
  to.CopyFrom(from);
  cr_expect(to.bytes_in_use() == from.bytes_in_use());
  for (uint32_t layer = 0; layer < 3; ++layer) {
    const uint32_t n = from.length(layer);
    cr_expect(to.length(layer) == n);
    cr_expect(std::memcmp(to.k(layer), from.k(layer), n * 20) == 0);
    cr_expect(std::memcmp(to.v(layer), from.v(layer), n * 12) == 0);
  }
}

}  // namespace
}  // namespace kvevict::tools
