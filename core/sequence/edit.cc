#include "core/sequence/edit.h"

#include <algorithm>

#include "core/evict/call.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {

// ---- Where positions go ----

Status PositionMap::Set(const kvevict_edit& edit, uint32_t logical) {
  if (edit.reserved != 0) {
    return InvalidArgument("reserved %u is not 0", edit.reserved);
  }
  if (edit.positions < KVEVICT_EDIT_ROTATE ||
      edit.positions > KVEVICT_EDIT_KEEP) {
    return InvalidArgument("positions %d is none",
                           static_cast<int>(edit.positions));
  }
  if (edit.first > edit.end || edit.end > logical) {
    return InvalidArgument("[first %u, end %u) is not within %u tokens",
                           edit.first, edit.end, logical);
  }
  switch (edit.kind) {
    case KVEVICT_EDIT_REPLACE:
      return SetReplacement(edit, logical);
    case KVEVICT_EDIT_MOVE:
      return SetMove(edit, logical);
  }
  return InvalidArgument("kind %d is none", static_cast<int>(edit.kind));
}

Status PositionMap::SetReplacement(const kvevict_edit& edit, uint32_t logical) {
  const uint32_t n_gone = edit.end - edit.first;
  if (edit.to != 0) {
    return InvalidArgument("to %u of a replacement is not 0", edit.to);
  }
  if (edit.n_new > INT32_MAX - (logical - n_gone)) {
    return InvalidArgument("n_new %u + %u tokens that stay > %d", edit.n_new,
                           logical - n_gone, INT32_MAX);
  }
  const bool keeps = edit.positions == KVEVICT_EDIT_KEEP;
  if (keeps && edit.n_new > n_gone) {
    return InvalidArgument(
        "positions keep: n_new %u > %u tokens of [first, end)", edit.n_new,
        n_gone);
  }
  const uint32_t to = keeps ? edit.end : edit.first + edit.n_new;
  n_new_ = edit.n_new;
  logical_ = to + (logical - edit.end);
  Add({0, edit.first, 0});
  Add({0, 0, edit.first, edit.n_new});
  Add({edit.end, logical, to});
  const bool changes = n_gone > 0 || edit.n_new > 0;
  first_changed_ = changes ? edit.first : logical;
  first_inexact_ = changes ? edit.first + edit.n_new : logical;
  if (!keeps) {
    replaced_from_ = edit.first;
    replaced_end_ = edit.end;
  }
  return Status();
}

Status PositionMap::SetMove(const kvevict_edit& edit, uint32_t logical) {
  const uint32_t n = edit.end - edit.first;
  if (edit.n_new != 0) {
    return InvalidArgument("n_new %u of a move is not 0", edit.n_new);
  }
  if (edit.positions == KVEVICT_EDIT_KEEP) {
    return InvalidArgument("positions keep: a move changes positions");
  }
  if (edit.to > logical - n) {
    return InvalidArgument("to %u + %u tokens of [first, end) > %u tokens",
                           edit.to, n, logical);
  }
  logical_ = logical;
  const uint32_t begin = std::min(edit.first, edit.to);
  const uint32_t end = std::max(edit.end, edit.to + n);
  Add({0, begin, 0});
  if (edit.to < edit.first) {
    Add({edit.first, edit.end, edit.to});
    Add({edit.to, edit.first, edit.to + n});
  } else {
    Add({edit.end, edit.to + n, edit.first});
    Add({edit.first, edit.end, edit.to});
  }
  Add({end, logical, end});
  first_changed_ = first_inexact_ = edit.to == edit.first ? logical : begin;
  return Status();
}

void PositionMap::Add(const Run& run) {
  if (run.from < run.end || run.n_new > 0) runs_[n_runs_++] = run;
}

uint32_t PositionMap::EditedFrom(uint32_t before) const {
  if (before < first_changed_) return before;
  return first_inexact_ < logical_ ? first_inexact_ : SlotTable::kNotEdited;
}

