// Sequences, calls that serve many of them, and calls without one.
#include <cstring>

#include "bindings/transcript/bind.h"

namespace transcript {
namespace {

kvevict_sequence* SequenceOf(Line& l, Objects& o) {
  return o.all<kvevict_sequence>().Get(l.Text("sequence"));
}

kvevict_status BudgetForMass(Line& l, Objects& o, Results& out) {
  const auto names = l.List("layers");
  const kvevict_layer_scores* layers =
      o.All<kvevict_layer_scores>("layer_scores", names);
  const auto* options =
      o.One<kvevict_mass_options>("mass_options", l.Text("options"));
  std::size_t rows = 0;
  for (std::size_t i = 0; i < names.size(); ++i) rows += layers[i].n_rows;
  std::size_t n = rows;
  if (options->scope == KVEVICT_SCOPE_LAYER) n = names.size();
  if (options->scope == KVEVICT_SCOPE_MODEL) n = rows > 0 ? 1 : 0;
  std::vector<uint32_t> budgets(n);
  const auto status =
      kvevict_budget_for_mass(o.all<kvevict_context>().Get(l.Text("context")),
                              layers, names.size(), options, budgets.data(), n);
  if (status == KVEVICT_OK) out.AddList("budgets", budgets.data(), n);
  return status;
}

kvevict_status Report(Line& l, Objects& o, Results& out) {
  const kvevict_sequence* sequence = SequenceOf(l, o);
  out.Add("report", ReportOf(sequence));
  std::vector<kvevict_list_report> lists(
      l.Count("n_lists"), kvevict_list_report KVEVICT_LIST_REPORT_INIT);
  const auto status =
      kvevict_sequence_report(sequence, nullptr, lists.data(), lists.size());
  std::string all;
  for (const auto& list : lists) {
    all += (all.empty() ? "" : ",") +
           Results::Joined(list.layer, list.tokens_before, list.tokens_after) +
           ":" + Bits(list.mass_kept) + ":" + Bits(list.largest_mass_evicted);
  }
  out.Add("lists", all);
  return status;
}

kvevict_status KeepPositions(Line& l, Objects& o, Results& out) {
  const kvevict_sequence* sequence = SequenceOf(l, o);
  const uint32_t layer = l.Count("layer");
  const uint32_t head = l.Count("kv_head");
  uint32_t length = 0;
  const auto status =
      kvevict_sequence_stored_length(sequence, layer, head, &length);
  if (status != KVEVICT_OK) return status;
  std::vector<int32_t> positions(length);
  std::size_t n = 0;
  kvevict_sequence_keep_positions(sequence, layer, head, positions.data(),
                                  length, &n);
  out.AddList("positions", positions.data(), n);
  return status;
}

kvevict_status KeptSlots(Line& l, Objects& o, Results& out) {
  const auto views = l.List("views");
  std::vector<uint32_t> slots(views.size());
  const auto status = kvevict_sequence_kept_slots(
      SequenceOf(l, o), o.All<kvevict_view>("view", views), views.size(),
      slots.data(), slots.size());
  if (status == KVEVICT_OK) out.AddList("slots", slots.data(), slots.size());
  return status;
}

/// The state itself: it lies in this process's memory.
void AddMemory(const kvevict_sequence_memory& m, Results& out) {
  out.AddAll("counts", m.n_lists, m.n_listed, m.n_sum_heads, m.sum_stride);
  const auto add = [&](const char* key, uint64_t address, std::size_t n) {
    out.AddList(key, reinterpret_cast<const uint32_t*>(address),
                address == 0 ? 0 : n);
  };
  add("lengths", m.lengths, m.n_lists * 2);
  const auto* counts = reinterpret_cast<const uint32_t*>(m.listed_counts);
  for (uint32_t i = 0; i < m.n_lists; ++i) {
    add("positions", m.positions + 4 * i * m.n_listed,
        counts == nullptr ? m.n_listed : counts[i]);
  }
  add("listed_counts", m.listed_counts, m.n_lists);
  add("sums", m.sums, m.n_sum_heads * m.sum_stride);
}

kvevict_status Evict(Line& l, Objects& o, Results& out) {
  static const Call evict =
      Bind(kvevict_sequence_evict, "sequence views options workspace");
  const kvevict_status status = evict(l, o, out);
  if (status == KVEVICT_OK) out.Add("report", ReportOf(SequenceOf(l, o)));
  return status;
}

kvevict_status EvictAll(Line& l, Objects& o, Results& out) {
  const auto names = l.List("items");
  const auto* items =
      o.All<kvevict_sequence_eviction>("sequence_eviction", names);
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  const auto status = kvevict_sequences_evict(items, names.size(), scratch.data,
                                              scratch.bytes, nullptr);
  if (status == KVEVICT_OK) out.Add("reports", ReportsOf(items, names.size()));
  return status;
}

}  // namespace

std::string Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return value != value ? "nan" : std::to_string(bits);
}

