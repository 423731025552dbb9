// An eviction chunk by chunk: what each chunk keeps, and the jobs for one
// chunk.
#include <algorithm>
#include <numeric>

#include "core/evict/stages.h"
#include "core/view/chunks.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// Moves a plane of a view without a block table or ring to slot `first`.
void Advance(const kvevict_view& view, uint32_t first, kvevict_plane* plane) {
  if (view.block_size > 0) {  // the address tables are in the order of tokens
    const uint32_t n_blocks = first / view.block_size;
    plane->address_table += n_blocks * sizeof(uint64_t);
    plane->address_table_len -= n_blocks;
    return;
  }
  const uint64_t rows =
      plane->group_tokens > 0 ? first / plane->group_tokens : first;
  plane->data += static_cast<uint64_t>(plane->token_stride_bytes) * rows;
}

// The rows of a view from slot `first`, the first slot of a block. Companions
// that are read go to `companions`.
kvevict_view ViewFrom(kvevict_view view, uint32_t first,
                      RoleCompanions* companions) {
  const bool has_slots_elsewhere =
      view.ring_slots > 0 || view.block_table != nullptr;
  const uint32_t past_recent = first - std::min(first, view.first_recent);
  uint32_t n = 0;
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    if (view.companions[i].role == KVEVICT_ROLE_NONE) continue;
    kvevict_plane& plane = (*companions)[n++];
    plane = view.companions[i];
    if (IsRecent(plane)) {
      plane.data +=
          static_cast<uint64_t>(plane.token_stride_bytes) * past_recent;
    } else if (!has_slots_elsewhere && HasRows(view, plane)) {
      Advance(view, first, &plane);
    }
  }
  view.companions = companions->data();
  view.n_companions = n;
  view.first_recent -= std::min(first, view.first_recent);
  if (view.ring_slots > 0) {
    const uint64_t row = uint64_t{view.ring_first} + first;
    view.ring_first = static_cast<uint32_t>(row % view.ring_slots);
  } else if (view.block_table != nullptr) {
    const uint32_t n_blocks = first / view.block_size;
    view.block_table += n_blocks;
    view.block_table_len -= n_blocks;
  } else {
    for (kvevict_plane* plane : {&view.k, &view.v}) {
      if (IsPresent(*plane)) Advance(view, first, plane);
    }
  }
  return view;
}

// Narrows a job to n tokens from slot `first`.
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

// Raises `counts` to what lists must keep in each chunk: the most of any list.
Status CountProtected(const EvictCall& call, const LayerOutcome& layer,
                      std::span<uint32_t> counts) {
  if (call.forced.protect.empty()) return Status();
  const Chunks chunks(call.policy, layer.n_tokens);
  SlotPositions positions;
  KV_RETURN_IF_ERROR(call.sequence.HostPositions(layer.layer, &positions));
  for (uint32_t list = 0; list < call.plan.layer(layer.layer).n_lists; ++list) {
    uint32_t chunk = 0;
    uint32_t n = 0;  // slots of the chunk that are not in its ends
    for (int32_t position : call.forced.protect) {
      const int64_t slot = positions.SlotOf(list, position, layer.n_tokens);
      if (slot < 0 || chunks.IsEnd(static_cast<uint32_t>(slot))) continue;
      if (chunks.IndexOf(static_cast<uint32_t>(slot)) != chunk) n = 0;
      chunk = chunks.IndexOf(static_cast<uint32_t>(slot));
      counts[chunk] = std::max(counts[chunk], chunks.EndsOf(chunk) + ++n);
    }
  }
  return Status();
}

}  // namespace

Status ShareOverChunks(const EvictCall& call, const LayerOutcome& layer) {
  const Chunks chunks(call.policy, layer.n_tokens);
  const std::span<uint32_t> counts =
      call.chunk_ends(layer.layer).first(chunks.Count());
  for (uint32_t i = 0; i < counts.size(); ++i) counts[i] = chunks.LeastOf(i);
  KV_RETURN_IF_ERROR(CountProtected(call, layer, counts));
  const uint64_t least =
      std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (least > layer.n_keep) {
    return InvalidArgument(
        "layer %u: budget %u < %llu tokens, the least of %u chunks of %u: each "
        "keeps 1 or sink %u, and recent %u and %zu protected positions stay",
        call.plan.layer(layer.layer).number, layer.n_keep,
        static_cast<unsigned long long>(least), chunks.Count(),
        call.policy.chunk, call.policy.sink.count, call.forced.n_recent,
        call.forced.protect.size());
  }
  chunks.Share(layer.n_keep, counts);
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  return Status();
}

// Chunks must begin at a block and at a group of scales, since these are read
// from their first slot.
Status CheckChunkRows(const EvictCall& call, uint32_t layer) {
  const kvevict_view& view = call.views()[layer];
  if (!call.plan.ReadsRows()) return Status();
  const uint32_t chunk = call.policy.chunk;
  const uint32_t number = call.plan.layer(layer).number;
  if (view.block_size != 0 && chunk % view.block_size != 0) {
    return Unsupported("views[%u].block_size %u does not divide chunk %u",
                       number, view.block_size, chunk);
  }
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    const uint64_t group = view.companions[i].group_tokens;
    if (group == 0 || chunk % group == 0) continue;
    return Unsupported(
        "views[%u].companions[%u].group_tokens %llu does not divide chunk %u",
        number, i, static_cast<unsigned long long>(group), chunk);
  }
  return Status();
}

size_t Group::CountAsLong() const {
  size_t n = 1;
  while (n < layers.size() && layers[n].n_tokens == layers[0].n_tokens) ++n;
  return n;
}

uint32_t Group::CountChunks() const {
  return Chunks(call.policy, layers.front().n_tokens).Count();
}

void Group::EnterChunk(uint32_t next) {
  chunk = next;
  loses = false;
  for (LayerEviction& layer : layers) {
    const Chunks chunks(call.policy, layer.n_tokens);
    ChunkedLayer& chunked = call.chunked_layers()[layer.layer];
    if (chunk == 0) chunked.whole = layer.score;
    const uint32_t first = chunks.BeginOf(chunk);
    chunked.view =
        ViewFrom(call.views()[layer.layer], first, &chunked.companions);
    layer.score = chunked.whole;
    layer.score.view = &chunked.view;
    layer.score.slots.first = first;
    layer.score.keep = KeepOf(layer).count;
    layer.score.n_recent = chunks.RecentOf(chunk);
    Narrow(first, chunks.LengthOf(chunk), &layer.score);
    loses = loses || layer.score.keep.most < chunks.LengthOf(chunk);
  }
}

KeepLists Group::KeepOfChunk(const LayerEviction& layer) const {
  const std::span<const uint32_t> ends = call.chunk_ends(layer.layer);
  const uint32_t begin = chunk == 0 ? 0 : ends[chunk - 1];
  KeepLists keep = layer.keep;
  keep.slots += begin;
  keep.count = ends[chunk] - begin;
  return keep;
}

Forced Group::MustStayInChunk() const {
  Forced forced = call.forced;
  const Chunks chunks(call.policy, layers.front().n_tokens);
  forced.n_sink = chunks.SinkOf(chunk);
  forced.n_recent = chunks.RecentOf(chunk);
  return forced;
}

}  // namespace kvevict