uint32_t PositionMap::PromptOf(uint32_t n) const {
  if (n == Prompt::kNotEnded || n <= replaced_from_) return n;
  if (n < replaced_end_) return replaced_from_ + n_new_;
  return n - (replaced_end_ - replaced_from_) + n_new_;
}

// ---- Which rows go where ----

SequenceEdit::SequenceEdit(Sequence& sequence)
    : sequence_(sequence),
      plan_(sequence.plan()),
      context_(plan_.context()),
      positions_(context_),
      layers_(context_),
      host_(context_),
      device_(context_),
      scratch_(context_),
      zeros_(context_),
      moves_(context_),
      rotations_(context_) {}

ListCounts SequenceEdit::CountsOf(const Layer& layer, const int32_t* words,
                                  Part part, uint32_t most) {
  if (layer.n_lists == 1) return most;
  return {most, reinterpret_cast<const uint32_t*>(words + Begin(layer, part))};
}

bool SequenceEdit::RotatesKeys() const {
  if (edit_.positions == KVEVICT_EDIT_RENUMBER) return false;
  return edit_.positions == KVEVICT_EDIT_ROTATE || plan_.policy().rotate != 0;
}

Status SequenceEdit::Prepare(const kvevict_edit& edit) {
  edit_ = edit;
  if (Status status = map_.Set(edit, sequence_.logical_length());
      !status.ok()) {
    return Prefixed(status, "edit: ");
  }
  KV_RETURN_IF_ERROR(positions_.Allocate(plan_));
  KV_RETURN_IF_ERROR(layers_.Allocate("edited layers", plan_.n_layers()));
  KV_RETURN_IF_ERROR(Measure());
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    KV_RETURN_IF_ERROR(Fill(l));
  }
  const Status status =
      CheckPositions(plan_, positions_.layers(), map_.logical_after());
  return status.ok() ? status : Prefixed(status, "after the edit: ");
}

// Layers that have lost nothing hold the same positions, so one list is enough
// for all their heads.
Status SequenceEdit::Measure() {
  CheckedSize n_words(1);
  const Layer* whole = nullptr;
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    Layer& layer = layers_[l];
    SlotPositions positions;
    KV_RETURN_IF_ERROR(sequence_.HostPositions(l, &positions));
    const ListCounts tokens = sequence_.slots().HostTokens(l);
    layer.is_whole = sequence_.slots()[l].n_kept == 0;
    if (layer.is_whole && whole != nullptr) {
      layer = *whole;
      continue;
    }
    layer.n_lists = layer.is_whole ? 1 : plan_.layer(l).n_lists;
    for (uint32_t list = 0; list < layer.n_lists; ++list) {
      uint32_t n = 0;
      for (const PositionMap::Run& run : map_.runs()) {
        n += run.n_new + positions.FirstFrom(list, run.end, tokens.Of(list)) -
             positions.FirstFrom(list, run.from, tokens.Of(list));
      }
      layer.n_after = std::max(layer.n_after, n);
    }
    layer.words = n_words.value();
    n_words = n_words + CheckedSize(layer.n_lists) *
                            (CheckedSize(3) * CheckedSize(layer.n_after) +
                             CheckedSize(3));
    if (!n_words.ok()) {
      return InvalidArgument("edit: more bytes than size_t holds");
    }
    if (layer.is_whole) whole = &layer;
  }
  return host_.AllocateUncleared("lists of an edit", n_words);
}

