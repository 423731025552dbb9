// Evictions by table on the GPU and on the CPU: the same entries in the same
// places, and no byte of the blocks changes.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/gpu/checks.h"
#include "tests/gpu/random_model.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kLayers = 3;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kDim = 4;

// Keep sets that do not depend on how a device rounds.
struct Case {
  const char* policy;
  uint32_t max_tokens;
  uint32_t block_size;
  bool by_head;     // a table for each head
  bool by_address;  // without ids
  bool one_table;   // for all layers, or for keys and values
};
constexpr Case kCases[] = {
    {"streaming-llm:budget=60,sink=4,select_block=8", 90, 8, false, false,
     false},
    {"streaming-llm:budget=60,sink=4,select_block=8", 90, 4, false, false,
     true},
    {"random:budget=700,sink=0,scope=layer", 1400, 1, false, false, false},
    {"random:budget=0.5,sink=0,select_block=6,scope=head", 90, 3, true, false,
     false},
    {"random:budget=0.5,sink=0,select_block=6,scope=head", 90, 3, true, true,
     true},
    {"random:budget=0.5,sink=0,scope=head,heads=adaptive", 90, 1, true, false,
     false},
    {"random:budget=650,sink=0,scope=layer", 1300, 1, false, true, false},
    {"random:budget=48,sink=3,select_block=16,scope=model", 100, 16, false,
     false, true},
};

// One layer's blocks and tables on one device.
struct Side {
  uint64_t blocks = 0;
  uint64_t tables = 0;
};

class Caches {
 public:
  Caches(const Gpu& gpu, const Case& c, uint64_t seed)
      : case_(c),
        per_table_((c.max_tokens + c.block_size - 1) / c.block_size + 1),
        n_tables_(c.by_head ? kHeads : 1),
        n_blocks_(n_tables_ * per_table_ + 5) {
    std::mt19937_64 random(seed);
    for (uint32_t l = 0; l < kLayers; ++l) {
      Layer& layer = layers_[l];
      layer.ids.resize(n_blocks_);
      std::iota(layer.ids.begin(), layer.ids.end(), 0);
      std::shuffle(layer.ids.begin(), layer.ids.end(), random);
      if (IsAnother(l)) layer.ids = layers_[0].ids;
      layer.bytes.resize(size_t{n_blocks_} * BlockBytes());
      for (uint8_t& byte : layer.bytes) byte = static_cast<uint8_t>(random());
      layer.before = layer.bytes;
      layer.blocks = std::make_unique<Buffer>(gpu, layer.bytes.size());
      layer.blocks->Write(layer.bytes.data(), layer.bytes.size());
      const size_t n_bytes = TableBytes();
      layer.host_tables.resize(n_bytes / 8);
      layer.tables = std::make_unique<Buffer>(gpu, n_bytes);
      std::vector<uint64_t> of_device(n_bytes / 8);
      Fill(layer, reinterpret_cast<uint64_t>(layer.bytes.data()),
           layer.host_tables.data());
      Fill(layer, layer.blocks->address(), of_device.data());
      layer.tables->Write(of_device.data(), n_bytes);
    }
  }

  std::vector<kvevict_view> Views(bool on_host) const {
    std::vector<kvevict_view> views;
    for (uint32_t l = 0; l < kLayers; ++l) {
      const Layer& layer = layers_[l];
      const Layer& of_tables = layers_[IsAnother(l) ? 0 : l];
      views.push_back(
          on_host
              ? View({reinterpret_cast<uint64_t>(layer.bytes.data()),
                      reinterpret_cast<uint64_t>(of_tables.host_tables.data())})
              : View({layer.blocks->address(), of_tables.tables->address()}));
    }
    return views;
  }

