// Sequences, and calls that serve many of them.
#include <cstring>

#include "bindings/transcript/calls.h"

namespace transcript {
namespace {

kvevict_sequence* SequenceOf(Line& l, Objects& o) {
  return o.sequences.Get(l.Text("sequence"));
}

kvevict_status Put(kvevict_status status, const std::string& name,
                   kvevict_sequence* sequence, Objects& o) {
  if (status == KVEVICT_OK) o.sequences.Put(name, sequence);
  return status;
}

kvevict_status Create(Line& l, Objects& o, Results&) {
  kvevict_sequence* sequence = nullptr;
  const auto status =
      kvevict_sequence_create(o.plans.Get(l.Text("plan")), &sequence);
  return Put(status, l.Text("name"), sequence, o);
}

kvevict_status BeginObserving(Line& l, Objects& o, Results&) {
  const std::string memory = l.Text("memory");
  return kvevict_sequence_begin_observing(
      SequenceOf(l, o), o.Data<void>(memory), o.Length(memory));
}

kvevict_status Observe(Line& l, Objects& o, Results&) {
  const auto shown = l.List("observations");
  return kvevict_sequence_observe(
      SequenceOf(l, o), o.All<kvevict_observation>("observation", shown),
      shown.size(), l.Count("n_rows"), l.Count("first_position"), nullptr);
}

kvevict_status Start(Line& l, Objects& o, Results&) {
  const auto layers = l.List("layers");
  return kvevict_sequence_start(
      SequenceOf(l, o), o.All<kvevict_position_lists>("position_lists", layers),
      layers.size(), l.Count("n_tokens"), nullptr);
}

kvevict_status Fork(Line& l, Objects& o, Results&) {
  kvevict_sequence* fork = nullptr;
  const auto status = kvevict_sequence_fork(
      SequenceOf(l, o),
      o.One<kvevict_fork_options>("fork_options", l.Text("options")), &fork,
      nullptr);
  return Put(status, l.Text("name"), fork, o);
}

kvevict_status Save(Line& l, Objects& o, Results&) {
  const kvevict_sequence* sequence = SequenceOf(l, o);
  std::size_t length = 0;
  kvevict_sequence_save(sequence, nullptr, 0, &length);
  auto saved = std::make_unique<Buffer>("u8", length);
  const auto status =
      kvevict_sequence_save(sequence, saved->at<void>(), length, nullptr);
  o.Put(l.Text("name"), std::move(saved));
  return status;
}

kvevict_status Load(Line& l, Objects& o, Results&) {
  const std::string data = l.Text("data");
  return kvevict_sequence_load(SequenceOf(l, o), o.Data<void>(data),
                               o.Length(data), nullptr);
}

kvevict_status Evict(Line& l, Objects& o, Results& out) {
  kvevict_sequence* sequence = SequenceOf(l, o);
  const auto views = l.List("views");
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  const auto status = kvevict_sequence_evict(
      sequence, o.All<kvevict_view>("view", views), views.size(),
      o.One<kvevict_evict_options>("evict_options", l.Text("options")),
      scratch.data, scratch.bytes, nullptr);
  if (status == KVEVICT_OK) out.Add("report", ReportOf(sequence));
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

kvevict_status StoredLength(Line& l, Objects& o, Results& out) {
  uint32_t length = 0;
  const auto status = kvevict_sequence_stored_length(
      SequenceOf(l, o), l.Count("layer"), l.Count("kv_head"), &length);
  if (status == KVEVICT_OK) out.Add("length", length);
  return status;
}

kvevict_status LogicalLength(Line& l, Objects& o, Results& out) {
  uint32_t length = 0;
  const auto status =
      kvevict_sequence_logical_length(SequenceOf(l, o), &length);
  out.Add("length", length);
  return status;
}

kvevict_status ExactPrefix(Line& l, Objects& o, Results& out) {
  uint32_t length = 0;
  const auto status = kvevict_sequence_exact_prefix(SequenceOf(l, o), &length);
  out.Add("length", length);
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

kvevict_status PositionOfSlot(Line& l, Objects& o, Results& out) {
  int32_t position = 0;
  const auto status = kvevict_sequence_position_of_slot(
      SequenceOf(l, o), l.Count("layer"), l.Count("kv_head"), l.Count("slot"),
      &position);
  if (status == KVEVICT_OK) out.Add("position", position);
  return status;
}

kvevict_status SlotOfPosition(Line& l, Objects& o, Results& out) {
  int32_t slot = 0;
  const auto status = kvevict_sequence_slot_of_position(
      SequenceOf(l, o), l.Count("layer"), l.Count("kv_head"),
      l.Count("position"), &slot);
  if (status == KVEVICT_OK) out.Add("slot", slot);
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

kvevict_status UndoBytes(Line& l, Objects& o, Results& out) {
  const auto views = l.List("views");
  std::size_t bytes = 0;
  const auto status = kvevict_sequence_undo_bytes(
      SequenceOf(l, o), o.All<kvevict_view>("view", views), views.size(),
      &bytes);
  if (status == KVEVICT_OK) out.Add("bytes", bytes);
  return status;
}

kvevict_status Undo(Line& l, Objects& o, Results&) {
  const auto views = l.List("views");
  const std::string undo = l.Text("undo");
  return kvevict_sequence_undo(SequenceOf(l, o),
                               o.All<kvevict_view>("view", views), views.size(),
                               o.Data<void>(undo), o.Length(undo), nullptr);
}

kvevict_status Edit(Line& l, Objects& o, Results&) {
  const auto views = l.List("views");
  return kvevict_sequence_edit(
      SequenceOf(l, o), o.All<kvevict_view>("view", views), views.size(),
      o.One<kvevict_edit>("edit", l.Text("edit")), nullptr);
}

/// The state itself: it lies in this process's memory.
kvevict_status MemoryOf(Line& l, Objects& o, Results& out) {
  kvevict_sequence_memory m = {};
  m.struct_size = sizeof(m);
  const auto status =
      kvevict_sequence_memory_of(SequenceOf(l, o), l.Count("layer"), &m);
  if (status != KVEVICT_OK) return status;
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
  return status;
}

kvevict_status AppendAll(Line& l, Objects& o, Results&) {
  const auto items = l.List("items");
  return kvevict_sequences_append(
      o.All<kvevict_sequence_tokens>("sequence_tokens", items), items.size(),
      nullptr);
}

kvevict_status TrimAllTo(Line& l, Objects& o, Results&) {
  const auto items = l.List("items");
  return kvevict_sequences_trim_to(
      o.All<kvevict_sequence_length>("sequence_length", items), items.size(),
      nullptr);
}

kvevict_status ObserveAll(Line& l, Objects& o, Results&) {
  const auto items = l.List("items");
  return kvevict_sequences_observe(
      o.All<kvevict_sequence_observations>("sequence_observations", items),
      items.size(), nullptr);
}

kvevict_status WorkspaceOfAll(Line& l, Objects& o, Results& out) {
  const auto items = l.List("items");
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  return AddWorkspace(
      kvevict_sequences_workspace(
          o.All<kvevict_sequence_eviction>("sequence_eviction", items),
          items.size(), &w),
      w, out);
}

kvevict_status EvictAll(Line& l, Objects& o, Results& out) {
  const auto names = l.List("items");
  const auto* items =
      o.All<kvevict_sequence_eviction>("sequence_eviction", names);
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  const auto status = kvevict_sequences_evict(items, names.size(), scratch.data,
                                              scratch.bytes, nullptr);
  if (status != KVEVICT_OK) return status;
  std::string reports;
  for (std::size_t i = 0; i < names.size(); ++i) {
    reports += (i == 0 ? "" : ",") + ReportOf(items[i].sequence);
  }
  out.Add("reports", reports);
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
  c["sequence_create"] = Create;
  c["sequence_destroy"] = [](Line& l, Objects& o, Results&) {
    o.sequences.End(l.Text("sequence"));
    return KVEVICT_OK;
  };
  c["sequence_reset"] = [](Line& l, Objects& o, Results&) {
    return kvevict_sequence_reset(SequenceOf(l, o), nullptr);
  };
  c["sequence_begin_observing"] = BeginObserving;
  c["sequence_end_observing"] = [](Line& l, Objects& o, Results&) {
    return kvevict_sequence_end_observing(SequenceOf(l, o));
  };
  c["sequence_observe"] = Observe;
  c["sequence_append"] = [](Line& l, Objects& o, Results&) {
    return kvevict_sequence_append(SequenceOf(l, o), l.Count("n_tokens"),
                                   nullptr);
  };
  c["sequence_end_prompt"] = [](Line& l, Objects& o, Results&) {
    return kvevict_sequence_end_prompt(SequenceOf(l, o));
  };
  c["sequence_trim_to"] = [](Line& l, Objects& o, Results&) {
    return kvevict_sequence_trim_to(SequenceOf(l, o), l.Count("new_length"),
                                    nullptr);
  };
  c["sequence_replayed"] = [](Line& l, Objects& o, Results&) {
    return kvevict_sequence_replayed(SequenceOf(l, o), l.Count("n_tokens"));
  };
  c["sequence_start"] = Start;
  c["sequence_fork"] = Fork;
  c["sequence_save"] = Save;
  c["sequence_load"] = Load;
  c["sequence_evict"] = Evict;
  c["sequence_report"] = Report;
  c["sequence_stored_length"] = StoredLength;
  c["sequence_logical_length"] = LogicalLength;
  c["sequence_exact_prefix"] = ExactPrefix;
  c["sequence_keep_positions"] = KeepPositions;
  c["sequence_position_of_slot"] = PositionOfSlot;
  c["sequence_slot_of_position"] = SlotOfPosition;
  c["sequence_kept_slots"] = KeptSlots;
  c["sequence_undo_bytes"] = UndoBytes;
  c["sequence_undo"] = Undo;
  c["sequence_edit"] = Edit;
  c["sequence_memory_of"] = MemoryOf;
  c["sequences_append"] = AppendAll;
  c["sequences_trim_to"] = TrimAllTo;
  c["sequences_observe"] = ObserveAll;
  c["sequences_workspace"] = WorkspaceOfAll;
  c["sequences_evict"] = EvictAll;
}

}  // namespace transcript