// Fills the lists of a layer, unless an earlier whole layer has them.
Status SequenceEdit::Fill(uint32_t l) {
  Layer& layer = layers_[l];
  const Layer* const earlier =
      std::find_if(layers_.begin(), layers_.begin() + l,
                   [&](const Layer& e) { return e.words == layer.words; });
  if (earlier != layers_.begin() + l) {
    layer = *earlier;
  } else {
    SlotPositions positions;
    KV_RETURN_IF_ERROR(sequence_.HostPositions(l, &positions));
    layer.first = layer.n_after;
    for (uint32_t list = 0; list < layer.n_lists; ++list) {
      FillList(layer, list, positions,
               sequence_.slots().HostTokens(l).Of(list));
    }
  }
  LayerPositions& after = positions_.layers()[l];
  for (uint32_t i = 0; i < after.lists.size(); ++i) {
    const uint32_t list = layer.n_lists == 1 ? 0 : i;
    after.lists[i] = {
        host_.data() + Begin(layer, kPositions) + size_t{list} * layer.n_after,
        Counts(layer, kAfter)[list]};
  }
  after.is_merged = sequence_.slots()[l].is_merged;
  after.tail_position = FindTail(after, map_.logical_after());
  const uint32_t n_prompt = map_.PromptOf(sequence_.prompt().n_tokens());
  for (const PositionList list : after.lists) {
    if (n_prompt == Prompt::kNotEnded) break;
    const auto end =
        std::lower_bound(list.begin(), list.end(), int64_t{n_prompt});
    after.prompt_slots =
        std::max(after.prompt_slots, static_cast<uint32_t>(end - list.begin()));
  }
  return Status();
}

void SequenceEdit::FillList(Layer& layer, uint32_t list,
                            const SlotPositions& positions, uint32_t n_tokens) {
  const size_t offset = size_t{list} * layer.n_after;
  int32_t* const slots = host_.data() + Begin(layer, kSlots) + offset;
  int32_t* const offsets = host_.data() + Begin(layer, kOffsets) + offset;
  int32_t* const after = host_.data() + Begin(layer, kPositions) + offset;
  const bool by_slots = plan_.policy().rotate != 0;
  const bool rotates = RotatesKeys();
  uint32_t n = 0, n_moved = 0, first = UINT32_MAX;
  int32_t last = -1;
  const auto add = [&](uint32_t slot, uint32_t position, int32_t turn,
                       bool is_new) {
    const auto from = static_cast<int32_t>(slot);
    slots[n] = from;
    offsets[n] = turn;
    after[n] = static_cast<int32_t>(position);
    layer.rotates = layer.rotates || turn != 0;
    layer.ascends = layer.ascends && from > last;
    last = from;
    if (is_new || slot != n || turn != 0) first = std::min(first, n);
    ++n;
    if (slot != n - 1) n_moved = n;
  };
  for (const PositionMap::Run& run : map_.runs()) {
    // A new row stays what the slot has.
    for (uint32_t i = 0; i < run.n_new; ++i) add(n, run.to + i, 0, true);
    const uint32_t end = positions.FirstFrom(list, run.end, n_tokens);
    for (uint32_t slot = positions.FirstFrom(list, run.from, n_tokens);
         slot < end; ++slot) {
      const auto before =
          static_cast<uint32_t>(positions.PositionOf(list, slot));
      const uint32_t position = before - run.from + run.to;
      const int64_t turn =
          by_slots ? int64_t{n} - slot : int64_t{position} - before;
      add(slot, position, rotates ? static_cast<int32_t>(turn) : 0, false);
    }
  }
  Counts(layer, kRoom)[list] = std::max(n, n_tokens);
  Counts(layer, kAfter)[list] = n;
  Counts(layer, kMoved)[list] = n_moved;
  layer.n_room = std::max({layer.n_room, n, n_tokens});
  layer.n_moved = std::max(layer.n_moved, n_moved);
  layer.first = std::min(layer.first, first);
}

// ---- Checks ----

Status SequenceEdit::CheckViews() {
  const EvictCall& call = sequence_.call();
  const bool on_host = context_.backend().on_host;
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    const kvevict_view& view = call.views()[l];
    const ListCounts room =
        CountsOf(layers_[l], host_.data(), kRoom, layers_[l].n_room);
    Status status = ValidateView(view, room, on_host);
    if (status.ok()) status = MatchGeometry(view, plan_.layer(l).geometry);
    if (status.ok()) status = CheckComplete(view, plan_.layer(l).geometry);
    if (status.ok() && Changes(layers_[l])) {
      status = CheckNotShared(view, layers_[l].first);
      if (status.ok()) status = CheckMovesByRow(view);
    }
    if (!status.ok()) {
      return Prefixed(status, "views[%u]: ", plan_.layer(l).number);
    }
    call.caches()[l] = CacheOf(view, plan_.layer(l).number, room, on_host);
  }
  FindShared(call.caches());
  KV_RETURN_IF_ERROR(CheckApart("views", call.caches()));
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    KV_RETURN_IF_ERROR(CheckLayer(l));
  }
  return Status();
}

