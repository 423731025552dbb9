// Every word of device.cuh except the matrices, against plain arithmetic.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/kernels/device.cuh"
#include "tests/rig/simt/run.h"
#include "tests/thread/check.h"

namespace kvevict::cuda {

struct Out {
  uint64_t out;
};

KV_KERNEL(indices, Out, 64, 1) {
  const unsigned block =
      blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * threadIdx.y;
  StoreGlobal(p.out + 4 * (block * 64 + thread),
              blockIdx.x << 16 | blockIdx.y << 12 | blockIdx.z << 8 |
                  threadIdx.y << 6 | threadIdx.x);
}

KV_KERNEL(shuffles, Out, 64, 1) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const uint32_t v = 100 * warp + lane;
  const uint64_t out = p.out + 20 * threadIdx.x;
  StoreGlobal(out, ShuffleXor(v, 5));
  StoreGlobal(out + 4, ShuffleUp(v, 3));
  StoreGlobal(out + 8, Shuffle(v, (lane * 7) % 32));
  StoreGlobal(out + 12, Ballot(lane % 3 == warp));
  StoreGlobal(out + 16, ShuffleXor(static_cast<float>(v) + 0.5f, 16));
}

KV_KERNEL(any_of_block, Out, 64, 1) {
  KV_SHARED(uint32_t, last, 1);
  const uint64_t out = p.out + 16 * threadIdx.x;
  StoreGlobal<uint32_t>(out, BlockAny(false));
  StoreGlobal<uint32_t>(out + 4, BlockAny(threadIdx.x == 63));
  if (threadIdx.x == 5) *last = 77;
  const bool any = BlockAny(threadIdx.x != 63);
  StoreGlobal<uint32_t>(out + 8, any);
  StoreGlobal(out + 12, *last);
}

KV_KERNEL(shared_memory, Out, 64, 1) {
  KV_SHARED(uint32_t, fresh, 64);
  KV_SHARED(uint32_t, other, 64);
  KV_DYNAMIC_SHARED(dynamic);
  auto* const words = reinterpret_cast<uint32_t*>(dynamic);
  const unsigned t = threadIdx.x;
  const uint32_t before = fresh[t] & other[t] & words[t];
  fresh[t] = t;
  other[t] = 2 * t;
  words[t] = 3 * t;
  BlockSync();
  const unsigned from = 63 - t;
  StoreGlobal(p.out + 8 * (64 * blockIdx.x + t), before);
  StoreGlobal(p.out + 8 * (64 * blockIdx.x + t) + 4,
              fresh[from] + other[from] + words[from]);
}

struct Unit {
  uint64_t from;
  uint64_t to;
};

KV_KERNEL(units, Unit, 32, 1) {
  const uint64_t i = threadIdx.x;
  StoreGlobal(p.to + i, LoadGlobal<uint8_t>(p.from + i));
  StoreGlobal(p.to + 32 + 2 * i, LoadGlobal<uint16_t>(p.from + 32 + 2 * i));
  StoreGlobal(p.to + 96 + 4 * i, LoadGlobal<float>(p.from + 96 + 4 * i));
  StoreGlobal(p.to + 224 + 8 * i, LoadGlobal<uint64_t>(p.from + 224 + 8 * i));
  StoreGlobal(p.to + 480 + 16 * i, LoadGlobal<Bytes16>(p.from + 480 + 16 * i));
}

// Two groups are in flight. What the first wait leaves open is still poison.
KV_KERNEL(copies, Unit, 32, 1) {
  KV_SHARED(Bytes16, tile, 96);
  const unsigned t = threadIdx.x;
  CopyAsync16(&tile[t], p.from + 16 * t, true);
  CopyAsync16(&tile[32 + t], 0, false);
  CopyAsyncCommit();
  CopyAsync16(&tile[64 + t], p.from + 16 * (32 + t), true);
  CopyAsyncCommit();
  const uint32_t before = tile[t].x[0];
  CopyAsyncWait<1>();
  const uint32_t open = tile[64 + t].x[3];
  Bytes16 mid = tile[32 + t];
  mid.x[1] = before;
  mid.x[2] = open;
  StoreGlobal(p.to + 16 * t, tile[t]);
  StoreGlobal(p.to + 16 * (32 + t), mid);
  CopyAsyncWait<0>();
  BlockSync();
  StoreGlobal(p.to + 16 * (64 + t), tile[64 + 31 - t]);
}

KV_KERNEL(counts, Out, 64, 1) {
  KV_SHARED(uint32_t, bins, 4);
  if (threadIdx.x < 4) bins[threadIdx.x] = 0;
  BlockSync();
  AtomicAddShared(&bins[threadIdx.x % 3], threadIdx.x);
  AtomicAddGlobal(p.out, 2);
  BlockSync();
  if (threadIdx.x < 4) {
    AtomicAddGlobal(p.out + 4 + 4 * threadIdx.x, bins[threadIdx.x]);
  }
}

