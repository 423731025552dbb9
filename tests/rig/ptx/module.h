// A loaded module: its kernels, and its variables in device memory.
#ifndef KVEVICT_TESTS_RIG_PTX_MODULE_H_
#define KVEVICT_TESTS_RIG_PTX_MODULE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/rig/ptx/kernel.h"
#include "tests/rig/ptx/memory.h"

namespace kvevict::ptx {

class Module {
 public:
  // Throws Error with the line at anything unknown.
  Module(std::string_view ptx, Memory& memory);

  uint32_t version() const { return version_; }  // 78: PTX 7.8
  uint32_t target() const { return target_; }    // 80: sm_80
  const std::vector<Kernel>& kernels() const { return kernels_; }
  bool has_variables() const { return !variables_.addresses.empty(); }
  // NULL if there is none of this name.
  const Kernel* Find(std::string_view name) const;

 private:
  struct Variables {
    Memory& memory;
    std::map<std::string, uint64_t> addresses;
    ~Variables();
  };
  Variables variables_;
  uint32_t version_ = 0;
  uint32_t target_ = 0;
  std::vector<Kernel> kernels_;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_MODULE_H_
