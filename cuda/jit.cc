#include "cuda/jit.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "cuda/driver.h"
#include "cuda/no_memory.h"
#include "cuda/shared_library.h"

namespace kvevict::cuda {
namespace {

// Like drivers, each is opened once by name and never destroyed.
struct OpenNvrtc {
  Nvrtc nvrtc;
  const OpenNvrtc* next;
};

std::mutex nvrtc_mutex;
constinit const OpenNvrtc* open_nvrtcs = nullptr;

// Finds all symbols. Returns the first that is missing, or null.
const char* FindFunctions(const SharedLibrary& library, NvrtcFunctions* call) {
#define KVEVICT_NVRTC(name, ...)                                              \
  call->name = reinterpret_cast<decltype(call->name)>(library.Symbol(#name)); \
  if (call->name == nullptr) return #name;
#include "cuda/nvrtc_functions.inc"
#undef KVEVICT_NVRTC
  return nullptr;
}

// NVRTC opens its builtins by bare name, so it does not find them beside itself
// in a folder that the system does not search. A library that is open already
// is found by its name.
void OpenBuiltinsBeside(const std::string& nvrtc, int version) {
  const size_t slash = nvrtc.rfind('/');
  if (slash == std::string::npos) return;
  std::string reason;
  SharedLibrary().Open((nvrtc.substr(0, slash + 1) + "libnvrtc-builtins.so." +
                        std::to_string(CudaMajor(version)) + "." +
                        std::to_string(CudaMinor(version)))
                           .c_str(),
                       &reason);
}

std::string VersionText(int version) {
  return std::to_string(CudaMajor(version)) + "." +
         std::to_string(CudaMinor(version));
}

bool IsOld(const Nvrtc& nvrtc) { return nvrtc.version() < kOldestNvrtc; }

// Whether it is a chip with a CPU beside the GPU (Jetson and the like). Newer
// GPUs may lack their features, and CUDA 13 calls sm_101 sm_110.
bool IsOfBoard(int sm) {
  constexpr int kBoards[] = {53, 62, 72, 87, 88, 101, 110};
  return std::find(std::begin(kBoards), std::end(kBoards), sm) !=
         std::end(kBoards);
}

void Append(std::string* list, const std::string& item) {
  if (!list->empty()) *list += ", ";
  *list += item;
}

// Error messages are short, so this joins the lines of the log from the first
// error on in one line.
std::string FirstErrors(std::string_view log) {
  constexpr size_t kMostBytes = 300;
  const size_t error = log.find("error");
  if (error != std::string_view::npos) {
    const size_t line = log.rfind('\n', error);
    log.remove_prefix(line == std::string_view::npos ? 0 : line + 1);
  }
  std::string text;
  for (const char c : log.substr(0, kMostBytes)) {
    if (c != '\n') {
      text += c;
    } else if (!text.empty() && text.back() != ' ') {
      text += " | ";
    }
  }
  text.erase(text.find_last_not_of(" |") + 1);
  return text;
}

// A program of NVRTC, destroyed at the end of the scope.
class Program {
 public:
  explicit Program(const NvrtcFunctions& call) : call_(call) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (program_ != nullptr) call_.nvrtcDestroyProgram(&program_);
  }

  nvrtcProgram* out() { return &program_; }
  operator nvrtcProgram() const { return program_; }  // NOLINT: implicit

 private:
  const NvrtcFunctions& call_;
  nvrtcProgram program_ = nullptr;
};

using GetSize = nvrtcResult (*)(nvrtcProgram, size_t*);
using GetBytes = nvrtcResult (*)(nvrtcProgram, char*);

nvrtcResult Read(nvrtcProgram program, GetSize get_size, GetBytes get_bytes,
                 std::string* out) {
  size_t n = 0;
  if (const nvrtcResult r = get_size(program, &n); r != NVRTC_SUCCESS) return r;
  out->resize(n);
  return get_bytes(program, out->data());
}

Status CompileStatus(nvrtcResult result, const char* program,
                     const std::string& target, int version,
                     const std::string& log) {
  const std::string what = std::string(program) + " for " + target +
                           " by NVRTC " + VersionText(version);
  const std::string why = FirstErrors(log);
  if (result == NVRTC_ERROR_OUT_OF_MEMORY) {
    return OutOfMemory("compiling %s: out of memory", what.c_str());
  }
  return Unavailable("compiling %s: error %d: %s", what.c_str(), result,
                     why.c_str());
}

}  // namespace

bool Nvrtc::Load(const char* name, std::string* reason) {
  SharedLibrary library;
  if (!library.Open(name, reason)) return false;
  name_ = name;
  if (const char* missing = FindFunctions(library, &call_);
      missing != nullptr) {
    *reason = std::string(name) + ": no symbol " + missing;
    return false;
  }
  int major = 0;
  int minor = 0;
  int n = 0;
  if (call_.nvrtcVersion(&major, &minor) != NVRTC_SUCCESS ||
      call_.nvrtcGetNumSupportedArchs(&n) != NVRTC_SUCCESS || n <= 0) {
    *reason = std::string(name) + ": does not tell its version";
    return false;
  }
  version_ = 1000 * major + 10 * minor;
  architectures_.resize(n);
  if (call_.nvrtcGetSupportedArchs(architectures_.data()) != NVRTC_SUCCESS) {
    *reason = std::string(name) + ": does not tell its architectures";
    return false;
  }
  std::sort(architectures_.begin(), architectures_.end());
  OpenBuiltinsBeside(name, version_);
  return true;
}

const Nvrtc* Nvrtc::OpenLibrary(const char* name, std::string* reason) {
  for (const OpenNvrtc* o = open_nvrtcs; o != nullptr; o = o->next) {
    if (o->nvrtc.name_ == name) return &o->nvrtc;
  }
  Nvrtc nvrtc;
  if (!nvrtc.Load(name, reason)) return nullptr;
  open_nvrtcs = new OpenNvrtc{std::move(nvrtc), open_nvrtcs};
  return &open_nvrtcs->nvrtc;
}

Status Nvrtc::OpenNamed(const char* path, int driver_major, int sm,
                        const Nvrtc** out) {
  std::string reason;
  const Nvrtc* nvrtc = OpenLibrary(path, &reason);
  if (nvrtc == nullptr) {
    return Unavailable("device cuda: no libnvrtc: %s", reason.c_str());
  }
  if (IsOld(*nvrtc)) {
    return Unavailable(
        "device cuda: libnvrtc is of CUDA %s, too old; %s or newer is needed, "
        "which leaves a kernel's arguments in constant memory",
        VersionText(nvrtc->version_).c_str(),
        VersionText(kOldestNvrtc).c_str());
  }
  if (CudaMajor(nvrtc->version_) > driver_major) {
    return Unavailable(
        "device cuda: libnvrtc is of CUDA %s, but the driver is of CUDA %d and "
        "does not load newer code",
        VersionText(nvrtc->version_).c_str(), driver_major);
  }
  Target target;
  KV_RETURN_IF_ERROR(nvrtc->FindTarget(sm, &target));
  *out = nvrtc;
  return Status();
}

Status Nvrtc::OpenBest(int driver_major, int sm, const Nvrtc** out) {
  const Nvrtc* best = nullptr;
  std::pair<bool, int> best_rank;  // makes a cubin for the GPU, version
  std::string tried;
  std::string found;
  for (const LibraryName& name : LibraryNames()) {
    if (name.library != Library::kNvrtc || name.cuda_major > driver_major) {
      continue;
    }
    // All later names are older.
    if (best_rank.first && name.cuda_major < CudaMajor(best->version_)) break;
    Append(&tried, name.name);
    std::string reason;
    const Nvrtc* nvrtc = OpenLibrary(name.name, &reason);
    if (nvrtc == nullptr) continue;
    // The same file may have two names.
    const std::string text =
        nvrtc->Describe() + (IsOld(*nvrtc) ? ", too old" : "");
    if (found.find(text) == std::string::npos) Append(&found, text);
    if (IsOld(*nvrtc)) continue;
    const int nearest = nvrtc->Nearest(sm);
    const std::pair rank(nearest == sm, nvrtc->version_);
    if (nearest == 0 || rank <= best_rank) continue;
    best = nvrtc;
    best_rank = rank;
  }
  if (best != nullptr) {
    *out = best;
    return Status();
  }
  if (found.empty()) {
    return Unavailable(
        "device cuda: no libnvrtc that suits a driver of CUDA %d; tried %s",
        driver_major, tried.c_str());
  }
  return Unavailable(
      "device cuda: no libnvrtc here is of CUDA %s or newer and compiles for "
      "anything as old as sm_%d; found %s",
      VersionText(kOldestNvrtc).c_str(), sm, found.c_str());
}

Status Nvrtc::Open(const char* path, int driver_major, int sm,
                   const Nvrtc** out) {
  return WithoutThrowing("device cuda: opening libnvrtc", [&] {
    const std::lock_guard lock(nvrtc_mutex);
    return path == nullptr || path[0] == '\0'
               ? OpenBest(driver_major, sm, out)
               : OpenNamed(path, driver_major, sm, out);
  });
}

std::string Nvrtc::Describe() const {
  std::string text = "NVRTC " + VersionText(version_) + " (sm";
  for (const int sm : architectures_) (text += ' ') += std::to_string(sm);
  return text + ")";
}

int Nvrtc::Nearest(int sm) const {
  int nearest = 0;
  for (const int known : architectures_) {
    if (known == sm || (known < sm && !IsOfBoard(known))) nearest = known;
  }
  return nearest;
}

Status Nvrtc::FindTarget(int sm, Target* out) const {
  const int nearest = Nearest(sm);
  if (nearest == 0) {
    return Unavailable(
        "device cuda: %s does not compile for sm_%d; name an older libnvrtc",
        Describe().c_str(), sm);
  }
  *out = {.sm = nearest, .ptx = nearest != sm};
  return Status();
}

std::vector<std::string> CompileOptions(std::span<const std::string> options,
                                        const Target& target,
                                        int nvrtc_version) {
  // Headers that kernels share with the host contain plain functions, which
  // this option makes device functions.
  std::vector<std::string> all = {"--std=c++17",
                                  "--device-as-default-execution-space",
                                  "--gpu-architecture=" + target.name()};
  // No kernel uses CUDA's runtime API or textures, whose declarations take 20 ms
  // per module.
  if (nvrtc_version >= 12040) all.push_back("--minimal");
  all.insert(all.end(), options.begin(), options.end());
  return all;
}

Status Nvrtc::Compile(const SourceText& program,
                      std::span<const SourceText> includes,
                      std::span<const std::string> options,
                      const Target& target, Compiled* out) const {
  std::vector<const char*> names;
  std::vector<const char*> texts;
  names.reserve(includes.size());
  texts.reserve(includes.size());
  for (const SourceText& include : includes) {
    names.push_back(include.name);
    texts.push_back(include.text);
  }
  const std::vector<std::string> all =
      CompileOptions(options, target, version_);
  std::vector<const char*> arguments;
  arguments.reserve(all.size());
  for (const std::string& option : all) arguments.push_back(option.c_str());

  Program compilation(call_);
  nvrtcResult result = call_.nvrtcCreateProgram(
      compilation.out(), program.text, program.name,
      static_cast<int>(names.size()), texts.data(), names.data());
  if (result == NVRTC_SUCCESS) {
    result = call_.nvrtcCompileProgram(
        compilation, static_cast<int>(all.size()), arguments.data());
    // An unreadable log hides no error, since the result still has it.
    (void)Read(compilation, call_.nvrtcGetProgramLogSize,
               call_.nvrtcGetProgramLog, &out->log);
  }
  if (result == NVRTC_SUCCESS) {
    result = target.ptx ? Read(compilation, call_.nvrtcGetPTXSize,
                               call_.nvrtcGetPTX, &out->image)
                        : Read(compilation, call_.nvrtcGetCUBINSize,
                               call_.nvrtcGetCUBIN, &out->image);
  }
  if (result == NVRTC_SUCCESS) return Status();
  return CompileStatus(result, program.name, target.name(), version_, out->log);
}

}  // namespace kvevict::cuda
