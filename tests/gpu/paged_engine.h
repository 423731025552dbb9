// The paged cache and the sequences of one device, for tests that compare two.
#ifndef KVEVICT_TESTS_GPU_PAGED_ENGINE_H_
#define KVEVICT_TESTS_GPU_PAGED_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "kvevict/paged.h"
#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// A policy, and the number of sequences of PagedEngine::kMaxTokens that the blocks
// suffice for.
struct PagedCase {
  const char* policy;
  uint32_t n_fit;
  uint32_t group_tokens = 0;  // tokens that share scales, with recent rows

  bool has_biases() const {
    return std::string_view(policy).find("bias-values") !=
           std::string_view::npos;
  }
};

class PagedEngine {
 public:
  // The last layer has other heads, and values if rows have biases.
  static constexpr uint32_t kLayers = 3;
  static constexpr uint32_t kMaxTokens = 90;
  using Bytes = std::vector<uint8_t>;

  // `gpu` is NULL for the host.
  PagedEngine(const Gpu* gpu, const PagedCase& c,
              const kvevict_paged_cache_options& options);
  ~PagedEngine() {
    if (gpu_ != nullptr) gpu_->Synchronize();  // before handles go
  }
  PagedEngine(const PagedEngine&) = delete;
  PagedEngine& operator=(const PagedEngine&) = delete;

  uint32_t n_kv_heads(uint32_t layer) const {
    return model_.layer(layer).n_kv_heads;
  }
  // The bytes of a token's K and V outside the cache, of all heads.
  size_t RowBytes(uint32_t layer) const {
    const kvevict_layer_geometry& g = model_.layer(layer);
    return size_t{2} * g.n_kv_heads * (g.k_head_dim + g.v_head_dim);
  }

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
  // Reference queries, which only fits take, are NaN: so they change nothing.
  kvevict_status Evict(const std::vector<size_t>& chosen);
  kvevict_status Write(size_t i, uint32_t layer, uint32_t first, uint32_t n,
                       const Bytes& bytes);
  // A layer's rows; those that a head lacks are 0.
  Bytes Read(size_t i, uint32_t layer);
  kvevict_status Edit(size_t i, const kvevict_edit& edit) {
    return kvevict_paged_edit(cached_[i].get(), sequences_[i].get(), &edit,
                              stream());
  }
  uint32_t Logical(size_t i) const {
    uint32_t n = 0;
    Check(kvevict_sequence_logical_length(sequences_[i].get(), &n));
    return n;
  }
  uint32_t Stored(size_t i, uint32_t layer, uint32_t head) const {
    uint32_t n = 0;
    Check(kvevict_sequence_stored_length(sequences_[i].get(), layer, head, &n));
    return n;
  }
  uint32_t SlotOf(size_t i, uint32_t layer, uint32_t head,
                  uint32_t position) const {
    int32_t slot = 0;
    Check(kvevict_sequence_slot_of_position(sequences_[i].get(), layer, head,
                                            static_cast<int32_t>(position),
                                            &slot));
    return static_cast<uint32_t>(slot);
  }
  // The biases of the slots that each head of a layer holds.
  std::vector<float> Biases(size_t i, uint32_t layer) const;
  void SetBiases(size_t i, uint32_t layer, const std::vector<float>& biases);
  uint32_t Length(size_t i, uint32_t layer) const {
    uint32_t n = 0;
    Check(kvevict_paged_sequence_length(cached_[i].get(), layer, &n));
    return n;
  }
  std::vector<int32_t> Blocks(size_t i, uint32_t layer) const;
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

  kvevict_view ViewOf(size_t i, uint32_t layer) const {
    kvevict_view view = KVEVICT_VIEW_INIT;
    Check(kvevict_paged_sequence_view(cached_[i].get(), layer, &view));
    return view;
  }
  // Copies device memory to the host.
  void Fetch(uint64_t address, size_t n_bytes, void* host) const;
  // Copies a layer's blocks of biases to `bytes`, and calls visit(place in them)
  // for each that a head holds. Returns their address.
  template <typename Visit>
  uint64_t VisitBiases(size_t i, uint32_t layer, Bytes* bytes,
                       const Visit& visit) const;
  kvevict_plane QueriesOf(uint32_t layer) const;

  using CacheHandle = Handle<kvevict_paged_cache, kvevict_paged_cache_destroy>;
  using PagedHandle =
      Handle<kvevict_paged_sequence, kvevict_paged_sequence_destroy>;
  static constexpr uint32_t kReferenceRows = 2;
  static constexpr size_t kQueryBytes = 1024;  // of all query heads

  const Gpu* const gpu_;
  const Geometry model_;
  const bool has_biases_;
  const Bytes host_queries_ = Bytes(kQueryBytes, 0xFF);
  ContextHandle context_;
  PlanHandle plan_;
  CacheHandle cache_;
  std::vector<PagedHandle> cached_;
  std::vector<SequenceHandle> sequences_;
  Bytes host_workspace_;
  std::unique_ptr<Buffer> workspace_;
  std::unique_ptr<Buffer> rows_;
  std::unique_ptr<Buffer> queries_;
  size_t n_bytes_ = 0;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_PAGED_ENGINE_H_
