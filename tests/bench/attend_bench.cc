// Attention over a layer's cache: of a token beside a plain read of keys and
// values, of a prompt's chunk beside the processor's multiply-adds.
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <vector>

#include "core/dtype.h"
#include "kvevict/attention.h"
#include "tests/bench/clocks.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

struct Case {
  const char* name;
  kvevict_dtype dtype;
  KeyLayout layout;
  uint32_t block_size;  // 0: contiguous
  uint32_t n_tokens;
  uint32_t n_queries;
  std::optional<Goal> goal = std::nullopt;
};
constexpr Goal kOfRead = {0.70, 0.85};
constexpr Goal kOfPeak = {0.55, 0.70};
constexpr Goal kOfF32 = {1.5, 2.0};  // relative to bytes of f32, not of codes
constexpr KeyLayout kTokens = KeyLayout::kTokenMajor;
constexpr KeyLayout kHeads = KeyLayout::kHeadMajor;
constexpr Case kCases[] = {
    {"decode f32 [S, H, D]", KVEVICT_DTYPE_F32, kTokens, 0, 16384, 1, kOfRead},
    {"decode f32 [H, S, D]", KVEVICT_DTYPE_F32, kHeads, 0, 16384, 1, kOfRead},
    {"decode f32 blocks of 16", KVEVICT_DTYPE_F32, kTokens, 16, 16384, 1,
     kOfRead},
    {"decode bf16 [S, H, D]", KVEVICT_DTYPE_BF16, kTokens, 0, 16384, 1},
    {"decode bf16 [H, S, D]", KVEVICT_DTYPE_BF16, kHeads, 0, 16384, 1},
    {"decode u8 [S, H, D]", KVEVICT_DTYPE_U8, kTokens, 0, 16384, 1, kOfF32},
    {"decode u8 [H, S, D]", KVEVICT_DTYPE_U8, kHeads, 0, 16384, 1, kOfF32},
    {"decode q8_0 [S, H, D]", KVEVICT_DTYPE_Q8_0, kTokens, 0, 16384, 1},
    {"decode u4 [S, H, D]", KVEVICT_DTYPE_U4, kTokens, 0, 16384, 1},
    {"decode fp8_e4m3 [S, H, D]", KVEVICT_DTYPE_FP8_E4M3, kTokens, 0, 16384, 1},
    {"decode u8, 4 queries", KVEVICT_DTYPE_U8, kTokens, 0, 16384, 4},
    {"decode f32, 4 queries", KVEVICT_DTYPE_F32, kTokens, 0, 16384, 4},
    {"prefill f32, 512 of 4,096", KVEVICT_DTYPE_F32, kTokens, 0, 4096, 512,
     kOfPeak},
    {"prefill bf16, 512 of 4,096", KVEVICT_DTYPE_BF16, kTokens, 0, 4096, 512,
     kOfPeak},
};

bool IsQuantized(const Case& c) {
  return InfoOf(static_cast<DType>(c.dtype)).is_quantized();
}

