#include "tests/gpu/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "tests/gpu/green_context.h"

namespace kvevict::gpu::rows {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

nlohmann::json JsonOf(const Spread& s) {
  return {{"median", s.median}, {"least", s.least}, {"most", s.most}};
}

// A row's work by one library, ready to be timed.
class Side {
 public:
  Side(const Bed& bed, const Row& row) : bed_(bed), work_(row.make(bed)) {
    work_.prepare();
    work_.run();  // compiles
    bed_.gpu.Synchronize();
    if (row.by == By::kQueue) return;
    work_.prepare();
    graph_.emplace(bed_.gpu, work_.run);
    bed_.gpu.Synchronize();
  }
  ~Side() { (void)bed_.gpu.driver().cuStreamSynchronize(bed_.gpu.stream()); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  const Work& work() const { return work_; }

  struct Times {
    double device;  // ms
    double host;    // ms of the calls
  };
  Times Run(const Stopwatch& watch) const {
    watch.Lead();
    work_.prepare();
    Times times{};
    times.device = bed_.gpu.Time([&] {
      const Clock::time_point begin = Clock::now();
      if (graph_) {
        graph_->Launch();
      } else {
        work_.run();
      }
      times.host = Milliseconds(begin);
    });
    return times;
  }

 private:
  const Bed bed_;
  const Work work_;
  std::optional<Graph> graph_;
};

class Table {
 public:
  Table(const Gpu& gpu, const Effort& effort, const RowOptions& options,
        const Limits& limits)
      : gpu_(gpu),
        effort_(effort),
        options_(options),
        limits_(limits),
        watch_(gpu, effort),
        linked_(Library::Linked()) {
    if (!options.against.empty()) other_ = Library::Open(options.against);
  }

  nlohmann::json Time(const Row& row) const {
    if (row.multiprocessors == 0) return TimeOn(gpu_, watch_, row);
    std::optional<GreenContext> green;
    try {
      green.emplace(gpu_, row.multiprocessors);
    } catch (const std::exception& e) {
      return {{"skipped", e.what()}};
    }
    nlohmann::json json =
        TimeOn(green->gpu(), Stopwatch(green->gpu(), effort_), row);
    json["multiprocessors"] = green->n_multiprocessors();
    return json;
  }

  // Why there is no time for the row or no room, or nothing.
  std::string Obstacle(const Row& row, double seconds) const {
    if (options_.seconds > 0 && seconds > options_.seconds) {
      return "no time left";
    }
    if (gpu_.driver().cuMemGetInfo == nullptr) return "";
    size_t n_free = 0;
    size_t n_bytes = 0;
    Check(gpu_.driver(), gpu_.driver().cuMemGetInfo(&n_free, &n_bytes),
          "cuMemGetInfo");
    const uint64_t copies = other_ ? 2 : 1;
    if (copies * row.memory <= n_free) return "";
    return fmt::format("needs {:.1f} GB, {:.1f} GB are free",
                       static_cast<double>(copies * row.memory) * 1e-9,
                       static_cast<double>(n_free) * 1e-9);
  }

 private:
  Bed BedOn(const Gpu& gpu, const Library& library) const {
    return {gpu, library, library.Context(gpu.ContextOptions()), effort_.seed};
  }

  nlohmann::json TimeOn(const Gpu& gpu, const Stopwatch& watch,
                        const Row& row) const {
    const Side side(BedOn(gpu, linked_), row);
    std::unique_ptr<Side> other;
    if (other_) other = std::make_unique<Side>(BedOn(gpu, *other_), row);
    std::vector<double> device, host, others, ratios;
    // A slow row is as sure after fewer runs.
    int n = 2;
    if (effort_.full) {
      const Clock::time_point begin = Clock::now();
      side.Run(watch);
      n = std::clamp(static_cast<int>(1500 / Milliseconds(begin)), 5, 21);
    }
    for (int i = 0; i < n; ++i) {
      // The two take turns, and take turns at being first.
      Side::Times mine{};
      Side::Times its{};
      if (other != nullptr && i % 2 == 1) its = other->Run(watch);
      mine = side.Run(watch);
      if (other != nullptr && i % 2 == 0) its = other->Run(watch);
      device.push_back(mine.device);
      host.push_back(mine.host);
      others.push_back(its.device);
      ratios.push_back(mine.device / its.device);
    }
    nlohmann::json rows = nlohmann::json::array();
    AddRow(&rows, row.name, SpreadOf(device), side.work().bytes,
           side.work().flops, limits_);
    nlohmann::json json = rows[0];
    json["runs"] = n;
    json["host_us"] = SpreadOf(host).median * 1e3;
    if (row.by == By::kQueue) {
      fmt::print("    the calls take {:.1f} us of the host\n",
                 SpreadOf(host).median * 1e3);
    }
    if (other != nullptr) {
      json["other_ms"] = JsonOf(SpreadOf(others));
      json["ratio"] = JsonOf(SpreadOf(ratios));
      const Spread r = SpreadOf(ratios);
      fmt::print("    {:.3f} of the other library's time ({:.3f} to {:.3f})\n",
                 r.median, r.least, r.most);
    }
    return json;
  }

