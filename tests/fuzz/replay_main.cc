// Runs a fuzzer on every file of a corpus, then on random inputs from
// KVEVICT_TEST_SEED (or 1). The input that stops it is left as a file.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

#ifndef FUZZ_RANDOM_INPUTS
#define FUZZ_RANDOM_INPUTS 20000
#endif
constexpr int kRandomInputs = FUZZ_RANDOM_INPUTS;
constexpr size_t kMaxBytes = 400;

std::vector<uint8_t> input;

void LeaveInput(int signal) {
  if (std::FILE* file = std::fopen("fuzz-crash.bin", "wb")) {
    std::fwrite(input.data(), 1, input.size(), file);
    std::fclose(file);
  }
  std::fprintf(stderr, "signal %d: the input is in fuzz-crash.bin\n", signal);
  std::_Exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGABRT, LeaveInput);
  std::signal(SIGSEGV, LeaveInput);
  int n_files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      input.assign(std::istreambuf_iterator<char>(file), {});
      LLVMFuzzerTestOneInput(input.data(), input.size());
      ++n_files;
    }
  }
  const char* text = std::getenv("KVEVICT_TEST_SEED");
  const uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 0);
  std::mt19937_64 random(seed);
  for (int i = 0; i < kRandomInputs; ++i) {
    input.resize(random() % kMaxBytes);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%d files, %d random inputs, KVEVICT_TEST_SEED=%llu\n", n_files,
              kRandomInputs, static_cast<unsigned long long>(seed));
}
