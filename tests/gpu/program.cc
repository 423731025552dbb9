#include "tests/gpu/program.h"

#include "cuda/jit.h"

namespace kvevict::gpu {

Program::Program(const Gpu& gpu, const char* name, const char* source)
    : gpu_(gpu) {
  const cuda::Driver& driver = gpu.driver();
  const cuda::Nvrtc* nvrtc = nullptr;
  cuda::Target target;
  cuda::Compiled compiled;
  Check(cuda::Nvrtc::Open(gpu.libraries().libnvrtc.c_str(),
                          cuda::CudaMajor(driver.version), gpu.sm(), &nvrtc)
            .code());
  Check(nvrtc->FindTarget(gpu.sm(), &target).code());
  Check(nvrtc->Compile({name, source}, {}, {}, target, &compiled).code());
  Check(driver, driver.cuModuleLoadData(&module_, compiled.image.data()),
        "cuModuleLoadData");
}

Program::~Program() { (void)gpu_.driver().cuModuleUnload(module_); }

void Program::Launch(const char* kernel, unsigned n_blocks, unsigned n_threads,
                     void** arguments) const {
  const cuda::Driver& driver = gpu_.driver();
  cuda::CUfunction function = nullptr;
  Check(driver, driver.cuModuleGetFunction(&function, module_, kernel),
        "cuModuleGetFunction");
  Check(driver,
        driver.cuLaunchKernel(function, n_blocks, 1, 1, n_threads, 1, 1, 0,
                              gpu_.stream(), arguments, nullptr),
        kernel);
}

}  // namespace kvevict::gpu
