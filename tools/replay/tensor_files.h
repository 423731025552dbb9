// The arrays of several files, by name.
#ifndef KVEVICT_TOOLS_REPLAY_TENSOR_FILES_H_
#define KVEVICT_TOOLS_REPLAY_TENSOR_FILES_H_

#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tools/engine/mapped_file.h"
#include "tools/replay/tensor.h"

namespace kvevict::tools {

class TensorFiles {
 public:
  // Opens .safetensors and .npy files, and those in folders. The array of
  // k.0.npy is called k.0. Throws if two arrays have one name.
  explicit TensorFiles(std::span<const std::string> paths);

  // nullptr if there is none.
  const Tensor* Find(const std::string& name) const;

  // The first names, for messages.
  std::string Names() const;

 private:
  void Open(const std::string& path);

  std::deque<MappedFile> files_;
  std::map<std::string, Tensor> tensors_;
};

// Writes arrays to one file `path`.safetensors, or to a folder of .npy files.
void WriteTensors(const std::string& path, std::span<const Tensor> tensors);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_REPLAY_TENSOR_FILES_H_
