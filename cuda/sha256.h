// SHA-256 (FIPS 180-4), for the keys and checks of the cubin cache.
#ifndef KVEVICT_CUDA_SHA256_H_
#define KVEVICT_CUDA_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvevict::cuda {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void Add(const void* bytes, size_t n_bytes);

  // The digest of all that was added; nothing may be added afterwards.
  Digest Finish();

 private:
  void AddBlock(const uint8_t* block);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t n_bytes_ = 0;
  uint8_t pending_[64] = {};  // the first n_bytes_ % 64 are used
};

// 64 lower-case hexadecimal digits.
std::string Hex(const Digest& digest);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_SHA256_H_
