// A policy as a value.
#ifndef KVEVICT_TOOLS_ENGINE_POLICY_H_
#define KVEVICT_TOOLS_ENGINE_POLICY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kvevict/experimental.h"
#include "tools/engine/kvevict_error.h"

namespace kvevict::tools {

class Policy {
 public:
  explicit Policy(const std::string& text) {
    kvevict_policy* policy = nullptr;
    Check(kvevict_policy_create(text.c_str(), &policy));
    policy_.reset(policy);
  }
  Policy(const Policy& other) {
    kvevict_policy* policy = nullptr;
    Check(kvevict_policy_copy(other.get(), &policy));
    policy_.reset(policy);
  }
  Policy(Policy&&) noexcept = default;
  Policy& operator=(Policy other) noexcept {
    policy_ = std::move(other.policy_);
    return *this;
  }

  const kvevict_policy* get() const { return policy_.get(); }

  void Set(const char* key, double value) {
    Check(kvevict_policy_set_number(policy_.get(), key, value));
  }
  void Set(const char* key, const char* value) {
    Check(kvevict_policy_set(policy_.get(), key, value));
  }

  // The value of a parameter, or "" if the policy has none.
  std::string Get(const char* key) const {
    char text[40] = "";
    (void)kvevict_policy_get(get(), key, text, sizeof(text), nullptr);
    return text;
  }
  // The number of a parameter, or 0 if the policy has none.
  double Number(const char* key) const {
    double value = 0.0;
    (void)kvevict_policy_get_number(get(), key, &value);
    return value;
  }

  std::string Text() const {
    size_t length = 0;
    Check(kvevict_policy_format(get(), nullptr, 0, &length));
    std::string text(length, '\0');
    Check(kvevict_policy_format(get(), text.data(), length + 1, nullptr));
    return text;
  }
  std::string Name() const {
    const std::string text = Text();
    return text.substr(0, text.find(':'));
  }

  kvevict_need Need(kvevict_input input) const {
    kvevict_need need = KVEVICT_NEED_NONE;
    Check(kvevict_policy_need(get(), input, &need));
    return need;
  }
  bool Requires(kvevict_input input) const {
    return Need(input) == KVEVICT_NEED_REQUIRED;
  }

  kvevict_resolved_policy Resolve(uint32_t n_context) const {
    kvevict_resolved_policy resolved = {};
    resolved.struct_size = sizeof(resolved);
    Check(kvevict_policy_resolve(get(), n_context, &resolved));
    return resolved;
  }

 private:
  struct Destroy {
    void operator()(kvevict_policy* p) const { kvevict_policy_destroy(p); }
  };
  std::unique_ptr<kvevict_policy, Destroy> policy_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_POLICY_H_
