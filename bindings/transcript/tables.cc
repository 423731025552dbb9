// What library and machine offer; policies, plans and calibrations.
#include <cstring>

#include "bindings/transcript/bind.h"

namespace transcript {
namespace {

std::string DoubleBits(double value) {
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

/// Without a policy's name all parameters.
void AddParameter(const kvevict_parameter_info& i, Results& out) {
  out.Add("key", i.key);
  out.Add("type", i.type);
  out.Add("words", i.words);
  out.Add("least", DoubleBits(i.least));
  out.Add("most", DoubleBits(i.most));
  out.AddAll("flags", i.excludes_least, i.takes_zero);
  out.Add("default", std::string(i.default_text));
}

kvevict_status PlanSelection(Line& l, Objects& o, Results& out) {
  kvevict_select_options s = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
  const auto status = kvevict_plan_selection(
      o.all<kvevict_plan>().Get(l.Text("plan")), l.Count("layer"),
      l.Count("n_tokens"), l.Count("n_seen"), &s, &k);
  if (status == KVEVICT_OK) {
    out.AddAll("selection", s.n_tokens, s.n_rows, s.reduce, s.n_sink,
               s.n_recent, s.tie, s.select_block, k.n_lists, k.count);
  }
  return status;
}

/// Budgets of so many layers, by a function that writes them.
template <class Write>
Call Budgets(Write write) {
  return [=](Line& l, Objects& o, Results& out) {
    std::vector<uint32_t> budgets(l.Count("n_layers"));
    const kvevict_status status = write(l, o, budgets);
    if (status == KVEVICT_OK) {
      out.AddList("budgets", budgets.data(), budgets.size());
    }
    return status;
  };
}

/// The text of the policy that a key names, after a call.
Call WithText(const Call& call, const char* key) {
  return [=](Line& l, Objects& o, Results& out) {
    const kvevict_status status = call(l, o, out);
    if (status == KVEVICT_OK) {
      out.Add("text", FormatOf(o.all<kvevict_policy>().Get(l.Text(key))));
    }
    return status;
  };
}

// ---- Calibrations ------------------------------------------------------------------

const kvevict_calibration* CalibrationOf(Line& l, Objects& o) {
  return o.all<kvevict_calibration>().Get(l.Text("calibration"));
}

kvevict_status QueryCenters(Line& l, Objects& o, Results&) {
  auto centers = std::make_unique<Buffer>("f32", l.Count("length"));
  const auto status =
      kvevict_calibration_query_centers(CalibrationOf(l, o), l.Count("layer"),
                                        centers->at<float>(), centers->length);
  const std::string name = l.Text("name");
  if (status == KVEVICT_OK) o.Put(name, std::move(centers));
  return status;
}

kvevict_status QueryMean(Line& l, Objects& o, Results&) {
  auto mean = std::make_unique<Buffer>("f32", l.Count("length"));
  auto covariance =
      std::make_unique<Buffer>("f32", l.Count("covariance_length"));
  const auto status = kvevict_calibration_query_mean(
      CalibrationOf(l, o), l.Count("layer"), l.Count("first_position"),
      l.Count("n_positions"), mean->at<float>(), mean->length,
      covariance->length == 0 ? nullptr : covariance->at<float>(),
      covariance->length);
  const std::string name = l.Text("name");
  if (status != KVEVICT_OK) return status;
  o.Put(name + "_covariance", std::move(covariance));
  o.Put(name, std::move(mean));
  return status;
}

}  // namespace

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
  c["device_check"] = Bind(kvevict_device_check, "device");
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
  c["dtype_at"] = Bind<kvevict_dtype_info>(
      kvevict_dtype_at, "index", [](const kvevict_dtype_info& i, Results& out) {
        out.Add("name", i.name);
        out.AddAll("numbers", i.dtype, i.element_bytes, i.can_move, i.can_score,
                   i.can_rotate, i.block_elements, i.block_bytes, i.takes_scale,
                   i.takes_minimum);
      });
  c["policy_at"] =
      Bind<kvevict_policy_info>(kvevict_policy_at, "index",
                                [](const kvevict_policy_info& i, Results& out) {
                                  out.Add("name", i.name);
                                  out.Add("signal", i.signal);
                                  out.Add("summary", i.summary);
                                  out.Add("trigger", i.trigger);
                                  out.Add("paper", i.paper);
                                  out.Add("defaults", i.defaults);
                                });
  c["preset_at"] =
      Bind<kvevict_preset_info>(kvevict_preset_at, "index",
                                [](const kvevict_preset_info& i, Results& out) {
                                  out.Add("name", i.name);
                                  out.Add("policy_text", i.policy_text);
                                  out.Add("reproduces", i.reproduces);
                                });
  c["parameter_at"] = Bind<kvevict_parameter_info>(
      kvevict_parameter_at, "policy index", AddParameter);

