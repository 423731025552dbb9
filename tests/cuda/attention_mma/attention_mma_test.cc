// Attention by tensor cores, for the dtypes and sizes that CMakeLists.txt defines,
// against double precision. Tensor cores round in each known way.
#include "cuda/kernels/attention_mma.cu"
#include "cuda/kernels/attention.cu"

#include <span>

#include "tests/cuda/kernels/attention_case.h"

namespace kvevict {
namespace {

using cuda::KeyTile;
using cuda::kShape;
using cuda::QueryTile;
using cuda::ValueTile;

// What a part loses, see cuda/kernels/parts.cuh.
double LostOfQueries() {
  if (QueryTile::kParts == 1) return 0.0;
  return QueryTile::kElement == cuda::kF16 ? 0x1p-22 : 0x1p-17;
}
template <class Tile>
constexpr double kLostOf = Tile::kParts == 1 ? 0.0 : 0x1p-16;

// Scales that are no powers of two, so that codes become numbers of more than
// eight bits.
void Roughen(Numbers* numbers) {
  for (size_t i = 0; i < numbers->values.size(); ++i) {
    numbers->values[i] *= 1.0f + 0x1p-6f;
    const uint32_t bits = EncodeElement(numbers->dtype, numbers->values[i]);
    std::memcpy(&numbers->memory[i * static_cast<size_t>(numbers->bytes())],
                &bits, static_cast<size_t>(numbers->bytes()));
  }
}

AttendCase RandomCase(uint32_t turn, uint32_t n_most, Random& random) {
  const uint32_t n_heads = 1 + random.Below(2);
  PlaneShape keys =
      RandomPlane(KV_K_DTYPE, KV_HEAD_DIM, n_heads, n_most, random);
  PlaneShape values =
      RandomPlane(KV_V_DTYPE, KV_V_DIM, n_heads, n_most, random);
  if (turn % 2 == 0) {  // rows that are copied, or loaded by 16 bytes
    keys.gap = keys.group = values.gap = values.group = 0;
    keys.transposed = values.transposed = false;
  }
  values.block_size = keys.block_size;
  values.table_heads = keys.table_heads;
  Roughen(&keys.scales);
  Roughen(&values.scales);
  constexpr uint32_t kGroups[] = {6, 8, 4, 1, 3};
  const uint32_t group = kGroups[turn % std::size(kGroups)];
  // A row block or two, and a part of one.
  const uint32_t most_rows = 2 * cuda::kBlockRows;
  const uint32_t n_queries =
      turn % 3 == 0 ? 1 : 1 + random.Below(most_rows / group + 1);
  AttendCase c = {
      keys,
      values,
      ListTable(n_heads, random.Below(2) == 0, 2),
      group,
      n_queries,
      random.Below(3) == 0 ? 1 + random.Below(150) : 0,
      random.Below(4) == 0,
      false,
      0.5f / std::sqrt(static_cast<float>(keys.head_dim)),
      random.Below(3) == 0 ? 6.0f : 0.0f,
      KV_Q_DTYPE,
  };
  if (KV_BIAS) c.biases = RandomBiases(keys, random);
  return c;
}

// docs/cuda.md says how exact attention is.
void SetErrors(const rig::TensorCore& core, AttendCase* c) {
  const uint32_t of_keys =
      c->keys.head_dim * QueryTile::kParts * KeyTile::kParts;
  c->dot_error =
      LostOfQueries() + kLostOf<KeyTile> + core.DotError(of_keys) * 0x1p-24;
  const bool is_f16 = ValueTile::kElement == cuda::kF16;
  const uint32_t of_values =
      c->keys.n_most * cuda::kWeightParts * ValueTile::kParts;
  c->value_error = (is_f16 ? 0x1p-22 : 0x1p-16) + kLostOf<ValueTile> +
                   core.DotError(of_values) * 0x1p-24;
  // A weight of f16 is at most 2^15, and off by 2^-25 at least.
  c->lost_weight = is_f16 ? 0x1p-40 : 0.0;
}

// Splits of which a row sees nothing have sums of 0, whatever their weight is.
void ExpectNothing(const std::vector<float>& states, size_t n_states,
                   uint32_t dim) {
  const uint32_t n = cuda::AttendStateFloats(dim);
  for (size_t i = 0; i < n_states; ++i) {
    const float* const state = &states[i * n];
    if (state[0] != -INFINITY) continue;
    for (uint32_t e = 1; e < n; ++e) {
      if (state[e] != 0.0f) Fail("a state of nothing has %g", state[e]);
    }
  }
}

// Runs as cuda/attend.cc does, some blocks of rows at a time.
void RunAll(const AttendCase& c, cuda::AttendParams p, uint32_t n_layers,
            uint32_t most, bool is_odd, const simt::Options& options) {
  const uint32_t n_heads = c.keys.n_heads;
  const uint32_t rows = cuda::kAttendRows;
  const uint32_t n_blocks = (c.n_queries * c.group + rows - 1) / rows;
  std::vector<float> states(size_t{n_layers} * n_heads * most * p.n_splits *
                                rows *
                                cuda::AttendStateFloats(c.values.head_dim),
                            NAN);
  p.states = Address(states.data());
  for (; p.first_block < n_blocks; p.first_block += most) {
    p.n_blocks = std::min(most, n_blocks - p.first_block);
    const uint32_t n_groups =
        (p.n_blocks + kShape.row_warps - 1) / kShape.row_warps;
    const std::string error = simt::Launch(
        cuda::attend_mma, {p.n_splits * n_groups, n_heads, n_layers},
        {cuda::kAttendMmaThreads}, kShape.shared_bytes, p, options);
    if (!error.empty()) Fail("%s", error.c_str());
    if (!is_odd) {
      ExpectNothing(states,
                    size_t{n_layers} * n_heads * p.n_blocks * p.n_splits * rows,
                    c.values.head_dim);
    }
    Run(cuda::attend_finish, {p.n_blocks * rows, n_heads, n_layers},
        cuda::kAttendFinishThreads, p, options);
  }
}

void Check(uint32_t turn, Random& random) {
  const uint32_t n_most = turn % 4 == 3 ? 60 : 330;
  AttendCase c = RandomCase(turn, n_most, random);
  const uint32_t n_layers = 1 + turn % 2;
  std::vector<float> odd;
  if (turn % 3 != 0) odd = {NAN, INFINITY, -INFINITY};
  // Infinite keys make weights of 0 or NaN, and NaN makes NaN.
  std::vector<float> odd_keys;
  if (turn % 6 == 5) odd_keys = {-INFINITY, -INFINITY, INFINITY, NAN};
  std::vector<AttendedLayer> layers;
  for (size_t l = 0; l < n_layers; ++l) {
    c.tokens.AddLayer(0, n_most - random.Below(n_most / 2), random);
    layers.push_back(MakeLayer(c, l, odd, random, odd_keys));
  }
  const rig::TensorCore& core =
      rig::kTensorCores[turn % std::size(rig::kTensorCores)];
  SetErrors(core, &c);
  cuda::AttendParams p = ParamsOf(c, layers);
  p.most_splits = 1 + turn / 3 % 3;
  for (uint32_t l = 0; l < n_layers; ++l) {
    p.n_splits = std::max(p.n_splits,
                          cuda::SplitsOf(p.layers[l].n_tokens, p.most_splits));
  }
  // One row block at a time, a part of one, or all.
  const uint32_t most = turn % 3 == 2 ? 1 : kShape.row_warps + turn % 3;
  std::vector<float> first;
  const uint32_t n_orders = turn % 5 == 0 ? 4 : 1;
  for (uint32_t order = turn; order < turn + n_orders; ++order) {
    simt::Options options = Schedule(order);
    options.tensor_core = core;
    RunAll(c, p, n_layers, most, !odd.empty() || !odd_keys.empty(), options);
    for (size_t l = 0; l < n_layers; ++l) {
      Compare(c, layers[l], l, turn, /*has_sums=*/false);
    }
    const std::vector<float>& out = layers[0].out;
    if (order == turn) first = out;
    if (std::memcmp(out.data(), first.data(), 4 * out.size()) != 0) {
      Fail("case %u: other bits in another order of threads", turn);
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("attention_mma"));
  for (uint32_t turn = 0; turn < 30; ++turn) {
    kvevict::Check(turn, random);
  }
}
