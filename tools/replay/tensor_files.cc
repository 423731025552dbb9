#include "tools/replay/tensor_files.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include "tools/engine/platform.h"
#include "tools/replay/npy.h"
#include "tools/replay/safetensors.h"

namespace kvevict::tools {
namespace {

constexpr const char* kSafetensors = ".safetensors";

bool IsTensorFile(const std::filesystem::path& path) {
  return path.extension() == kSafetensors || path.extension() == ".npy";
}

void Write(const std::filesystem::path& path, const std::string& header,
           std::span<const Tensor> tensors) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << header;
  for (const Tensor& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  if (!file) {
    throw std::system_error(errno, std::generic_category(), TextOf(path));
  }
}

}  // namespace

TensorFiles::TensorFiles(std::span<const std::string> paths) {
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(PathOf(path))) {
      Open(path);
      continue;
    }
    for (const auto& entry :
         std::filesystem::directory_iterator(PathOf(path))) {
      if (IsTensorFile(entry.path())) Open(TextOf(entry.path()));
    }
  }
}

void TensorFiles::Open(const std::string& path) {
  const std::filesystem::path file = PathOf(path);
  if (!std::filesystem::exists(file)) {
    throw std::runtime_error(path + ": there is no such file");
  }
  if (!IsTensorFile(file)) {
    throw std::runtime_error(path + ": neither .safetensors nor .npy");
  }
  const auto bytes = files_.emplace_back(path).bytes();
  std::vector<Tensor> tensors;
  if (file.extension() == kSafetensors) {
    tensors = ReadSafetensors(path, bytes);
  } else {
    tensors.push_back(ReadNpy(path, bytes));
    tensors.back().name = TextOf(file.stem());
  }
  for (Tensor& tensor : tensors) {
    const auto [at, is_new] = tensors_.emplace(tensor.name, tensor);
    if (!is_new) {
      throw std::runtime_error(path + ": tensor '" + tensor.name + "' is in " +
                               at->second.file + " too");
    }
  }
}

const Tensor* TensorFiles::Find(const std::string& name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

std::string TensorFiles::Names() const {
  std::string names;
  size_t n = 0;
  for (const auto& [name, tensor] : tensors_) {
    if (++n > 12) return names + ", ...";
    names += (names.empty() ? "" : ", ") + name;
  }
  return names.empty() ? "none" : names;
}

void WriteTensors(const std::string& path, std::span<const Tensor> tensors) {
  const std::filesystem::path out = PathOf(path);
  if (out.extension() == kSafetensors) {
    Write(out, SafetensorsHeader(tensors), tensors);
    return;
  }
  std::filesystem::create_directories(out);
  for (const Tensor& tensor : tensors) {
    const char* type = tensor.type == "F32"    ? "<f4"
                       : tensor.type == "F16"  ? "<f2"
                       : tensor.type == "BF16" ? "<V2"
                                               : "<i4";
    Write(out / PathOf(tensor.name + ".npy"), NpyHeader(type, tensor.shape),
          {&tensor, 1});
  }
}

}  // namespace kvevict::tools
