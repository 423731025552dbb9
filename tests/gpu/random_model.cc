#include "tests/gpu/random_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/gpu/doors.h"

namespace kvevict::gpu {

RandomModel::RandomModel(const Gpu& gpu, Random* random, const ModelCase& model)
    : gpu_(gpu),
      random_(*random),
      case_(model),
      // A rotated NaN has other bits on either side.
      special_(random->OneOf(10) && model.policy.rotate == 0),
      packs_queries_(random->OneOf(2)),
      other_stream_(gpu),
      stream_(gpu.stream()) {
  kvevict_context_options options = gpu.ContextOptions();
  options.select_on_host = model.select_on_host;
  options.debug = model.debug;
  context_ = CreateContext(options);
  host_context_ = CreateContext(KVEVICT_CONTEXT_OPTIONS_INIT);
}

bool RandomModel::MakePlans() {
  const kvevict_geometry g = geometry().Borrowed();
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.head_budgets =
      case_.head_budgets.empty() ? nullptr : case_.head_budgets.data();
  options.head_budgets_len = case_.head_budgets.size();
  options.report_mass = case_.reports_mass;
  // This is a copy, which does not change the draws of the life.
  options.draft_tokens = Random(random_).In(0, 9);
  // Both refuse values that cannot be combined.
  const PolicyHandle handle(oracle_policy_create(&policy()));
  if (handle.get() == nullptr) return false;
  kvevict_plan* plan = nullptr;
  const kvevict_status status =
      kvevict_plan_create(context(), &g, handle.get(), &options, &plan);
  plan_ = PlanHandle(plan);
  const std::string message =
      status == KVEVICT_OK ? "" : kvevict_last_error_message();
  plan = nullptr;
  const kvevict_status on_host =
      kvevict_plan_create(host_context(), &g, handle.get(), &options, &plan);
  host_plan_ = PlanHandle(plan);
  if (status != on_host) {
    throw std::runtime_error("only one side makes a plan; the GPU: " + message);
  }
  if (status != KVEVICT_OK) return false;

  DrawTwinPolicy();
  options.draft_tokens = 0;
  twin_plan_ = CreatePlan(host_context(), geometry(), twin_policy_, &options);
  sequence_ = CreateSequence(plan_.get());
  twin_ = CreateSequence(twin_plan_.get());
  observes_ = by_attention() && case_.observes;
  observes_sums_ = (takes_sums() || takes_scores()) && case_.observes;
  EndObserving();
  caches_.resize(g.n_layers);
  for (uint32_t l = 0; l < g.n_layers; ++l) {
    if (!IsFull(l)) continue;
    const kvevict_layer_geometry& layer = geometry().layer(l);
    if (l > 0 && random_.OneOf(6) &&
        std::memcmp(&layer, &geometry().layer(l - 1), sizeof(layer)) == 0) {
      continue;
    }
    caches_[l] = std::make_unique<RandomLayer>(
        gpu_, &random_, layer, g.max_tokens, false, case_.table_block,
        LayerOf(plan_.get(), l).n_lists > 1);
  }
  queries_.resize(g.n_layers);
  return true;
}

void RandomModel::DrawTwinPolicy() {
  const oracle_policy& p = policy();
  twin_policy_ = p;
  if (!LendsScores(p)) return;
  twin_policy_ = ParsePolicy("custom");
  twin_policy_.sink = p.sink;
  twin_policy_.recent =
      std::max(p.recent, by_attention() && p.keep_window ? p.window : 0);
  twin_policy_.budget = p.budget;
  twin_policy_.scope = p.scope;
  twin_policy_.over = p.over;
  twin_policy_.tie = p.tie;
  twin_policy_.split = p.split;
  twin_policy_.alpha = p.alpha;
  twin_policy_.heads = p.heads;
  twin_policy_.floor = p.floor;
  twin_policy_.rounding = p.rounding;
  twin_policy_.threshold = p.threshold;
  twin_policy_.normalize = p.normalize;
  twin_policy_.select_block = p.select_block;
  twin_policy_.rescue = p.rescue;
  twin_policy_.anchor = p.anchor;
  twin_policy_.seed = p.seed;
  twin_policy_.diverse_mass = p.diverse_mass;
  twin_policy_.merge = p.merge;
  twin_policy_.merge_threshold = p.merge_threshold;
  twin_policy_.merge_fraction = p.merge_fraction;
  twin_policy_.rotate = p.rotate;
  twin_policy_.margin = p.margin;
  twin_policy_.every = p.every;
  twin_policy_.prompt = p.prompt;
}

uint32_t RandomModel::first_full() const {
  uint32_t l = 0;
  while (!IsFull(l)) ++l;
  return l;
}

RandomLayer& RandomModel::cache(uint32_t layer) const {
  while (caches_[layer] == nullptr) --layer;
  return *caches_[layer];
}

uint32_t RandomModel::Stored(uint32_t layer, uint32_t kv_head) const {
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(sequence(), layer, kv_head, &n));
  return n;
}

