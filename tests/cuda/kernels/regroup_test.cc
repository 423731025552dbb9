// Rows of codes that share scales by groups of tokens, stored anew from rows of any
// kind and in place, byte by byte as in core/kernels.
#include "cuda/kernels/regroup.cu"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "core/kernels/regroup.h"
#include "core/view/view.h"
#include "cuda/row_layout.h"
#include "tests/cuda/kernels/codes.h"
#include "tests/cuda/kernels/launch.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

struct Shape {
  DType dtype;
  uint32_t group;  // tokens; 0: f32 without scales
  uint32_t n_heads;
  uint32_t dim;
  uint32_t n_tokens;
};

// Keys in one of several layouts with their scales, and maybe recent rows.
class Cache {
 public:
  Cache(const Shape& s, bool may_be_recent, Random& random) : shape_(s) {
    view_.n_kv_heads = s.n_heads;
    const uint32_t group = std::max(1u, s.group);
    if (random.Below(2) == 0) {
      view_.block_size = group * (1 + random.Below(3));
      table_.resize(s.n_tokens / view_.block_size + 1);
      std::iota(table_.rbegin(), table_.rend(), 0);
      view_.block_table_len = table_.size();
    }
    Add(&view_.k, s.dtype, s.dim, 0, random);
    const auto number = [&] { return static_cast<DType>(1 + random.Below(3)); };
    if (s.group > 0) {
      AddCompanion(KVEVICT_ROLE_KEY_SCALE, number(), s.group, random);
      if (s.dtype != DType::kI8 || random.Below(2) == 0) {
        AddCompanion(KVEVICT_ROLE_KEY_MINIMUM, number(), s.group, random);
      }
      if (may_be_recent && random.Below(2) == 0) {
        view_.first_recent = random.Below(s.n_tokens + 1);
        AddCompanion(KVEVICT_ROLE_KEY_RECENT, number(), 0, random);
      }
    }
    for (uint8_t& byte : memory_) byte = static_cast<uint8_t>(random.Next());
    Place();
    Fill(random);
  }
  Cache(const Cache& other) { *this = other; }
  Cache& operator=(const Cache& other) {
    shape_ = other.shape_, view_ = other.view_, memory_ = other.memory_;
    table_ = other.table_, begins_ = other.begins_;
    std::copy(std::begin(other.companions_), std::end(other.companions_),
              companions_);
    Place();
    return *this;
  }

  const kvevict_view& view() const { return view_; }
  const std::vector<uint8_t>& memory() const { return memory_; }
  RowSource Rows(uint32_t head) const { return HeadRows(view_, view_.k, head); }
  cuda::CacheRows CudaRows() const { return cuda::RowsOf(view_, view_.k); }
  uint64_t Number(bool minimum) const {
    return cuda::NumbersOf(view_, view_.k, minimum).base;
  }
  uint64_t Recent() const { return cuda::RecentRowsOf(view_, view_.k).base; }
  uint64_t Keys() const { return cuda::BaseOf(view_.k); }
  uint64_t Table() const { return Address(table_.data()); }
  uint32_t EndOfCodes(uint32_t n) const {
    return std::min(n, FirstRecent(view_));
  }

 private:
  void Add(kvevict_plane* plane, DType dtype, uint32_t dim, uint32_t group,
           Random& random) {
    plane->dtype = static_cast<kvevict_dtype>(dtype);
    plane->head_dim = dim;
    const bool is_recent = plane->role == KVEVICT_ROLE_KEY_RECENT;
    const bool is_paged = view_.block_size != 0 && !is_recent;
    auto row = static_cast<int64_t>(PackedBytes(dtype, dim));
    if (plane == &view_.k && ElementBytes(dtype) != 0 && random.Below(4) == 0) {
      plane->element_stride_bytes = 3 * int64_t{ElementBytes(dtype)};
      row *= 3;
    }
    int64_t n_rows = is_paged ? view_.block_size : shape_.n_tokens;
    if (group > 1) n_rows = (n_rows + group - 1) / group;
    const bool by_heads = random.Below(2) == 0;
    plane->token_stride_bytes = by_heads ? row : row * shape_.n_heads;
    plane->head_stride_bytes = by_heads ? row * n_rows : row;
    const int64_t block = row * shape_.n_heads * n_rows;
    if (is_paged) plane->block_stride_bytes = block;
    begins_.push_back(memory_.size());
    const size_t n_blocks = is_paged ? table_.size() : 1;
    const size_t n_bytes = n_blocks * static_cast<size_t>(block);
    memory_.resize(memory_.size() + n_bytes / 16 * 16 + 32);
  }
  void AddCompanion(kvevict_role role, DType dtype, uint32_t group,
                    Random& random) {
    kvevict_plane* const plane = &companions_[view_.n_companions++];
    plane->role = role;
    plane->group_tokens = group;
    Add(plane, dtype, shape_.dim, group, random);
  }
  void Place() {
    view_.k.data = Address(memory_.data() + begins_[0]);
    for (uint32_t i = 0; i < view_.n_companions; ++i) {
      companions_[i].data = Address(memory_.data() + begins_[1 + i]);
    }
    view_.companions = companions_;
    if (!table_.empty()) view_.block_table = table_.data();
  }

