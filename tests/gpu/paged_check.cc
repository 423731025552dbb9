// Random lives of sequences in a paged cache, on the GPU and on the CPU: the same blocks
// and the same rows to the last byte, and one sequence's eviction changes no other.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include "kvevict/batch.h"
#include "kvevict/paged.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kLayers = 3;  // the last one has other heads and no values
constexpr uint32_t kMaxTokens = 90;
constexpr uint32_t kMostSequences = 5;

// Keep sets that do not depend on how a device rounds, and the number of
// sequences of kMaxTokens that the blocks suffice for.
struct Case {
  const char* policy;
  uint32_t n_fit;
  uint32_t group_tokens = 0;  // tokens that share scales, with recent rows
};
constexpr Case kCases[] = {
    {"streaming-llm:budget=40,sink=4", 3},
    {"random:budget=33,scope=head", 2},
    {"random:budget=0.5,sink=0,scope=layer", 1},
    // Evicts by table if block sizes divide it.
    {"random:budget=0.5,sink=0,scope=layer,select_block=24", 1},
    {"streaming-llm:budget=50,sink=4", 2, 4},
    {"random:budget=45,sink=1,scope=head", 2, 8}};

using Bytes = std::vector<uint8_t>;
using CacheHandle = Handle<kvevict_paged_cache, kvevict_paged_cache_destroy>;
using PagedHandle =
    Handle<kvevict_paged_sequence, kvevict_paged_sequence_destroy>;

Geometry ModelOf(const Case& c) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = 4;
  layer.n_kv_heads = 2;
  layer.k_head_dim = 32;
  layer.v_head_dim = 24;
  layer.q_dtype = layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_BF16;
  if (c.group_tokens != 0) {
    layer.k_dtype = KVEVICT_DTYPE_U4;
    layer.v_dtype = KVEVICT_DTYPE_U8;
  }
  kvevict_layer_geometry last = layer;
  last.n_kv_heads = 1;
  last.k_head_dim = 40;
  last.v_head_dim = 0;
  return {kLayers, kMaxTokens, {layer, layer, last}};
}

// Rows [n_tokens, n_kv_heads, head_dim] of a layer, keys before values.
kvevict_paged_rows RowsAt(const kvevict_layer_geometry& g, uint32_t layer,
                          uint32_t first, uint32_t n_tokens, uint64_t address) {
  kvevict_paged_rows rows = KVEVICT_PAGED_ROWS_INIT;
  rows.layer = layer;
  rows.first_slot = first;
  rows.n_tokens = n_tokens;
  const auto plane = [&](uint32_t head_dim, kvevict_plane* out) {
    if (head_dim == 0) return;
    out->data = address;
    out->dtype = KVEVICT_DTYPE_BF16;
    out->head_dim = head_dim;
    out->head_stride_bytes = int64_t{2} * head_dim;
    out->token_stride_bytes = out->head_stride_bytes * g.n_kv_heads;
    address += static_cast<uint64_t>(out->token_stride_bytes) * n_tokens;
  };
  plane(g.k_head_dim, &rows.k);
  plane(g.v_head_dim, &rows.v);
  return rows;
}

size_t RowBytes(const kvevict_layer_geometry& g) {
  return size_t{2} * g.n_kv_heads * (g.k_head_dim + g.v_head_dim);
}