  c["context_create"] = Bind(kvevict_context_create, "options");
  c["context_destroy"] = End<kvevict_context>("context");
  c["context_prepare"] = Bind(kvevict_context_prepare, "context plan");
  c["policy_create"] = WithText(Bind(kvevict_policy_create, "text"), "name");
  c["policy_set"] =
      WithText(Bind(kvevict_policy_set, "policy key value"), "policy");
  c["policy_validate"] = Bind(kvevict_policy_validate, "policy");
  c["policy_resolve"] = Bind<kvevict_resolved_policy>(
      kvevict_policy_resolve, "policy n_context",
      [](const kvevict_resolved_policy& r, Results& out) {
        out.AddAll("resolved", r.budget, r.n_sink, r.n_recent, r.n_selected,
                   static_cast<int32_t>(r.n_query_rows), r.scores_are_mass);
      });
  c["policy_layer_budgets"] =
      Budgets([](Line& l, Objects& o, std::vector<uint32_t>& budgets) {
        return kvevict_policy_layer_budgets(
            o.all<kvevict_policy>().Get(l.Text("policy")), l.Count("n_context"),
            budgets.data(), budgets.size());
      });
  c["policy_need"] = Bind(kvevict_policy_need, "policy input need");
  c["plan_create"] =
      Bind(kvevict_plan_create, "context geometry policy options");
  c["plan_destroy"] = End<kvevict_plan>("plan");
  c["plan_layer"] = Bind<kvevict_layer_info>(
      kvevict_plan_layer, "plan layer",
      [](const kvevict_layer_info& i, Results& out) {
        out.AddAll("info", i.cache, i.n_q_heads, i.n_kv_heads, i.n_lists,
                   i.first_list);
      });
  c["plan_capabilities"] = Bind<kvevict_capabilities>(
      kvevict_plan_capabilities, "plan layer",
      [](const kvevict_capabilities& can, Results& out) {
        out.AddAll("can", can.can_move, can.can_score, can.can_rotate,
                   can.move_reason, can.score_reason, can.rotate_reason,
                   can.needs_score, can.table_block, can.needs_head_tables,
                   can.needs_layer_tables);
      });
  c["plan_workspace"] =
      BindSize(kvevict_plan_workspace, "plan operation n_tokens");
  c["plan_selection"] = PlanSelection;
  c["plan_layer_budgets"] =
      Budgets([](Line& l, Objects& o, std::vector<uint32_t>& budgets) {
        return kvevict_plan_layer_budgets(
            o.all<kvevict_plan>().Get(l.Text("plan")), l.Count("n_tokens"),
            budgets.data(), budgets.size());
      });

  c["calibration_create"] =
      Bind(kvevict_calibration_create, "plan has_covariances");
  c["calibration_destroy"] = End<kvevict_calibration>("calibration");
  c["calibration_observe"] =
      Bind(kvevict_calibration_observe,
           "calibration layer queries first_position n_rows");
  c["calibration_rows"] =
      Bind(kvevict_calibration_rows, "calibration layer rows");
  c["calibration_query_centers"] = QueryCenters;
  c["calibration_query_mean"] = QueryMean;
  c["calibration_save"] = SaveAs(kvevict_calibration_save, "calibration");
  c["calibration_load"] = Bind(kvevict_calibration_load, "calibration data");
}

}  // namespace transcript