// The block with the last ticket sees what all others left.
KV_KERNEL(tickets, Out, 32, 1) {
  KV_SHARED(uint32_t, ticket, 1);
  const uint64_t parts = p.out + 8;
  if (threadIdx.x == 0) {
    StoreGlobal(parts + 4 * blockIdx.x, blockIdx.x + 1);
    ticket[0] = AtomicTicket(p.out);
  }
  BlockSync();
  if (ticket[0] + 1 != gridDim.x || threadIdx.x != 0) return;
  uint32_t sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) {
    sum += LoadGlobal<uint32_t>(parts + 4 * b);
  }
  StoreGlobal(p.out + 4, sum);
}

// Every block waits for the one before.
KV_KERNEL(flags, Out, 32, 1) {
  if (threadIdx.x != 0) return;
  const uint64_t mine = p.out + 8 * blockIdx.x;
  uint32_t sum = 0;
  if (blockIdx.x != 0) {
    while (LoadAcquire(mine - 8) == 0) SpinYield();
    sum = LoadGlobal<uint32_t>(mine - 4);
  }
  StoreGlobal(mine + 4, sum + blockIdx.x);
  StoreRelease(mine, 1);
}

}  // namespace kvevict::cuda

namespace {

using kvevict::simt::AddressOf;
using kvevict::simt::RunAll;
using namespace kvevict::cuda;  // NOLINT(google-build-using-namespace)

void IndicesAreThoseOfTheGrid() {
  std::vector<uint32_t> out(64 * 24);
  RunAll([&](auto options) {
    out.assign(out.size(), 0);
    return kvevict::simt::Launch(indices, {4, 3, 2}, {16, 4}, 0,
                                 Out{AddressOf(out)}, options);
  });
  for (unsigned i = 0; i < out.size(); ++i) {
    const unsigned block = i / 64;
    CHECK(out[i] == ((block % 4) << 16 | (block / 4 % 3) << 12 |
                     (block / 12) << 8 | (i % 64 / 16) << 6 | i % 16));
  }
}

void ShufflesMoveValuesBetweenLanes() {
  std::vector<uint32_t> out(5 * 64);
  RunAll([&](auto options) {
    return kvevict::simt::Launch(shuffles, {}, {64}, 0, Out{AddressOf(out)},
                                 options);
  });
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned lane = t % 32;
    const unsigned base = t / 32 * 100;
    const uint32_t* const r = &out[5 * t];
    CHECK(r[0] == base + (lane ^ 5));
    CHECK(r[1] == base + (lane < 3 ? lane : lane - 3));
    CHECK(r[2] == base + lane * 7 % 32);
    // Bits 0, 3, 6 ... 30 and bits 1, 4, 7 ... 31.
    CHECK(r[3] == (t / 32 == 0 ? 0x49249249u : 0x92492492u));
    CHECK(std::bit_cast<float>(r[4]) ==
          static_cast<float>(base + (lane ^ 16)) + 0.5f);
  }
}

void BarriersAskEveryThread() {
  std::vector<uint32_t> out(4 * 64);
  RunAll([&](auto options) {
    return kvevict::simt::Launch(any_of_block, {}, {64}, 0, Out{AddressOf(out)},
                                 options);
  });
  for (unsigned t = 0; t < 64; ++t) {
    const uint32_t* const r = &out[4 * t];
    CHECK(r[0] == 0 && r[1] == 1 && r[2] == 1);
    CHECK(r[3] == 77);
  }
}

void SharedMemoryIsFreshInEveryBlock() {
  std::vector<uint32_t> out(2 * 64 * 5);
  RunAll([&](auto options) {
    options.resident_blocks = 2;
    return kvevict::simt::Launch(shared_memory, {5}, {64}, 256,
                                 Out{AddressOf(out)}, options);
  });
  for (unsigned i = 0; i < 64 * 5; ++i) {
    CHECK(out[2 * i] == 0xffffffff);
    CHECK(out[2 * i + 1] == 6 * (63 - i % 64));
  }
}

void EveryUnitIsMoved() {
  alignas(16) uint8_t from[992];
  alignas(16) uint8_t to[992] = {};
  for (unsigned i = 0; i < 992; ++i) from[i] = static_cast<uint8_t>(i * 37);
  RunAll([&](auto options) {
    return kvevict::simt::Launch(units, {}, {32}, 0,
                                 Unit{AddressOf(from), AddressOf(to)}, options);
  });
  for (unsigned i = 0; i < 992; ++i) CHECK(to[i] == from[i]);
}

