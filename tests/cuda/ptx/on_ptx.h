// The tests of tests/cuda/kernels on the PTX that NVRTC makes of the kernels.
//
// Included before everything else (compiler option -include), it makes an entry
// point of a .cu file report its name and arguments instead of running.
// LaunchErased() of on_ptx.cc compiles that file for the target in
// KVEVICT_PTX_TARGET and runs the PTX.
#ifndef KVEVICT_TESTS_CUDA_PTX_ON_PTX_H_
#define KVEVICT_TESTS_CUDA_PTX_ON_PTX_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/device.cuh"
#include "tests/rig/ptx/counters.h"

namespace kvevict::ptx {

// An entry point reports this when it is called.
struct KernelCall {
  const char* name;
  const char* file;                  // the .cu, with its folders
  std::vector<std::string> defines;  // NAME=value
  const void* params;
  size_t param_bytes;
};
void Note(KernelCall call);

// Counts what each kernel does from the first call on, by name. Counting takes time.
std::map<std::string, Counters>& CountTraffic();

// {NAME, value}: "NAME=value", nothing if the macro was not defined.
std::vector<std::string> Defines(
    const std::vector<std::pair<std::string, std::string>>& macros);

}  // namespace kvevict::ptx

// Names are texts, so that only values are expanded.
#define KV_PTX_TEXT(x) #x
#define KV_PTX_PAIR(name, value) \
  { name, KV_PTX_TEXT(value) }
// That of the command line, since some kernels define it themselves.
#ifdef KV_DTYPES
#define KV_PTX_DTYPES KV_PTX_PAIR("KV_DTYPES", KV_DTYPES),
#else
#define KV_PTX_DTYPES
#endif
#define KV_PTX_MACROS()                                                       \
  {                                                                           \
    KV_PTX_DTYPES KV_PTX_PAIR("KV_Q_DTYPE", KV_Q_DTYPE),                      \
        KV_PTX_PAIR("KV_K_DTYPE", KV_K_DTYPE),                                \
        KV_PTX_PAIR("KV_HEAD_DIM", KV_HEAD_DIM),                              \
        KV_PTX_PAIR("KV_WINDOW", KV_WINDOW),                                  \
        KV_PTX_PAIR("KV_GROUP", KV_GROUP), KV_PTX_PAIR("KV_PAGED", KV_PAGED), \
        KV_PTX_PAIR("KV_RAGGED", KV_RAGGED),                                  \
        KV_PTX_PAIR("KV_USE_MMA", KV_USE_MMA),                                \
        KV_PTX_PAIR("KV_TILE_KEYS", KV_TILE_KEYS),                            \
        KV_PTX_PAIR("KV_OUT", KV_OUT),                                        \
        KV_PTX_PAIR("KV_SOFTMAX_PAST", KV_SOFTMAX_PAST),                      \
        KV_PTX_PAIR("KV_WEIGH_BY_PAST", KV_WEIGH_BY_PAST),                    \
        KV_PTX_PAIR("KV_MAX_OF_ROWS", KV_MAX_OF_ROWS),                        \
        KV_PTX_PAIR("KV_LOGIT_HEADS", KV_LOGIT_HEADS),                        \
        KV_PTX_PAIR("KV_PART", KV_PART), KV_PTX_PAIR("KV_CHUNKS", KV_CHUNKS), \
        KV_PTX_PAIR("KV_SPREAD", KV_SPREAD),                                  \
        KV_PTX_PAIR("KV_SOFTCAP", KV_SOFTCAP),                                \
        KV_PTX_PAIR("KV_SINKS", KV_SINKS), KV_PTX_PAIR("KV_BIAS", KV_BIAS),   \
        KV_PTX_PAIR("KV_MEASURE", KV_MEASURE),                                \
        KV_PTX_PAIR("KV_STAGED_TILES", KV_STAGED_TILES),                      \
        KV_PTX_PAIR("KV_V_DTYPE", KV_V_DTYPE),                                \
        KV_PTX_PAIR("KV_V_DIM", KV_V_DIM),                                    \
        KV_PTX_PAIR("KV_ROW_WARPS", KV_ROW_WARPS),                            \
        KV_PTX_PAIR("KV_TOKEN_GROUPS", KV_TOKEN_GROUPS)                       \
  }

// KV_VARIANT may be undefined, so the namespace is inline. Nobody instantiates
// the body, a template.
#undef KV_KERNEL
#define KV_KERNEL(name, Params, threads, min_blocks)                    \
  inline namespace KV_VARIANT {                                         \
  void name(const Params& p);                                           \
  }                                                                     \
  void KV_VARIANT::name(const Params& p) {                              \
    ::kvevict::ptx::Note({#name, __FILE__,                              \
                          ::kvevict::ptx::Defines(KV_PTX_MACROS()), &p, \
                          sizeof(p)});                                  \
  }                                                                     \
  template <int>                                                        \
  void kv_body_of_##name([[maybe_unused]] const Params& p)

#endif  // KVEVICT_TESTS_CUDA_PTX_ON_PTX_H_
