// The cache over a driver that notes all calls, and a libnvrtc whose image is
// the text of its options.
#include "cuda/module_cache.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "tests/paths.h"
#include "tests/rig/fakes/fake_gpu.h"

namespace kvevict::cuda {
namespace {

// ---- NVRTC ----

const std::string kNvrtcPath =
    std::string(test_fakes_dir) + "/libfake_nvrtc_12.so";

const Nvrtc& OpenNvrtc() {
  const Nvrtc* nvrtc = nullptr;
  cr_assert(Nvrtc::Open(kNvrtcPath.c_str(), 12, 80, &nvrtc).ok(), "%s",
            LastErrorMessage());
  return *nvrtc;
}

int NumCompiled() {
  void* library = dlopen(kNvrtcPath.c_str(), RTLD_NOW | RTLD_NOLOAD);
  return static_cast<std::atomic<int>*>(dlsym(library, "fake_nvrtc_n_compiled"))
      ->load();
}

// ---- The kvevict context ----

int n_live_blocks = 0;
int n_allocations = 0;
std::string log_text;

const Context& MakeContext() {
  kvevict_context_options o = KVEVICT_CONTEXT_OPTIONS_INIT;
  o.alloc = [](size_t n_bytes, size_t, void*) {
    ++n_live_blocks;
    ++n_allocations;
    return malloc(n_bytes);
  };
  o.free = [](void* memory, size_t, size_t, void*) {
    --n_live_blocks;
    free(memory);
  };
  o.log = [](kvevict_log_level, const char* line, void*) {
    log_text += line;
    log_text += '\n';
  };
  o.log_level = KVEVICT_LOG_DEBUG;
  Context* context = nullptr;
  cr_assert(Context::Create(o, &context).ok());
  return *context;
}

struct Scene {
  explicit Scene(bool with_libraries = true)
      : driver(FakeDriver(with_libraries)),
        cache(std::make_unique<ModuleCache>(context, driver, nvrtc)) {}
  ~Scene() {
    cache.reset();
    cr_expect(gpu.live_images.empty(), "images were left on the GPU");
    cr_expect_eq(gpu.n_misuses, 0);
    context.Unref();
    cr_expect_eq(n_live_blocks, 0);
  }

  const Module* Find(const ModuleKey& key) {
    const Module* module = nullptr;
    cr_assert(cache->Find(key, nullptr, &module).ok(), "%s",
              LastErrorMessage());
    cr_assert_not_null(module);
    return module;
  }

