#include "tests/gpu/numbers.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "core/dtype.h"
#include "kvevict/edit.h"

namespace kvevict::gpu {

kvevict_dtype AnyDType(Random* random, uint32_t n) {
  for (;;) {
    const DTypeInfo& info =
        kDTypes[random->In(0, static_cast<uint32_t>(std::size(kDTypes)) - 1)];
    if (info.can_score && n % info.block_elements == 0) {
      return static_cast<kvevict_dtype>(info.dtype);
    }
  }
}

// The elements of keys or values, by the CPU if they are codes.
std::vector<float> Decode(const kvevict_context* host, RandomLayer& layer,
                          bool of_values, uint32_t n_tokens) {
  kvevict_view from = layer.host_view();
  const kvevict_plane plane = of_values ? from.v : from.k;
  const uint32_t n_heads = from.n_kv_heads;
  std::vector<float> numbers(size_t{n_heads} * n_tokens * plane.head_dim);
  if (!InfoOf(static_cast<DType>(plane.dtype)).is_quantized()) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto row = static_cast<uint32_t>(i / plane.head_dim);
      numbers[i] = static_cast<float>(
          ValueAt(plane.dtype,
                  layer.ElementAt(of_values, row / n_tokens, row % n_tokens,
                                  static_cast<uint32_t>(i % plane.head_dim)),
                  0));
    }
    return numbers;
  }
  // Values are moved as keys.
  const std::pair<kvevict_role, kvevict_role> roles[] = {
      {KVEVICT_ROLE_KEY_SCALE, KVEVICT_ROLE_VALUE_SCALE},
      {KVEVICT_ROLE_KEY_MINIMUM, KVEVICT_ROLE_VALUE_MINIMUM},
      {KVEVICT_ROLE_KEY_RECENT, KVEVICT_ROLE_VALUE_RECENT}};
  std::vector<kvevict_plane> companions;
  for (uint32_t i = 0; i < from.n_companions; ++i) {
    for (const auto& [of_key, of_value] : roles) {
      if (from.companions[i].role != (of_values ? of_value : of_key)) continue;
      companions.push_back(from.companions[i]);
      companions.back().role = of_key;
    }
  }
  from.k = plane;
  from.v = KVEVICT_PLANE_INIT;
  from.companions = companions.data();
  from.n_companions = static_cast<uint32_t>(companions.size());
  kvevict_view to = KVEVICT_VIEW_INIT;
  to.n_kv_heads = n_heads;
  to.k = kvevict_plane_head_major(numbers.data(), KVEVICT_DTYPE_F32, n_tokens,
                                  plane.head_dim);
  std::vector<int32_t> slots(n_tokens);
  std::iota(slots.begin(), slots.end(), 0);
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.slots = slots.data();
  keep.slots_len = keep.count = n_tokens;
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n_tokens;
  move.view = &from;
  move.keep = &keep;
  move.destination = &to;
  Check(kvevict_compact(host, &move, 1, nullptr, 0, nullptr));
  return numbers;
}

double StoredError(kvevict_dtype dtype, double number) {
  const double unit = dtype == KVEVICT_DTYPE_F32   ? 0x1p-24
                      : dtype == KVEVICT_DTYPE_F16 ? 0x1p-11
                                                   : 0x1p-8;
  const double least = dtype == KVEVICT_DTYPE_F16 ? 0x1p-25 : 0.0;
  return unit * std::abs(number) + least;
}

std::vector<float> FillQueries(Random* random, StridedRows* rows,
                               uint32_t n_heads, uint32_t n_rows,
                               uint32_t head_dim) {
  std::vector<float> numbers;
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t row = 0; row < n_rows; ++row) {
      for (uint32_t e = 0; e < head_dim; ++e) {
        uint8_t* const at = rows->At(h, row, e);
        WriteRandomElement(random, rows->dtype(), false, at);
        if (rows->dtype() == KVEVICT_DTYPE_F32) {  // more bits than a part has
          const float number =
              static_cast<float>(random->In(0, 1u << 24)) * 0x1p-23f - 1.0f;
          std::memcpy(at, &number, sizeof(number));
        }
        numbers.push_back(static_cast<float>(ValueAt(rows->dtype(), at, 0)));
      }
    }
  }
  rows->Upload();
  return numbers;
}

}  // namespace kvevict::gpu
