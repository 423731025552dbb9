// The executor knows every word of what a real libnvrtc makes of every kernel.
#include "cuda/module_cache.h"

#include <algorithm>

#include "core/context.h"
#include "tests/cuda/mock/mock_test.h"
#include "tests/cuda/nvrtcs.h"

namespace kvevict::mock {
namespace {

using cuda::ModuleId;
using cuda::ModuleKey;

// The newest; skips the test, with the reason, where there is none.
const cuda::Nvrtc& NewestNvrtc() {
  const auto all = cuda::FindNvrtcs();
  if (all.empty()) {
    std::fprintf(stderr, "skipped: no libnvrtc here\n");
    cr_skip_test("no libnvrtc");
  }
  return *all.front();
}

// A driver that takes what this libnvrtc makes.
Settings SettingsFor(const cuda::Nvrtc& nvrtc, int compute_capability) {
  Settings settings;
  settings.compute_capability = compute_capability;
  settings.driver_version = std::max(nvrtc.version(), 12040);
  return settings;
}

const Context& MakeContext() {
  const kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  Context* context = nullptr;
  cr_assert(Context::Create(options, &context).ok());
  return *context;
}

ModuleKey KeyOf(ModuleId module, int compute_capability) {
  ModuleKey key{.module = module};
  if (module != ModuleId::window_attention) return key;
  key.Add("KV_Q_DTYPE", 3);
  key.Add("KV_K_DTYPE", 3);
  key.Add("KV_HEAD_DIM", 64);
  key.Add("KV_WINDOW", 16);
  key.Add("KV_GROUP", 2);
  key.Add("KV_PAGED", 0);
  key.Add("KV_USE_MMA", compute_capability >= 80 ? 1 : 0);
  key.Add("KV_OUT", 0);
  return key;
}

TestSuite(mock_kernels);

void LoadEverything(int compute_capability) {
  const cuda::Nvrtc& nvrtc = NewestNvrtc();
  if (nvrtc.architectures().front() > compute_capability) {
    std::fprintf(stderr, "skipped: this libnvrtc starts at sm_%d\n",
                 nvrtc.architectures().front());
    cr_skip_test("libnvrtc too new");
  }
  const Device device(SettingsFor(nvrtc, compute_capability));
  const Context& context = MakeContext();
  {
    cuda::ModuleCache cache(context, device.d, nvrtc);
    for (size_t id = 0; id < cuda::kNModules; ++id) {
      const cuda::Module* module = nullptr;
      cr_expect(cache
                    .Find(KeyOf(static_cast<ModuleId>(id), compute_capability),
                          nullptr, &module)
                    .ok(),
                "%s: %s", cuda::kModuleNames[id], LastErrorMessage());
    }
    ExpectNoProblems();
  }
  for (const std::string& leak : Leaks()) cr_expect_fail("%s", leak.c_str());
  ExpectNoProblems();
  context.Unref();
}

Test(mock_kernels, loads_every_kernel) { LoadEverything(81); }
Test(mock_kernels, loads_every_kernel_before_sm_80) { LoadEverything(71); }

}  // namespace
}  // namespace kvevict::mock
