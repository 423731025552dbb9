// Threads open the driver and ask for the same kernels: each library is opened
// once, each variant compiled once, and all get the same.
#include "cuda/module_cache.h"

#include <thread>
#include <vector>

#include "tests/paths.h"
#include "tests/rig/fakes/fake_gpu.h"
#include "tests/thread/check.h"

using namespace kvevict;        // NOLINT
using namespace kvevict::cuda;  // NOLINT

namespace {

constexpr int kThreads = 8;
constexpr int kVariants = 12;

const std::string kDriverPath =
    std::string(test_fakes_dir) + "/libfake_driver.so";
const std::string kNvrtcPath =
    std::string(test_fakes_dir) + "/libfake_nvrtc_12.so";

struct Found {
  const Driver* driver = nullptr;
  const Nvrtc* nvrtc = nullptr;
  const Module* modules[kVariants] = {};
  bool all_ok = true;
};

void Find(ModuleCache* cache, int first, Found* found) {
  found->all_ok &= Driver::Open(kDriverPath.c_str(), &found->driver).ok();
  found->all_ok &= Nvrtc::Open(kNvrtcPath.c_str(), 12, 80, &found->nvrtc).ok();
  // The second round has nothing to compile. Each thread begins elsewhere, so
  // that some look up while others add.
  for (int i = 0; i < 2 * kVariants; ++i) {
    const int variant = (first + i) % kVariants;
    ModuleKey key{.module = ModuleId::window_attention};
    key.Add("KV_HEAD_DIM", variant);
    const Module* module = nullptr;
    found->all_ok &= cache->Find(key, nullptr, &module).ok();
    const Module*& before = found->modules[variant];
    found->all_ok &=
        module != nullptr && (before == nullptr || before == module);
    before = module;
  }
}

}  // namespace

int main() {
  Context* context = nullptr;
  CHECK(Context::Create(KVEVICT_CONTEXT_OPTIONS_INIT, &context).ok());
  const Nvrtc* nvrtc = nullptr;
  CHECK(Nvrtc::Open(kNvrtcPath.c_str(), 12, 80, &nvrtc).ok());
  const Driver driver = FakeDriver(/*with_libraries=*/true);
  {
    ModuleCache cache(*context, driver, *nvrtc);
    Found found[kThreads];
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back(Find, &cache, t, &found[t]);
    }
    for (std::thread& thread : threads) thread.join();
    for (const Found& f : found) {
      CHECK(f.all_ok);
      CHECK(f.driver == found[0].driver && f.nvrtc == nvrtc);
      for (int v = 0; v < kVariants; ++v) {
        CHECK(f.modules[v] == found[0].modules[v]);
      }
    }
    CHECK(gpu.n_loads == kVariants);
  }
  CHECK(gpu.live_images.empty() && gpu.n_misuses == 0);
  context->Unref();
  return 0;
}
