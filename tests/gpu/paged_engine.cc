#include "tests/gpu/paged_engine.h"

#include <algorithm>
#include <cstring>

namespace kvevict::gpu {
namespace {

Geometry ModelOf(const PagedCase& c) {
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
  last.v_head_dim = c.has_biases() ? 32 : 0;
  return {PagedEngine::kLayers, PagedEngine::kMaxTokens, {layer, layer, last}};
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

}  // namespace

PagedEngine::PagedEngine(const Gpu* gpu, const PagedCase& c,
                         const kvevict_paged_cache_options& options)
    : gpu_(gpu), model_(ModelOf(c)), has_biases_(c.has_biases()) {
  kvevict_context_options of_context = KVEVICT_CONTEXT_OPTIONS_INIT;
  if (gpu != nullptr) of_context = gpu->ContextOptions();
  context_ = CreateContext(of_context);
  plan_ = CreatePlan(context_.get(), model_, ParsePolicy(c.policy));
  n_bytes_ = WorkspaceBytes(plan_.get(), KVEVICT_OPERATION_EVICT);
  if (gpu != nullptr) {
    workspace_ = std::make_unique<Buffer>(*gpu, n_bytes_);
    rows_ = std::make_unique<Buffer>(*gpu, kMaxTokens * RowBytes(0));
    queries_ = std::make_unique<Buffer>(*gpu, kQueryBytes);
    queries_->Write(host_queries_.data(), kQueryBytes);
  } else {
    host_workspace_.resize(n_bytes_ + 64);
  }
  kvevict_paged_cache* cache = nullptr;
  Check(kvevict_paged_cache_create(plan_.get(), &options, &cache));
  cache_ = CacheHandle(cache);
}

kvevict_status PagedEngine::Evict(const std::vector<size_t>& chosen) {
  std::vector<kvevict_plane> queries;
  std::vector<kvevict_signal_inputs> inputs(kLayers,
                                            KVEVICT_SIGNAL_INPUTS_INIT);
  for (uint32_t l = 0; l < kLayers; ++l) queries.push_back(QueriesOf(l));
  for (uint32_t l = 0; l < kLayers; ++l) {
    inputs[l].reference_queries = &queries[l];
    inputs[l].n_reference_rows = kReferenceRows;
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs.data();
  options.inputs_len = inputs.size();
  std::vector<kvevict_paged_eviction> items;
  for (size_t i : chosen) {
    kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
    item.cached = cached_[i].get();
    item.sequence = sequences_[i].get();
    if (has_biases_) item.options = &options;
    items.push_back(item);
  }
  const auto host = reinterpret_cast<uintptr_t>(host_workspace_.data());
  void* const workspace = gpu_ == nullptr
                              ? reinterpret_cast<void*>((host + 63) / 64 * 64)
                              : workspace_->pointer<void>();
  return kvevict_paged_evict(items.data(), items.size(), workspace, n_bytes_,
                             stream());
}

kvevict_status PagedEngine::Write(size_t i, uint32_t layer, uint32_t first,
                                  uint32_t n, const Bytes& bytes) {
  if (gpu_ != nullptr) rows_->Write(bytes.data(), bytes.size());
  const kvevict_paged_rows rows =
      RowsAt(model_.layer(layer), layer, first, n, AddressOf(bytes));
  return kvevict_paged_sequence_write(cached_[i].get(), &rows, 1, stream());
}

PagedEngine::Bytes PagedEngine::Read(size_t i, uint32_t layer) {
  const uint32_t n = Length(i, layer);
  Bytes bytes(n * RowBytes(layer));
  if (n == 0) return bytes;
  const kvevict_paged_rows rows =
      RowsAt(model_.layer(layer), layer, 0, n, AddressOf(bytes));
  Check(kvevict_paged_sequence_read(cached_[i].get(), &rows, 1, stream()));
  if (gpu_ != nullptr) rows_->Read(bytes.data(), bytes.size());
  // A head may hold fewer rows than its layer.
  const kvevict_layer_geometry& g = model_.layer(layer);
  auto row = bytes.begin();
  for (const uint32_t dim : {g.k_head_dim, g.v_head_dim}) {
    for (uint32_t at = 0; at < n * g.n_kv_heads; ++at, row += 2 * dim) {
      if (at / g.n_kv_heads >= Stored(i, layer, at % g.n_kv_heads)) {
        std::fill_n(row, 2 * dim, 0);
      }
    }
  }
  return bytes;
}

template <typename Visit>
uint64_t PagedEngine::VisitBiases(size_t i, uint32_t layer, Bytes* bytes,
                                  const Visit& visit) const {
  const kvevict_view view = ViewOf(i, layer);
  const kvevict_plane& plane = view.companions[0];
  const std::vector<int32_t> blocks = Blocks(i, layer);
  const int32_t n_blocks =
      blocks.empty() ? 0 : *std::max_element(blocks.begin(), blocks.end()) + 1;
  bytes->resize(size_t(n_blocks) * size_t(plane.block_stride_bytes));
  Fetch(plane.data, bytes->size(), bytes->data());
  for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
    for (uint32_t slot = 0; slot < Stored(i, layer, head); ++slot) {
      visit(bytes->data() + head * plane.head_stride_bytes +
            blocks[slot / view.block_size] * plane.block_stride_bytes +
            slot % view.block_size * plane.token_stride_bytes);
    }
  }
  return plane.data;
}

std::vector<float> PagedEngine::Biases(size_t i, uint32_t layer) const {
  std::vector<float> biases;
  Bytes bytes;
  (void)VisitBiases(i, layer, &bytes, [&](const uint8_t* at) {
    biases.emplace_back();
    std::memcpy(&biases.back(), at, sizeof(float));
  });
  return biases;
}

void PagedEngine::SetBiases(size_t i, uint32_t layer,
                            const std::vector<float>& biases) {
  auto next = biases.begin();
  Bytes bytes;
  const uint64_t address = VisitBiases(i, layer, &bytes, [&](uint8_t* at) {
    std::memcpy(at, &*next++, sizeof(float));
  });
  if (gpu_ == nullptr) {
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(address));
    return;
  }
  gpu::Check(gpu_->driver(),
             gpu_->driver().cuMemcpyHtoDAsync(address, bytes.data(),
                                              bytes.size(), gpu_->stream()),
             "cuMemcpyHtoDAsync");
  gpu_->Synchronize();
}

std::vector<int32_t> PagedEngine::Blocks(size_t i, uint32_t layer) const {
  const kvevict_view view = ViewOf(i, layer);
  std::vector<int32_t> blocks(view.block_table_len);
  Fetch(reinterpret_cast<uint64_t>(view.block_table),
        blocks.size() * sizeof(int32_t), blocks.data());
  return blocks;
}

void PagedEngine::Fetch(uint64_t address, size_t n_bytes, void* host) const {
  if (n_bytes == 0) return;
  if (gpu_ == nullptr) {
    std::memcpy(host, reinterpret_cast<const void*>(address), n_bytes);
    return;
  }
  gpu::Check(
      gpu_->driver(),
      gpu_->driver().cuMemcpyDtoHAsync(host, address, n_bytes, gpu_->stream()),
      "cuMemcpyDtoHAsync");
  gpu_->Synchronize();
}

kvevict_plane PagedEngine::QueriesOf(uint32_t layer) const {
  const kvevict_layer_geometry& g = model_.layer(layer);
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = gpu_ == nullptr
                   ? reinterpret_cast<uint64_t>(host_queries_.data())
                   : queries_->address();
  plane.dtype = KVEVICT_DTYPE_BF16;
  plane.head_dim = g.k_head_dim;
  plane.token_stride_bytes = int64_t{2} * g.k_head_dim;
  plane.head_stride_bytes = plane.token_stride_bytes * kReferenceRows;
  return plane;
}

}  // namespace kvevict::gpu
