#include "tests/gpu/random_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace kvevict::gpu {

RandomModel::RandomModel(const Gpu& gpu, Random* random)
    : gpu_(gpu),
      random_(*random),
      g_(RandomGeometry(random)),
      policy_(RandomPolicy(random, g_.max_tokens)),
      special_(random->OneOf(10)),
      options_(gpu.ContextOptions()) {
  options_.select_on_host = random->OneOf(6);
  options_.debug = random->OneOf(8);
  context_ = CreateContext(options_);
  host_context_ = CreateContext(KVEVICT_CONTEXT_OPTIONS_INIT);
}

bool RandomModel::MakePlans() {
  kvevict_plan* plan = nullptr;
  const kvevict_status status =
      kvevict_plan_create(context(), &g_, &policy_, nullptr, &plan);
  plan_ = PlanHandle(plan);
  const std::string message =
      status == KVEVICT_OK ? "" : kvevict_last_error_message();
  plan = nullptr;
  const kvevict_status on_host =
      kvevict_plan_create(host_context(), &g_, &policy_, nullptr, &plan);
  host_plan_ = PlanHandle(plan);
  if (status != on_host) {
    throw std::runtime_error("only one side makes a plan; the GPU: " + message);
  }
  if (status != KVEVICT_OK) return false;

  DrawTwinPolicy();
  twin_plan_ = CreatePlan(host_context(), g_, twin_policy_);
  sequence_ = CreateSequence(plan_.get());
  Check(kvevict_sequence_set_stream(sequence(), gpu_.stream()));
  twin_ = CreateSequence(twin_plan_.get());
  caches_.resize(g_.n_layers);
  for (uint32_t l = 0; l < g_.n_layers; ++l) {
    if (l > 0 && random_.OneOf(6)) continue;
    caches_[l] = std::make_unique<RandomLayer>(gpu_, &random_, g_);
  }
  queries_.resize(g_.n_layers);
  return true;
}

void RandomModel::DrawTwinPolicy() {
  twin_policy_ = policy_;
  if (policy_.kind != KVEVICT_POLICY_SNAPKV &&
      policy_.kind != KVEVICT_POLICY_PYRAMIDKV) {
    return;
  }
  Check(kvevict_policy_init(&twin_policy_, sizeof(twin_policy_),
                            KVEVICT_POLICY_CUSTOM));
  twin_policy_.n_sink = policy_.n_sink;
  twin_policy_.n_recent = std::max(
      policy_.n_recent, policy_.keep_window != 0 ? policy_.obs_window : 0);
  twin_policy_.budget = policy_.budget;
  twin_policy_.scope = policy_.scope;
  twin_policy_.scope_reduce = policy_.scope_reduce;
  twin_policy_.tie = policy_.tie;
  twin_policy_.layer_split = policy_.layer_split;
  twin_policy_.pyramid_alpha = policy_.pyramid_alpha;
}

RandomLayer& RandomModel::cache(uint32_t layer) const {
  while (caches_[layer] == nullptr) --layer;
  return *caches_[layer];
}

uint32_t RandomModel::Stored(uint32_t layer) const {
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(sequence(), layer, 0, &n));
  return n;
}

uint32_t RandomModel::Logical() const {
  uint32_t n = 0;
  Check(kvevict_sequence_logical_length(sequence(), &n));
  return n;
}

uint32_t RandomModel::Room() const {
  uint32_t longest = 0;
  for (uint32_t l = 0; l < g_.n_layers; ++l) {
    longest = std::max(longest, Stored(l));
  }
  return g_.max_tokens - longest;
}

