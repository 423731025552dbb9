// An eviction chunk by chunk: what each keeps, and what operations are told of one.
#include <algorithm>
#include <numeric>

#include "core/evict/eviction.h"
#include "core/view/chunks.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// The rows of a view from slot `first` on, which begins a block.
kvevict_view ViewFrom(kvevict_view view, uint32_t first) {
  if (view.ring_slots > 0) {
    const uint64_t row = uint64_t{view.ring_first} + first;
    view.ring_first = static_cast<uint32_t>(row % view.ring_slots);
    return view;
  }
  const uint32_t n_blocks = view.block_size > 0 ? first / view.block_size : 0;
  if (view.block_table != nullptr) {
    view.block_table += n_blocks;
    view.block_table_len -= n_blocks;
    return view;
  }
  for (kvevict_plane* plane : {&view.k, &view.v}) {
    if (!IsPresent(*plane)) continue;
    if (view.block_size > 0) {  // the address tables are in the order of tokens
      plane->address_table += n_blocks * sizeof(uint64_t);
      plane->address_table_len -= n_blocks;
    } else {
      plane->data += static_cast<uint64_t>(plane->token_stride_bytes * first);
    }
  }
  return view;
}

// What is said of n tokens from slot `first` on.
void Narrow(uint32_t first, uint32_t n, ScoreJob* job) {
  job->tokens = n;
  for (FloatRows ScoreJob::*rows : {&ScoreJob::caller, &ScoreJob::weights}) {
    if ((job->*rows).data != nullptr) (job->*rows).data += first;
  }
  QueryRows& queries = job->queries;
  if (queries.n_rows == 0) return;
  queries.rows.base += queries.rows.row_stride * int64_t{first};
  queries.n_rows = n;
}

}  // namespace

// Raises counts to what the lists must keep of each chunk, the most of any list.
Status Eviction::CountProtected(const LayerOutcome& layer,
                                std::span<uint32_t> counts) const {
  if (forced_.protect.empty()) return Status();
  const Chunks chunks(policy_, layer.n_tokens);
  SlotPositions positions;
  KV_RETURN_IF_ERROR(sequence_.HostPositions(layer.layer, &positions));
  for (uint32_t list = 0; list < plan_.layer(layer.layer).n_lists; ++list) {
    uint32_t chunk = 0;
    uint32_t n = 0;  // of it, beside its ends
    for (int32_t position : forced_.protect) {
      const int64_t slot = positions.SlotOf(list, position, layer.n_tokens);
      if (slot < 0 || chunks.IsEnd(static_cast<uint32_t>(slot))) continue;
      if (chunks.IndexOf(static_cast<uint32_t>(slot)) != chunk) n = 0;
      chunk = chunks.IndexOf(static_cast<uint32_t>(slot));
      counts[chunk] = std::max(counts[chunk], chunks.EndsOf(chunk) + ++n);
    }
  }
  return Status();
}

Status Eviction::ShareOverChunks(const LayerOutcome& layer) const {
  const Chunks chunks(policy_, layer.n_tokens);
  const std::span<uint32_t> counts =
      sequence_.chunk_ends(layer.layer).first(chunks.Count());
  for (uint32_t i = 0; i < counts.size(); ++i) counts[i] = chunks.LeastOf(i);
  KV_RETURN_IF_ERROR(CountProtected(layer, counts));
  const uint64_t least =
      std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (least > layer.n_keep) {
    return InvalidArgument(
        "layer %u: budget %u < %llu tokens that %u chunks of %u keep: sink %u "
        "of each, recent %u, %zu protected positions, or one",
        plan_.layer(layer.layer).number, layer.n_keep,
        static_cast<unsigned long long>(least), chunks.Count(), policy_.chunk,
        policy_.sink.count, forced_.n_recent, forced_.protect.size());
  }
  chunks.Share(layer.n_keep, counts);
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  return Status();
}

// Blocks are found from slot 0 on.
Status Eviction::CheckChunkRows(uint32_t layer) const {
  const kvevict_view& view = views_[layer];
  if (!HasChunks(policy_) || !plan_.ReadsRows() || view.block_size == 0 ||
      policy_.chunk % view.block_size == 0) {
    return Status();
  }
  return Unsupported("views[%u].block_size %u: chunk %u is no multiple of it",
                     plan_.layer(layer).number, view.block_size, policy_.chunk);
}

size_t Eviction::CountAsLong() const {
  size_t n = 1;
  while (n < at_once_.size() && at_once_[n].n_tokens == at_once_[0].n_tokens) {
    ++n;
  }
  return n;
}

void Eviction::EnterChunk(uint32_t chunk) {
  chunk_ = chunk;
  chunk_loses_ = !HasChunks(policy_);
  for (LayerEviction& layer : at_once_) {
    const Chunks chunks(policy_, layer.n_tokens);
    if (chunk == 0) {
      layer.score.slots = slots_.DevicePositions(layer.layer);
      layer.score.keep = slots_.DeviceNext(layer.layer, layer.n_keep);
    }
    if (!HasChunks(policy_)) continue;
    ChunkedLayer& chunked = sequence_.chunked_layers()[layer.layer];
    if (chunk == 0) chunked.whole = layer.score;
    const uint32_t first = chunks.BeginOf(chunk);
    chunked.view = ViewFrom(views_[layer.layer], first);
    layer.score = chunked.whole;
    layer.score.view = &chunked.view;
    layer.score.slots.first = first;
    layer.score.keep = KeepOfChunk(layer).count;
    Narrow(first, chunks.LengthOf(chunk), &layer.score);
    chunk_loses_ =
        chunk_loses_ || layer.score.keep.most < chunks.LengthOf(chunk);
  }
}

KeepLists Eviction::KeepOfChunk(const LayerEviction& layer) const {
  if (!HasChunks(policy_)) return layer.keep;
  const std::span<const uint32_t> ends = sequence_.chunk_ends(layer.layer);
  const uint32_t begin = chunk_ == 0 ? 0 : ends[chunk_ - 1];
  KeepLists keep = layer.keep;
  keep.slots += begin;
  keep.count = ends[chunk_] - begin;
  return keep;
}

}  // namespace kvevict
