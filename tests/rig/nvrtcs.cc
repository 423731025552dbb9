#include "tests/rig/nvrtcs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "cuda/driver.h"
#include "cuda/shared_library.h"

namespace kvevict::cuda {

namespace {

// Finds every libnvrtc in the folders that `list` names.
std::vector<std::string> LibrariesIn(const char* list) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::istringstream folders(list != nullptr ? list : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      if (entry.path().filename().string().starts_with("libnvrtc.so.")) {
        names.push_back(entry.path());
      }
    }
  }
  return names;
}

}  // namespace

std::vector<const Nvrtc*> FindNvrtcs() {
  std::vector<std::string> names =
      LibrariesIn(std::getenv("KVEVICT_NVRTC_DIR"));
  for (const LibraryName& name : LibraryNames()) {
    if (name.library == Library::kNvrtc) names.emplace_back(name.name);
  }

  constexpr int kAnyDriver = 1000;  // newer than all
  constexpr int kAnyGpu = 1000;
  std::map<int, const Nvrtc*, std::greater<>> by_version;
  for (const std::string& name : names) {
    const Nvrtc* nvrtc = nullptr;
    if (!Nvrtc::Open(name.c_str(), kAnyDriver, kAnyGpu, &nvrtc).ok()) continue;
    by_version.emplace(nvrtc->version(), nvrtc);
  }
  std::vector<const Nvrtc*> all;
  for (const auto& [version, nvrtc] : by_version) all.push_back(nvrtc);
  return all;
}

std::vector<const Nvrtc*> FindNvrtcsFor(int sm) {
  std::vector<const Nvrtc*> all = FindNvrtcs();
  std::erase_if(all, [&](const Nvrtc* nvrtc) {
    const auto known = nvrtc->architectures();
    return std::find(known.begin(), known.end(), sm) == known.end();
  });
  return all;
}

std::string VersionOf(const Nvrtc& nvrtc) {
  return std::to_string(CudaMajor(nvrtc.version())) + "." +
         std::to_string(CudaMinor(nvrtc.version()));
}

}  // namespace kvevict::cuda