Status SequenceEdit::CheckLayer(uint32_t l) const {
  const PlanLayer& layer = plan_.layer(l);
  const LayerCache& cache = sequence_.call().caches()[l];
  // Layers with the same words hold the same positions.
  const bool is_alike = layers_[l].words == layers_[0].words;
  if (cache.owner != l || !Changes(layers_[l])) return Status();
  if (cache.shared_companions != 0 && !is_alike && !plan_.LayersKeepAlike()) {
    return SharesCompanion(sequence_.call().caches(), l,
                           cache.shared_companions,
                           "layers that hold different tokens cannot share it");
  }
  if (!layers_[l].rotates) return Status();
  const Status status = plan_.CheckCanRotate(layer);
  return status.ok() ? status : Prefixed(status, "layer %u: ", layer.number);
}

// ---- Running ----

Status SequenceEdit::Ready() {
  KV_RETURN_IF_ERROR(CheckViews());
  const Backend& backend = context_.backend();
  const int32_t* words = host_.data();
  if (!backend.on_host) {
    const CheckedSize n(host_.size());
    KV_RETURN_IF_ERROR(device_.AllocateUncleared("lists of an edit", n));
    // This refuses a captured stream.
    KV_RETURN_IF_ERROR(backend.write(context_, sequence_.stream(), host_.data(),
                                     host_.size() * sizeof(int32_t),
                                     device_.data()));
    words = device_.data();
  }
  KV_RETURN_IF_ERROR(MakeMoves(words));
  KV_RETURN_IF_ERROR(MakeRotations(words));
  CheckedSize most(0);
  for (size_t i = 0; i < n_moves_; ++i) {
    if (moves_[i].ascends) continue;
    most = Larger(most, backend.reorder.scratch(context_, moves_[i].job).best);
  }
  KV_RETURN_IF_ERROR(scratch_.AllocateUncleared("scratch of an edit", most));
  scratch_bytes_ = most.value();
  if (n_sums_ > 0) {
    KV_RETURN_IF_ERROR(
        zeros_.Allocate("sums of new tokens", CheckedSize(map_.n_new())));
  }
  return Status();
}

// Caches come first, then sums.
Status SequenceEdit::MakeMoves(const int32_t* words) {
  const SumTable& sums = sequence_.sums();
  const CheckedSize n(2 * size_t{plan_.n_layers()});
  KV_RETURN_IF_ERROR(moves_.Allocate("moves of an edit", n));
  for (uint32_t i = 0; i < 2 * plan_.n_layers(); ++i) {
    const uint32_t l = i % plan_.n_layers();
    const bool is_sums = i != l;
    const Layer& layer = layers_[l];
    const LayerCache& cache = sequence_.call().caches()[l];
    const bool takes_part = is_sums
                                ? sums.Follows(l, sequence_.logical_length())
                                : cache.owner == l;
    n_sums_ += is_sums && takes_part;
    if (!takes_part || layer.n_moved == 0) continue;
    Move& move = moves_[n_moves_++];
    move.ascends = layer.ascends;
    move.view = is_sums ? sums.ViewOf(l) : *cache.view;
    MoveJob& job = move.job;
    job.view = &move.view;
    job.tokens = CountsOf(layer, words, kRoom, layer.n_room);
    job.keep = {const_cast<int32_t*>(words) + Begin(layer, kSlots),
                layer.n_lists, CountsOf(layer, words, kMoved, layer.n_moved),
                layer.n_after};
    if (!is_sums) job.shared_companions = cache.shared_companions;
  }
  return Status();
}