std::string ReportOf(const kvevict_sequence* sequence) {
  kvevict_evict_report r = KVEVICT_EVICT_REPORT_INIT;
  kvevict_sequence_report(sequence, &r, nullptr, 0);
  return Results::Joined(r.evicted, r.bytes_before, r.bytes_after,
                         r.tokens_before, r.tokens_after, r.blocks_freed,
                         r.reason, r.n_weak_fits);
}

void AddSequences(Calls* calls) {
  Calls& c = *calls;
  c["view_validate"] = Bind(kvevict_view_validate, "view n_tokens");
  c["score"] = Bind(kvevict_score, "plan jobs workspace");
  c["select"] = Bind(kvevict_select, "context options keep workspace");
  c["select_workspace"] =
      BindSize(kvevict_select_workspace, "context n_tokens n_lists");
  c["compact"] = Bind(kvevict_compact, "context moves workspace");
  c["compact_workspace"] = BindSize(kvevict_compact_workspace, "context moves");
  c["reorder"] = Bind(kvevict_reorder, "context moves workspace");
  c["reorder_workspace"] = BindSize(kvevict_reorder_workspace, "context moves");
  c["rotate"] = Bind(kvevict_rotate, "plan rotations");
  c["attend"] = Bind(kvevict_attend, "context jobs workspace");
  c["attend_workspace"] = BindSize(kvevict_attend_workspace, "context jobs");
  c["budget_for_mass"] = BudgetForMass;

  c["sequence_create"] = Bind(kvevict_sequence_create, "plan");
  c["sequence_destroy"] = End<kvevict_sequence>("sequence");
  c["sequence_reset"] = Bind(kvevict_sequence_reset, "sequence");
  c["sequence_begin_observing"] =
      Bind(kvevict_sequence_begin_observing, "sequence memory");
  c["sequence_end_observing"] =
      Bind(kvevict_sequence_end_observing, "sequence");
  c["sequence_observe"] = Bind(kvevict_sequence_observe,
                               "sequence observations n_rows first_position");
  c["sequence_append"] = Bind(kvevict_sequence_append, "sequence n_tokens");
  c["sequence_end_prompt"] = Bind(kvevict_sequence_end_prompt, "sequence");
  c["sequence_trim_to"] = Bind(kvevict_sequence_trim_to, "sequence new_length");
  c["sequence_replayed"] = Bind(kvevict_sequence_replayed, "sequence n_tokens");
  c["sequence_start"] =
      Bind(kvevict_sequence_start, "sequence layers n_tokens");
  c["sequence_fork"] = Bind(kvevict_sequence_fork, "sequence options");
  c["sequence_save"] = SaveAs(kvevict_sequence_save, "sequence");
  c["sequence_load"] = Bind(kvevict_sequence_load, "sequence data");
  c["sequence_evict"] = Evict;
  c["sequence_report"] = Report;
  c["sequence_stored_length"] =
      Bind(kvevict_sequence_stored_length, "sequence layer kv_head length");
  c["sequence_logical_length"] =
      Bind(kvevict_sequence_logical_length, "sequence length");
  c["sequence_exact_prefix"] =
      Bind(kvevict_sequence_exact_prefix, "sequence length");
  c["sequence_keep_positions"] = KeepPositions;
  c["sequence_position_of_slot"] = Bind(kvevict_sequence_position_of_slot,
                                        "sequence layer kv_head slot position");
  c["sequence_slot_of_position"] = Bind(kvevict_sequence_slot_of_position,
                                        "sequence layer kv_head position slot");
  c["sequence_kept_slots"] = KeptSlots;
  c["sequence_undo_bytes"] =
      Bind(kvevict_sequence_undo_bytes, "sequence views bytes");
  c["sequence_undo"] = Bind(kvevict_sequence_undo, "sequence views undo");
  c["sequence_edit"] = Bind(kvevict_sequence_edit, "sequence views edit");
  c["sequence_memory_of"] = Bind<kvevict_sequence_memory>(
      kvevict_sequence_memory_of, "sequence layer", AddMemory);

  c["sequences_append"] = Bind(kvevict_sequences_append, "items");
  c["sequences_trim_to"] = Bind(kvevict_sequences_trim_to, "items");
  c["sequences_observe"] = Bind(kvevict_sequences_observe, "items");
  c["sequences_workspace"] = BindSize(kvevict_sequences_workspace, "items");
  c["sequences_evict"] = EvictAll;
}

}  // namespace transcript