  static void Write(const uint8_t* to, DType dtype, float v) {
    const uint32_t bits = EncodeElement(static_cast<uint32_t>(dtype), v);
    std::memcpy(const_cast<uint8_t*>(to), &bits, ElementBytes(dtype));
  }
  // Elements of 8 significant bits: some not finite, some alike, some by channel.
  static float DrawElement(Random& random, uint32_t kind) {
    if (kind == 0) return 2.5f;
    if (kind == 1) return random.Below(2) == 0 ? 0.0f : -0.0f;
    if (kind == 2 && random.Below(30) == 0) {
      return random.Below(2) == 0 ? std::nanf("") : -kInfinity;
    }
    const auto v = static_cast<float>(static_cast<int>(random.Below(255)) - 99);
    return kind < 5 ? v : std::ldexp(v, -static_cast<int>(random.Below(12)));
  }
  void Fill(Random& random) {
    for (uint32_t h = 0; h < shape_.n_heads; ++h) {
      const RowSource rows = Rows(h);
      for (uint32_t t = 0; t < shape_.n_tokens; ++t) {
        for (uint32_t e = 0; e < shape_.dim; ++e)
          FillElement(rows, t, e, random);
      }
    }
  }
  void FillElement(const RowSource& rows, uint32_t t, uint32_t e,
                   Random& random) const {
    if (rows.recent.first <= t) {
      const RowSource recent = rows.Recent();
      Write(recent.Row(t - rows.recent.first) + recent.Element(e), recent.dtype,
            static_cast<float>(random.Below(99)));
      return;
    }
    if (shape_.group == 0) {
      Write(rows.Row(t) + rows.Element(e), rows.dtype,
            DrawElement(random, e % 9));
      return;
    }
    const float size = std::ldexp(1.0f, -static_cast<int>(random.Below(8)));
    for (const RowNumbers* of : {&rows.scale, &rows.minimum}) {
      if (of->base == nullptr || t % shape_.group != 0) continue;
      Write(rows.Number(*of, t) + e * ElementBytes(of->dtype), of->dtype,
            of == &rows.scale ? size : -size);
    }
  }

  Shape shape_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
  kvevict_plane companions_[3] = {};
  std::vector<uint8_t> memory_;
  std::vector<int32_t> table_;
  std::vector<size_t> begins_;
};

void Check(DType dtype, Random& random, uint32_t turn) {
  constexpr uint32_t kDims[] = {2, 30, 64, 66, 130};
  constexpr uint32_t kGroups[] = {1, 2, 3, 8, 32};
  Shape s = {dtype, kGroups[random.Below(5)], 1 + random.Below(2),
             kDims[random.Below(5)], 2 + random.Below(70)};
  const bool in_place = random.Below(2) == 0;
  const uint32_t first = random.Below(s.n_tokens);
  Cache to(s, /*may_be_recent=*/!in_place, random);
  Cache expected(to);
  Shape from_shape = s;
  if (random.Below(2) == 0)
    from_shape.dtype = DType::kF32, from_shape.group = 0;
  Cache other(from_shape, /*may_be_recent=*/true, random);
  const Cache& from = in_place ? to : other;
  const bool all = !in_place && random.Below(3) == 0;
  std::vector<int32_t> keep;
  for (uint32_t t = in_place ? first : 0; t < s.n_tokens; ++t) {
    const bool is_kept = all || t < first + 9 || random.Below(2) == 0;
    const bool has_room = first + keep.size() < s.n_tokens;
    if (is_kept && has_room) keep.push_back(static_cast<int32_t>(t));
  }
  const auto n_keep = static_cast<uint32_t>(keep.size());
  for (uint32_t h = 0; h < s.n_heads; ++h) {
    RegroupRowsArgs args;
    args.to = expected.Rows(h);
    args.from = in_place ? args.to : from.Rows(h);
    args.in_place = in_place;
    args.keep = all ? nullptr : keep.data();
    args.first_row = args.begin = first;
    args.end = expected.EndOfCodes(first + n_keep);
    if (args.begin < args.end) RegroupRows(SimdTargetAt(0), args);
  }
  cuda::RequantizeParams p = {};
  p.from = from.CudaRows();
  p.to = to.CudaRows();
  p.n_lists = 1;
  p.in_place = in_place;
  p.planes[0] = {from.Keys(),
                 to.Keys(),
                 from.Table(),
                 to.Table(),
                 all ? 0 : Address(keep.data()),
                 from.Number(false),
                 from.Number(true),
                 to.Number(false),
                 to.Number(true),
                 from.Recent(),
                 to.Recent(),
                 n_keep,
                 0,
                 first,
                 0};
  const uint32_t n_groups = cuda::GroupsOf(p.to, first, n_keep);
  p.groups_per_block = in_place ? n_groups : 1 + random.Below(3);
  const uint32_t n_runs = n_groups / p.groups_per_block + 1;
  const uint32_t n_blocks =
      (cuda::RegroupColumns(p.to) + cuda::kRegroupThreads - 1) /
      cuda::kRegroupThreads;
  Run(cuda::regroup_rows, {n_blocks * n_runs, s.n_heads, 1},
      cuda::kRegroupThreads, p, Schedule(turn));
  for (size_t i = 0; i < to.memory().size(); ++i) {
    if (to.memory()[i] == expected.memory()[i]) continue;
    Fail(
        "turn %u, %s, groups of %u, dim %u: byte %zu is %02x, not the CPU's "
        "%02x",
        turn, InfoOf(dtype).name, s.group, s.dim, i, to.memory()[i],
        expected.memory()[i]);
  }
}

void TestRegrouping() {
  if (!HasFusedArithmetic(SimdTargetAt(0))) return;
  Random random(TestSeed("regroup"));
  for (const DTypeInfo& info : kDTypes) {
    const uint32_t bit = 1u << static_cast<int>(info.dtype);
    if (!info.takes_minimum || (cuda::kDTypesOfRows & bit) == 0) continue;
    for (uint32_t turn = 0; turn < 20; ++turn) Check(info.dtype, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestRegrouping(); }