Status SequenceEdit::MakeRotations(const int32_t* words) {
  KV_RETURN_IF_ERROR(rotations_.Allocate("rotations of an edit",
                                         CheckedSize(plan_.n_layers())));
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    const Layer& layer = layers_[l];
    const LayerCache& cache = sequence_.call().caches()[l];
    if (cache.owner != l || !layer.rotates) continue;
    rotations_[n_rotations_++] = {
        cache.view, CountsOf(layer, words, kAfter, layer.n_after),
        words + Begin(layer, kOffsets), layer.n_lists};
  }
  return context_.backend().rotate.check(context_, sequence_.stream(),
                                         Rotations());
}

Status SequenceEdit::Run() {
  SlotTable& slots = sequence_.slots();
  const Stream stream = sequence_.stream();
  const uint32_t logical = slots.logical_length();
  const uint32_t n_prompt = sequence_.prompt().n_tokens();
  KV_RETURN_IF_ERROR(slots.Fill(stream, positions_.layers(),
                                map_.logical_after(),
                                map_.EditedFrom(slots.edited_from())));
  ForgetQueries();
  sequence_.RestorePrompt(positions_.layers(), map_.PromptOf(n_prompt),
                          sequence_.prompt().round());
  KV_RETURN_IF_ERROR(MoveRows());
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    KV_RETURN_IF_ERROR(ClearSums(l, logical));
  }
  sequence_.sums().Renumber(logical, map_.logical_after());
  const Backend& backend = context_.backend();
  KV_RETURN_IF_ERROR(backend.rotate(context_, stream, Rotations()));
  if (backend.on_host) return Status();
  // Memory that the queued work reads is about to be freed.
  return backend.read(context_, stream, device_.data(), sizeof(int32_t),
                      host_.data());
}

Status SequenceEdit::MoveRows() {
  const Backend& backend = context_.backend();
  const Stream stream = sequence_.stream();
  const std::span<uint8_t> scratch(scratch_.data(), scratch_bytes_);
  for (size_t i = 0, n = 1; i < n_moves_; i += n) {
    for (n = 1; i + n < n_moves_; ++n) {
      if (moves_[i + n].ascends != moves_[i].ascends) break;
    }
    const Jobs<MoveJob> jobs(std::span<const Move>(&moves_[i], n), &Move::job);
    KV_RETURN_IF_ERROR(
        moves_[i].ascends ? backend.compact(context_, stream, {jobs, {}})
                          : backend.reorder(context_, stream, {jobs, scratch}));
  }
  return Status();
}

uint32_t SequenceEdit::FirstNew(uint32_t layer, uint32_t head) const {
  const PositionList list =
      positions_.layers()[layer].lists[layers_[layer].n_lists == 1 ? 0 : head];
  return static_cast<uint32_t>(
      std::lower_bound(list.begin(), list.end(), int64_t{edit_.first}) -
      list.begin());
}

// Nobody has attended to new tokens yet.
Status SequenceEdit::ClearSums(uint32_t l, uint32_t logical) {
  const SumTable& sums = sequence_.sums();
  if (map_.n_new() == 0 || !sums.Follows(l, logical)) return Status();
  const kvevict_view view = sums.ViewOf(l);
  for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
    const uint32_t slot = FirstNew(l, head);
    for (uint32_t e = 0; e < view.k.head_dim; ++e) {
      const uint64_t row = view.k.data + head * view.k.head_stride_bytes +
                           e * view.k.element_stride_bytes;
      KV_RETURN_IF_ERROR(context_.backend().copy(
          context_, sequence_.stream(), zeros_.data(),
          map_.n_new() * sizeof(float), reinterpret_cast<float*>(row) + slot));
    }
  }
  return Status();
}

// Queries are rotated to their positions, and log-sum-exps include keys that
// are gone.
void SequenceEdit::ForgetQueries() {
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    if (plan_.policy().rotate != 0) {
      sequence_.ForgetQueries(l);
    } else {
      sequence_.ForgetLse(l);
    }
  }
  if (edit_.positions == KVEVICT_EDIT_KEEP) {
    sequence_.ForgetQueriesOf(edit_.first, edit_.end);
  } else {
    sequence_.CutQueries(map_.first_changed());
  }
}

}  // namespace kvevict
