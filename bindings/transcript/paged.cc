// Paged caches, and prompts that are read in chunks.
#include "bindings/transcript/calls.h"

namespace transcript {
namespace {

kvevict_paged_sequence* CachedOf(Line& l, Objects& o) {
  return o.cached.Get(l.Text("cached"));
}

kvevict_status Bytes(Line& l, Objects& o, Results& out) {
  std::size_t bytes = 0;
  const auto status =
      kvevict_paged_cache_bytes(o.plans.Get(l.Text("plan")),
                                o.One<kvevict_paged_cache_options>(
                                    "paged_cache_options", l.Text("options")),
                                &bytes);
  if (status == KVEVICT_OK) out.Add("bytes", bytes);
  return status;
}

kvevict_status Create(Line& l, Objects& o, Results&) {
  kvevict_paged_cache* cache = nullptr;
  const auto status =
      kvevict_paged_cache_create(o.plans.Get(l.Text("plan")),
                                 o.One<kvevict_paged_cache_options>(
                                     "paged_cache_options", l.Text("options")),
                                 &cache);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.caches.Put(name, cache);
  return status;
}

kvevict_status Usage(Line& l, Objects& o, Results& out) {
  kvevict_paged_cache_usage u = {};
  u.struct_size = sizeof(u);
  const auto status =
      kvevict_paged_cache_get_usage(o.caches.Get(l.Text("cache")), &u);
  out.AddAll("usage", u.n_sequences, u.n_blocks, u.n_free, u.n_shared,
             u.n_slots, u.bytes, u.bytes_in_use, u.f32_bytes);
  return status;
}

kvevict_status NewSequence(Line& l, Objects& o, Results&) {
  kvevict_paged_sequence* made = nullptr;
  const auto status =
      kvevict_paged_sequence_create(o.caches.Get(l.Text("cache")), &made);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.cached.Put(name, made);
  return status;
}

kvevict_status Fork(Line& l, Objects& o, Results&) {
  kvevict_paged_sequence* made = nullptr;
  const auto status =
      kvevict_paged_sequence_fork(CachedOf(l, o), &made, nullptr);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.cached.Put(name, made);
  return status;
}

kvevict_status Length(Line& l, Objects& o, Results& out) {
  uint32_t slots = 0;
  const auto status =
      kvevict_paged_sequence_length(CachedOf(l, o), l.Count("layer"), &slots);
  if (status == KVEVICT_OK) out.Add("slots", slots);
  return status;
}

/// The view is then a name for other calls.
kvevict_status View(Line& l, Objects& o, Results&) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  const auto status =
      kvevict_paged_sequence_view(CachedOf(l, o), l.Count("layer"), &view);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.cached_views[name] = view;
  return status;
}

kvevict_status Write(Line& l, Objects& o, Results&) {
  const auto rows = l.List("rows");
  return kvevict_paged_sequence_write(
      CachedOf(l, o), o.All<kvevict_paged_rows>("paged_rows", rows),
      rows.size(), nullptr);
}

kvevict_status Read(Line& l, Objects& o, Results&) {
  const auto rows = l.List("rows");
  return kvevict_paged_sequence_read(
      CachedOf(l, o), o.All<kvevict_paged_rows>("paged_rows", rows),
      rows.size(), nullptr);
}

kvevict_status Evict(Line& l, Objects& o, Results& out) {
  const auto names = l.List("items");
  const auto* items = o.All<kvevict_paged_eviction>("paged_eviction", names);
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  const auto status = kvevict_paged_evict(items, names.size(), scratch.data,
                                          scratch.bytes, nullptr);
  if (status != KVEVICT_OK) return status;
  std::string reports;
  for (std::size_t i = 0; i < names.size(); ++i) {
    reports += (i == 0 ? "" : ",") + ReportOf(items[i].sequence);
  }
  out.Add("reports", reports);
  return status;
}

kvevict_status Edit(Line& l, Objects& o, Results&) {
  return kvevict_paged_edit(CachedOf(l, o), o.sequences.Get(l.Text("sequence")),
                            o.One<kvevict_edit>("edit", l.Text("edit")),
                            nullptr);
}

/// What a model would do for a chunk: it only remembers it.
kvevict_status Forward(uint32_t first, uint32_t n, void* chunks) {
  std::string& text = *static_cast<std::string*>(chunks);
  text += (text.empty() ? "" : ",") + Results::Joined(first, n);
  return KVEVICT_OK;
}

kvevict_status Prefill(Line& l, Objects& o, Results& out) {
  const std::string name = l.Text("options");
  kvevict_prefill_options p =
      *o.One<kvevict_prefill_options>("prefill_options", name);
  const Scratch scratch = MakeScratch(p.workspace_bytes);
  p.workspace = scratch.data;
  std::string chunks;
  p.forward = Forward;
  p.user_data = &chunks;
  kvevict_prefill_report r = {};
  r.struct_size = sizeof(r);
  const auto status = kvevict_sequence_prefill(
      o.sequences.Get(l.Text("sequence")), &p, &r, nullptr);
  if (status != KVEVICT_OK) return status;
  out.Add("chunks", chunks);
  out.AddAll("report", r.n_chunks, r.n_evictions, r.peak_tokens, r.peak_bytes,
             r.end_bytes);
  return status;
}

}  // namespace

void AddPaged(Calls* calls) {
  Calls& c = *calls;
  c["paged_cache_bytes"] = Bytes;
  c["paged_cache_create"] = Create;
  c["paged_cache_destroy"] = [](Line& l, Objects& o, Results&) {
    o.caches.End(l.Text("cache"));
    return KVEVICT_OK;
  };
  c["paged_cache_get_usage"] = Usage;
  c["paged_sequence_create"] = NewSequence;
  c["paged_sequence_fork"] = Fork;
  c["paged_sequence_destroy"] = [](Line& l, Objects& o, Results&) {
    o.cached.End(l.Text("cached"));
    return KVEVICT_OK;
  };
  c["paged_sequence_append"] = [](Line& l, Objects& o, Results&) {
    return kvevict_paged_sequence_append(CachedOf(l, o), l.Count("n_tokens"),
                                         nullptr);
  };
  c["paged_sequence_truncate"] = [](Line& l, Objects& o, Results&) {
    return kvevict_paged_sequence_truncate(CachedOf(l, o),
                                           l.Count("new_length"));
  };
  c["paged_sequence_fit"] = [](Line& l, Objects& o, Results&) {
    return kvevict_paged_sequence_fit(CachedOf(l, o),
                                      o.sequences.Get(l.Text("stored")));
  };
  c["paged_sequence_length"] = Length;
  c["paged_sequence_view"] = View;
  c["paged_sequence_own"] = [](Line& l, Objects& o, Results&) {
    return kvevict_paged_sequence_own(CachedOf(l, o), l.Count("first_slot"),
                                      nullptr);
  };
  c["paged_sequence_write"] = Write;
  c["paged_sequence_read"] = Read;
  c["paged_evict"] = Evict;
  c["paged_edit"] = Edit;
  c["sequence_prefill"] = Prefill;
}

}  // namespace transcript