  const Context& context = MakeContext();
  const Driver driver;
  const Nvrtc& nvrtc = OpenNvrtc();
  std::unique_ptr<ModuleCache> cache;
};

ModuleKey Attention(int head_dim) {
  ModuleKey key{.module = ModuleId::window_attention};
  key.Add("KV_HEAD_DIM", head_dim);
  key.Add("KV_PAGED", 0);
  return key;
}

bool Says(const char* words) {
  return strstr(LastErrorMessage(), words) != nullptr;
}

TestSuite(module_cache);

Test(module_cache, compiles_each_variant_once) {
  Scene s;
  const Module* a = s.Find(Attention(128));
  const Module* b = s.Find(Attention(64));
  const Module* c = s.Find({.module = ModuleId::observe});
  cr_assert(a != b && b != c && a != c);
  cr_assert_eq(NumCompiled(), 3);
  cr_assert_str_eq(
      gpu.images[0].c_str(),
      "window_attention.cu --std=c++17 "
      "--device-as-default-execution-space "
      "--gpu-architecture=sm_90 --minimal -DKV_HEAD_DIM=128 -DKV_PAGED=0");
  for (int i = 0; i < 2; ++i) {
    cr_assert_eq(s.Find(Attention(128)), a);
    cr_assert_eq(s.Find(Attention(64)), b);
    cr_assert_eq(s.Find({.module = ModuleId::observe}), c);
  }
  cr_assert_eq(NumCompiled(), 3);
  cr_assert_eq(gpu.n_loads, 3);
  cr_assert_neq(log_text.find("window_attention for sm_90: compiled in"),
                std::string::npos);
}

void ExpectFunctions(bool with_libraries) {
  Scene s(with_libraries);
  const Module* module = s.Find(Attention(128));
  cr_assert_eq(module->function(KernelId::window_lse),
               HandleOf<CUfunction>(1000 + strlen("window_lse")));
  cr_assert_eq(module->function(KernelId::window_scores),
               HandleOf<CUfunction>(1000 + strlen("window_scores")));
  cr_assert_null(module->function(KernelId::select_topk));
  cr_assert_eq(gpu.n_functions_loaded, 2, "a function would load lazily");
  cr_assert_eq(gpu.max_shared, 0);
  cr_assert_eq(gpu.mode, CU_STREAM_CAPTURE_MODE_GLOBAL, "left as it was");
}

Test(module_cache, gives_the_functions_of_a_library) { ExpectFunctions(true); }
Test(module_cache, gives_the_functions_of_a_module) { ExpectFunctions(false); }

Test(module_cache, asks_for_shared_memory) {
  Scene s;
  ModuleKey key = Attention(128);
  key.dynamic_shared_bytes = 100000;
  const Module* module = s.Find(key);
  cr_assert_eq(gpu.max_shared, 100000);
  cr_assert_eq(s.Find(key), module);
}

Test(module_cache, prepared_kernels_need_no_memory) {
  Scene s;
  s.Find(Attention(128));
  const int before = n_allocations;
  for (int i = 0; i < 10; ++i) s.Find(Attention(128));
  cr_assert_eq(n_allocations, before);
}

Test(module_cache, errors_of_the_compiler_show_its_log) {
  Scene s;
  ModuleKey bad = Attention(128);
  bad.Add("KV_BAD", 1);
  const Module* module = nullptr;
  cr_assert_eq(s.cache->Find(bad, nullptr, &module).code(),
               KVEVICT_ERROR_UNAVAILABLE);
  cr_assert(Says("window_attention.cu for sm_90 by NVRTC 12.4") &&
                Says("window_attention.cu(9): error: no such name | "),
            "%s", LastErrorMessage());
  cr_assert_not(Says("warning"));
  s.Find(Attention(128));  // the cache still works
}

Test(module_cache, cubins_outlive_the_cache) {
  char folder[] = "/tmp/kvevict-cubins-XXXXXX";
  cr_assert_not_null(mkdtemp(folder));
  for (int round = 0; round < 3; ++round) {
    Scene s;
    cr_assert(s.cache->KeepCubinsIn(folder).ok());
    s.Find(Attention(128));
    cr_assert_eq(NumCompiled(), round < 2 ? 1 : 2, "round %d", round);
    if (round != 1) continue;
    // A damaged entry is compiled anew and replaced.
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::filesystem::resize_file(entry.path(), 100);
    }
  }
  Scene s;
  cr_assert(s.cache->KeepCubinsIn(folder).ok());
  s.Find(Attention(128));
  cr_assert_eq(NumCompiled(), 2);
  s.Find(Attention(64));
  cr_assert_eq(NumCompiled(), 3);
  std::filesystem::remove_all(folder);
}

Test(module_cache, a_cubin_that_cannot_be_kept_is_used) {
  char folder[] = "/tmp/kvevict-cubins-XXXXXX";
  cr_assert_not_null(mkdtemp(folder));
  Scene s;
  cr_assert(s.cache->KeepCubinsIn(folder).ok());
  std::filesystem::remove_all(folder);
  s.Find(Attention(128));
  cr_assert_neq(log_text.find("not kept in the cubin cache: No such file"),
                std::string::npos);
}

// The fake knows 70, 75, 80 and 90.
Test(module_cache, gives_newer_gpus_ptx) {
  Scene s;
  gpu.sm = 103;
  s.Find(Attention(128));
  gpu.sm = 81;
  s.Find(Attention(64));
  const auto says = [](const std::string& image, const char* words) {
    return image.starts_with("ptx of window_attention.cu") &&
           image.find(words) != std::string::npos;
  };
  cr_assert(says(gpu.images[0], "--gpu-architecture=compute_90 "));
  cr_assert(says(gpu.images[1], "--gpu-architecture=compute_80 "));
}

}  // namespace
}  // namespace kvevict::cuda
