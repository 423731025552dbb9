// Compiles kernels at run time with NVRTC, which is found like the driver. Its
// functions are declared here, so no toolkit is needed to build.
#ifndef KVEVICT_CUDA_JIT_H_
#define KVEVICT_CUDA_JIT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace kvevict::cuda {

// NOLINTBEGIN(readability-identifier-naming): NVRTC's names
enum nvrtcResult : int32_t {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_COMPILATION = 6
};

// The oldest NVRTC that works: since 11.7 a kernel's arguments stay in constant
// memory even if their address is taken. Before, each thread copied all 4 KB of
// them to its stack.
inline constexpr int kOldestNvrtc = 11070;

using nvrtcProgram = struct NvrtcProgram_st*;

// NOLINTEND(readability-identifier-naming)

struct NvrtcFunctions {
#define KVEVICT_NVRTC(name, ...) nvrtcResult (*name)(__VA_ARGS__) = nullptr;
#include "cuda/nvrtc_functions.inc"
#undef KVEVICT_NVRTC
};

// One file of source text.
struct SourceText {
  const char* name;
  const char* text;
};

// The architecture to compile for. A cubin runs on its architecture only. PTX
// also runs on every newer one, after the driver has compiled it.
struct Target {
  int sm = 0;  // 80 is sm_80
  bool ptx = false;

  // "sm_80" or "compute_80"
  std::string name() const {
    return (ptx ? "compute_" : "sm_") + std::to_string(sm);
  }
};

struct Compiled {
  std::string image;  // cubin, or PTX with its terminating zero
  std::string log;    // messages of NVRTC
};

class Nvrtc {
 public:
  // Opens the library at `path`. If that is null or empty it opens one of the
  // system's, among those from which a driver of this CUDA major takes code:
  // the newest that makes cubins for this GPU, else the newest whose PTX the
  // GPU takes. It is opened once per path and process and never closed.
  // UNAVAILABLE if there is none, with the names that were tried, or the
  // libraries that were found and the architectures that they know.
  static Status Open(const char* path, int driver_major, int sm,
                     const Nvrtc** out);

  // the name that it was opened by
  const std::string& name() const { return name_; }
  int version() const { return version_; }  // 12040 is CUDA 12.4

  // Ascending: 70, 75, 80 ...
  std::span<const int> architectures() const { return architectures_; }

  // Finds the target for this GPU: a cubin for exactly this GPU or, if NVRTC
  // does not know it, PTX of the newest earlier architecture that is not a
  // board's.
  Status FindTarget(int sm, Target* out) const;

  // `options` go to NVRTC in addition to the language standard and the target.
  Status Compile(const SourceText& program,
                 std::span<const SourceText> includes,
                 std::span<const std::string> options, const Target& target,
                 Compiled* out) const;

 private:
  // Returns false, with the reason, if the library cannot be used.
  bool Load(const char* name, std::string* reason);
  // Returns null, with the reason, if the library cannot be used.
  static const Nvrtc* OpenLibrary(const char* name, std::string* reason);
  static Status OpenNamed(const char* path, int driver_major, int sm,
                          const Nvrtc** out);
  static Status OpenBest(int driver_major, int sm, const Nvrtc** out);
  // This architecture, or the newest earlier one that is not a board's; 0:
  // there is none.
  int Nearest(int sm) const;
  std::string Describe() const;  // "NVRTC 13.0 (sm 75 80 90)"

  NvrtcFunctions call_;
  std::string name_;
  int version_ = 0;
  std::vector<int> architectures_;
};

// All options of a compilation. They are also part of the keys of caches.
std::vector<std::string> CompileOptions(std::span<const std::string> options,
                                        const Target& target,
                                        int nvrtc_version);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_JIT_H_