QueryRows RandomModel::Queries(uint32_t layer, uint32_t first,
                               uint32_t n) const {
  const RandomPlane drawn =
      DrawPlane(&random_, g_.q_dtype, g_.k_head_dim, g_.n_q_heads, n, 1);
  const kvevict_plane& p = drawn.plane;
  const uint32_t element = ElementBytesOf(g_.q_dtype);
  const int64_t step =
      p.element_stride_bytes != 0 ? p.element_stride_bytes : int64_t{element};
  QueryRows rows;
  rows.bytes.assign(drawn.n_bytes, 0xEE);
  for (uint32_t i = 0; i < n; ++i) {
    const uint8_t* from = queries_[layer][first + i].data();
    for (uint32_t h = 0; h < g_.n_q_heads; ++h) {
      int64_t offset = static_cast<int64_t>(p.data) + i * p.token_stride_bytes +
                       h * p.head_stride_bytes;
      for (uint32_t e = 0; e < g_.k_head_dim; ++e, offset += step) {
        std::copy_n(from, element, &rows.bytes[static_cast<size_t>(offset)]);
        from += element;
      }
    }
  }
  rows.buffer = std::make_unique<Buffer>(gpu_, rows.bytes.size());
  rows.buffer->Write(rows.bytes.data(), rows.bytes.size());
  rows.host = rows.device = p;
  rows.host.data += reinterpret_cast<uintptr_t>(rows.bytes.data());
  rows.device.data += rows.buffer->address();
  return rows;
}

// ---- What an engine does ----

void RandomModel::AddTokens(uint32_t n) {
  const uint32_t logical = static_cast<uint32_t>(queries_[0].size());
  for (uint32_t l = 0; l < g_.n_layers; ++l) {
    if (OwnsCache(l)) {
      // A captured step may have been counted already.
      const uint32_t first = Stored(l) - (Logical() - logical);
      for (uint32_t i = 0; i < n; ++i) {
        cache(l).WriteToken(&random_, first + i, special_);
      }
      cache(l).Upload();
    }
    const uint32_t element = ElementBytesOf(g_.q_dtype);
    for (uint32_t i = 0; i < n; ++i) {
      std::vector<uint8_t> row(size_t{g_.n_q_heads} * g_.k_head_dim * element);
      for (size_t e = 0; e < row.size(); e += element) {
        WriteRandomElement(&random_, g_.q_dtype, false, &row[e]);
      }
      queries_[l].push_back(std::move(row));
    }
  }
}

void RandomModel::Observe(uint32_t layer, uint32_t first, uint32_t n,
                          bool next) const {
  const QueryRows rows = Queries(layer, first, n);
  Check(kvevict_sequence_observe(sequence(), layer, &rows.device, n,
                                 next ? KVEVICT_POSITION_NEXT : first));
  gpu_.Synchronize();  // the rows go
}

void RandomModel::ObserveLayers(uint32_t first, uint32_t n, bool next) const {
  std::vector<QueryRows> rows;
  std::vector<kvevict_plane> planes;
  for (uint32_t l = 0; l < g_.n_layers; ++l) {
    rows.push_back(Queries(l, first, n));
    planes.push_back(rows.back().device);
  }
  Check(kvevict_sequence_observe_layers(sequence(), planes.data(),
                                        planes.size(), n,
                                        next ? KVEVICT_POSITION_NEXT : first));
  gpu_.Synchronize();  // the rows go
}

void RandomModel::Append(uint32_t n) {
  if (n == 0) return;
  const uint32_t first = Logical();
  AddTokens(n);
  const bool next = random_.OneOf(2);
  const bool together = random_.OneOf(3);
  if (together) ObserveLayers(first, n, next);
  for (uint32_t l = 0; l < g_.n_layers && by_attention() && !together; ++l) {
    for (uint32_t done = 0; done < n;) {
      const uint32_t rows = next ? n : random_.In(1, n - done);
      Observe(l, first + done, rows, next);
      done += rows;
    }
  }
  Check(kvevict_sequence_append(sequence(), n));
  Check(kvevict_sequence_append(twin(), n));
}

