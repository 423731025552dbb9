#include "tests/cuda/ptx/on_ptx.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "cuda/kernel_text.h"
#include "tests/gpu/mutants.h"
#include "tests/rig/nvrtcs.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/launch.h"
#include "tests/rig/ptx/module.h"
#include "tests/rig/simt/simt.h"

namespace kvevict::ptx {
namespace {

KernelCall& LastCall() {
  static KernelCall call;
  return call;
}

bool counts_traffic = false;

// It outlives the modules, which give their variables back.
Memory& HostMemory() {
  static auto* memory = [] {
    auto* made = new Memory();
    made->AllowHostAddresses();
    return made;
  }();
  return *memory;
}

int TargetSm() {
  const char* text = std::getenv("KVEVICT_PTX_TARGET");
  return text == nullptr ? 80 : std::atoi(text);
}

// The newest NVRTC, or the oldest for GPUs before sm_80, some of which need it.
// Thus the PTX of both is run.
const cuda::Nvrtc& NvrtcFor(int sm) {
  static const std::vector<const cuda::Nvrtc*> kAll = cuda::FindNvrtcsFor(sm);
  if (kAll.empty()) {
    std::printf("skipped: no libnvrtc here compiles for sm_%d\n", sm);
    std::exit(77);
  }
  return sm < 80 ? *kAll.back() : *kAll.front();
}

std::string Compile(const KernelCall& call) {
  const std::string file = std::filesystem::path(call.file).stem();
  for (size_t id = 0; id < cuda::kNModules; ++id) {
    if (file != cuda::kModuleNames[id]) continue;
    std::vector<std::string> options;
    for (const std::string& define : call.defines) {
      options.push_back("-D" + define);
    }
    cuda::Compiled compiled;
    const int sm = TargetSm();
    const Status status = NvrtcFor(sm).Compile(
        *cuda::ProgramText(static_cast<cuda::ModuleId>(id)),
        cuda::IncludeTexts(), options, {.sm = sm, .ptx = true}, &compiled);
    if (!status.ok()) Fail(LastErrorMessage());
    compiled.image.pop_back();  // the zero at its end
    return compiled.image;
  }
  Fail(file + " is no kernel of the library");
}

struct Loaded {
  std::string ptx;
  std::unique_ptr<Module> module;
  std::set<std::string> launched;  // entries
};

void EndWithVerdict() {
  const bool passed = AllMutantsWereNoticed();
  std::fflush(nullptr);
  if (!passed) _exit(1);
}

// Compiled once per file and constants.
const Module& ModuleOf(const KernelCall& call) {
  static const bool try_mutants = std::getenv("KVEVICT_PTX_MUTANTS") != nullptr;
  static const int registered = try_mutants ? std::atexit(EndWithVerdict) : 0;
  static_cast<void>(registered);
  static std::map<std::string, Loaded> all;
  std::string key = call.file;
  for (const std::string& define : call.defines) {
    key += ' ';
    key += define;
  }
  Loaded& loaded = all[key];
  if (loaded.module == nullptr) {
    loaded.ptx = Compile(call);
    loaded.module = std::make_unique<Module>(loaded.ptx, HostMemory());
  }
  if (try_mutants && loaded.launched.insert(call.name).second) {
    loaded.ptx = TryMutants(loaded.ptx, call.name);
    loaded.module = std::make_unique<Module>(loaded.ptx, HostMemory());
  }
  return *loaded.module;
}

}  // namespace

void Note(KernelCall call) { LastCall() = std::move(call); }

std::map<std::string, Counters>& CountTraffic() {
  static std::map<std::string, Counters> by_name;
  counts_traffic = true;
  return by_name;
}

std::vector<std::string> Defines(
    const std::vector<std::pair<std::string, std::string>>& macros) {
  std::vector<std::string> defines;
  for (const auto& [name, value] : macros) {
    if (name == value) continue;
    defines.push_back(name + "=");
    defines.back() += value;
  }
  return defines;
}

}  // namespace kvevict::ptx

std::string kvevict::simt::LaunchErased(void (*call)(const void* context),
                                        const void* context, Dim3 grid,
                                        Dim3 block, size_t dynamic_shared_bytes,
                                        const Options& options) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return "";
  call(context);
  const ptx::KernelCall& kernel_call = ptx::LastCall();
  try {
    const ptx::Kernel* kernel =
        ptx::ModuleOf(kernel_call).Find(kernel_call.name);
    if (kernel == nullptr) ptx::Fail("no such kernel in the PTX");
    const auto* params = static_cast<const uint8_t*>(kernel_call.params);
    ptx::Counters counters;
    ptx::Launch(*kernel,
                {{grid.x, grid.y, grid.z},
                 {block.x, block.y, block.z},
                 static_cast<uint32_t>(dynamic_shared_bytes)},
                {params, kernel_call.param_bytes}, ptx::HostMemory(),
                {.seed = options.seed,
                 .one_warp_ahead = options.one_warp_ahead,
                 .resident_blocks = options.resident_blocks,
                 .count_traffic = ptx::counts_traffic,
                 .tensor_core = options.tensor_core},
                counters);
    if (ptx::counts_traffic)
      ptx::CountTraffic()[kernel_call.name].Add(counters);
  } catch (const ptx::Error& error) {
    return std::string(kernel_call.name) + ": " + error.what();
  }
  return "";
}
