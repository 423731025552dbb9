#include <fmt/format.h>

#include <string>

#include "core/dtype.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/evictable.h"

namespace kvevict::gpu {
namespace {

// Kernels load scales or minima, or a block's own scale. Each needs its alignment,
// read or written, and a call without it touches nothing.
void CheckDType(const Gpu& gpu, kvevict_dtype dtype, Report* report) {
  constexpr uint32_t kTokens = 4;
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const Buffer codes(gpu, 4096), rows(gpu, 4096), numbers(gpu, 4096);
  const Buffer slots(gpu, kTokens * sizeof(int32_t));
  const int32_t all[kTokens] = {0, 1, 2, 3};
  slots.Write(all, sizeof(all));
  const auto plane_at = [](uint64_t data, kvevict_dtype of, uint32_t dim) {
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = data;
    plane.dtype = of;
    plane.head_dim = dim;
    plane.token_stride_bytes =
        static_cast<int64_t>(PackedBytes(static_cast<DType>(of), dim));
    plane.head_stride_bytes = 512;
    return plane;
  };
  const bool has_blocks = dtype == KVEVICT_DTYPE_Q4_0;
  kvevict_plane ours[] = {
      plane_at(numbers.address(), KVEVICT_DTYPE_F16, 1),
      plane_at(numbers.address() + 64, KVEVICT_DTYPE_F32, 1)};
  ours[0].role = KVEVICT_ROLE_KEY_SCALE;
  ours[1].role = KVEVICT_ROLE_KEY_MINIMUM;
  kvevict_view coded = KVEVICT_VIEW_INIT, plain = KVEVICT_VIEW_INIT;
  coded.n_kv_heads = plain.n_kv_heads = 2;
  coded.k = plane_at(codes.address(), dtype, 32);
  coded.companions = ours;
  coded.n_companions = has_blocks ? 0 : 2;
  plain.k = plane_at(rows.address(), KVEVICT_DTYPE_BF16, 32);
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.slots = slots.pointer<int32_t>();
  keep.slots_len = keep.count = kTokens;
  const auto move = [&](bool makes_codes) {
    kvevict_move m = KVEVICT_MOVE_INIT;
    m.n_tokens = kTokens;
    m.view = makes_codes ? &plain : &coded;
    m.keep = &keep;
    m.destination = makes_codes ? &coded : &plain;
    return kvevict_compact(context.get(), &m, 1, nullptr, 0, gpu.stream());
  };
  const auto refuses = [&](kvevict_plane* plane, const char* what,
                           uint32_t bytes) {
    const std::string multiple = fmt::format("multiples of {} bytes", bytes);
    const kvevict_plane aligned = *plane;
    for (int i = 0; i < 3; ++i) {
      plane->data += i == 0;
      plane->token_stride_bytes += i == 1;
      plane->head_stride_bytes += i == 2;
      for (const bool makes_codes : {false, true}) {
        ExpectFailure(move(makes_codes), KVEVICT_ERROR_UNSUPPORTED,
                      {what, multiple.c_str()}, report);
      }
      *plane = aligned;
    }
  };
  if (has_blocks) {
    refuses(&coded.k, "", 2);
  } else {
    refuses(&ours[0], "scales", 2);
    refuses(&ours[1], "minima", 4);
    coded.k.data += 1;  // codes are bytes
  }
  refuses(&plain.k, "", 2);
  for (const bool makes_codes : {false, true}) Check(move(makes_codes));
  gpu.Synchronize();
}

}  // namespace

void CheckAlignment(const Gpu& gpu, const Effort& /*effort*/, Report* report) {
  for (const kvevict_dtype dtype : {KVEVICT_DTYPE_U8, KVEVICT_DTYPE_Q4_0}) {
    report->Check(
        fmt::format("alignment, {}", InfoOf(static_cast<DType>(dtype)).name),
        [&] { CheckDType(gpu, dtype, report); });
  }
}

}  // namespace kvevict::gpu
