#include "cuda/jit.h"

#include <algorithm>
#include <mutex>
#include <string_view>

#include "cuda/driver.h"
#include "cuda/no_memory.h"
#include "cuda/shared_library.h"

namespace kvevict::cuda {
namespace {

// Like the drivers: opened once, by path and, for the system's, by the driver's
// major version; never destroyed.
struct OpenNvrtc {
  std::string path;
  int driver_major;
  Nvrtc nvrtc;
  const OpenNvrtc* next;
};

constinit std::mutex open_mutex;
constinit const OpenNvrtc* open_nvrtcs = nullptr;

// The first symbol that is missing, or null.
const char* FindFunctions(const SharedLibrary& library, NvrtcFunctions* call) {
#define KVEVICT_NVRTC(name, ...)                                              \
  call->name = reinterpret_cast<decltype(call->name)>(library.Symbol(#name)); \
  if (call->name == nullptr) return #name;
#include "cuda/nvrtc_functions.inc"
#undef KVEVICT_NVRTC
  return nullptr;
}

// NVRTC opens its builtins by bare name, and so does not find them beside
// itself in a folder that the system does not search. One that is open is found
// under its name.
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

// Error messages are short: the lines of the log from the first error on, in
// one line.
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
  operator nvrtcProgram() const { return program_; }  // NOLINT: is one

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

Status Nvrtc::OpenNew(const char* path, int driver_major, Nvrtc* nvrtc) {
  std::string reason;
  if (path[0] != '\0') {
    if (!nvrtc->Load(path, &reason)) {
      return Unavailable("device cuda: no libnvrtc: %s", reason.c_str());
    }
    if (CudaMajor(nvrtc->version_) <= driver_major) return Status();
    return Unavailable(
        "device cuda: libnvrtc is of CUDA %s, the driver of CUDA %d, which "
        "does not take newer code",
        VersionText(nvrtc->version_).c_str(), driver_major);
  }
  std::string tried;
  for (const LibraryName& name : LibraryNames()) {
    if (name.library != Library::kNvrtc) continue;
    if (name.cuda_major > driver_major) continue;
    if (nvrtc->Load(name.name, &reason)) return Status();
    tried += tried.empty() ? "" : ", ";
    tried += name.name;
  }
  return Unavailable(
      "device cuda: no libnvrtc that suits a driver of CUDA %d; tried %s",
      driver_major, tried.c_str());
}

Status Nvrtc::Open(const char* path, int driver_major, const Nvrtc** out) {
  if (path == nullptr) path = "";
  return WithoutThrowing("device cuda: opening libnvrtc", [&] {
    const std::lock_guard lock(open_mutex);
    for (const OpenNvrtc* o = open_nvrtcs; o != nullptr; o = o->next) {
      if (o->path != path || o->driver_major != driver_major) continue;
      *out = &o->nvrtc;
      return Status();
    }
    Nvrtc nvrtc;
    KV_RETURN_IF_ERROR(OpenNew(path, driver_major, &nvrtc));
    open_nvrtcs =
        new OpenNvrtc{path, driver_major, std::move(nvrtc), open_nvrtcs};
    *out = &open_nvrtcs->nvrtc;
    return Status();
  });
}

Status Nvrtc::FindTarget(int sm, Target* out) const {
  const auto newer =
      std::upper_bound(architectures_.begin(), architectures_.end(), sm);
  if (newer == architectures_.begin()) {
    return Unavailable(
        "device cuda: NVRTC %s compiles for nothing as old as sm_%d; name an "
        "older libnvrtc",
        VersionText(version_).c_str(), sm);
  }
  const int nearest = *(newer - 1);
  *out = {.sm = nearest, .ptx = nearest != sm};
  return Status();
}

std::vector<std::string> CompileOptions(std::span<const std::string> options,
                                        const Target& target) {
  // Headers that kernels share with the host hold plain functions.
  std::vector<std::string> all = {"--std=c++17",
                                  "--device-as-default-execution-space",
                                  "--gpu-architecture=" + target.name()};
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
  const std::vector<std::string> all = CompileOptions(options, target);
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
    // A log that cannot be read hides no error: the result still tells.
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