// The cache and the sequences of one device; gpu is NULL for the host.
class Engine {
 public:
  Engine(const Gpu* gpu, const Case& c,
         const kvevict_paged_cache_options& options)
      : gpu_(gpu), model_(ModelOf(c)) {
    kvevict_context_options of_context = KVEVICT_CONTEXT_OPTIONS_INIT;
    if (gpu != nullptr) of_context = gpu->ContextOptions();
    context_ = CreateContext(of_context);
    plan_ = CreatePlan(context_.get(), model_, ParsePolicy(c.policy));
    n_bytes_ = WorkspaceBytes(plan_.get(), KVEVICT_OPERATION_EVICT);
    if (gpu != nullptr) {
      workspace_ = std::make_unique<Buffer>(*gpu, n_bytes_);
      rows_ = std::make_unique<Buffer>(*gpu,
                                       kMaxTokens * RowBytes(model_.layer(0)));
    } else {
      host_workspace_.resize(n_bytes_ + 64);
    }
    kvevict_paged_cache* cache = nullptr;
    Check(kvevict_paged_cache_create(plan_.get(), &options, &cache));
    cache_ = CacheHandle(cache);
  }
  ~Engine() {
    if (gpu_ != nullptr) gpu_->Synchronize();  // before handles go
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void Add() {
    kvevict_paged_sequence* cached = nullptr;
    Check(kvevict_paged_sequence_create(cache_.get(), &cached));
    cached_.emplace_back(cached);
    sequences_.push_back(CreateSequence(plan_.get()));
  }
  void Fork(size_t i) {
    kvevict_paged_sequence* cached = nullptr;
    Check(kvevict_paged_sequence_fork(cached_[i].get(), &cached, stream()));
    cached_.emplace_back(cached);
    kvevict_sequence* fork = nullptr;
    Check(kvevict_sequence_fork(sequences_[i].get(), nullptr, &fork, stream()));
    sequences_.emplace_back(fork);
  }
  void Remove(size_t i) {
    if (gpu_ != nullptr) gpu_->Synchronize();
    std::swap(cached_[i], cached_.back());
    std::swap(sequences_[i], sequences_.back());
    cached_.pop_back();
    sequences_.pop_back();
  }
  kvevict_status Append(size_t i, uint32_t n) {
    return kvevict_paged_sequence_append(cached_[i].get(), n, stream());
  }
  void Note(size_t i, uint32_t n) {
    Check(kvevict_sequence_append(sequences_[i].get(), n, stream()));
  }
  kvevict_status Own(size_t i, uint32_t first) {
    return kvevict_paged_sequence_own(cached_[i].get(), first, stream());
  }
  // Returns whether the trim was exact.
  bool Trim(size_t i, uint32_t n) {
    if (kvevict_sequence_trim_to(sequences_[i].get(), n, stream()) !=
        KVEVICT_OK) {
      return false;
    }
    Check(kvevict_paged_sequence_fit(cached_[i].get(), sequences_[i].get()));
    return true;
  }
  kvevict_status Evict(const std::vector<size_t>& chosen) {
    std::vector<kvevict_paged_eviction> items;
    for (size_t i : chosen) {
      kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
      item.cached = cached_[i].get();
      item.sequence = sequences_[i].get();
      items.push_back(item);
    }
    const auto host = reinterpret_cast<uintptr_t>(host_workspace_.data());
    void* const workspace = gpu_ == nullptr
                                ? reinterpret_cast<void*>((host + 63) / 64 * 64)
                                : workspace_->pointer<void>();
    return kvevict_paged_evict(items.data(), items.size(), workspace, n_bytes_,
                               stream());
  }
  kvevict_status Write(size_t i, uint32_t layer, uint32_t first, uint32_t n,
                       const Bytes& bytes) {
    if (gpu_ != nullptr) rows_->Write(bytes.data(), bytes.size());
    const kvevict_paged_rows rows =
        RowsAt(model_.layer(layer), layer, first, n, AddressOf(bytes));
    return kvevict_paged_sequence_write(cached_[i].get(), &rows, 1, stream());
  }
  Bytes Read(size_t i, uint32_t layer) {
    const uint32_t n = Length(i, layer);
    Bytes bytes(n * RowBytes(model_.layer(layer)));
    if (n == 0) return bytes;
    const kvevict_paged_rows rows =
        RowsAt(model_.layer(layer), layer, 0, n, AddressOf(bytes));
    Check(kvevict_paged_sequence_read(cached_[i].get(), &rows, 1, stream()));
    if (gpu_ != nullptr) rows_->Read(bytes.data(), bytes.size());
    return bytes;
  }
  uint32_t Length(size_t i, uint32_t layer) const {
    uint32_t n = 0;
    Check(kvevict_paged_sequence_length(cached_[i].get(), layer, &n));
    return n;
  }
  std::vector<int32_t> Blocks(size_t i, uint32_t layer) const {
    kvevict_view view = KVEVICT_VIEW_INIT;
    Check(kvevict_paged_sequence_view(cached_[i].get(), layer, &view));
    std::vector<int32_t> blocks(view.block_table_len);
    const size_t n_bytes = blocks.size() * sizeof(int32_t);
    if (gpu_ == nullptr) {
      std::copy_n(view.block_table, blocks.size(), blocks.data());
    } else if (n_bytes > 0) {
      gpu::Check(
          gpu_->driver(),
          gpu_->driver().cuMemcpyDtoHAsync(
              blocks.data(), reinterpret_cast<uint64_t>(view.block_table),
              n_bytes, gpu_->stream()),
          "cuMemcpyDtoHAsync");
      gpu_->Synchronize();
    }
    return blocks;
  }
  kvevict_paged_cache_usage Usage() const {
    kvevict_paged_cache_usage usage{};
    usage.struct_size = sizeof usage;
    Check(kvevict_paged_cache_get_usage(cache_.get(), &usage));
    return usage;
  }

 private:
  kvevict_stream stream() const {
    return gpu_ == nullptr ? nullptr : gpu_->stream();
  }
  uint64_t AddressOf(const Bytes& bytes) const {
    return gpu_ == nullptr ? reinterpret_cast<uint64_t>(bytes.data())
                           : rows_->address();
  }

  const Gpu* const gpu_;
  const Geometry model_;
  ContextHandle context_;
  PlanHandle plan_;
  CacheHandle cache_;
  std::vector<PagedHandle> cached_;
  std::vector<SequenceHandle> sequences_;
  Bytes host_workspace_;
  std::unique_ptr<Buffer> workspace_;
  std::unique_ptr<Buffer> rows_;
  size_t n_bytes_ = 0;
};

class Life {
 public:
  Life(const Gpu& gpu, const Case& c, uint64_t seed, Report* report)
      : random_(seed),
        model_(ModelOf(c)),
        options_(Options(c)),
        cpu_(nullptr, c, options_),
        gpu_(&gpu, c, options_),
        report_(report) {
    Add();
  }

