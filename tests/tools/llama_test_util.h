// Helpers that the tests of tools/llama share.
#ifndef KVEVICT_TESTS_TOOLS_LLAMA_TEST_UTIL_H_
#define KVEVICT_TESTS_TOOLS_LLAMA_TEST_UTIL_H_

#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/paths.h"

namespace kvevict::tools {

// A data file outside of the repository. Without it the test is skipped with
// the reason.
#define KV_SHARED_FILE(variable, name)                                    \
  const std::string variable = std::string(test_shared_dir) + "/" + name; \
  if (!std::filesystem::exists(variable)) {                               \
    fprintf(stderr, "skipped: %s is absent\n", variable.c_str());         \
    cr_skip_test("%s is absent", variable.c_str());                       \
  }

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Decimal ids, separated by blanks of any kind.
inline std::vector<int32_t> ParseIds(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<int32_t>(in), {}};
}

// A file that lives as long as the object.
class TempFile {
 public:
  explicit TempFile(std::span<const uint8_t> bytes,
                    const std::string& suffix = "") {
    const std::string name = "kvevict-" +
                             std::to_string(std::random_device()()) +
                             std::to_string(std::random_device()()) + suffix;
    path_ = (std::filesystem::temp_directory_path() / name).string();
    cr_assert_not(std::filesystem::exists(path_));
    std::ofstream{path_};
    Write(bytes);
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  // Writes in place: some file systems write emptied files through at once.
  void Write(std::span<const uint8_t> bytes) {
    std::FILE* file = fopen(path_.c_str(), "r+b");
    cr_assert(file != nullptr);
    // An empty span may have no address, which fwrite() must not be given.
    cr_assert(bytes.empty() ||
              fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    cr_assert(fflush(file) == 0);
    cr_assert(ftruncate(fileno(file), static_cast<off_t>(bytes.size())) == 0);
    fclose(file);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The message of the std::runtime_error that `action` throws; "" if it throws
// nothing. Anything else that is thrown fails the test.
template <typename Action>
std::string ErrorOf(Action&& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// SplitMix64.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  uint64_t Below(uint64_t n) { return Next() % n; }

 private:
  uint64_t state_;
};

// KVEVICT_TEST_SEED or 1, printed so that a failure can be repeated.
inline uint64_t TestSeed() {
  const char* text = getenv("KVEVICT_TEST_SEED");
  const uint64_t seed = text == nullptr ? 1 : strtoull(text, nullptr, 0);
  fprintf(stderr, "KVEVICT_TEST_SEED=%llu\n",
          static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_LLAMA_TEST_UTIL_H_