  // Notes that rows have moved.
  void Settle() {
    for (Layer& layer : layers_) layer.before = layer.bytes;
  }
  void ExpectAlike(Report* report) const {
    for (uint32_t l = 0; l < kLayers; ++l) {
      const Layer& layer = layers_[l];
      report->FailIf(layer.bytes != layer.before ||
                         layer.blocks->ReadAll<uint8_t>() != layer.before,
                     fmt::format("layer {}: bytes have changed", l));
      std::vector<uint64_t> device = layer.tables->ReadAll<uint64_t>();
      std::vector<uint64_t> host = layer.host_tables;
      if (case_.by_address) {
        for (uint64_t& a : device) a -= layer.blocks->address();
        for (uint64_t& a : host) {
          a -= reinterpret_cast<uint64_t>(layer.bytes.data());
        }
      }
      report->FailIf(device != host,
                     fmt::format("layer {}: the tables differ", l));
    }
  }

 private:
  struct Layer {
    std::vector<int32_t> ids;
    std::vector<uint8_t> bytes, before;
    std::vector<uint64_t> host_tables;
    std::unique_ptr<Buffer> blocks, tables;
  };

  uint32_t PlaneBytes() const {
    return case_.block_size * kHeads * kDim * sizeof(float);
  }
  uint32_t BlockBytes() const { return 2 * PlaneBytes(); }
  // Whether layer l uses the first layer's tables.
  bool IsAnother(uint32_t l) const {
    return l > 0 && case_.one_table && !case_.by_address;
  }
  bool HasTableOfValues() const { return case_.by_address && !case_.one_table; }
  size_t TableBytes() const {
    const size_t n = size_t{n_blocks_} * (case_.by_address ? 8 : 4);
    return (n * (HasTableOfValues() ? 2 : 1) + 7) / 8 * 8;
  }
  void Fill(const Layer& layer, uint64_t blocks, uint64_t* out) const {
    if (!case_.by_address) {
      std::copy(layer.ids.begin(), layer.ids.end(),
                reinterpret_cast<int32_t*>(out));
      return;
    }
    for (uint32_t i = 0; i < n_blocks_; ++i) {
      out[i] = blocks + uint64_t{BlockBytes()} * layer.ids[i];
      if (HasTableOfValues()) out[n_blocks_ + i] = out[i] + PlaneBytes();
    }
  }
  kvevict_view View(const Side& side) const {
    kvevict_view view = KVEVICT_VIEW_INIT;
    view.n_kv_heads = kHeads;
    view.block_size = case_.block_size;
    if (case_.by_head) view.block_table_head_stride = per_table_;
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = kDim;
    plane.token_stride_bytes = kDim * sizeof(float);
    plane.head_stride_bytes = plane.token_stride_bytes * case_.block_size;
    view.k = view.v = plane;
    if (!case_.by_address) {
      view.k.data = side.blocks;
      view.v.data = side.blocks + PlaneBytes();
      view.k.block_stride_bytes = view.v.block_stride_bytes = BlockBytes();
      view.block_table = reinterpret_cast<const int32_t*>(side.tables);
      view.block_table_len = n_blocks_;
      return view;
    }
    view.k.address_table = view.v.address_table = side.tables;
    view.k.address_table_len = view.v.address_table_len = n_blocks_;
    if (HasTableOfValues()) {
      view.v.address_table += uint64_t{n_blocks_} * 8;
    } else {
      view.v.data = PlaneBytes();
    }
    return view;
  }

  const Case case_;
  const uint32_t per_table_;
  const uint32_t n_tables_;
  const uint32_t n_blocks_;
  Layer layers_[kLayers];
};

