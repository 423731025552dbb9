// Attention in any layout, in splits and blocks of rows, against double precision.
#include "cuda/kernels/attention.cu"
#include "cuda/kernels/attention_few.cu"

#include "tests/cuda/kernels/attention_case.h"

namespace kvevict {
namespace {

// Runs as cuda/attend.cc does, some blocks of rows at a time. Sometimes it uses
// attend_few.
void RunAll(const AttendCase& c, cuda::AttendParams p, uint32_t n_layers,
            uint32_t most_splits, uint32_t turn, uint32_t order) {
  const uint32_t n_heads = c.keys.n_heads;
  const uint32_t dim = c.values.head_dim;
  const uint32_t rows = cuda::kAttendRows;
  const uint32_t n_blocks = (c.n_queries * c.group + rows - 1) / rows;
  const uint32_t most = 1 + turn % 2;
  p.most_splits = most_splits;
  for (uint32_t l = 0; l < n_layers; ++l) {
    p.n_splits =
        std::max(p.n_splits, cuda::SplitsOf(p.layers[l].n_tokens, most_splits));
  }
  std::vector<float> states(size_t{n_layers} * n_heads * most * p.n_splits *
                                rows * cuda::AttendStateFloats(dim),
                            NAN);
  p.states = Address(states.data());
  const uint32_t chunks = (dim + cuda::kAttendValues - 1) / cuda::kAttendValues;
  for (; p.first_block < n_blocks; p.first_block += most) {
    p.n_blocks = std::min(most, n_blocks - p.first_block);
    if (cuda::TakeFew(p) && turn % 7 != 6) {
      Run(cuda::attend_few, {p.n_splits, n_heads, n_layers},
          cuda::kAttendThreads, p, Schedule(order));
    } else {
      Run(cuda::attend_split,
          {p.n_splits * p.n_blocks * chunks, n_heads, n_layers},
          cuda::kAttendThreads, p, Schedule(order));
    }
    Run(cuda::attend_finish, {p.n_blocks * rows, n_heads, n_layers},
        cuda::kAttendFinishThreads, p, Schedule(order));
  }
  Run(cuda::attend_sums,
      {(c.keys.n_most + cuda::kAttendSlots - 1) / cuda::kAttendSlots, n_heads,
       n_layers},
      cuda::kAttendThreads, p, Schedule(order));
}

void TestAttention() {
  constexpr uint32_t kDims[] = {1, 8, 24, 32, 40, 64, 65, 136};
  constexpr uint32_t kQueries[] = {1, 1, 2, 5, 17, 33};
  constexpr uint32_t kGroups[] = {1, 4, 3, 8};
  Random random(TestSeed("attention"));
  for (uint32_t turn = 0; turn < 48; ++turn) {
    const uint32_t batch = turn / kNDTypes;
    // A few of every dtype and of few rows and of more, with more slots than
    // attend_few has room for at a time, run in every order of threads.
    const bool is_long = (2 * batch + turn) % 3 == 2;
    // Long rows of a decoded token, a hybrid's.
    const bool is_wide = (2 * batch + turn) % 6 == 1;
    const uint32_t n_orders = is_long ? 4 : 1;
    const uint32_t n_heads = is_long ? 1 : 1 + random.Below(2);
    const uint32_t n_most = is_long ? cuda::kFewSlots + 90 : 200;
    const uint32_t dtype = DTypeOfTurn(turn);
    PlaneShape keys = RandomPlane(dtype,
                                  is_long   ? 32
                                  : is_wide ? 256
                                            : kDims[batch % std::size(kDims)],
                                  n_heads, n_most, random);
    PlaneShape values = RandomPlane(
        is_long || is_wide || random.Below(2) == 0 ? dtype : AnyDType(random),
        is_long   ? 32
        : is_wide ? 256
                  : kDims[random.Below(std::size(kDims))],
        n_heads, n_most, random);
    if (is_long || is_wide) {  // as attend_few takes them
      keys.gap = keys.group = values.gap = values.group = 0;
      keys.transposed = values.transposed = false;
    }
    values.block_size = keys.block_size;
    values.table_heads = keys.table_heads;
    AttendCase c = {
        keys,
        values,
        ListTable(n_heads, random.Below(2) == 0, 2),
        is_long   ? 4u
        : is_wide ? 6u + 2 * random.Below(2)
                  : kGroups[random.Below(std::size(kGroups))],
        is_long   ? 1 + batch / 3 % 2
        : is_wide ? 1
                  : kQueries[random.Below(std::size(kQueries))],
        !is_long && random.Below(3) == 0 ? 1 + random.Below(150) : 0,
        random.Below(4) == 0,
        random.Below(2) == 0,
        0.5f / std::sqrt(static_cast<float>(keys.head_dim)),
        random.Below(3) == 0 ? 6.0f : 0.0f};
    if (KV_BIAS) c.biases = RandomBiases(keys, random);
    const uint32_t n_layers = is_long ? 1 : 1 + turn % 2;
    std::vector<float> odd;
    if (random.Below(3) == 0) odd = {NAN, INFINITY, -INFINITY};
    std::vector<AttendedLayer> layers;
    for (size_t l = 0; l < n_layers; ++l) {
      c.tokens.AddLayer(0, n_most - random.Below(is_long ? 80 : n_most + 1),
                        random);
      layers.push_back(MakeLayer(c, l, odd, random));
    }
    const uint32_t most_splits = is_long ? 1 : 1 + random.Below(5);
    std::vector<float> first;
    for (uint32_t order = turn; order < turn + n_orders; ++order) {
      RunAll(c, ParamsOf(c, layers), n_layers, most_splits, turn, order);
      for (size_t l = 0; l < n_layers; ++l) Compare(c, layers[l], l, turn);
      const std::vector<float>& out = layers[0].out;
      if (order == turn) first = out;
      if (std::memcmp(out.data(), first.data(), 4 * out.size()) != 0) {
        Fail("case %u: other bits in another order of threads", turn);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestAttention(); }
