// The cost of quantizing rows and of reading them back, beside memcpy of the same f32.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "core/dtype.h"
#include "tests/bench/clocks.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"

namespace kvevict::bench {
namespace {

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;
constexpr double kQuantizeGoal = 1.1;
constexpr double kDequantizeGoal = 1.2;

// Keys of a layer, [S, H, D], with the scales that their dtype takes, in f32.
class Keys {
 public:
  Keys(uint32_t n_tokens, DType dtype)
      : rows_(size_t{n_tokens} * kHeads * PackedBytes(dtype, kHeadDim)),
        numbers_(size_t{n_tokens} * kHeads * 2) {
    view_.n_kv_heads = kHeads;
    view_.k = Plane(rows_.data(), dtype, kHeadDim);
    const DTypeInfo& info = InfoOf(dtype);
    if (info.scale != Scale::kNeeded) return;
    companions_[0] = Plane(numbers_.data(), DType::kF32, 1);
    companions_[0].role = KVEVICT_ROLE_KEY_SCALE;
    companions_[1] = Plane(numbers_.data() + n_tokens * kHeads, DType::kF32, 1);
    companions_[1].role = KVEVICT_ROLE_KEY_MINIMUM;
    view_.companions = companions_;
    view_.n_companions = info.takes_minimum ? 2 : 1;
  }
  Keys(const Keys&) = delete;

  uint8_t* bytes() { return rows_.data(); }
  float* floats() { return reinterpret_cast<float*>(rows_.data()); }
  size_t size() const { return rows_.size(); }
  const kvevict_view& view() const { return view_; }

 private:
  static kvevict_plane Plane(const void* data, DType dtype, uint32_t dim) {
    return PlaneOf(data, static_cast<kvevict_dtype>(dtype), kHeads, dim,
                   PackedBytes(dtype, dim));
  }

  HugeBuffer<uint8_t> rows_;
  HugeBuffer<float> numbers_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
  kvevict_plane companions_[2] = {};
};

void Requantize(const kvevict_context* context, const Keys& from,
                const Keys& to, uint32_t n_tokens) {
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n_tokens;
  move.view = &from.view();
  move.destination = &to.view();
  Check(kvevict_compact(context, &move, 1, nullptr, 0, nullptr));
}

void BenchDType(Session& session, uint32_t n_tokens, DType dtype) {
  const std::string name = fmt::format("quantize {} {}K [S,8,128]",
                                       InfoOf(dtype).name, n_tokens / 1024);
  const std::string back = "de" + name;
  if (!session.Begins(name) && !session.Begins(back)) return;
  const ContextHandle context = CreateContext(session.simd.name);
  Keys plain(n_tokens, DType::kF32), again(n_tokens, DType::kF32);
  Keys stored(n_tokens, dtype);
  std::minstd_rand random(1);
  std::normal_distribution<float> gaussian;
  float drawn[4096];
  for (float& v : drawn) v = gaussian(random);
  const size_t n = size_t{n_tokens} * kHeads * kHeadDim;
  for (size_t i = 0; i < n; ++i) plain.floats()[i] = drawn[i * 7 % 4093];

  Row& row = session.report.AddRow(name, 1, "token/s");
  Row& back_row = session.report.AddRow(back, 1, "token/s");
  const bool is_q8 = dtype == DType::kU8 || dtype == DType::kQ8_0;
  const auto goal = [&](double ratio) {
    return is_q8 ? session.Aim(Goal{ratio, ratio}) : std::nullopt;
  };
  Comparison& quantize = row.Against("memcpy of the f32", goal(kQuantizeGoal));
  Comparison& dequantize =
      back_row.Against("memcpy of the f32", goal(kDequantizeGoal));
  Repeat(session, [&](bool measured) {
    session.limits.EvictCaches();
    const Timing copy = TimeCalls(
        [&] { std::memcpy(again.bytes(), plain.bytes(), plain.size()); });
    session.limits.EvictCaches();
    const Timing there =
        TimeCalls([&] { Requantize(context.get(), plain, stored, n_tokens); });
    session.limits.EvictCaches();
    const Timing read =
        TimeCalls([&] { Requantize(context.get(), stored, again, n_tokens); });
    if (!measured) return;
    row.Add(there, n_tokens);
    back_row.Add(read, n_tokens);
    quantize.ratio.Add(copy.cpu / there.cpu);
    dequantize.ratio.Add(copy.cpu / read.cpu);
  });
}

}  // namespace

void BenchRequantize(Session& session) {
  const uint32_t n_tokens = session.smoke ? 64 : 16384;
  for (DType dtype : {DType::kU8, DType::kQ8_0, DType::kU4, DType::kQ4_0,
                      DType::kE4M3, DType::kBF16}) {
    BenchDType(session, n_tokens, dtype);
  }
}

}  // namespace kvevict::bench
