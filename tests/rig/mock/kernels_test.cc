// The executor knows every word that a real libnvrtc writes for every kernel.
#include "cuda/module_cache.h"

#include <algorithm>

#include "core/context.h"
#include "tests/rig/mock/mock_test.h"
#include "tests/rig/nvrtcs.h"

namespace kvevict::mock {
namespace {

using cuda::ModuleId;
using cuda::ModuleKey;

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
  if (module == ModuleId::attention_mma) {
    key.Add("KV_Q_DTYPE", 1);
    key.Add("KV_K_DTYPE", 2);
    key.Add("KV_V_DTYPE", 8);
    key.Add("KV_HEAD_DIM", 64);
    key.Add("KV_V_DIM", 32);
    key.Add("KV_ROW_WARPS", 2);
  }
  const bool few = module == ModuleId::window_attention_few;
  if (module != ModuleId::window_attention && !few) return key;
  key.Add("KV_Q_DTYPE", 3);
  key.Add("KV_K_DTYPE", 3);
  key.Add("KV_HEAD_DIM", 64);
  key.Add("KV_WINDOW", few ? 2 : 16);
  key.Add("KV_GROUP", 2);
  key.Add("KV_PAGED", 0);
  key.Add("KV_RAGGED", 0);
  key.Add("KV_USE_MMA", !few && compute_capability >= 80 ? 1 : 0);
  key.Add("KV_TILE_KEYS", 64);
  key.Add("KV_OUT", 0);
  return key;
}

TestSuite(mock_kernels);

void LoadEverything(const cuda::Nvrtc& nvrtc, int compute_capability) {
  const Device device(SettingsFor(nvrtc, compute_capability));
  const Context& context = MakeContext();
  {
    cuda::ModuleCache cache(context, device.d, nvrtc);
    for (size_t id = 0; id < cuda::kNModules; ++id) {
      if (compute_capability < 80 &&
          static_cast<ModuleId>(id) == ModuleId::attention_mma) {
        continue;
      }
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

// Loads what every libnvrtc here makes for a GPU that takes PTX of `sm`.
void LoadPtxOf(int sm) {
  const std::vector<const cuda::Nvrtc*> nvrtcs = cuda::FindNvrtcsFor(sm);
  if (nvrtcs.empty()) {
    std::fprintf(stderr, "skipped: no libnvrtc here compiles for sm_%d\n", sm);
    cr_skip_test("no libnvrtc");
  }
  for (const cuda::Nvrtc* nvrtc : nvrtcs) LoadEverything(*nvrtc, sm + 1);
}

Test(mock_kernels, loads_every_kernel) { LoadPtxOf(80); }
Test(mock_kernels, loads_every_kernel_before_sm_80) { LoadPtxOf(70); }

}  // namespace
}  // namespace kvevict::mock