// A sequence of one device; gpu is NULL for the host.
class Engine {
 public:
  Engine(const Gpu* gpu, const Case& c, std::vector<kvevict_view> views)
      : gpu_(gpu), views_(std::move(views)) {
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = layer.n_kv_heads = kHeads;
    layer.k_head_dim = layer.v_head_dim = kDim;
    layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_F32;
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    if (gpu != nullptr) options = gpu->ContextOptions();
    context_ = CreateContext(options);
    plan_ = CreatePlan(context_.get(), {kLayers, c.max_tokens, {layer}},
                       ParsePolicy(c.policy));
    sequence_ = CreateSequence(plan_.get());
    n_bytes_ = WorkspaceBytes(plan_.get(), KVEVICT_OPERATION_EVICT);
    host_workspace_ = std::make_unique<HostWorkspace>(n_bytes_);
    if (gpu == nullptr) return;
    workspace_ = std::make_unique<Buffer>(*gpu, n_bytes_);
  }
  ~Engine() {
    if (gpu_ != nullptr) gpu_->Synchronize();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Append(uint32_t n) {
    Check(kvevict_sequence_append(sequence_.get(), n, stream()));
  }
  void Evict(bool by_table) {
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.by_table = by_table;
    Check(kvevict_sequence_evict(sequence_.get(), views_.data(), views_.size(),
                                 &options,
                                 gpu_ == nullptr ? host_workspace_->memory()
                                                 : workspace_->pointer<void>(),
                                 n_bytes_, stream()));
  }
  uint32_t Stored(uint32_t layer, uint32_t head) const {
    uint32_t n = 0;
    Check(kvevict_sequence_stored_length(sequence_.get(), layer, head, &n));
    return n;
  }
  std::vector<int32_t> Positions(uint32_t layer, uint32_t head) const {
    std::vector<int32_t> positions(Stored(layer, head));
    size_t n = 0;
    Check(kvevict_sequence_keep_positions(
        sequence_.get(), layer, head, positions.data(), positions.size(), &n));
    return positions;
  }
  kvevict_evict_report report() const { return ReportOf(sequence_.get()); }

 private:
  kvevict_stream stream() const {
    return gpu_ == nullptr ? nullptr : gpu_->stream();
  }

  const Gpu* const gpu_;
  const std::vector<kvevict_view> views_;
  ContextHandle context_;
  PlanHandle plan_;
  SequenceHandle sequence_;
  size_t n_bytes_ = 0;
  std::unique_ptr<HostWorkspace> host_workspace_;
  std::unique_ptr<Buffer> workspace_;
};

// Appends and evicts on both sides. The first eviction moves rows. If nothing
// waits, the third one is in a graph, whose kernels are compiled by then.
void Live(const Gpu& gpu, const Case& c, uint64_t seed, Report* report) {
  Caches caches(gpu, c, seed);
  Engine cpu(nullptr, c, caches.Views(true));
  Engine on_gpu(&gpu, c, caches.Views(false));
  const bool waits = ParsePolicy(c.policy).heads != ORACLE_HEADS_EQUAL;
  uint32_t n_evictions = 0;
  for (uint32_t round = 0; round < 4; ++round) {
    uint32_t longest = 0;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        longest = std::max(longest, cpu.Stored(l, h));
      }
    }
    const uint32_t n = c.max_tokens - longest - (seed + round) % 3;
    cpu.Append(n);
    on_gpu.Append(n);
    const bool by_table = round > 0;
    cpu.Evict(by_table);
    if (waits || round != 2) {
      on_gpu.Evict(by_table);
    } else {
      const Graph graph(gpu, [&] { on_gpu.Evict(by_table); });
      graph.Launch();
      gpu.Synchronize();
    }
    if (!by_table) caches.Settle();
    n_evictions += cpu.report().evicted;
    report->FailIf(cpu.report().blocks_freed != on_gpu.report().blocks_freed ||
                       cpu.report().blocks_freed == 0,
                   "blocks_freed");
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        report->FailIf(cpu.Positions(l, h) != on_gpu.Positions(l, h),
                       fmt::format("layer {}, head {}: positions", l, h));
      }
    }
    caches.ExpectAlike(report);
  }
  report->FailIf(n_evictions < 4, fmt::format("{} evictions", n_evictions));
}

}  // namespace

void CheckTables(const Gpu& gpu, const Effort& effort, Report* report) {
  uint64_t seed = effort.seed * 100;
  for (const Case& c : kCases) {
    report->Check(
        fmt::format("by table, {}, blocks of {}{}", c.policy, c.block_size,
                    c.by_address ? " with addresses" : ""),
        [&] {
          for (int life = 0; life < (effort.full ? 8 : 1); ++life) {
            Live(gpu, c, ++seed, report);
          }
        });
  }
}

}  // namespace kvevict::gpu