std::vector<uint32_t> RandomModel::Counts(uint32_t layer) const {
  std::vector<uint32_t> counts;
  for (uint32_t h = 0; h < n_kv_heads(layer); ++h) {
    counts.push_back(Stored(layer, h));
  }
  return counts;
}

uint32_t RandomModel::Stored(uint32_t layer) const {
  const std::vector<uint32_t> counts = Counts(layer);
  return *std::max_element(counts.begin(), counts.end());
}

uint32_t RandomModel::Logical() const {
  uint32_t n = 0;
  Check(kvevict_sequence_logical_length(sequence(), &n));
  return n;
}

uint32_t RandomModel::Room() const {
  uint32_t longest = 0;
  for (uint32_t l = 0; l < geometry().n_layers; ++l) {
    if (IsFull(l)) longest = std::max(longest, Stored(l));
  }
  return geometry().max_tokens - longest;
}

QueryRows RandomModel::Queries(uint32_t layer, uint32_t first,
                               uint32_t n) const {
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < n; ++i) positions.push_back(first + i);
  return QueriesOf(layer, positions);
}

QueryRows RandomModel::ReferenceQueries(uint32_t layer) const {
  std::vector<uint32_t> positions;
  const auto n_known = static_cast<uint32_t>(queries_[layer].size());
  for (uint32_t i = 0; i < policy().reference; ++i) {
    positions.push_back(random_.In(0, n_known - 1));
  }
  return QueriesOf(layer, positions);
}

