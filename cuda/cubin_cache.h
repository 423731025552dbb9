// Compiled kernels on disk, so that a program's second start compiles nothing.
// Code from here runs on the GPU. So it is read only from a folder and files
// that nobody else can write, and only if its stored hash is right.
#ifndef KVEVICT_CUDA_CUBIN_CACHE_H_
#define KVEVICT_CUDA_CUBIN_CACHE_H_

#include <string>

#include "core/platform.h"
#include "core/status.h"
#include "cuda/sha256.h"

namespace kvevict::cuda {

class CubinCache {
 public:
  // Keeps files in `folder`. It is created for this user alone if its parent
  // exists. INVALID_ARGUMENT for a symbolic link, a folder of another user, or
  // one that others may write to. NULL or "" leaves the cache off.
  Status Open(const char* folder);

  bool is_on() const { return folder_.is_open(); }

  // Returns false if there is no such entry, or none that can be trusted.
  bool Load(const Digest& key, std::string* image) const;

  // Replaces the entry atomically: readers see the old or the new one. Returns
  // false, with the reason, if it cannot be written.
  bool Store(const Digest& key, const std::string& image,
             std::string* reason) const;

 private:
  platform::PrivateFolder folder_;
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_CUBIN_CACHE_H_
