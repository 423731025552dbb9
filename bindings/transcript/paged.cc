// Paged caches, and prompts that are read in chunks.
#include "bindings/transcript/bind.h"

namespace transcript {
namespace {

/// The view is then a name for other calls.
kvevict_status View(Line& l, Objects& o, Results&) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  const auto status = kvevict_paged_sequence_view(
      o.all<kvevict_paged_sequence>().Get(l.Text("cached")), l.Count("layer"),
      &view);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.cached_views[name] = view;
  return status;
}

kvevict_status EvictPages(Line& l, Objects& o, Results& out) {
  const auto names = l.List("items");
  const auto* items = o.All<kvevict_paged_eviction>("paged_eviction", names);
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  const auto status = kvevict_paged_evict(items, names.size(), scratch.data,
                                          scratch.bytes, nullptr);
  if (status == KVEVICT_OK) out.Add("reports", ReportsOf(items, names.size()));
  return status;
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
      o.all<kvevict_sequence>().Get(l.Text("sequence")), &p, &r, nullptr);
  if (status != KVEVICT_OK) return status;
  out.Add("chunks", chunks);
  out.AddAll("report", r.n_chunks, r.n_evictions, r.peak_tokens, r.peak_bytes,
             r.end_bytes);
  return status;
}

}  // namespace

void AddPaged(Calls* calls) {
  Calls& c = *calls;
  c["paged_cache_bytes"] =
      Bind(kvevict_paged_cache_bytes, "plan options bytes");
  c["paged_cache_create"] = Bind(kvevict_paged_cache_create, "plan options");
  c["paged_cache_destroy"] = End<kvevict_paged_cache>("cache");
  c["paged_cache_get_usage"] = Bind<kvevict_paged_cache_usage>(
      kvevict_paged_cache_get_usage, "cache",
      [](const kvevict_paged_cache_usage& u, Results& out) {
        out.AddAll("usage", u.n_sequences, u.n_blocks, u.n_free, u.n_shared,
                   u.n_slots, u.bytes, u.bytes_in_use, u.f32_bytes);
      });
  c["paged_sequence_create"] = Bind(kvevict_paged_sequence_create, "cache");
  c["paged_sequence_fork"] = Bind(kvevict_paged_sequence_fork, "cached");
  c["paged_sequence_destroy"] = End<kvevict_paged_sequence>("cached");
  c["paged_sequence_append"] =
      Bind(kvevict_paged_sequence_append, "cached n_tokens");
  c["paged_sequence_truncate"] =
      Bind(kvevict_paged_sequence_truncate, "cached new_length");
  c["paged_sequence_fit"] = Bind(kvevict_paged_sequence_fit, "cached stored");
  c["paged_sequence_length"] =
      Bind(kvevict_paged_sequence_length, "cached layer slots");
  c["paged_sequence_view"] = View;
  c["paged_sequence_own"] =
      Bind(kvevict_paged_sequence_own, "cached first_slot");
  c["paged_sequence_write"] = Bind(kvevict_paged_sequence_write, "cached rows");
  c["paged_sequence_read"] = Bind(kvevict_paged_sequence_read, "cached rows");
  c["paged_evict"] = EvictPages;
  c["paged_edit"] = Bind(kvevict_paged_edit, "cached sequence edit");
  c["sequence_prefill"] = Prefill;
}

}  // namespace transcript