// A layer of 32 query heads and 8 KV heads of 128 elements, in blocks in any order.
class Layer {
 public:
  Layer(const Session& session, const Case& c)
      : c_(c),
        n_tokens_(session.smoke ? 160 : c.n_tokens),
        n_queries_(session.smoke ? std::min(c.n_queries, 20u) : c.n_queries),
        row_bytes_(static_cast<uint32_t>(
            PackedBytes(static_cast<DType>(c.dtype), kDim))),
        context_(CreateContext(session.simd.name)),
        cache_(2 * PlaneBytes()),
        scales_(2 * size_t{n_tokens_} * kKvHeads),
        queries_(size_t{n_queries_} * kQueryHeads * kDim),
        out_(queries_.size()) {
    if (IsQuantized(c)) {
      MakeCodes();
    } else {
      HugeBuffer<float> numbers(cache_.size() * kDim / row_bytes_);
      FillGaussian(numbers);
      for (size_t i = 0; i < numbers.size(); ++i) {
        const uint16_t bits = ToBf16(numbers[i]);
        row_bytes_ == 4 * kDim ? std::memcpy(&cache_[4 * i], &numbers[i], 4)
                               : std::memcpy(&cache_[2 * i], &bits, 2);
      }
    }
    FillGaussian(queries_);
    MakeView();
    query_rows_ = RowsOf(queries_.data(), kQueryHeads, kDim);
    out_rows_ = RowsOf(out_.data(), kQueryHeads, kDim);
    job_.n_tokens = n_tokens_;
    job_.view = &view_;
    job_.queries = &query_rows_;
    job_.out = &out_rows_;
    job_.n_q_heads = kQueryHeads;
    job_.n_queries = n_queries_;
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_attend_workspace(context_.get(), &job_, 1, &size));
    workspace_.emplace(size.best_bytes);
  }

  void Attend() {
    Check(kvevict_attend(context_.get(), &job_, 1, workspace_->data(),
                         workspace_->bytes, nullptr));
  }
  double bytes() const { return 2.0 * PlaneBytes(); }
  // The flops of both products.
  double flops() const {
    const double seen = n_queries_ * (n_tokens_ - (n_queries_ - 1) / 2.0);
    return 4.0 * kQueryHeads * kDim * seen;
  }

 private:
  static constexpr uint32_t kQueryHeads = 32;
  static constexpr uint32_t kKvHeads = 8;
  static constexpr uint32_t kDim = 128;

  size_t PlaneBytes() const {
    return size_t{n_tokens_} * kKvHeads * row_bytes_;
  }

  void MakeCodes() {
    FillWithCodes(cache_, 0x1C);
    for (size_t i = 0; i < scales_.size(); ++i) scales_[i] = 0x1C00;
    if (InfoOf(static_cast<DType>(c_.dtype)).scale != Scale::kNeeded) return;
    const int64_t head = sizeof(uint16_t);
    const bool by_token = c_.layout == KeyLayout::kTokenMajor;
    for (kvevict_plane& numbers : numbers_) {
      numbers.data = reinterpret_cast<uintptr_t>(scales_.data());
      numbers.dtype = KVEVICT_DTYPE_F16;
      numbers.head_dim = 1;
      numbers.token_stride_bytes = by_token ? head * kKvHeads : head;
      numbers.head_stride_bytes = by_token ? head : head * n_tokens_;
    }
    numbers_[1].data += scales_.size();  // half of the bytes
    numbers_[0].role = KVEVICT_ROLE_KEY_SCALE;
    numbers_[1].role = KVEVICT_ROLE_VALUE_SCALE;
    view_.companions = numbers_;
    view_.n_companions = 2;
  }

  void MakeView() {
    const int64_t row = row_bytes_;
    const bool by_token = c_.layout == KeyLayout::kTokenMajor;
    view_.n_kv_heads = kKvHeads;
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = reinterpret_cast<uintptr_t>(cache_.data());
    plane.dtype = c_.dtype;
    plane.head_dim = kDim;
    plane.token_stride_bytes = by_token ? row * kKvHeads : row;
    plane.head_stride_bytes = by_token ? row : row * n_tokens_;
    plane.block_stride_bytes = row * kKvHeads * c_.block_size;
    view_.k = view_.v = plane;
    view_.v.data += PlaneBytes();
    if (c_.block_size == 0) return;
    // Neighbouring blocks are far apart.
    const uint32_t n = n_tokens_ / c_.block_size;
    for (uint32_t i = 0; i < n; ++i) {
      blocks_.push_back(static_cast<int32_t>(i * uint64_t{7919} % n));
    }
    view_.block_size = c_.block_size;
    view_.block_table = blocks_.data();
    view_.block_table_len = n;
  }

  const Case c_;
  const uint32_t n_tokens_;
  const uint32_t n_queries_;
  const uint32_t row_bytes_;
  const ContextHandle context_;
  HugeBuffer<uint8_t> cache_;
  HugeBuffer<uint16_t> scales_;
  kvevict_plane numbers_[2] = {KVEVICT_PLANE_INIT, KVEVICT_PLANE_INIT};
  HugeBuffer<float> queries_;
  HugeBuffer<float> out_;
  std::vector<int32_t> blocks_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
  kvevict_plane query_rows_;
  kvevict_plane out_rows_;
  kvevict_attention_job job_ = KVEVICT_ATTENTION_JOB_INIT;
  std::optional<Workspace> workspace_;
};

void BenchCase(Session& session, const Case& c) {
  const std::string name = fmt::format("attend {}", c.name);
  if (!session.Begins(name)) return;
  Layer layer(session, c);
  const bool is_quantized = IsQuantized(c);
  const auto goal = session.Aim(c.goal);
  const bool decodes = c.n_queries < 16;
  Row& row = session.report.AddRow(name, 1, decodes ? "B/s" : "flop/s");
  const auto of_limit = is_quantized ? std::nullopt : goal;
  Comparison& limit = decodes
                          ? row.Against("read of K and V from memory", of_limit)
                          : row.Against("f32 FMA peak", of_limit);
  // The same cache in f32.
  std::optional<Layer> plain;
  Comparison* against = nullptr;
  if (is_quantized) {
    Case of_plain = c;
    of_plain.dtype = KVEVICT_DTYPE_F32;
    plain.emplace(session, of_plain);
    against = &row.Against("f32 rows", goal);
  }
  Repeat(session, [&](bool measured) {
    double of_plain = 0.0;
    if (plain) {
      session.limits.EvictCaches();
      of_plain = TimeCalls([&] { plain->Attend(); }, 0.05).cpu;
    }
    const double most = decodes ? session.limits.ReadBytes(1)
                                : session.limits.FmaFlops(session.simd, 1);
    session.limits.EvictCaches();
    const Timing timing = TimeCalls([&] { layer.Attend(); }, 0.05);
    if (!measured) return;
    const double units = decodes ? layer.bytes() : layer.flops();
    row.Add(timing, units);
    limit.ratio.Add(units / timing.cpu / most);
    if (against != nullptr) against->ratio.Add(of_plain / timing.cpu);
  });
}

}  // namespace

void BenchAttend(Session& session) {
  for (const Case& c : kCases) BenchCase(session, c);
}

}  // namespace kvevict::bench
