// Cases of tests/capi on a GPU.
#include <criterion/criterion.h>
#include <fmt/format.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/kernels/attention_mma.h"
#include "cuda/kernels/window_attention.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/device.h"
#include "tests/gpu/checks.h"
#include "tests/rig/tensor_core.h"

namespace kvevict::gpu {
namespace {

std::vector<const criterion_case*>& Cases() {
  static std::vector<const criterion_case*> all;
  return all;
}

const criterion_case* CaseOf(std::string_view name) {
  for (const criterion_case* c : Cases()) {
    if (fmt::format("{}/{}", c->suite, c->name) == name) return c;
  }
  throw std::runtime_error(fmt::format("no case {}", name));
}

// What the case that runs fails on.
Report* failing;

struct Ended {};  // a case, by a failure or by itself

std::string Format(const char* format, va_list args) {
  char text[2000];
  std::vsnprintf(text, sizeof text, format, args);
  return text;
}

// ---- The device ----

const Gpu* the_gpu;

void Wait() { the_gpu->Synchronize(); }

void* Allocate(size_t n_bytes, size_t alignment, void* /*user_data*/) {
  return std::aligned_alloc(alignment,
                            (n_bytes + alignment - 1) / alignment * alignment);
}
void Free(void* memory, size_t /*n_bytes*/, size_t /*alignment*/,
          void* /*user_data*/) {
  std::free(memory);
}

void* Capture(test_queue queue, void* of) {
  return new Graph(*the_gpu, [&] { queue(of, the_gpu->stream()); });
}
void Launch(void* graph) { static_cast<Graph*>(graph)->Launch(); }
void Forget(void* graph) { delete static_cast<Graph*>(graph); }

// What a part loses, see cuda/kernels/parts.cuh.
test_attend_errors AttendErrors(const test_attend_shape* s) {
  test_attend_errors errors = {};
  if (!cuda::CanAttendMma(s->k_dtype, s->v_dtype, s->k_dim, s->v_dim,
                          static_cast<uint32_t>(the_gpu->sm()))) {
    return errors;
  }
  const int element = cuda::AttendElement(s->k_dtype);
  const uint32_t q_parts = cuda::AttendParts(s->q_dtype, element);
  const uint32_t k_parts = cuda::AttendParts(s->k_dtype, element);
  const int of_values = cuda::AttendElement(s->v_dtype);
  const uint32_t v_parts = cuda::AttendParts(s->v_dtype, of_values);
  const bool is_f16 = of_values == cuda::kF16;
  const rig::TensorCore& core = rig::kAmpere;  // the least exact
  errors.dot = (q_parts == 1            ? 0.0
                : element == cuda::kF16 ? 0x1p-22
                                        : 0x1p-17) +
               (k_parts == 1 ? 0.0 : 0x1p-16) +
               core.DotError(s->k_dim * q_parts * k_parts) * 0x1p-24;
  errors.value =
      (is_f16 ? 0x1p-22 : 0x1p-16) + (v_parts == 1 ? 0.0 : 0x1p-16) +
      core.DotError(s->n_tokens * cuda::kWeightParts * v_parts) * 0x1p-24;
  // A weight of f16 is at most 2^15, and off by 2^-25 at least.
  errors.lost_weight = is_f16 ? 0x1p-40 : 0.0;
  return errors;
}

double ScoreErrorOf(kvevict_dtype q, kvevict_dtype k, uint32_t dim) {
  const auto sm = static_cast<uint32_t>(the_gpu->sm());
  if (!cuda::CanUseMma(static_cast<uint32_t>(q), static_cast<uint32_t>(k), dim,
                       1, sm)) {
    return 0.0;
  }
  const double of_query = q != KVEVICT_DTYPE_F32   ? 0.0
                          : k == KVEVICT_DTYPE_F16 ? 0x1p-23
                                                   : 0x1p-17;
  return rig::kAmpere.DotError(dim) * 0x1p-24 + of_query;  // the least exact
}

// ---- Running cases ----

void Run(const Gpu& gpu, const Effort& effort,
         std::initializer_list<std::string_view> names, Report* report,
         uint32_t percent = 4) {
  the_gpu = &gpu;
  if (!gpu.ReadsProcessMemory()) {
    report->Skip(fmt::format("{}: the GPU cannot read the process's memory",
                             *names.begin()));
    return;
  }
  test_device device = {};
  device.options = gpu.ContextOptions();
  device.options.device_alloc = Allocate;
  device.options.device_free = Free;
  device.wait = Wait;
  device.capture = Capture;
  device.launch = Launch;
  device.forget = Forget;
  device.attend_errors = AttendErrors;
  device.score_error = ScoreErrorOf;
  device.seed = effort.seed;
  device.share = effort.full ? 100 : effort.times * percent;
  test_set_device(&device);
  failing = report;
  for (const std::string_view name : names) {
    report->Check(std::string(name), [&] {
      try {
        CaseOf(name)->run();
      } catch (const Ended&) {
      }
    });
  }
  test_forget_contexts();
  test_set_device(nullptr);
}

}  // namespace

void CheckScores(const Gpu& gpu, const Effort& effort, Report* report) {
  Run(gpu, effort,
      {"score/of_every_policy_is_the_oracles",
       "score/of_sums_takes_log_sum_exps",
       "score/of_sums_takes_log_sum_exps_as_they_are",
       "score/of_nan_and_of_huge_keys", "score/takes_up_to_128_jobs"},
      report, 2);
}

void CheckAttention(const Gpu& gpu, const Effort& effort, Report* report) {
  Run(gpu, effort,
      {"attend/every_layout_and_dtype", "attend/sizes_around_tiles",
       "attend/long_caches_and_prompts"},
      report);
}

void CheckMoves(const Gpu& gpu, const Effort& effort, Report* report) {
  Run(gpu, effort,
      {"moves/are_those_of_a_naive_loop", "moves/are_undone",
       "moves_merge/every_layout_and_dtype_merges_as_the_oracle_says",
       "rotate/every_layout_and_dtype_turns_as_long_double_says",
       "grouped/rows_are_stored_by_groups_on_every_target",
       "grouped/rows_are_stored_by_groups_and_read",
       "grouped/survivors_are_grouped_anew",
       "grouped/scores_are_those_of_what_rows_stand_for",
       "select/is_the_oracles_for_any_call"},
      report);
}

void CheckLives(const Gpu& gpu, const Effort& effort, Report* report) {
  Run(gpu, effort,
      {"life/of_any_sequence_is_as_a_naive_model_says",
       "report_mass/of_chunks_that_a_layer_keeps_whole_is_not_counted"},
      report);
}

void CheckBatches(const Gpu& gpu, const Effort& effort, Report* report) {
  Run(gpu, effort, {"batch/equals_single_calls"}, report, 7);
}

void CheckCalibration(const Gpu& gpu, const Effort& effort, Report* report) {
  Run(gpu, effort,
      {"calibration/tells_what_policies_want_of_any_chunks_threads_and_dtypes"},
      report);
}

void CheckPages(const Gpu& gpu, const Effort& effort, Report* report) {
  Run(gpu, effort,
      {"paged_cache/holds_what_each_sequence_would_hold_alone",
       "paged_grouped/holds_what_each_sequence_would_hold_alone",
       "paged_cache/forks_evicted_together_make_one_copy",
       "edit/random_lives_are_as_if_computed_from_the_text",
       "edit/random_lives_in_a_pool_leave_forks_as_they_are"},
      report);
}

}  // namespace kvevict::gpu

extern "C" {

void criterion_add(criterion_case* one) {
  if (one->run != nullptr) kvevict::gpu::Cases().push_back(one);
}

void criterion_fail(int is_fatal, const char* file, int line, const char* what,
                    const char* format, ...) {
  va_list args;
  va_start(args, format);
  kvevict::gpu::failing->Fail(fmt::format("{}:{}: {}:{}", file, line, what,
                                          kvevict::gpu::Format(format, args)));
  va_end(args);
  if (is_fatal != 0) throw kvevict::gpu::Ended();
}

void criterion_skip(const char* format, ...) {
  va_list args;
  va_start(args, format);
  fmt::print("skipped:{}\n", kvevict::gpu::Format(format, args));
  va_end(args);
  throw kvevict::gpu::Ended();
}

}  // extern "C"
