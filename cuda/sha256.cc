#include "cuda/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvevict::cuda {
namespace {

constexpr size_t kBlockBytes = 64;

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t LoadBigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
         uint32_t{bytes[2]} << 8 | bytes[3];
}

}  // namespace

void Sha256::AddBlock(const uint8_t* block) {
  using std::rotr;
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = LoadBigEndian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15];
    const uint32_t b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) +
           (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
  }

  uint32_t s[8];
  std::copy_n(state_, 8, s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t e = s[4];
    const uint32_t choice = (e & s[5]) ^ (~e & s[6]);
    const uint32_t t1 = s[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) +
                        choice + kRound[i] + w[i];
    const uint32_t a = s[0];
    const uint32_t majority = (a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]);
    const uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + majority;
    std::copy_backward(s, s + 7, s + 8);
    s[4] += t1;
    s[0] = t1 + t2;
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

void Sha256::Add(const void* bytes, size_t n_bytes) {
  const auto* from = static_cast<const uint8_t*>(bytes);
  while (n_bytes > 0) {
    const size_t at = n_bytes_ % kBlockBytes;
    const size_t n = std::min(n_bytes, kBlockBytes - at);
    std::memcpy(pending_ + at, from, n);
    from += n;
    n_bytes -= n;
    n_bytes_ += n;
    if (at + n == kBlockBytes) AddBlock(pending_);
  }
}

Digest Sha256::Finish() {
  const uint64_t n_bits = 8 * n_bytes_;
  const uint8_t one = 0x80;
  const uint8_t zero = 0;
  Add(&one, 1);
  while (n_bytes_ % kBlockBytes != kBlockBytes - 8) Add(&zero, 1);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) {
    length[i] = static_cast<uint8_t>(n_bits >> (56 - 8 * i));
  }
  Add(length, sizeof(length));

  Digest digest;
  for (int i = 0; i < 32; ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

std::string Hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace kvevict::cuda
