// What moves rows: compaction, other orders and dtypes, merging, rotation.
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "tests/gpu/rows.h"

namespace kvevict::gpu::rows {
namespace {

struct Moving {
  CacheShape from;
  uint32_t budget;   // slots to keep of every head; 0: all
  const Format* to;  // NULL: in place
  kvevict_merge merge = KVEVICT_MERGE_NONE;
  bool has_workspace = true;  // without, rows move by columns
  bool reorders = false;      // the budget's slots, a ring from its middle on
};

struct MovesState {
  Cache from;
  std::unique_ptr<Cache> to;
  Buffer lists;
  kvevict_keep_lists keep;
  std::vector<kvevict_move> moves;
  std::unique_ptr<Buffer> workspace;
};

CacheShape Destination(const Moving& m) {
  CacheShape shape = m.from;
  shape.n_tokens = m.budget == 0 ? m.from.n_tokens : m.budget;
  if (m.to != nullptr) shape.format = *m.to;
  return shape;
}

Work MakeMove(const Bed& bed, const Moving& m) {
  const Model& model = m.from.model;
  const uint32_t budget = m.budget == 0 ? m.from.n_tokens : m.budget;
  const auto state = std::make_shared<MovesState>(MovesState{
      Cache(bed.gpu, m.from, bed.seed), nullptr,
      RandomKeepLists(bed.gpu, model.n_kv_heads, m.from.n_tokens, budget,
                      bed.seed),
      KVEVICT_KEEP_LISTS_INIT,
      std::vector<kvevict_move>(model.n_layers, KVEVICT_MOVE_INIT), nullptr});
  if (m.to != nullptr) {
    state->to = std::make_unique<Cache>(bed.gpu, Destination(m), bed.seed);
  }
  state->keep.n_lists = model.n_kv_heads;
  state->keep.count = budget;
  state->keep.slots = state->lists.pointer<int32_t>();
  state->keep.slots_len = uint64_t{model.n_kv_heads} * budget;
  for (uint32_t l = 0; l < model.n_layers; ++l) {
    kvevict_move& move = state->moves[l];
    move.n_tokens = m.from.n_tokens;
    move.view = &state->from.view(l);
    move.keep = m.budget == 0 ? nullptr : &state->keep;
    move.merge = m.merge;
    if (m.to != nullptr) move.destination = &state->to->view(l);
  }
  if (m.reorders) {
    std::vector<int32_t> ring(budget);
    std::iota(ring.begin(), ring.end(), 0);
    std::rotate(ring.begin(), ring.begin() + budget / 2, ring.end());
    state->lists.Write(ring.data(), sizeof(int32_t) * budget);
    state->keep.n_lists = 1;
  }
  kvevict_workspace bytes = KVEVICT_WORKSPACE_INIT;
  const auto size = m.reorders ? bed.library.reorder_workspace
                               : bed.library.compact_workspace;
  bed.library.Check(size(bed.context.get(), state->moves.data(),
                         state->moves.size(), &bytes));
  state->workspace =
      std::make_unique<Buffer>(bed.gpu, m.has_workspace ? bytes.best_bytes : 0);
  CacheShape read = m.from;
  read.n_tokens = m.merge == KVEVICT_MERGE_NONE ? budget : m.from.n_tokens;
  Work work;
  work.run = [bed, state, reorders = m.reorders] {
    const auto move = reorders ? bed.library.reorder : bed.library.compact;
    bed.library.Check(move(bed.context.get(), state->moves.data(),
                           state->moves.size(),
                           state->workspace->pointer<void>(),
                           state->workspace->n_bytes(), bed.gpu.stream()));
  };
  work.bytes = read.RowBytes() + Destination(m).RowBytes();
  if (m.reorders) work.bytes *= 2;  // by way of the workspace
  return work;
}

// Every key moves to its slot as its position.
Work MakeRotation(const Bed& bed, const CacheShape& shape) {
  const Model& m = shape.model;
  std::vector<float> frequencies(m.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(
        1e6f, -2.0f * static_cast<float>(i) / static_cast<float>(m.head_dim));
  }
  const auto plan = PlanOf(bed, shape, shape.format.dtype,
                           "streaming-llm:budget=8", frequencies);
  const auto cache = std::make_shared<Cache>(bed.gpu, shape, bed.seed);
  const auto offsets =
      std::make_shared<Buffer>(bed.gpu, sizeof(int32_t) * shape.n_tokens);
  std::vector<int32_t> host(shape.n_tokens);
  for (uint32_t t = 0; t < shape.n_tokens; ++t) {
    host[t] = -7 * static_cast<int32_t>(t) - 1;
  }
  offsets->Write(host.data(), offsets->n_bytes());
  const auto rotations = std::make_shared<std::vector<kvevict_rotation>>(
      m.n_layers, kvevict_rotation KVEVICT_ROTATION_INIT);
  for (uint32_t l = 0; l < m.n_layers; ++l) {
    kvevict_rotation& rotation = (*rotations)[l];
    rotation.layer = l;
    rotation.n_tokens = shape.n_tokens;
    rotation.view = &cache->view(l);
    rotation.offsets = offsets->pointer<int32_t>();
    rotation.offsets_len = shape.n_tokens;
  }
  Work work;
  work.run = [bed, plan, cache, offsets, rotations] {
    bed.library.Check(bed.library.rotate(plan.get(), rotations->data(),
                                         rotations->size(), bed.gpu.stream()));
  };
  work.bytes = shape.RowBytes();  // of K, read and written
  return work;
}

}  // namespace

std::vector<Row> MoveRows(const Scale& scale) {
  std::vector<Row> rows;
  const uint32_t budget = scale.Tokens(2048);
  const auto cache = [&](uint32_t n_tokens, const Format& format) {
    CacheShape shape{scale.Of(k128)};
    shape.n_tokens = scale.Tokens(n_tokens);
    shape.format = format;
    return shape;
  };
  const auto add = [&](const std::string& name, const Moving& m) {
    rows.push_back({"moves", fmt::format("{}: {}", name, k128.name), By::kGraph,
                    2 * m.from.RowBytes(),
                    [m](const Bed& bed) { return MakeMove(bed, m); }});
  };
  Moving compact{cache(16384, kBf16), budget, nullptr};
  add("compact bf16, 16384 to 2048", compact);
  compact.has_workspace = false;
  add("compact bf16, 16384 to 2048, without a workspace", compact);
  compact.has_workspace = compact.reorders = true;
  add("reorder bf16, 2048 of 16384", compact);
  add("compact f32, 16384 to 2048", {cache(16384, kF32), budget, nullptr});
  add("regroup KIVI in place, 16384 to 2048",
      {cache(16384, kKivi), budget, nullptr});
  static constexpr Format kTo[] = {kFp8, kI8, kU8, kU4, kQ8, kKivi};
  for (const Format& to : kTo) {
    const char* const verb = to.key_group == 0 ? "requantise" : "regroup";
    add(fmt::format("{} bf16 to {}, all of 2048", verb, to.name),
        {cache(2048, kBf16), 0, &to});
    add(fmt::format("{} bf16 to {}, 16384 to 2048", verb, to.name),
        {cache(16384, kBf16), budget, &to});
  }
  for (const uint32_t n_tokens : {2176u, 16384u}) {
    for (const Content keys : {Content::kRandom, Content::kAroundMean}) {
      Moving m{cache(n_tokens, kBf16), budget, nullptr, KVEVICT_MERGE_VALUES};
      m.from.keys = keys;
      add(fmt::format("merge {} to 2048, {}", n_tokens,
                      keys == Content::kRandom ? "random" : "around a mean"),
          m);
    }
  }
  for (const uint32_t n_tokens : {2048u, 16384u}) {
    const CacheShape shape = cache(n_tokens, kBf16);
    rows.push_back(
        {"moves", fmt::format("rotate {} tokens: {}", n_tokens, k128.name),
         By::kGraph, shape.RowBytes(),
         [shape](const Bed& bed) { return MakeRotation(bed, shape); }});
  }
  // One layer has few columns, and goes by chunks: blocks that wait for others, on
  // all of the GPU and on parts of it.
  CacheShape layer = cache(16384, kBf16);
  layer.model.n_layers = 1;
  for (const uint32_t n : {0u, 8u, 28u}) {
    const Moving m{layer, budget, nullptr};
    rows.push_back({"green",
                    "compact 1 layer by chunks, 16384 to 2048, " +
                        (n == 0 ? "all multiprocessors"
                                : fmt::format("{} multiprocessors", n)),
                    By::kGraph, 2 * layer.RowBytes(),
                    [m](const Bed& bed) { return MakeMove(bed, m); }, n});
  }
  return rows;
}

}  // namespace kvevict::gpu::rows