void RandomModel::Decode(uint32_t n) {
  n = std::min(n, Room());
  if (n == 0 || options_.debug != 0) return;  // which waits for every kernel
  Check(kvevict_context_prepare(context(), plan()));
  const size_t row_bytes =
      size_t{g_.n_q_heads} * g_.k_head_dim * ElementBytesOf(g_.q_dtype);
  const Buffer rows(gpu_, row_bytes * g_.n_layers);
  std::vector<kvevict_plane> planes(g_.n_layers);
  for (uint32_t l = 0; l < g_.n_layers; ++l) {
    planes[l].data = rows.address() + l * row_bytes;
    planes[l].dtype = g_.q_dtype;
    planes[l].head_dim = g_.k_head_dim;
    planes[l].head_stride_bytes =
        static_cast<int64_t>(row_bytes / g_.n_q_heads);
    planes[l].token_stride_bytes = static_cast<int64_t>(row_bytes);
  }
  const bool together = random_.OneOf(2);
  const Graph graph(gpu_, [&] {
    if (together) {
      Check(kvevict_sequence_observe_layers(
          sequence(), planes.data(), planes.size(), 1, KVEVICT_POSITION_NEXT));
    }
    for (uint32_t l = 0; l < g_.n_layers && !together; ++l) {
      Check(kvevict_sequence_observe(sequence(), l, &planes[l], 1,
                                     KVEVICT_POSITION_NEXT));
    }
    Check(kvevict_sequence_append(sequence(), 1));
  });
  for (uint32_t i = 0; i < n; ++i) {
    AddTokens(1);
    for (uint32_t l = 0; l < g_.n_layers; ++l) {
      rows.Write(queries_[l].back().data(), row_bytes, l * row_bytes);
    }
    // The first run was counted when it was captured.
    if (i > 0) Check(kvevict_sequence_replayed(sequence(), 1));
    graph.Launch();
    Check(kvevict_sequence_append(twin(), 1));
  }
  gpu_.Synchronize();
}

void RandomModel::Trim() {
  const uint32_t logical = Logical();
  const uint32_t n = logical - random_.In(0, std::min(logical, 9u));
  const kvevict_status status = kvevict_sequence_trim(sequence(), n);
  if (status != kvevict_sequence_trim(twin(), n)) {
    throw std::runtime_error("only one side takes tokens back");
  }
  if (status != KVEVICT_OK) return;
  for (auto& rows : queries_) rows.resize(n);
  const uint32_t again = std::min(n, policy_.obs_window);
  for (uint32_t l = 0; l < g_.n_layers && by_attention() && again > 0; ++l) {
    Observe(l, n - again, again, false);
  }
}

void RandomModel::Reset() {
  Check(kvevict_sequence_reset(sequence()));
  Check(kvevict_sequence_reset(twin()));
  for (auto& rows : queries_) rows.clear();
}

void RandomModel::ExpectSameLengths(Report* report) const {
  kvevict_sequence_memory memory{};
  memory.struct_size = sizeof(memory);
  Check(kvevict_sequence_memory_of(sequence(), 0, &memory));
  std::vector<uint32_t> lengths(2 * g_.n_layers * memory.n_lists);
  Check(gpu_.driver(),
        gpu_.driver().cuMemcpyDtoHAsync(lengths.data(), memory.lengths,
                                        lengths.size() * sizeof(uint32_t),
                                        gpu_.stream()),
        "cuMemcpyDtoHAsync");
  gpu_.Synchronize();
  uint32_t logical = 0;
  Check(kvevict_sequence_logical_length(twin(), &logical));
  for (size_t i = 0; i < lengths.size() / 2; ++i) {
    const auto l = static_cast<uint32_t>(i / memory.n_lists);
    uint32_t stored = 0;
    Check(kvevict_sequence_stored_length(twin(), l, 0, &stored));
    report->FailIf(
        lengths[2 * i] != stored || Stored(l) != stored ||
            lengths[2 * i + 1] != logical || Logical() != logical,
        fmt::format("layer {}: {}, {} on the GPU; {}, {} counted; {}, {} on "
                    "the CPU",
                    l, lengths[2 * i], lengths[2 * i + 1], Stored(l), Logical(),
                    stored, logical));
  }
}

}  // namespace kvevict::gpu
