// Score, select, compact and the other calls without a sequence.
#include "bindings/transcript/calls.h"

namespace transcript {
namespace {

kvevict_status Score(Line& l, Objects& o, Results&) {
  const auto jobs = l.List("jobs");
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  return kvevict_score(o.plans.Get(l.Text("plan")),
                       o.All<kvevict_score_job>("score_job", jobs), jobs.size(),
                       scratch.data, scratch.bytes, nullptr);
}

kvevict_status Select(Line& l, Objects& o, Results&) {
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  return kvevict_select(
      o.contexts.Get(l.Text("context")),
      o.One<kvevict_select_options>("select_options", l.Text("options")),
      o.One<kvevict_keep_lists>("keep_lists", l.Text("keep")), scratch.data,
      scratch.bytes, nullptr);
}

kvevict_status SelectWorkspace(Line& l, Objects& o, Results& out) {
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  return AddWorkspace(
      kvevict_select_workspace(o.contexts.Get(l.Text("context")),
                               l.Count("n_tokens"), l.Count("n_lists"), &w),
      w, out);
}

template <kvevict_status (*Function)(const kvevict_context*,
                                     const kvevict_move*, std::size_t, void*,
                                     std::size_t, kvevict_stream)>
kvevict_status MoveRows(Line& l, Objects& o, Results&) {
  const auto moves = l.List("moves");
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  return Function(o.contexts.Get(l.Text("context")),
                  o.All<kvevict_move>("move", moves), moves.size(),
                  scratch.data, scratch.bytes, nullptr);
}

template <kvevict_status (*Function)(const kvevict_context*,
                                     const kvevict_move*, std::size_t,
                                     kvevict_workspace*)>
kvevict_status MoveWorkspace(Line& l, Objects& o, Results& out) {
  const auto moves = l.List("moves");
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  return AddWorkspace(
      Function(o.contexts.Get(l.Text("context")),
               o.All<kvevict_move>("move", moves), moves.size(), &w),
      w, out);
}

kvevict_status Rotate(Line& l, Objects& o, Results&) {
  const auto rotations = l.List("rotations");
  return kvevict_rotate(o.plans.Get(l.Text("plan")),
                        o.All<kvevict_rotation>("rotation", rotations),
                        rotations.size(), nullptr);
}

kvevict_status Attend(Line& l, Objects& o, Results&) {
  const auto jobs = l.List("jobs");
  const Scratch scratch = MakeScratch(l.Count("workspace"));
  return kvevict_attend(o.contexts.Get(l.Text("context")),
                        o.All<kvevict_attention_job>("attention_job", jobs),
                        jobs.size(), scratch.data, scratch.bytes, nullptr);
}

kvevict_status AttendWorkspace(Line& l, Objects& o, Results& out) {
  const auto jobs = l.List("jobs");
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  return AddWorkspace(
      kvevict_attend_workspace(
          o.contexts.Get(l.Text("context")),
          o.All<kvevict_attention_job>("attention_job", jobs), jobs.size(), &w),
      w, out);
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
      kvevict_budget_for_mass(o.contexts.Get(l.Text("context")), layers,
                              names.size(), options, budgets.data(), n);
  if (status == KVEVICT_OK) out.AddList("budgets", budgets.data(), n);
  return status;
}

}  // namespace

void AddDoors(Calls* calls) {
  Calls& c = *calls;
  c["view_validate"] = [](Line& l, Objects& o, Results&) {
    return kvevict_view_validate(o.One<kvevict_view>("view", l.Text("view")),
                                 l.Count("n_tokens"));
  };
  c["score"] = Score;
  c["select"] = Select;
  c["select_workspace"] = SelectWorkspace;
  c["compact"] = MoveRows<kvevict_compact>;
  c["compact_workspace"] = MoveWorkspace<kvevict_compact_workspace>;
  c["reorder"] = MoveRows<kvevict_reorder>;
  c["reorder_workspace"] = MoveWorkspace<kvevict_reorder_workspace>;
  c["rotate"] = Rotate;
  c["attend"] = Attend;
  c["attend_workspace"] = AttendWorkspace;
  c["budget_for_mass"] = BudgetForMass;
}

}  // namespace transcript