QueryRows RandomModel::QueriesOf(uint32_t layer,
                                 const std::vector<uint32_t>& positions) const {
  const auto n = static_cast<uint32_t>(positions.size());
  const kvevict_layer_geometry& g = geometry().layer(layer);
  const RandomPlane drawn =
      packs_queries_
          ? PackedPlane(g, n)
          : DrawPlane(&random_, g.q_dtype, g.k_head_dim, g.n_q_heads, n, 1);
  const kvevict_plane& p = drawn.plane;
  const uint32_t element = ElementBytesOf(g.q_dtype);
  const int64_t step =
      p.element_stride_bytes != 0 ? p.element_stride_bytes : int64_t{element};
  QueryRows rows;
  rows.bytes.assign(drawn.n_bytes, 0xEE);
  for (uint32_t i = 0; i < n; ++i) {
    const uint8_t* from = queries_[layer][positions[i]].data();
    for (uint32_t h = 0; h < g.n_q_heads; ++h) {
      int64_t offset = static_cast<int64_t>(p.data) + i * p.token_stride_bytes +
                       h * p.head_stride_bytes;
      for (uint32_t e = 0; e < g.k_head_dim; ++e, offset += step) {
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

// ---- Streams ----

void RandomModel::MoveTo(cuda::CUstream stream) {
  if (stream == stream_) return;
  Order(gpu_, stream_, stream);
  stream_ = stream;
}

kvevict_stream RandomModel::NextStream() {
  if (random_.OneOf(4)) {
    MoveTo(stream_ == gpu_.stream() ? other_stream_.get() : gpu_.stream());
  }
  return stream_;
}

kvevict_status RandomModel::Run(
    const std::function<kvevict_status(kvevict_stream)>& call) {
  if (random_.OneOf(2)) return call(NextStream());
  Check(kvevict_context_prepare(context(), plan()));
  MoveTo(gpu_.stream());
  kvevict_status status = KVEVICT_OK;
  {
    const Graph graph(gpu_, [&] { status = call(stream_); });
    if (status == KVEVICT_OK) graph.Launch();
    Synchronize();
  }
  return status == KVEVICT_ERROR_UNSUPPORTED ? call(stream_) : status;
}

void RandomModel::Synchronize() const {
  Check(gpu_.driver(), gpu_.driver().cuStreamSynchronize(stream_),
        "cuStreamSynchronize");
}

// ---- What an engine does ----

void RandomModel::AddTokens(uint32_t n) {
  const uint32_t logical = static_cast<uint32_t>(queries_[0].size());
  // A captured step may have been counted already.
  const uint32_t n_counted = Logical() - logical;
  for (uint32_t l = 0; l < geometry().n_layers; ++l) {
    if (OwnsCache(l)) {
      for (uint32_t h = 0; h < n_kv_heads(l); ++h) {
        const uint32_t first = Stored(l, h) - n_counted;
        for (uint32_t i = 0; i < n; ++i) {
          cache(l).WriteRows(&random_, h, first + i, special_);
        }
      }
      cache(l).Upload();
    }
    const kvevict_layer_geometry& g = geometry().layer(l);
    const uint32_t element = IsFull(l) ? ElementBytesOf(g.q_dtype) : 0;
    const size_t row_bytes =
        element == 0 ? 0 : size_t{g.n_q_heads} * g.k_head_dim * element;
    for (uint32_t i = 0; i < n; ++i) {
      std::vector<uint8_t> row(row_bytes);
      for (size_t e = 0; e < row.size(); e += element) {
        WriteRandomElement(&random_, g.q_dtype, false, &row[e]);
      }
      queries_[l].push_back(std::move(row));
    }
  }
}

void RandomModel::Observe(uint32_t layer, uint32_t first, uint32_t n,
                          bool next) {
  const QueryRows rows = Queries(layer, first, n);
  Check(gpu::Observe(sequence(), {layer, &rows.device}, n,
                     next ? KVEVICT_POSITION_NEXT : first, NextStream()));
  Synchronize();  // the rows go
}

void RandomModel::ObserveLayers(uint32_t first, uint32_t n, bool next) {
  std::vector<QueryRows> rows(geometry().n_layers);
  std::vector<Shown> shown;
  for (uint32_t l = 0; l < geometry().n_layers; ++l) {
    if (!IsFull(l)) continue;
    rows[l] = Queries(l, first, n);
    shown.push_back({l, &rows[l].device});
  }
  Check(gpu::Observe(sequence(), shown, n, next ? KVEVICT_POSITION_NEXT : first,
                     NextStream()));
  Synchronize();  // the rows go
}

void RandomModel::EndObserving() {
  if (observes_ || observes_sums_) return;
  Check(kvevict_sequence_end_observing(sequence()));
}

void RandomModel::Append(uint32_t n) {
  if (n == 0) return;
  const uint32_t first = Logical();
  sums_are_known_ = observes_sums_ && ObserveSums(first, n);
  AddTokens(n);
  const bool next = random_.OneOf(2);
  // It does nothing if nobody observes.
  const bool together = random_.OneOf(3);
  if (together && observes() == by_attention()) ObserveLayers(first, n, next);
  for (uint32_t l = 0; l < geometry().n_layers && !together; ++l) {
    if (!observes() || !IsFull(l)) continue;
    for (uint32_t done = 0; done < n;) {
      const uint32_t rows = next ? n : random_.In(1, n - done);
      Observe(l, first + done, rows, next);
      done += rows;
    }
  }
  Check(kvevict_sequence_append(sequence(), n, NextStream()));
  Check(kvevict_sequence_append(twin(), n, nullptr));
  if (takes_scores() && observes_sums_ && random_.OneOf(3)) {  // given again
    const uint32_t back = random_.In(1, std::min(Logical(), 20u));
    ObserveSums(Logical() - back, random_.In(1, back));
  }
  Synchronize();
  ExpectSameSums();
}

void RandomModel::Trim() {
  const uint32_t logical = Logical();
  const uint32_t n = random_.OneOf(3)
                         ? random_.In(0, logical)
                         : logical - random_.In(0, std::min(logical, 9u));
  const kvevict_status status =
      kvevict_sequence_trim_to(sequence(), n, NextStream());
  if (status != kvevict_sequence_trim_to(twin(), n, nullptr)) {
    throw std::runtime_error("only one side takes tokens back");
  }
  if (status != KVEVICT_OK) return;
  for (auto& rows : queries_) rows.resize(n);
  ObserveWindow();
}

void RandomModel::ObserveWindow() {
  const uint32_t n = Logical();
  const uint32_t again = std::min(n, policy().window);
  if (observes() && again > 0) ObserveLayers(n - again, again, false);
}

void RandomModel::EndPrompt() {
  const kvevict_status status = kvevict_sequence_end_prompt(sequence());
  if (status != kvevict_sequence_end_prompt(twin())) {
    throw std::runtime_error("only one side ends the prompt");
  }
}

// ---- Copies ----

namespace {

std::vector<uint8_t> Saved(const kvevict_sequence* sequence) {
  size_t n = 0;
  Check(kvevict_sequence_save(sequence, nullptr, 0, &n));
  std::vector<uint8_t> data(n);
  Check(kvevict_sequence_save(sequence, data.data(), n, nullptr));
  return data;
}

SequenceHandle ForkOf(const kvevict_sequence* sequence, kvevict_stream stream) {
  kvevict_sequence* fork = nullptr;
  Check(kvevict_sequence_fork(sequence, nullptr, &fork, stream));
  return SequenceHandle(fork);
}

}  // namespace

void RandomModel::Copy(Report* report) {
  step_.reset();
  sums_are_known_ = false;
  switch (random_.In(0, 2)) {
    case 0:
      return Fork();
    case 1:
      return Load(report);
    default:
      return Start();
  }
}

void RandomModel::Fork() {
  SequenceHandle fork = ForkOf(sequence(), NextStream());
  SequenceHandle of_twin = ForkOf(twin(), nullptr);
  Synchronize();  // the first ones go
  sequence_ = std::move(fork);
  twin_ = std::move(of_twin);
}

void RandomModel::Load(Report* report) {
  const std::vector<uint8_t> saved = Saved(sequence());
  const std::vector<uint8_t> of_twin = Saved(twin());
  report->FailIf(saved != of_twin, "the sides save different bytes");
  if (random_.OneOf(2)) {  // else in its own place
    sequence_ = CreateSequence(plan());
    twin_ = CreateSequence(twin_plan());
    EndObserving();
  }
  Check(kvevict_sequence_load(sequence(), of_twin.data(), of_twin.size(),
                              NextStream()));
  Check(kvevict_sequence_load(twin(), saved.data(), saved.size(), nullptr));
  report->FailIf(Saved(sequence()) != saved, "saved again it is different");
  ObserveWindow();
}

void RandomModel::Start() {
  const uint32_t n_tokens = Logical();
  const uint32_t room = n_tokens + 1;
  std::vector<kvevict_position_lists> layers(geometry().n_layers);
  std::vector<std::vector<int32_t>> positions(layers.size());
  std::vector<std::vector<uint32_t>> counts(layers.size());
  for (uint32_t l = 0; l < layers.size(); ++l) {
    layers[l] = KVEVICT_POSITION_LISTS_INIT;
    if (!IsFull(l)) continue;
    const uint32_t n_lists = LayerOf(plan(), l).n_lists;
    positions[l].resize(size_t{n_lists} * room);
    for (uint32_t list = 0; list < n_lists; ++list) {
      size_t n = 0;
      Check(kvevict_sequence_keep_positions(
          twin(), l, list, &positions[l][size_t{list} * room], room, &n));
      counts[l].push_back(static_cast<uint32_t>(n));
    }
    layers[l].n_lists = n_lists;
    layers[l].positions = positions[l].data();
    layers[l].positions_len = positions[l].size();
    layers[l].list_stride = room;
    layers[l].count = *std::max_element(counts[l].begin(), counts[l].end());
    layers[l].counts = counts[l].data();
  }
  Check(kvevict_sequence_reset(sequence(), NextStream()));
  Check(kvevict_sequence_reset(twin(), nullptr));
  Check(kvevict_sequence_start(sequence(), layers.data(), layers.size(),
                               n_tokens, NextStream()));
  Check(kvevict_sequence_start(twin(), layers.data(), layers.size(), n_tokens,
                               nullptr));
  ObserveWindow();
}

// ---- And the end ----

void RandomModel::Reset() {
  step_.reset();
  sums_are_known_ = false;
  Check(kvevict_sequence_reset(sequence(), NextStream()));
  Check(kvevict_sequence_reset(twin(), nullptr));
  for (auto& rows : queries_) rows.clear();
}

void RandomModel::ExpectSameLengths(Report* report) const {
  Synchronize();
  uint32_t logical = 0;
  uint32_t prefix = 0;
  uint32_t of_twin = 0;
  Check(kvevict_sequence_logical_length(twin(), &logical));
  Check(kvevict_sequence_exact_prefix(sequence(), &prefix));
  Check(kvevict_sequence_exact_prefix(twin(), &of_twin));
  report->FailIf(
      prefix != of_twin,
      fmt::format("prefix {} on the GPU, {} on the CPU", prefix, of_twin));
  for (uint32_t l = 0; l < geometry().n_layers; ++l) {
    if (!IsFull(l)) continue;
    kvevict_sequence_memory memory{};
    memory.struct_size = sizeof(memory);
    Check(kvevict_sequence_memory_of(sequence(), l, &memory));
    std::vector<uint32_t> lengths(2 * memory.n_lists);
    Check(gpu_.driver(),
          gpu_.driver().cuMemcpyDtoHAsync(lengths.data(), memory.lengths,
                                          lengths.size() * sizeof(uint32_t),
                                          gpu_.stream()),
          "cuMemcpyDtoHAsync");
    gpu_.Synchronize();
    for (uint32_t h = 0; h < n_kv_heads(l); ++h) {
      uint32_t stored = 0;
      Check(kvevict_sequence_stored_length(twin(), l, h, &stored));
      const uint32_t* const list =
          &lengths[memory.n_lists == 1 ? 0 : size_t{2} * h];
      report->FailIf(
          list[0] != stored || Stored(l, h) != stored || list[1] != logical ||
              Logical() != logical,
          fmt::format("layer {}, head {}: {}, {} on the GPU; {}, {} counted; "
                      "{}, {} on the CPU",
                      l, h, list[0], list[1], Stored(l, h), Logical(), stored,
                      logical));
    }
  }
}

}  // namespace kvevict::gpu
