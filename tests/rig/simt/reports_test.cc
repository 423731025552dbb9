// The thread sanitizer reports the intended races, and nothing if the kernel is
// right. The program calls itself with the name of a case, since a report ends it.
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/kernels/device.cuh"
#include "tests/rig/simt/run.h"
#include "tests/rig/simt/sanitizer.h"
#include "tests/thread/check.h"

namespace kvevict::cuda {

struct CaseParams {
  uint64_t in;   // u32 [256]
  uint64_t out;  // u32 [256]
  uint32_t wrong;
};

KV_KERNEL(block_sync, CaseParams, 64, 1) {
  KV_SHARED(uint32_t, tile, 64);
  tile[threadIdx.x] = threadIdx.x;
  if (!p.wrong) BlockSync();
  StoreGlobal(p.out + 4 * threadIdx.x, tile[63 - threadIdx.x]);
}

// The barrier that keeps the next round's stores from this round's loads.
KV_KERNEL(second_block_sync, CaseParams, 64, 1) {
  KV_SHARED(uint32_t, tile, 64);
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    tile[threadIdx.x] = i;
    BlockSync();
    sum += tile[63 - threadIdx.x];
    if (!p.wrong) BlockSync();
  }
  StoreGlobal(p.out + 4 * threadIdx.x, sum);
}

KV_KERNEL(warp_sync, CaseParams, 64, 1) {
  KV_SHARED(uint32_t, tile, 64);
  tile[threadIdx.x] = threadIdx.x;
  if (!p.wrong) WarpSync();
  StoreGlobal(p.out + 4 * threadIdx.x, tile[threadIdx.x ^ 31]);
}

// Values that arrive by a shuffle order no memory.
KV_KERNEL(shuffle, CaseParams, 64, 1) {
  KV_SHARED(uint32_t, tile, 64);
  tile[threadIdx.x] = threadIdx.x;
  if (!p.wrong) WarpSync();
  const unsigned other = ShuffleXor(static_cast<unsigned>(threadIdx.x), 1);
  StoreGlobal(p.out + 4 * threadIdx.x, tile[other]);
}

KV_KERNEL(two_blocks, CaseParams, 64, 1) {
  const unsigned first = p.wrong ? 60 * blockIdx.x : 64 * blockIdx.x;
  BlockSync();
  StoreGlobal(p.out + 4 * (first + threadIdx.x), blockIdx.x);
  BlockSync();
}

KV_KERNEL(flag, CaseParams, 32, 1) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    StoreGlobal(p.out + 4, 7u);
    StoreRelease(p.out, 1);
  } else {
    if (!p.wrong) {
      while (LoadAcquire(p.out) == 0) SpinYield();
    }
    StoreGlobal(p.out + 8, LoadGlobal<uint32_t>(p.out + 4));
  }
}

KV_KERNEL(copied_rows, CaseParams, 32, 1) {
  KV_SHARED(Bytes16, tile, 32);
  CopyAsync16(&tile[threadIdx.x], p.in + 16 * threadIdx.x, true);
  CopyAsyncCommit();
  CopyAsyncWait<0>();
  if (!p.wrong) BlockSync();
  uint32_t r[4];
  LoadMatrix4(r, &tile[31 - threadIdx.x]);
  StoreGlobal(p.out + 4 * threadIdx.x, r[0] ^ r[3]);
}

KV_KERNEL(stores_of_16_bytes, CaseParams, 32, 1) {
  const unsigned i = p.wrong ? threadIdx.x / 2 : threadIdx.x;
  StoreGlobal(p.out + 16 * i, LoadGlobal<Bytes16>(p.in + 16 * threadIdx.x));
}

}  // namespace kvevict::cuda

namespace {

using kvevict::cuda::CaseParams;

struct Case {
  const char* name;
  void (*kernel)(const CaseParams&);
  unsigned n_blocks;
  unsigned n_threads;
};

const Case kCases[] = {
    {"block_sync", kvevict::cuda::block_sync, 1, 64},
    {"second_block_sync", kvevict::cuda::second_block_sync, 1, 64},
    {"warp_sync", kvevict::cuda::warp_sync, 1, 64},
    {"shuffle", kvevict::cuda::shuffle, 1, 64},
    {"two_blocks", kvevict::cuda::two_blocks, 4, 64},
    {"flag", kvevict::cuda::flag, 2, 32},
    {"copied_rows", kvevict::cuda::copied_rows, 1, 32},
    {"stores_of_16_bytes", kvevict::cuda::stores_of_16_bytes, 1, 32},
};

int RunCase(const Case& c, bool wrong) {
  std::vector<uint32_t> in(256);
  std::vector<uint32_t> out(256);
  kvevict::simt::RunAll([&](auto options) {
    options.resident_blocks = std::strcmp(c.name, "flag") == 0 ? 2 : 1;
    out.assign(256, 0);
    return kvevict::simt::Launch(
        c.kernel, {c.n_blocks}, {c.n_threads}, 100,
        CaseParams{kvevict::simt::AddressOf(in), kvevict::simt::AddressOf(out),
                   wrong},
        options);
  });
  uint32_t sum = 0;
  for (const uint32_t v : out) sum += v;
  std::printf("%u\n", sum);
  return 0;
}

// Returns the program's output with these arguments, and how it ends.
std::string Call(const std::string& program, const Case& c, bool wrong,
                 int* status) {
  const std::string command =
      "'" + program + "' " + c.name + (wrong ? " wrong" : " right") + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  std::string text;
  char buffer[4096];
  while (size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    text.append(buffer, n);
  }
  *status = pclose(pipe);
  return text;
}

void Check(const std::string& program, const Case& c) {
  int status = 0;
  const std::string right = Call(program, c, false, &status);
  if (status != 0) {
    std::fprintf(stderr, "%s is right, but: %s\n", c.name, right.c_str());
    std::exit(1);
  }
  if (!kvevict::simt::kFindsRaces) return;
  const char* const report = "ThreadSanitizer: data race";
  const std::string wrong = Call(program, c, true, &status);
  const bool names_the_line =
      wrong.find("reports_test.cc:") != std::string::npos;
  if (status == 0 || wrong.find(report) == std::string::npos ||
      !names_the_line) {
    std::fprintf(stderr, "%s: no '%s' with a line of this file in: %s\n",
                 c.name, report, wrong.c_str());
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const Case& c : kCases) {
    if (argc == 1) {
      Check(argv[0], c);
    } else if (std::strcmp(argv[1], c.name) == 0) {
      return RunCase(c, std::strcmp(argv[2], "wrong") == 0);
    }
  }
  return argc == 1 ? 0 : 2;
}
