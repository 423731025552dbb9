#include "tests/bench/limits.h"

#include <cstring>

#include "hwy/targets.h"
#include "tests/bench/clocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/limits.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernels/exp2-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// These hide the latency of multiply-adds on any CPU of today.
#define KV_ACCUMULATORS(X) \
  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

// Runs n_rounds times 12 vectors of multiply-adds. Returns the number of flops.
double MultiplyAdds(uint64_t n_rounds, float* out) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f);
  const auto term = hn::Set(d, 0.125f);
#define KV_START(i) auto sum##i = hn::Set(d, static_cast<float>(i));
  KV_ACCUMULATORS(KV_START)
  for (uint64_t round = 0; round < n_rounds; ++round) {
#define KV_STEP(i) sum##i = hn::MulAdd(sum##i, factor, term);
    KV_ACCUMULATORS(KV_STEP)
  }
#define KV_FINISH(i) *out += hn::ReduceSum(d, sum##i);
  KV_ACCUMULATORS(KV_FINISH)
#undef KV_START
#undef KV_STEP
#undef KV_FINISH
  return static_cast<double>(n_rounds) * 24.0 *
         static_cast<double>(hn::Lanes(d));
}

// Computes 2^x of 1024 numbers n_rounds times. Returns how many there were.
double Exponentials(uint64_t n_rounds, float* numbers) {
  const hn::ScalableTag<float> d;
  for (uint64_t round = 0; round < n_rounds; ++round) {
    for (size_t i = 0; i < 1024; i += hn::Lanes(d)) {
      const auto x = hn::LoadU(d, numbers + i);
      hn::StoreU(hn::Neg(kvevict::HWY_NAMESPACE::Exp2(d, x)), d, numbers + i);
    }
  }
  return 1024.0 * static_cast<double>(n_rounds);
}

uint64_t Sum(const uint8_t* bytes, size_t n) {
  const hn::ScalableTag<uint64_t> d;
  const size_t lanes = hn::Lanes(d);
  const uint64_t* p = reinterpret_cast<const uint64_t*>(bytes);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (size_t i = 0; i + 4 * lanes <= n / 8; i += 4 * lanes) {
    sum0 = hn::Add(sum0, hn::LoadU(d, p + i));
    sum1 = hn::Add(sum1, hn::LoadU(d, p + i + lanes));
    sum2 = hn::Add(sum2, hn::LoadU(d, p + i + 2 * lanes));
    sum3 = hn::Add(sum3, hn::LoadU(d, p + i + 3 * lanes));
  }
  return hn::ReduceSum(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

}  // namespace kvevict::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict::bench {
namespace {

HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(Exponentials);
HWY_EXPORT(Sum);

// The compiler must not drop the computation.
volatile float float_sink;
volatile uint64_t integer_sink;

constexpr double kMinSeconds = 5e-3;

// Units per second of CPU time of one thread. work(worker) does some of them and
// returns how many; it is repeated for kMinSeconds on every thread.
template <class Work>
double Rate(uint32_t n_threads, const Work& work) {
  std::vector<double> units(n_threads);
  const Timing timing =
      TimeItems(n_threads, n_threads, [&](uint32_t, uint32_t worker) {
        const double begin = Now(CLOCK_THREAD_CPUTIME_ID);
        do {
          units[worker] += work(worker);
        } while (Now(CLOCK_THREAD_CPUTIME_ID) - begin < kMinSeconds);
      });
  double total = 0.0;
  for (double n : units) total += n;
  return total / timing.cpu;
}

}  // namespace

double Limits::Note(const std::string& name, uint32_t n_threads, double value) {
  samples_[{name, n_threads}].Add(value);
  return value;
}

double Limits::FmaFlops(SimdTarget simd, uint32_t n_threads) {
  return Note(std::string("f32 FMA ") + simd.name + ", flop/s", n_threads,
              Rate(n_threads, [simd](uint32_t) {
                float sum = 0.0f;
                const double n = KV_DISPATCH(simd, MultiplyAdds)(50000, &sum);
                float_sink = sum;
                return n;
              }));
}

double Limits::Exponentials(SimdTarget simd, uint32_t n_threads) {
  return Note("2^x, number/s", n_threads, Rate(n_threads, [simd](uint32_t) {
                float numbers[1024];
                for (int i = 0; i < 1024; ++i) {
                  numbers[i] = -0.01f * static_cast<float>(i);
                }
                const double n = KV_DISPATCH(simd, Exponentials)(100, numbers);
                float_sink = numbers[7];
                return n;
              }));
}

double Limits::MemcpyBytes(uint32_t n_threads) {
  const size_t bytes = memory_.size() / 2 / n_threads;
  return Note("memcpy, byte/s", n_threads,
              Rate(n_threads, [&](uint32_t worker) {
                uint8_t* from = memory_.data() + 2 * worker * bytes;
                std::memcpy(from + bytes, from, bytes);
                return static_cast<double>(bytes);
              }));
}

double Limits::ReadBytes(uint32_t n_threads) {
  const size_t bytes = memory_.size() / n_threads;
  return Note(
      "memory read, byte/s", n_threads, Rate(n_threads, [&](uint32_t worker) {
        integer_sink =
            HWY_DYNAMIC_DISPATCH(Sum)(memory_.data() + worker * bytes, bytes);
        return static_cast<double>(bytes);
      }));
}

void Limits::EvictCaches() {
  integer_sink = HWY_DYNAMIC_DISPATCH(Sum)(memory_.data(), memory_.size());
}

}  // namespace kvevict::bench
#endif  // HWY_ONCE
