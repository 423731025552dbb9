// Secures tokens by their attention mass. A work item is a layer and KV head.
#include <algorithm>
#include <limits>

#include "core/cpu/cpu.h"
#include "core/kernels/raise_to_mean.h"
#include "core/kernels/topk.h"

namespace kvevict::cpu {
namespace {

constexpr float kUnits = 0x1p31f;  // of the mass of a head

// The slots before the window.
uint32_t PastOf(const Policy& policy, uint32_t n_tokens) {
  return n_tokens - policy.window.count;
}

// What a layer's heads have in common.
struct Shared {
  float highest;  // score before the window
  float share;    // of a head's mass that is secured
};

ScratchNeeds ScratchBytes(const Context& context, const LayerSize& size) {
  // u32 keys and i32 slots of a list
  return (CheckedSize(size.n_layers) * CheckedSize(sizeof(Shared)))
             .AlignUp(kCacheLine) +
         SharesOf(context, CheckedSize(size.n_tokens) *
                               CheckedSize(2 * sizeof(uint32_t)));
}

Shared FindShared(const SecureMassArgs& args, const ShapeJob& job) {
  const Policy& policy = args.policy;
  Shared shared = {-std::numeric_limits<float>::infinity(),
                   static_cast<float>(policy.first_stage_mass)};
  float bias = 0.0f;
  for (uint32_t head = 0; head < args.layer.n_kv_heads; ++head) {
    const uint64_t row = uint64_t{head} * job.scored->tokens.most;
    const uint32_t n = PastOf(policy, job.scored->tokens.Of(head));
    for (uint32_t i = 0; i < n; ++i) {
      shared.highest = std::max(shared.highest, job.scores[row + i]);
    }
    for (uint32_t i = n - std::min(n, policy.window.count); i < n; ++i) {
      bias += job.scored->masses[row + i];
    }
  }
  if (policy.first_stage_bias == FirstStageBias::kPast) {
    shared.share -= bias / static_cast<float>(args.layer.n_kv_heads);
  }
  return shared;
}

// A mass in units; 0 if it is no number above 0.
uint32_t UnitsOf(float mass, float factor) {
  const float units = mass * factor;
  return units > 0.0f && units <= kUnits ? static_cast<uint32_t>(units) : 0;
}

// How many of the largest masses come before the one that reaches the target.
uint32_t CountBefore(SimdTarget simd, const float* masses, const uint32_t* keys,
                     uint32_t n, float factor, uint32_t target) {
  uint32_t cut = 0;
  uint64_t above = 0;
  for (const KeyDigit& digit : kKeyDigits) {
    uint64_t bins[kMaxKeyBins] = {};
    const uint32_t n_bins = 1u << digit.n_bits;
    const uint32_t end = digit.shift + digit.n_bits;
    for (uint32_t i = 0; i < n; ++i) {
      if (end < 32 && keys[i] >> end != cut) continue;
      bins[keys[i] >> digit.shift & (n_bins - 1)] += UnitsOf(masses[i], factor);
    }
    uint32_t b = n_bins - 1;
    while (b > 0 && above + bins[b] < target) above += bins[b--];
    cut = (cut << digit.n_bits) + b;
  }
  const uint32_t n_greater = CountGreater(simd, keys, n, cut);
  const uint32_t n_equal =
      cut == 0 ? n - n_greater
               : CountGreater(simd, keys, n, cut - 1) - n_greater;
  uint32_t units = 0;  // of each that equals the cut
  for (uint32_t i = 0; i < n && units == 0; ++i) {
    if (keys[i] == cut) units = UnitsOf(masses[i], factor);
  }
  if (above >= target) return n_greater;
  if (units == 0) return n_greater + n_equal;
  const auto n_taken = static_cast<uint32_t>((target - above - 1) / units);
  return n_greater + std::min(n_taken, n_equal);
}

void Secure(const Context& context, const SecureMassArgs& args,
            const ShapeJob& job, uint32_t head, const Shared& shared,
            uint8_t* scratch) {
  const SimdTarget simd = context.simd();
  const uint64_t row = uint64_t{head} * job.scored->tokens.most;
  const uint32_t n = PastOf(args.policy, job.scored->tokens.Of(head));
  const float* const masses = job.scored->masses + row;
  const auto even = static_cast<uint32_t>(n * job.share);
  const float total = SumScores(simd, masses, n);
  const uint32_t window = args.policy.window.count;
  if (even <= window || !(shared.share > 0.0f) || !(total > 0.0f)) return;
  const auto target = static_cast<uint32_t>(shared.share * kUnits);
  if (target == 0) return;
  const uint32_t most = even - window;
  auto* const keys = reinterpret_cast<uint32_t*>(scratch);
  auto* const slots = reinterpret_cast<int32_t*>(keys + n);
  ScoresToKeys(simd, masses, n, keys);
  const uint32_t count = std::min(
      most, CountBefore(simd, masses, keys, n, kUnits / total, target));
  SelectTopK(simd, keys, n, count, Tie::kLower, slots);
  for (uint32_t i = 0; i < count; ++i) {
    job.scores[row + static_cast<uint32_t>(slots[i])] = shared.highest;
  }
}

Status RunSecureMass(const Context& context, Stream,
                     const SecureMassArgs& args) {
  auto* const shared = reinterpret_cast<Shared*>(args.scratch.data());
  const size_t shared_bytes =
      (CheckedSize(args.jobs.size()) * CheckedSize(sizeof(Shared)))
          .AlignUp(kCacheLine)
          .value();
  context.ParallelFor(static_cast<uint32_t>(args.jobs.size()),
                      [&](uint32_t i, uint32_t) {
                        shared[i] = FindShared(args, args.jobs[i]);
                      });
  const uint32_t n_heads = args.layer.n_kv_heads;
  context.ParallelFor(
      static_cast<uint32_t>(args.jobs.size() * n_heads),
      [&](uint32_t item, uint32_t worker) {
        const uint32_t i = item / n_heads;
        Secure(context, args, args.jobs[i], item % n_heads, shared[i],
               ShareOf(context, args.scratch.subspan(shared_bytes), worker)
                   .data());
      });
  return Status();
}

}  // namespace

const Op<SecureMassArgs> kOp_secure_mass = {RunSecureMass, ScratchBytes};

}  // namespace kvevict::cpu
