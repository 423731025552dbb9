#include "core/policy/policy.h"

#include <new>

#include "capi/guard.h"
#include "core/budgets/budgets.h"
#include "core/policy/policy_text.h"
#include "kvevict/experimental.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

Status CheckTokens(const char* name, uint32_t n) {
  if (n >= 1 && n <= INT32_MAX) return Status();
  return InvalidArgument("%s %u is not in [1, %d]", name, n, INT32_MAX);
}

Status CheckPolicy(const kvevict_policy* policy) {
  KV_RETURN_IF_ERROR(CheckNotNull("policy", policy));
  return ValidatePolicy(Core(policy));
}

Status Create(const Policy& policy, kvevict_policy** out) {
  auto* created = new (std::nothrow) Policy(policy);
  if (created == nullptr) {
    return OutOfMemory("policy: no memory for %zu bytes", sizeof(Policy));
  }
  *out = reinterpret_cast<kvevict_policy*>(created);
  return Status();
}

Status FindParam(const kvevict_policy* policy, const char* key,
                 const Param** out) {
  KV_RETURN_IF_ERROR(CheckNotNull("policy", policy));
  KV_RETURN_IF_ERROR(CheckNotNull("key", key));
  const PolicyInfo& info = InfoOf(Core(policy).kind);
  *out = kvevict::FindParam(info, key);
  return *out == nullptr ? NoSuchKey(info, key) : Status();
}

// Copies a text to a caller, who may also ask only for its length.
Status CopyText(std::string_view text, char* out, size_t capacity,
                size_t* out_len) {
  if (capacity > 0) {
    KV_RETURN_IF_ERROR(CheckNotNull("text", out));
    if (capacity <= text.size()) {
      return InvalidArgument("text_capacity %zu <= length %zu", capacity,
                             text.size());
    }
    std::memcpy(out, text.data(), text.size());
    out[text.size()] = '\0';
  }
  if (out_len != nullptr) *out_len = text.size();
  return Status();
}

}  // namespace

extern "C" {

kvevict_status kvevict_policy_create(const char* text,
                                     kvevict_policy** out_policy) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("text", text));
    KV_RETURN_IF_ERROR(CheckNotNull("out_policy", out_policy));
    Policy policy;
    KV_RETURN_IF_ERROR(ParsePolicy(text, &policy));
    return Create(policy, out_policy);
  });
}

kvevict_status kvevict_policy_copy(const kvevict_policy* policy,
                                   kvevict_policy** out_policy) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("policy", policy));
    KV_RETURN_IF_ERROR(CheckNotNull("out_policy", out_policy));
    return Create(Core(policy), out_policy);
  });
}

void kvevict_policy_destroy(kvevict_policy* policy) noexcept {
  if (policy != nullptr) delete &Core(policy);
}

kvevict_status kvevict_policy_set(kvevict_policy* policy, const char* key,
                                  const char* value) noexcept {
  return Guard([&] {
    const Param* param = nullptr;
    KV_RETURN_IF_ERROR(FindParam(policy, key, &param));
    KV_RETURN_IF_ERROR(CheckNotNull("value", value));
    return ReadParam(*param, value, &Core(policy));
  });
}

kvevict_status kvevict_policy_set_number(kvevict_policy* policy,
                                         const char* key,
                                         double value) noexcept {
  return Guard([&] {
    const Param* param = nullptr;
    KV_RETURN_IF_ERROR(FindParam(policy, key, &param));
    return SetParam(*param, value, &Core(policy));
  });
}

kvevict_status kvevict_policy_get(const kvevict_policy* policy, const char* key,
                                  char* text, size_t text_capacity,
                                  size_t* out_text_len) noexcept {
  return Guard([&] {
    const Param* param = nullptr;
    KV_RETURN_IF_ERROR(FindParam(policy, key, &param));
    char value[kMaxValueText];
    const size_t length = WriteParam(*param, Core(policy), value);
    return CopyText({value, length}, text, text_capacity, out_text_len);
  });
}

