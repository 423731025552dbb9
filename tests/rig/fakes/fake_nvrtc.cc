// A libnvrtc whose "cubin" is a text that says what it should compile. The
// option -DKV_BAD=1 stands for an error in the source. Built once per version.
#include <atomic>
#include <cstring>
#include <string>

#include "cuda/jit.h"

using namespace kvevict::cuda;  // NOLINT

namespace kvevict::cuda {

struct NvrtcProgram_st {
  std::string name;
  std::string image;
  std::string log;
};

}  // namespace kvevict::cuda

extern "C" {

// Compilations begun, for tests to read.
std::atomic<int> fake_nvrtc_n_compiled{0};

nvrtcResult nvrtcVersion(int* out_major, int* out_minor) {
  *out_major = FAKE_NVRTC_MAJOR;
  *out_minor = FAKE_NVRTC_MINOR;
  return NVRTC_SUCCESS;
}

static constexpr int kArchitectures[] = {FAKE_NVRTC_ARCHITECTURES};

nvrtcResult nvrtcGetNumSupportedArchs(int* out) {
  *out = std::size(kArchitectures);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int* out) {
  std::memcpy(out, kArchitectures, sizeof(kArchitectures));
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* out, const char*, const char* name,
                               int, const char* const*, const char* const*) {
  *out = new NvrtcProgram_st{name, "", ""};
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int n_options,
                                const char* const* options) {
  ++fake_nvrtc_n_compiled;
  program->image = program->name;
  for (int i = 0; i < n_options; ++i) {
    program->image += std::string(" ") + options[i];
    if (std::strcmp(options[i], "-DKV_BAD=1") != 0) continue;
    program->log = program->name + "(7): warning: unused\n\n" + program->name +
                   "(9): error: no such name\n    bad();\n    ^\n\n" +
                   std::string(2000, '-') + "\n1 error detected.\n";
    return NVRTC_ERROR_COMPILATION;
  }
  return NVRTC_SUCCESS;
}

static nvrtcResult Size(const std::string& text, size_t* out) {
  *out = text.size() + 1;
  return NVRTC_SUCCESS;
}

static nvrtcResult Copy(const std::string& text, char* out) {
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* out) {
  return Size(program->image, out);
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* out) {
  return Copy(program->image, out);
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* out) {
  return Size("ptx of " + program->image, out);
}
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* out) {
  return Copy("ptx of " + program->image, out);
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* out) {
  return Size(program->log, out);
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* out) {
  return Copy(program->log, out);
}

}  // extern "C"
