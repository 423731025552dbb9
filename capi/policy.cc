#include "core/policy/policy.h"

#include "capi/guard.h"
#include "core/budgets/budgets.h"
#include "core/policy/policy_text.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

Status kvevict::capi::CopyIn(const kvevict_policy* in, kvevict_policy* out) {
  KV_RETURN_IF_ERROR(CheckStruct("policy", in));
  const PolicyInfo* info = FindPolicy(in->kind);
  *out = info == nullptr ? kvevict_policy KVEVICT_POLICY_INIT
                         : DefaultPolicy(*info);
  return CopyIn("policy", in, out);
}

namespace {

Status ReadPolicy(const kvevict_policy* in, kvevict_policy* policy) {
  KV_RETURN_IF_ERROR(CopyIn(in, policy));
  return ValidatePolicy(*policy);
}

Status CheckTokens(const char* name, uint32_t n) {
  if (n >= 1 && n <= INT32_MAX) return Status();
  return InvalidArgument("%s %u is not in [1, %d]", name, n, INT32_MAX);
}

}  // namespace

extern "C" {

kvevict_status kvevict_policy_init(kvevict_policy* out, size_t struct_size,
                                   kvevict_policy_kind kind) noexcept {
  return Guard([&] {
    const PolicyInfo* info = FindPolicy(kind);
    if (info == nullptr) {
      return InvalidArgument("kind %d is no policy", static_cast<int>(kind));
    }
    return InitStruct(DefaultPolicy(*info), out, struct_size);
  });
}

kvevict_status kvevict_policy_parse(const char* text,
                                    kvevict_policy* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("text", text));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    kvevict_policy policy;
    KV_RETURN_IF_ERROR(ParsePolicy(text, &policy));
    return CopyOutWhole("out", policy, DefaultPolicy(*FindPolicy(policy.kind)),
                        out);
  });
}

kvevict_status kvevict_policy_format(const kvevict_policy* in, char* text,
                                     size_t text_capacity,
                                     size_t* out_text_len) noexcept {
  return Guard([&] {
    kvevict_policy policy;
    KV_RETURN_IF_ERROR(ReadPolicy(in, &policy));
    char buffer[kMaxPolicyText];
    const size_t length = FormatPolicy(policy, buffer);
    if (text_capacity > 0) {
      KV_RETURN_IF_ERROR(CheckNotNull("text", text));
      if (text_capacity <= length) {
        return InvalidArgument("text_capacity %zu <= length %zu", text_capacity,
                               length);
      }
      std::memcpy(text, buffer, length + 1);
    }
    if (out_text_len != nullptr) *out_text_len = length;
    return Status();
  });
}

kvevict_status kvevict_policy_validate(const kvevict_policy* in) noexcept {
  return Guard([&] {
    kvevict_policy policy;
    return ReadPolicy(in, &policy);
  });
}

kvevict_status kvevict_policy_resolve(const kvevict_policy* in,
                                      uint32_t n_context,
                                      kvevict_resolved_policy* out) noexcept {
  return Guard([&] {
    kvevict_policy policy;
    KV_RETURN_IF_ERROR(ReadPolicy(in, &policy));
    KV_RETURN_IF_ERROR(CheckTokens("n_context", n_context));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    kvevict_resolved_policy resolved{};
    KV_RETURN_IF_ERROR(ResolvePolicy(policy, n_context, &resolved));
    CopyOut(resolved, out);
    return Status();
  });
}

kvevict_status kvevict_policy_layer_budgets(const kvevict_policy* in,
                                            uint32_t n_context,
                                            uint32_t* budgets,
                                            size_t budgets_len) noexcept {
  return Guard([&] {
    kvevict_policy policy;
    KV_RETURN_IF_ERROR(ReadPolicy(in, &policy));
    KV_RETURN_IF_ERROR(CheckTokens("n_context", n_context));
    KV_RETURN_IF_ERROR(CheckNotNull("budgets", budgets));
    if (budgets_len == 0 || budgets_len > kMaxLayers) {
      return InvalidArgument("budgets_len %zu is not in [1, %u] layers",
                             budgets_len, kMaxLayers);
    }
    return LayerBudgets(policy, n_context, {budgets, budgets_len});
  });
}

kvevict_status kvevict_policy_need(const kvevict_policy* in,
                                   kvevict_input input,
                                   kvevict_need* out_need) noexcept {
  return Guard([&] {
    kvevict_policy policy;
    KV_RETURN_IF_ERROR(ReadPolicy(in, &policy));
    if (input < KVEVICT_INPUT_KEYS || input > KVEVICT_INPUT_QUERY_CENTERS) {
      return InvalidArgument("input %d is none", static_cast<int>(input));
    }
    KV_RETURN_IF_ERROR(CheckNotNull("out_need", out_need));
    *out_need = NeedOf(policy, input);
    return Status();
  });
}

kvevict_status kvevict_auto_budget(uint32_t max_tokens,
                                   uint64_t full_cache_bytes,
                                   uint32_t* out_budget) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckTokens("max_tokens", max_tokens));
    KV_RETURN_IF_ERROR(CheckNotNull("out_budget", out_budget));
    constexpr uint64_t kSmallCacheBytes = uint64_t{256} << 20;
    const uint32_t quarter = std::min<uint32_t>(max_tokens / 4, 4096);
    *out_budget = full_cache_bytes < kSmallCacheBytes
                      ? 0
                      : std::min(std::max<uint32_t>(quarter, 1024), max_tokens);
    return Status();
  });
}

kvevict_status kvevict_policy_at(uint32_t index,
                                 kvevict_policy_info* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    if (index >= Policies().size()) {
      return InvalidArgument("index %u >= %zu policies", index,
                             Policies().size());
    }
    const PolicyInfo& info = Policies()[index];
    kvevict_policy_info row{};
    row.kind = info.kind;
    row.name = info.name;
    row.signal = InfoOf(info.signal).text;
    row.shaping = info.shaping;
    row.budget = SplitText(DefaultPolicy(info).layer_split);
    row.trigger = TriggerText(info.trigger);
    row.paper = info.paper;
    CopyOut(row, out);
    return Status();
  });
}

kvevict_status kvevict_preset_at(uint32_t index,
                                 kvevict_preset_info* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    if (index >= Presets().size()) {
      return InvalidArgument("index %u >= %zu presets", index,
                             Presets().size());
    }
    const Preset& preset = Presets()[index];
    kvevict_preset_info row{};
    row.name = preset.name;
    row.policy_text = preset.policy_text;
    row.reproduces = preset.reproduces;
    CopyOut(row, out);
    return Status();
  });
}

}  // extern "C"