kvevict_status kvevict_policy_get_number(const kvevict_policy* policy,
                                         const char* key,
                                         double* out_value) noexcept {
  return Guard([&] {
    const Param* param = nullptr;
    KV_RETURN_IF_ERROR(FindParam(policy, key, &param));
    KV_RETURN_IF_ERROR(CheckNotNull("out_value", out_value));
    return GetParam(*param, Core(policy), out_value);
  });
}

kvevict_status kvevict_policy_format(const kvevict_policy* policy, char* text,
                                     size_t text_capacity,
                                     size_t* out_text_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("policy", policy));
    char buffer[kMaxPolicyText];
    const size_t length = FormatPolicy(Core(policy), buffer);
    return CopyText({buffer, length}, text, text_capacity, out_text_len);
  });
}

kvevict_status kvevict_policy_validate(const kvevict_policy* policy) noexcept {
  return Guard([&] { return CheckPolicy(policy); });
}

kvevict_status kvevict_parameter_at(const char* name, uint32_t index,
                                    kvevict_parameter_info* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    Policy policy;
    if (name != nullptr) KV_RETURN_IF_ERROR(ParsePolicy(name, &policy));
    uint32_t n = 0;
    for (const Param& param : Params()) {
      if (name != nullptr && !param.is_of(InfoOf(policy.kind))) continue;
      if (n++ < index) continue;
      kvevict_parameter_info row{};
      row.type = param.type;
      row.key = param.key;
      row.words = param.words;
      row.doc = param.doc;
      row.least = param.range.least;
      row.most = param.range.most;
      row.excludes_least = param.range.is_open;
      row.takes_zero = param.range.takes_0;
      static_assert(sizeof(row.default_text) == kMaxValueText);
      WriteParam(param, policy, row.default_text);
      CopyOut(row, out);
      return Status();
    }
    return InvalidArgument("index %u >= %u parameters", index, n);
  });
}

kvevict_status kvevict_policy_resolve(const kvevict_policy* policy,
                                      uint32_t n_context,
                                      kvevict_resolved_policy* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckPolicy(policy));
    KV_RETURN_IF_ERROR(CheckTokens("n_context", n_context));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    kvevict_resolved_policy resolved{};
    KV_RETURN_IF_ERROR(ResolvePolicy(Core(policy), n_context, &resolved));
    CopyOut(resolved, out);
    return Status();
  });
}

kvevict_status kvevict_policy_layer_budgets(const kvevict_policy* policy,
                                            uint32_t n_context,
                                            uint32_t* budgets,
                                            size_t budgets_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckPolicy(policy));
    KV_RETURN_IF_ERROR(CheckTokens("n_context", n_context));
    KV_RETURN_IF_ERROR(CheckNotNull("budgets", budgets));
    if (budgets_len == 0 || budgets_len > kMaxLayers) {
      return InvalidArgument("budgets_len %zu is not in [1, %u] layers",
                             budgets_len, kMaxLayers);
    }
    return LayerBudgets(Core(policy), n_context, {budgets, budgets_len});
  });
}

kvevict_status kvevict_policy_need(const kvevict_policy* policy,
                                   kvevict_input input,
                                   kvevict_need* out_need) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckPolicy(policy));
    if (input < KVEVICT_INPUT_KEYS || input > KVEVICT_INPUT_REFERENCE_QUERIES) {
      return InvalidArgument("input %d is not in [0, %d]",
                             static_cast<int>(input),
                             static_cast<int>(KVEVICT_INPUT_REFERENCE_QUERIES));
    }
    KV_RETURN_IF_ERROR(CheckNotNull("out_need", out_need));
    *out_need = NeedOf(Core(policy), input);
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
    row.name = info.name;
    row.signal = InfoOf(info.signal).text;
    row.shaping = info.shaping;
    row.budget = WordOf(DefaultPolicy(static_cast<PolicyKind>(index)).split);
    row.trigger = TriggerText(info.trigger);
    row.paper = info.paper;
    row.defaults = info.defaults;
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