void CopiesArriveAtTheWait() {
  std::vector<Bytes16> from(64);
  std::vector<Bytes16> to(96);
  for (uint32_t i = 0; i < 64; ++i) from[i] = {{i, i + 1, i + 2, i + 3}};
  RunAll([&](auto options) {
    return kvevict::simt::Launch(copies, {}, {32}, 0,
                                 Unit{AddressOf(from), AddressOf(to)}, options);
  });
  for (uint32_t i = 0; i < 32; ++i) {
    CHECK(to[i].x[0] == i && to[i].x[3] == i + 3);
    const Bytes16& mid = to[32 + i];
    CHECK(mid.x[0] == 0 && mid.x[3] == 0);
    CHECK(mid.x[1] == 0xffffffff && mid.x[2] == 0xffffffff);
    CHECK(to[64 + i].x[0] == 63 - i && to[64 + i].x[3] == 66 - i);
  }
}

void AtomicsAddUp() {
  std::vector<uint32_t> out(5);
  RunAll([&](auto options) {
    options.resident_blocks = 3;
    out.assign(5, 0);
    return kvevict::simt::Launch(counts, {7}, {64}, 0, Out{AddressOf(out)},
                                 options);
  });
  CHECK(out[0] == 2 * 64 * 7);
  CHECK(out[1] == 693 * 7);  // 0 + 3 + ... + 63
  CHECK(out[2] == 651 * 7);  // 1 + 4 + ... + 61
  CHECK(out[3] == 672 * 7);  // 2 + 5 + ... + 62
  CHECK(out[4] == 0);
}

void TheLastTicketSeesEveryPart() {
  std::vector<uint32_t> out(2 + 9);
  for (unsigned resident : {1, 3, 9}) {
    RunAll([&](auto options) {
      options.resident_blocks = resident;
      out.assign(out.size(), 0);
      return kvevict::simt::Launch(tickets, {9}, {32}, 0, Out{AddressOf(out)},
                                   options);
    });
    CHECK(out[0] == 9 && out[1] == 45);
  }
}

void BlocksWaitForBlocks() {
  std::vector<uint32_t> out(2 * 6);
  RunAll([&](auto options) {
    options.resident_blocks = 6;
    out.assign(out.size(), 0);
    return kvevict::simt::Launch(flags, {6}, {32}, 0, Out{AddressOf(out)},
                                 options);
  });
  CHECK(out[11] == 15);
}

void ArithmeticIsThatOfTheDevice() {
  CHECK(PopCount(0xf0f00001u) == 9 && PopCount(0) == 0);
  CHECK(CountLeadingZeros(0) == 32 && CountLeadingZeros(1) == 31 &&
        CountLeadingZeros(0x80000000u) == 0);
  CHECK(Exp2(3.0f) == 8.0f && Exp2(-1.0f) == 0.5f && Exp2(-1e30f) == 0.0f);
  CHECK(Exp2(-126.0f) > 0.0f && Exp2(-127.0f) == 0.0f);  // subnormal
  CHECK(Log2(8.0f) == 3.0f);
  // It rounds once: the product alone would lose the last bit.
  CHECK(Fma(1.0f + 0x1p-23f, 1.0f - 0x1p-23f, -1.0f) == -0x1p-46f);
  CHECK(Multiply(2.25f, 2.0f) == 4.5f);
  CHECK(SquareRoot(2.25f) == 1.5f);
}

void StoredBitsAreRead() {
  CHECK(ToFloat<kF32>(0x3fc00000) == 1.5f);
  CHECK(ToFloat<kBF16>(0x3fc0) == 1.5f && ToFloat<kBF16>(0xc040) == -3.0f);
  CHECK(ToFloat<kF16>(0x3e00) == 1.5f && ToFloat<kF16>(0xc200) == -3.0f);
  CHECK(ToFloat<kF16>(0x7bff) == 65504.0f);
  CHECK(ToFloat<kF16>(0x0400) == 0x1p-14f);       // least normal
  CHECK(ToFloat<kF16>(0x0001) == 0x1p-24f);       // least subnormal
  CHECK(ToFloat<kF16>(0x83ff) == -0x1.ff8p-15f);  // greatest subnormal
  CHECK(ToFloat<kF16>(0x7c00) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(ToFloat<kF16>(0x7e00)));
  CHECK(std::signbit(ToFloat<kF16>(0x8000)) && ToFloat<kF16>(0x8000) == 0.0f);
}

}  // namespace

int main() {
  IndicesAreThoseOfTheGrid();
  ShufflesMoveValuesBetweenLanes();
  BarriersAskEveryThread();
  SharedMemoryIsFreshInEveryBlock();
  EveryUnitIsMoved();
  CopiesArriveAtTheWait();
  AtomicsAddUp();
  TheLastTicketSeesEveryPart();
  BlocksWaitForBlocks();
  ArithmeticIsThatOfTheDevice();
  StoredBitsAreRead();
  return 0;
}