  const Gpu& gpu_;
  const Effort effort_;
  const RowOptions options_;
  const Limits limits_;
  const Stopwatch watch_;
  const Library linked_;
  std::optional<Library> other_;
};

bool IsOutOfMemory(const std::string& message) {
  return message.find("OUT_OF_MEMORY") != std::string::npos ||
         message.find("out of memory") != std::string::npos;
}

// Whether later rows can run after one failed.
bool IsAlive(const Gpu& gpu) {
  return gpu.driver().cuStreamSynchronize(gpu.stream()) == cuda::CUDA_SUCCESS;
}

}  // namespace

Model Scale::Of(Model model) const {
  if (full) return model;
  model.n_q_heads /= model.n_kv_heads;
  model.n_kv_heads = 1;
  model.n_layers = 2;
  return model;
}

uint32_t Scale::Tokens(uint32_t n) const {
  if (full) return n;
  return n <= 2048 ? 80 : n <= 2176 ? 96 : n <= 4096 ? 112 : 176;
}

std::shared_ptr<kvevict_plan> PlanOf(const Bed& bed, const CacheShape& shape,
                                     kvevict_dtype q_dtype,
                                     const std::string& policy,
                                     const std::vector<float>& frequencies) {
  const Model& m = shape.model;
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = m.n_q_heads;
  layer.n_kv_heads = m.n_kv_heads;
  layer.k_head_dim = m.head_dim;
  layer.v_head_dim = shape.has_values ? m.head_dim : 0;
  layer.q_dtype = q_dtype;
  layer.k_dtype = layer.v_dtype = shape.format.dtype;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = m.n_layers;
  geometry.max_tokens = shape.n_tokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  geometry.rope_inv_freq = frequencies.empty() ? nullptr : frequencies.data();
  geometry.rope_inv_freq_len = frequencies.size();
  return bed.library.Plan(bed.context.get(), geometry, policy);
}

std::vector<Row> AllRows(const Scale& scale) {
  std::vector<Row> rows;
  for (const auto& make : {MachineRows, ScoreRows, EvictionRows,
                           ObservationRows, MoveRows, AttentionRows}) {
    for (Row& row : make(scale)) rows.push_back(std::move(row));
  }
  return rows;
}

int TimeRows(const Gpu& gpu, const Effort& effort, const RowOptions& options,
             const Limits& limits, const std::function<void()>& save,
             nlohmann::json* out) {
  const Table table(gpu, effort, options, limits);
  const Clock::time_point begin = Clock::now();
  *out = nlohmann::json::array();
  int n_failed = 0;
  std::string lost;
  for (const Row& row : AllRows({effort.full})) {
    if ((row.group + ": " + row.name).find(options.named) ==
        std::string::npos) {
      continue;
    }
    nlohmann::json json;
    const std::string obstacle =
        lost.empty() ? table.Obstacle(row, Milliseconds(begin) * 1e-3) : lost;
    try {
      json = obstacle.empty() ? table.Time(row)
                              : nlohmann::json{{"skipped", obstacle}};
    } catch (const std::exception& e) {
      json = {{IsOutOfMemory(e.what()) ? "skipped" : "failed", e.what()}};
      if (!IsAlive(gpu)) lost = "the context was lost in: " + row.name;
    }
    json["group"] = row.group;
    json["name"] = row.name;
    json["by"] = row.by == By::kGraph ? "graph" : "queue";
    for (const char* why : {"skipped", "failed"}) {
      if (json.contains(why)) {
        fmt::print("{}: {}: {}\n", row.name, why, json[why].get<std::string>());
      }
    }
    n_failed += json.contains("failed") ? 1 : 0;
    out->push_back(std::move(json));
    std::fflush(stdout);
    save();
  }
  return n_failed;
}

}  // namespace kvevict::gpu::rows
