// What library and machine offer, policies and plans.
#include <cstring>

#include "bindings/transcript/calls.h"

namespace transcript {
namespace {

std::string Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, 8);
  return std::to_string(bits);
}

std::string FormatOf(const kvevict_policy* policy) {
  std::size_t length = 0;
  kvevict_policy_format(policy, nullptr, 0, &length);
  std::string text(length + 1, '\0');
  kvevict_policy_format(policy, text.data(), text.size(), nullptr);
  text.pop_back();
  return text;
}

kvevict_status DtypeAt(Line& l, Objects&, Results& out) {
  kvevict_dtype_info i = {};
  i.struct_size = sizeof(i);
  const auto status = kvevict_dtype_at(l.Count("index"), &i);
  if (status != KVEVICT_OK) return status;
  out.Add("name", i.name);
  out.AddAll("numbers", i.dtype, i.element_bytes, i.can_move, i.can_score,
             i.can_rotate, i.block_elements, i.block_bytes, i.takes_scale,
             i.takes_minimum);
  return status;
}

kvevict_status PolicyAt(Line& l, Objects&, Results& out) {
  kvevict_policy_info i = {};
  i.struct_size = sizeof(i);
  const auto status = kvevict_policy_at(l.Count("index"), &i);
  if (status != KVEVICT_OK) return status;
  out.Add("name", i.name);
  out.Add("signal", i.signal);
  out.Add("summary", i.summary);
  out.Add("trigger", i.trigger);
  out.Add("paper", i.paper);
  out.Add("defaults", i.defaults);
  return status;
}

kvevict_status PresetAt(Line& l, Objects&, Results& out) {
  kvevict_preset_info i = {};
  i.struct_size = sizeof(i);
  const auto status = kvevict_preset_at(l.Count("index"), &i);
  if (status != KVEVICT_OK) return status;
  out.Add("name", i.name);
  out.Add("policy_text", i.policy_text);
  out.Add("reproduces", i.reproduces);
  return status;
}

kvevict_status ParameterAt(Line& l, Objects&, Results& out) {
  kvevict_parameter_info i = {};
  i.struct_size = sizeof(i);
  const bool has_name = l.Has("policy");
  const std::string name = l.Text("policy");
  const auto status = kvevict_parameter_at(has_name ? name.c_str() : nullptr,
                                           l.Count("index"), &i);
  if (status != KVEVICT_OK) return status;
  out.Add("key", i.key);
  out.Add("type", i.type);
  out.Add("words", i.words);
  out.Add("least", Bits(i.least));
  out.Add("most", Bits(i.most));
  out.AddAll("flags", i.excludes_least, i.takes_zero);
  out.Add("default", std::string(i.default_text));
  return status;
}

kvevict_status PolicyCreate(Line& l, Objects& o, Results& out) {
  kvevict_policy* policy = nullptr;
  const auto status = kvevict_policy_create(l.Text("text").c_str(), &policy);
  const std::string name = l.Text("name");
  if (status != KVEVICT_OK) return status;
  o.policies.Put(name, policy);
  out.Add("text", FormatOf(policy));
  return status;
}

kvevict_status PolicyResolve(Line& l, Objects& o, Results& out) {
  kvevict_resolved_policy r = {};
  r.struct_size = sizeof(r);
  const auto status = kvevict_policy_resolve(o.policies.Get(l.Text("policy")),
                                             l.Count("n_context"), &r);
  if (status == KVEVICT_OK) {
    out.AddAll("resolved", r.budget, r.n_sink, r.n_recent, r.n_selected,
               static_cast<int32_t>(r.n_query_rows), r.scores_are_mass);
  }
  return status;
}

kvevict_status PlanCreate(Line& l, Objects& o, Results&) {
  kvevict_plan* plan = nullptr;
  const auto status = kvevict_plan_create(
      o.contexts.Get(l.Text("context")),
      o.One<kvevict_geometry>("geometry", l.Text("geometry")),
      o.policies.Get(l.Text("policy")),
      o.One<kvevict_plan_options>("plan_options", l.Text("options")), &plan);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.plans.Put(name, plan);
  return status;
}

kvevict_status PlanLayer(Line& l, Objects& o, Results& out) {
  kvevict_layer_info i = {};
  i.struct_size = sizeof(i);
  const auto status =
      kvevict_plan_layer(o.plans.Get(l.Text("plan")), l.Count("layer"), &i);
  if (status == KVEVICT_OK) {
    out.AddAll("info", i.cache, i.n_q_heads, i.n_kv_heads, i.n_lists,
               i.first_list);
  }
  return status;
}

kvevict_status PlanCapabilities(Line& l, Objects& o, Results& out) {
  kvevict_capabilities c = {};
  c.struct_size = sizeof(c);
  const auto status = kvevict_plan_capabilities(o.plans.Get(l.Text("plan")),
                                                l.Count("layer"), &c);
  if (status == KVEVICT_OK) {
    out.AddAll("can", c.can_move, c.can_score, c.can_rotate, c.move_reason,
               c.score_reason, c.rotate_reason, c.needs_score, c.table_block,
               c.needs_head_tables, c.needs_layer_tables);
  }
  return status;
}

kvevict_status PlanWorkspace(Line& l, Objects& o, Results& out) {
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  return AddWorkspace(
      kvevict_plan_workspace(o.plans.Get(l.Text("plan")),
                             l.Number<kvevict_operation>("operation"),
                             l.Count("n_tokens"), &w),
      w, out);
}

