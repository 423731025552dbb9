// Sequences: what the program removes, copies and shifts.
#include <algorithm>
#include <vector>

#include "context.h"
#include "hook.h"
#include "log.h"

namespace kvevict::llama_preload {
namespace {

// The adapter would notice by the next decode; a state may be set before that.
void IsEmpty(Context& c, llama_seq_id seq) {
  c.Of(seq)[0] = {};
  kvevict_llama_trim_to(c.kv, seq, 0);
}

bool RefusesShift(llama_memory_t memory, llama_seq_id seq) {
  Context* const c = FindByMemory(memory);
  if (c == nullptr || !c->AnyEvicted(seq)) return false;
  SayOnce(
      "positions of an evicted sequence are not shifted, as "
      "llama_memory_can_shift() has told the program");
  return true;
}

}  // namespace

// Takes back a tail of an evicted sequence only if it begins behind the eviction, and
// never a middle: heads have kept different tokens of what lies before.
HOOK(bool, llama_memory_seq_rm, llama_memory_t memory, llama_seq_id seq,
     llama_pos from, llama_pos to) {
  Context* const c = FindByMemory(memory);
  if (c == nullptr) return NEXT(llama_memory_seq_rm)(memory, seq, from, to);
  const Inside guard;
  std::vector<llama_seq_id> emptied;
  for (size_t i = 0; i < c->sequences.size(); ++i) {
    if (seq >= 0 && static_cast<size_t>(seq) != i) continue;
    const auto id = static_cast<llama_seq_id>(i);
    const llama_pos last = UPSTREAM(llama_memory_seq_pos_max)(memory, id);
    const bool is_tail = to < 0 || to > last;
    if (from <= 0 && is_tail) {
      emptied.push_back(id);
      continue;
    }
    const auto exact_from = static_cast<int64_t>(c->sequences[i].exact_from);
    if (exact_from > 0 && from <= last && (from < exact_from || !is_tail)) {
      return false;
    }
    if (seq >= 0 && is_tail && from <= last &&
        kvevict_llama_trim_to(c->kv, seq, static_cast<uint32_t>(from)) ==
            KVEVICT_OK) {
      return true;
    }
  }
  const bool removed = NEXT(llama_memory_seq_rm)(memory, seq, from, to);
  for (const llama_seq_id id : emptied) IsEmpty(*c, id);
  return removed;
}

// Programs ask this before they take back a tail, since a sliding window has lost what
// lies before. The same answer makes them read an evicted sequence again.
HOOK(llama_pos, llama_memory_seq_pos_min, llama_memory_t memory,
     llama_seq_id seq) {
  const llama_pos first = NEXT(llama_memory_seq_pos_min)(memory, seq);
  Context* const c = FindByMemory(memory);
  if (c == nullptr || seq < 0 || first < 0 || !c->AnyEvicted(seq)) return first;
  return std::max(first, static_cast<llama_pos>(c->Of(seq)[0].exact_from) - 1);
}

HOOK(void, llama_memory_seq_cp, llama_memory_t memory, llama_seq_id from,
     llama_seq_id to, llama_pos begin, llama_pos end) {
  Context* const c = FindByMemory(memory);
  if (c == nullptr || from == to) {
    return NEXT(llama_memory_seq_cp)(memory, from, to, begin, end);
  }
  const Inside guard;
  const bool is_whole =
      begin <= 0 &&
      (end < 0 || end > UPSTREAM(llama_memory_seq_pos_max)(memory, from));
  if (!is_whole || kvevict_llama_copy(c->kv, from, to) != KVEVICT_OK) {
    NEXT(llama_memory_seq_cp)(memory, from, to, begin, end);
    kvevict_llama_invalidate(c->kv, to);
  }
  if (!c->Of(to).empty() && !c->Of(from).empty()) {
    c->Of(to)[0] = {.exact_from = c->Of(from)[0].exact_from};
  }
}

HOOK(void, llama_memory_seq_keep, llama_memory_t memory, llama_seq_id seq) {
  NEXT(llama_memory_seq_keep)(memory, seq);
  Context* const c = FindByMemory(memory);
  if (c == nullptr) return;
  const Inside guard;
  for (size_t i = 0; i < c->sequences.size(); ++i) {
    const auto id = static_cast<llama_seq_id>(i);
    if (id != seq) IsEmpty(*c, id);
  }
}

HOOK(void, llama_memory_seq_add, llama_memory_t memory, llama_seq_id seq,
     llama_pos from, llama_pos to, llama_pos delta) {
  if (delta != 0 && RefusesShift(memory, seq)) return;
  NEXT(llama_memory_seq_add)(memory, seq, from, to, delta);
}

HOOK(void, llama_memory_seq_div, llama_memory_t memory, llama_seq_id seq,
     llama_pos from, llama_pos to, int divisor) {
  if (divisor != 1 && RefusesShift(memory, seq)) return;
  NEXT(llama_memory_seq_div)(memory, seq, from, to, divisor);
}

HOOK(bool, llama_memory_can_shift, llama_memory_t memory) {
  return FindByMemory(memory) == nullptr &&
         NEXT(llama_memory_can_shift)(memory);
}

HOOK(void, llama_memory_clear, llama_memory_t memory, bool data) {
  NEXT(llama_memory_clear)(memory, data);
  Context* const c = FindByMemory(memory);
  if (c == nullptr) return;
  const Inside guard;
  for (size_t i = 0; i < c->sequences.size(); ++i) {
    IsEmpty(*c, static_cast<llama_seq_id>(i));
  }
}

}  // namespace kvevict::llama_preload
