#include "cuda/sha256.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <string>

namespace kvevict::cuda {
namespace {

std::string HexOf(const std::string& text) {
  Sha256 hash;
  hash.Add(text.data(), text.size());
  return Hex(hash.Finish());
}

TestSuite(sha256);

// FIPS 180-4 and its examples.
Test(sha256, known_vectors) {
  cr_expect(HexOf("") ==
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  cr_expect(HexOf("abc") ==
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  cr_expect(HexOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  cr_expect(HexOf(std::string(1000000, 'a')) ==
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The length is padded into this block or the next one.
Test(sha256, lengths_around_a_block) {
  cr_expect(HexOf(std::string(55, 'a')) ==
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  cr_expect(HexOf(std::string(56, 'a')) ==
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  cr_expect(HexOf(std::string(64, 'a')) ==
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

Test(sha256, pieces_make_the_same_digest) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i);
  const std::string whole = HexOf(text);
  for (size_t n = 1; n < 130; ++n) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += n) {
      hash.Add(text.data() + at, std::min(n, text.size() - at));
    }
    cr_assert(Hex(hash.Finish()) == whole, "%zu", n);
  }
}

}  // namespace
}  // namespace kvevict::cuda