  void Step() {
    const size_t i = Below(n_);
    switch (Below(8)) {
      case 0:
        if (n_ < kMostSequences) {
          Below(3) == 0 ? Add() : Fork(i);
        } else {
          Remove(i);
        }
        break;
      case 1:
        Trim(i);
        break;
      case 2:
        Overwrite(i);
        break;
      case 3:
      case 4:
        Evict();
        break;
      default:
        Append(i);
    }
    ExpectSame();
  }
  void End() {
    while (n_ > 0) Remove(n_ - 1);
    const kvevict_paged_cache_usage usage = gpu_.Usage();
    report_->FailIf(usage.n_free != usage.n_blocks, "blocks are lost");
  }
  uint32_t n_evictions() const { return n_evictions_; }
  uint32_t n_refused() const { return n_refused_; }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  kvevict_paged_cache_options Options(const Case& c) {
    kvevict_paged_cache_options options = KVEVICT_PAGED_CACHE_OPTIONS_INIT;
    options.block_size = 1 + Below(16);
    if (c.group_tokens != 0) {
      options.block_size = c.group_tokens * (1 + Below(3));
      options.group_tokens = c.group_tokens;
      options.recent_tokens = Below(12);
      options.recent_dtype = static_cast<kvevict_dtype>(Below(4));
    }
    options.n_blocks = c.n_fit * kMaxTokens / options.block_size + 2;
    options.layout = static_cast<kvevict_block_layout>(Below(2));
    return options;
  }