kvevict_status PlanSelection(Line& l, Objects& o, Results& out) {
  kvevict_select_options s = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
  const auto status =
      kvevict_plan_selection(o.plans.Get(l.Text("plan")), l.Count("layer"),
                             l.Count("n_tokens"), l.Count("n_seen"), &s, &k);
  if (status == KVEVICT_OK) {
    out.AddAll("selection", s.n_tokens, s.n_rows, s.reduce, s.n_sink,
               s.n_recent, s.tie, s.select_block, k.n_lists, k.count);
  }
  return status;
}

}  // namespace

kvevict_status AddWorkspace(kvevict_status status, const kvevict_workspace& w,
                            Results& out) {
  if (status == KVEVICT_OK) {
    out.AddAll("workspace", w.alignment, w.least_bytes, w.best_bytes);
  }
  return status;
}

void AddTables(Calls* calls) {
  Calls& c = *calls;
  c["version"] = [](Line&, Objects&, Results& out) {
    out.Add("version", kvevict_version());
    return KVEVICT_OK;
  };
  c["abi_version"] = [](Line&, Objects&, Results& out) {
    out.Add("version", kvevict_abi_version());
    return KVEVICT_OK;
  };
  c["device_check"] = [](Line& l, Objects&, Results&) {
    return kvevict_device_check(l.Number<kvevict_device>("device"));
  };
  c["simd_target_at"] = [](Line& l, Objects&, Results& out) {
    out.Add("target", kvevict_simd_target_at(l.Count("index")));
    return KVEVICT_OK;
  };
  c["reason_text"] = [](Line& l, Objects&, Results& out) {
    out.Add("text", kvevict_reason_text(l.Number<kvevict_reason>("reason")));
    return KVEVICT_OK;
  };
  c["auto_budget"] = [](Line& l, Objects&, Results& out) {
    uint32_t budget = 0;
    const auto status = kvevict_auto_budget(
        l.Count("max_tokens"), l.Number<uint64_t>("full_cache_bytes"), &budget);
    if (status == KVEVICT_OK) out.Add("budget", budget);
    return status;
  };
  c["dtype_at"] = DtypeAt;
  c["policy_at"] = PolicyAt;
  c["preset_at"] = PresetAt;
  c["parameter_at"] = ParameterAt;
  c["context_create"] = [](Line& l, Objects& o, Results&) {
    kvevict_context* context = nullptr;
    const auto status = kvevict_context_create(
        o.One<kvevict_context_options>("context_options", l.Text("options")),
        &context);
    const std::string name = l.Text("name");
    if (status == KVEVICT_OK) o.contexts.Put(name, context);
    return status;
  };
  c["context_destroy"] = [](Line& l, Objects& o, Results&) {
    o.contexts.End(l.Text("context"));
    return KVEVICT_OK;
  };
  c["context_prepare"] = [](Line& l, Objects& o, Results&) {
    return kvevict_context_prepare(
        o.contexts.Get(l.Text("context")),
        l.Has("plan") ? o.plans.Get(l.Text("plan")) : nullptr);
  };
  c["policy_create"] = PolicyCreate;
  c["policy_set"] = [](Line& l, Objects& o, Results& out) {
    kvevict_policy* policy = o.policies.Get(l.Text("policy"));
    const auto status = kvevict_policy_set(policy, l.Text("key").c_str(),
                                           l.Text("value").c_str());
    if (status == KVEVICT_OK) out.Add("text", FormatOf(policy));
    return status;
  };
  c["policy_validate"] = [](Line& l, Objects& o, Results&) {
    return kvevict_policy_validate(o.policies.Get(l.Text("policy")));
  };
  c["policy_resolve"] = PolicyResolve;
  c["policy_layer_budgets"] = [](Line& l, Objects& o, Results& out) {
    std::vector<uint32_t> budgets(l.Count("n_layers"));
    const auto status = kvevict_policy_layer_budgets(
        o.policies.Get(l.Text("policy")), l.Count("n_context"), budgets.data(),
        budgets.size());
    if (status == KVEVICT_OK) {
      out.AddList("budgets", budgets.data(), budgets.size());
    }
    return status;
  };
  c["policy_need"] = [](Line& l, Objects& o, Results& out) {
    kvevict_need need = KVEVICT_NEED_NONE;
    const auto status =
        kvevict_policy_need(o.policies.Get(l.Text("policy")),
                            l.Number<kvevict_input>("input"), &need);
    if (status == KVEVICT_OK) out.Add("need", static_cast<int>(need));
    return status;
  };
  c["plan_create"] = PlanCreate;
  c["plan_destroy"] = [](Line& l, Objects& o, Results&) {
    o.plans.End(l.Text("plan"));
    return KVEVICT_OK;
  };
  c["plan_layer"] = PlanLayer;
  c["plan_capabilities"] = PlanCapabilities;
  c["plan_workspace"] = PlanWorkspace;
  c["plan_selection"] = PlanSelection;
  c["plan_layer_budgets"] = [](Line& l, Objects& o, Results& out) {
    std::vector<uint32_t> budgets(l.Count("n_layers"));
    const auto status = kvevict_plan_layer_budgets(
        o.plans.Get(l.Text("plan")), l.Count("n_tokens"), budgets.data(),
        budgets.size());
    if (status == KVEVICT_OK) {
      out.AddList("budgets", budgets.data(), budgets.size());
    }
    return status;
  };
}

}  // namespace transcript
