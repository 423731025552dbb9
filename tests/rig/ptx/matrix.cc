// Tensor core instructions: ldmatrix, mma.sync m16n8k16.
#include <cstring>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/half.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"
#include "tests/rig/ptx/warp.h"
#include "tests/rig/tensor_core.h"

namespace kvevict::ptx {
namespace {

constexpr uint32_t kWholeWarp = 0xFFFFFFFF;

void RunStop(Lane& lane, const Instruction&) {
  lane.mask = kWholeWarp;
  lane.state = LaneState::kAtWarp;
}

void CheckWhole(uint32_t mask) {
  if (mask != kWholeWarp) Fail("an .aligned instruction needs a whole warp");
}

// ---- ldmatrix: matrices of 8 rows of 8 halves ----

// mode: matrices; flag: .trans. Lanes 8j to 8j + 7 hold the addresses of the
// rows of matrix j.
void LoadMatrix(Warp& warp, const Instruction& i, uint32_t mask) {
  CheckWhole(mask);
  const int n = i.mode;
  uint16_t rows[32][8] = {};
  for (int k = 0; k < 8 * n; ++k) {
    Lane& lane = warp.lane(static_cast<uint32_t>(k));
    const uint64_t address =
        lane.Get<uint64_t>(i.slots[n]) + static_cast<uint64_t>(i.offsets[0]);
    std::memcpy(rows[k], lane.Load(i, Space::kShared, address, 16).at, 16);
  }
  for (uint32_t k = 0; k < 32; ++k) {
    Lane& lane = warp.lane(k);
    const uint32_t major = k / 4;
    const uint32_t minor = k % 4 * 2;
    for (int j = 0; j < n; ++j) {
      const auto* matrix = &rows[8 * j];
      const uint32_t low = i.flag ? matrix[minor][major] : matrix[major][minor];
      const uint32_t high =
          i.flag ? matrix[minor + 1][major] : matrix[major][minor + 1];
      lane.Set(i.slots[j], high << 16 | low);
    }
  }
}

void DecodeLoadMatrix(Modifiers& m, Instruction& i) {
  m.Expect("sync");
  m.Expect("aligned");
  m.Expect("m8n8");
  m.Expect("x4");
  i.mode = 4;
  i.flag = m.Take("trans");
  m.Expect("shared");
  m.Expect("b16");
  if (i.counts[0] != i.mode) Fail("ldmatrix: one register per matrix");
  i.run = &RunStop;
  i.together = &LoadMatrix;
}

// ---- mma m16n8k16: C[16, 8] = A[16, 16] B[16, 8] + C ----

constexpr int kRegistersA = 4;
constexpr int kRegistersB = 2;
constexpr int kRegistersC = 4;
constexpr int kFirstA = kRegistersC;
constexpr int kFirstB = kFirstA + kRegistersA;
constexpr int kFirstC = kFirstB + kRegistersB;

template <float (*kFrom)(uint16_t)>
float HalfOf(const Lane& lane, Slot slot, uint32_t half) {
  return kFrom(static_cast<uint16_t>(lane.Get<uint32_t>(slot) >> 16 * half));
}

template <float (*kFrom)(uint16_t), int kLeastExponent>
void MultiplyAccumulate(Warp& warp, const Instruction& i, uint32_t mask) {
  CheckWhole(mask);
  rig::Matrices m;
  const auto c_of = [&m](uint32_t lane, uint32_t r) -> float& {
    return m.c[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2];
  };
  for (uint32_t k = 0; k < 32; ++k) {
    const Lane& lane = warp.lane(k);
    const uint32_t group = k / 4;
    const uint32_t pair = k % 4 * 2;
    for (uint32_t half = 0; half < 2; ++half) {
      for (uint32_t r = 0; r < kRegistersA; ++r) {
        m.a[group + r % 2 * 8][pair + half + r / 2 * 8] =
            HalfOf<kFrom>(lane, i.slots[kFirstA + r], half);
      }
      for (uint32_t r = 0; r < kRegistersB; ++r) {
        m.b_columns[group][pair + half + r * 8] =
            HalfOf<kFrom>(lane, i.slots[kFirstB + r], half);
      }
    }
    for (uint32_t r = 0; r < kRegistersC; ++r) {
      c_of(k, r) = lane.Get<float>(i.slots[kFirstC + r]);
    }
  }
  rig::MultiplyAccumulate(warp.block->grid.options.tensor_core, kLeastExponent,
                          m);
  for (uint32_t k = 0; k < 32; ++k) {
    for (uint32_t r = 0; r < kRegistersC; ++r) {
      warp.lane(k).Set(i.slots[r], c_of(k, r));
    }
  }
}

void DecodeMultiplyAccumulate(Modifiers& m, Instruction& i) {
  for (const char* part :
       {"sync", "aligned", "m16n8k16", "row", "col", "f32"}) {
    m.Expect(part);
  }
  const int type = m.ExpectOneOf({"f16", "bf16"});
  m.Expect(type == 0 ? "f16" : "bf16");
  m.Expect("f32");
  if (i.counts[0] != kRegistersC || i.counts[1] != kRegistersA ||
      i.counts[2] != kRegistersB || i.counts[3] != kRegistersC) {
    Fail("mma: vectors of 4, 4, 2 and 4 registers");
  }
  i.run = &RunStop;
  i.together = type == 0 ? &MultiplyAccumulate<&FromF16, -14>
                         : &MultiplyAccumulate<&FromBF16, -126>;
}

constexpr Opcode kMatrixOpcodes[] = {
    {"ldmatrix", "Da", &DecodeLoadMatrix, 75},
    {"mma", "DSSS", &DecodeMultiplyAccumulate, 80},
};

}  // namespace

std::span<const Opcode> MatrixOpcodes() { return kMatrixOpcodes; }

}  // namespace kvevict::ptx
