#include "tests/gpu/library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace kvevict::gpu::rows {

Library Library::Linked() {
  Library library;
#define KVEVICT_LIBRARY(name) library.name = &kvevict_##name;
#include "tests/gpu/library_functions.inc"
#undef KVEVICT_LIBRARY
  return library;
}

Library Library::Open(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  Library library;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(
        dlsym(handle, name));
    if (*function == nullptr)
      throw std::runtime_error(path + " has no " + name);
  };
#define KVEVICT_LIBRARY(name) find("kvevict_" #name, &library.name);
#include "tests/gpu/library_functions.inc"
#undef KVEVICT_LIBRARY
  return library;
}

void Library::Check(kvevict_status status) const {
  if (status != KVEVICT_OK) throw std::runtime_error(last_error_message());
}

std::shared_ptr<kvevict_context> Library::Context(
    const kvevict_context_options& options) const {
  kvevict_context* context = nullptr;
  Check(context_create(&options, &context));
  return {context, context_destroy};
}

std::shared_ptr<kvevict_plan> Library::Plan(const kvevict_context* context,
                                            const kvevict_geometry& geometry,
                                            const std::string& policy) const {
  kvevict_policy* parsed = nullptr;
  Check(policy_create(policy.c_str(), &parsed));
  const std::shared_ptr<kvevict_policy> owned(parsed, policy_destroy);
  kvevict_plan* plan = nullptr;
  Check(plan_create(context, &geometry, parsed, nullptr, &plan));
  return {plan, plan_destroy};
}

std::shared_ptr<kvevict_sequence> Library::Sequence(
    const kvevict_plan* plan) const {
  kvevict_sequence* sequence = nullptr;
  Check(sequence_create(plan, &sequence));
  return {sequence, sequence_destroy};
}

size_t Library::WorkspaceBytes(const kvevict_plan* plan,
                               kvevict_operation operation) const {
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  Check(plan_workspace(plan, operation, 0, &workspace));
  return workspace.best_bytes;
}

}  // namespace kvevict::gpu::rows
