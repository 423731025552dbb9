#include "tests/cuda/nvrtcs.h"

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include "cuda/driver.h"
#include "cuda/shared_library.h"

namespace kvevict::cuda {

std::vector<const Nvrtc*> FindNvrtcs() {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  const char* folder = std::getenv("KVEVICT_NVRTC_DIR");
  std::error_code none;
  for (const auto& entry :
       fs::directory_iterator(folder != nullptr ? folder : "", none)) {
    if (entry.path().filename().string().starts_with("libnvrtc.so.")) {
      names.push_back(entry.path());
    }
  }
  for (const LibraryName& name : LibraryNames()) {
    if (name.library == Library::kNvrtc) names.emplace_back(name.name);
  }

  constexpr int kAnyDriver = 1000;
  std::map<int, const Nvrtc*, std::greater<>> by_version;
  for (const std::string& name : names) {
    const Nvrtc* nvrtc = nullptr;
    if (!Nvrtc::Open(name.c_str(), kAnyDriver, &nvrtc).ok()) continue;
    by_version.emplace(nvrtc->version(), nvrtc);
  }
  std::vector<const Nvrtc*> all;
  for (const auto& [version, nvrtc] : by_version) all.push_back(nvrtc);
  return all;
}

std::string VersionOf(const Nvrtc& nvrtc) {
  return std::to_string(CudaMajor(nvrtc.version())) + "." +
         std::to_string(CudaMinor(nvrtc.version()));
}

}  // namespace kvevict::cuda