  void Add() {
    cpu_.Add();
    gpu_.Add();
    ++n_;
  }
  void Fork(size_t i) {
    cpu_.Fork(i);
    gpu_.Fork(i);
    ++n_;
  }
  void Remove(size_t i) {
    cpu_.Remove(i);
    gpu_.Remove(i);
    --n_;
  }
  // Both devices answer alike: whether there were blocks.
  bool Same(kvevict_status cpu, kvevict_status gpu) {
    if (cpu != KVEVICT_ERROR_OUT_OF_MEMORY) Check(cpu);
    if (gpu != KVEVICT_ERROR_OUT_OF_MEMORY) Check(gpu);
    report_->FailIf(cpu != gpu, fmt::format("status {} and {}", cpu, gpu));
    n_refused_ += cpu != KVEVICT_OK;
    return cpu == KVEVICT_OK;
  }
  bool Write(size_t i, uint32_t layer, uint32_t first, uint32_t n) {
    Bytes bytes(n * RowBytes(model_.layer(layer)));
    FillWithValues(random_(), KVEVICT_DTYPE_BF16, bytes.size() / 2,
                   bytes.data());
    const kvevict_status status = cpu_.Write(i, layer, first, n, bytes);
    return Same(status, gpu_.Write(i, layer, first, n, bytes));
  }
  uint32_t LongestOf(size_t i) const {
    uint32_t most = 0;
    for (uint32_t l = 0; l < kLayers; ++l) {
      most = std::max(most, cpu_.Length(i, l));
    }
    return most;
  }
  void Append(size_t i) {
    const uint32_t n = std::min(1 + Below(20), kMaxTokens - LongestOf(i));
    if (n == 0) return;
    uint32_t first[kLayers];
    for (uint32_t l = 0; l < kLayers; ++l) first[l] = cpu_.Length(i, l);
    const kvevict_status status = cpu_.Append(i, n);
    if (!Same(status, gpu_.Append(i, n))) return;
    for (uint32_t l = 0; l < kLayers; ++l) (void)Write(i, l, first[l], n);
    cpu_.Note(i, n);
    gpu_.Note(i, n);
  }
  void Overwrite(size_t i) {
    const uint32_t layer = Below(kLayers);
    const uint32_t held = cpu_.Length(i, layer);
    if (held == 0) return;
    const uint32_t first = Below(held);
    if (Below(2) == 0) {
      const kvevict_status status = cpu_.Own(i, first);
      if (!Same(status, gpu_.Own(i, first))) return;
    }
    // The rows end where a group does, so none is cut.
    const uint32_t n = 1 + Below(held - first);
    (void)Write(i, layer, first, options_.group_tokens != 0 ? held - first : n);
  }
  void Trim(size_t i) {
    const uint32_t n = Below(LongestOf(i) + 1);
    report_->FailIf(cpu_.Trim(i, n) != gpu_.Trim(i, n), "trim");
  }
  // Evicts some sequences; the rows of the others stay as they are.
  void Evict() {
    std::vector<size_t> chosen;
    std::vector<Bytes> others;
    for (size_t i = 0; i < n_; ++i) {
      if (Below(2) == 0) {
        chosen.push_back(i);
        continue;
      }
      for (uint32_t l = 0; l < kLayers; ++l) others.push_back(gpu_.Read(i, l));
    }
    const kvevict_status status = cpu_.Evict(chosen);
    n_evictions_ += Same(status, gpu_.Evict(chosen)) && !chosen.empty();
    auto before = others.begin();
    for (size_t i = 0; i < n_; ++i) {
      if (std::find(chosen.begin(), chosen.end(), i) != chosen.end()) continue;
      for (uint32_t l = 0; l < kLayers; ++l) {
        report_->FailIf(gpu_.Read(i, l) != *before++,
                        fmt::format("sequence {}, layer {}: changed by "
                                    "another's eviction",
                                    i, l));
      }
    }
  }
  void ExpectSame() {
    const kvevict_paged_cache_usage cpu = cpu_.Usage(), gpu = gpu_.Usage();
    report_->FailIf(cpu.n_free != gpu.n_free || cpu.n_shared != gpu.n_shared ||
                        cpu.n_slots != gpu.n_slots,
                    fmt::format("{} free and {}, {} shared and {}", cpu.n_free,
                                gpu.n_free, cpu.n_shared, gpu.n_shared));
    for (size_t i = 0; i < n_; ++i) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        const std::string at = fmt::format("sequence {}, layer {}: ", i, l);
        report_->FailIf(cpu_.Length(i, l) != gpu_.Length(i, l), at + "length");
        report_->FailIf(cpu_.Blocks(i, l) != gpu_.Blocks(i, l), at + "blocks");
        report_->FailIf(cpu_.Read(i, l) != gpu_.Read(i, l), at + "rows");
      }
    }
  }

  std::mt19937_64 random_;
  const Geometry model_;
  const kvevict_paged_cache_options options_;
  Engine cpu_;
  Engine gpu_;
  Report* const report_;
  uint32_t n_ = 0;  // sequences
  uint32_t n_evictions_ = 0;
  uint32_t n_refused_ = 0;
};

}  // namespace

void CheckPaged(const Gpu& gpu, const Effort& effort, Report* report) {
  uint32_t n_evictions = 0, n_refused = 0;
  uint64_t seed = effort.seed * 100;
  for (const Case& c : kCases) {
    report->Check(fmt::format("paged cache, {}", c.policy), [&] {
      // At least one life, and as many as it takes until blocks ran out.
      const uint64_t n_lives = effort.full ? 8 : 1;
      for (uint64_t life = 0;
           life < n_lives || (n_refused == 0 && life < 4 * n_lives); ++life) {
        Life one(gpu, c, ++seed, report);
        for (uint32_t step = 0; step < (effort.full ? 100 : 50); ++step) {
          one.Step();
        }
        one.End();
        n_evictions += one.n_evictions();
        n_refused += one.n_refused();
      }
    });
  }
  report->Check("paged cache: evictions, and blocks that ran out", [&] {
    report->FailIf(n_evictions == 0 || n_refused == 0,
                   fmt::format("{} and {}", n_evictions, n_refused));
  });
}

}  // namespace kvevict::gpu
