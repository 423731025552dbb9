#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/hooks.h"

Test(context, null_options_mean_defaults) {
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(NULL, &context));
  cr_assert_not_null(context);
  kvevict_context_destroy(context);
}

/* The caller was built against a later header. */
Test(context, a_grown_struct_is_accepted) {
  GROWN(kvevict_context_options) grown = {KVEVICT_CONTEXT_OPTIONS_INIT};
  grown.value.struct_size = sizeof grown.bytes;
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(&grown.value, &context));
  kvevict_context_destroy(context);
}

Test(context, null_output_is_an_error) {
  EXPECT_INVALID(kvevict_context_create(NULL, NULL), "out_context", "NULL");
}

static kvevict_status CreateAndDestroy(const kvevict_context_options* options) {
  kvevict_context* context = NULL;
  const kvevict_status status = kvevict_context_create(options, &context);
  if (status == KVEVICT_OK) kvevict_context_destroy(context);
  return status;
}

Test(context, struct_size_is_checked) {
  GROWN(kvevict_context_options) options = {KVEVICT_CONTEXT_OPTIONS_INIT};
  EXPECT_CHECKS_STRUCT_SIZE(options, CreateAndDestroy(&options.value));
}

static void* NoAlloc(size_t n_bytes, size_t alignment, void* user_data) {
  (void)n_bytes, (void)alignment, (void)user_data;
  return NULL;
}
static void NoFree(void* memory, size_t n_bytes, size_t alignment,
                   void* user_data) {
  (void)memory, (void)n_bytes, (void)alignment, (void)user_data;
}
static void Serial(uint32_t n_items, kvevict_task_fn run, void* task,
                   void* user_data) {
  (void)user_data;
  for (uint32_t i = 0; i < n_items; ++i) run(task, i, 0);
}

static void ExpectRefused(const kvevict_context_options* options,
                          kvevict_status code, const char* first,
                          const char* second) {
  kvevict_context* context;
  GUARD(context);
  EXPECT_FAILS(kvevict_context_create(options, &context), code, first, second);
  EXPECT_UNTOUCHED(context);
}

Test(context, bad_options_are_errors) {
  const kvevict_context_options good = KVEVICT_CONTEXT_OPTIONS_INIT;
  const kvevict_status invalid = KVEVICT_ERROR_INVALID_ARGUMENT;
  kvevict_context_options o = good;
  o.device = 7;
  ExpectRefused(&o, invalid, "device", "7");
  o = good;
  o.n_threads = 2;
  ExpectRefused(&o, invalid, "n_threads", "2");
  o = good;
  o.parallel = Serial;
  o.n_threads = 1025;
  ExpectRefused(&o, invalid, "n_threads", "1024");
  o = good;
  o.alloc = NoAlloc;
  ExpectRefused(&o, invalid, "alloc", "free");
  o = good;
  o.free = NoFree;
  ExpectRefused(&o, invalid, "alloc", "free");
  o = good;
  o.log_level = 3;
  ExpectRefused(&o, invalid, "log_level", "3");
  o = good;
  o.log_level = -1;
  ExpectRefused(&o, invalid, "log_level", "-1");
  o = good;
  o.debug = 2;
  ExpectRefused(&o, invalid, "debug", "2");
  o = good;
  o.select_on_host = 9;
  ExpectRefused(&o, invalid, "select_on_host", "9");
}

static int something;

Test(context, options_of_cuda_are_errors_on_the_cpu) {
  const kvevict_context_options good = KVEVICT_CONTEXT_OPTIONS_INIT;
  const kvevict_status invalid = KVEVICT_ERROR_INVALID_ARGUMENT;
  kvevict_context_options o = good;
  o.cuda_context = &something;
  ExpectRefused(&o, invalid, "cuda_context", "CPU");
  o = good;
  o.libcuda_path = "libcuda.so.1";
  ExpectRefused(&o, invalid, "libcuda_path", "CPU");
  o = good;
  o.libnvrtc_path = "libnvrtc.so.12";
  ExpectRefused(&o, invalid, "libnvrtc_path", "CPU");
  o = good;
  o.kernel_cache_dir = "kernels";
  ExpectRefused(&o, invalid, "kernel_cache_dir", "CPU");
  o = good;
  o.device_alloc = NoAlloc;
  ExpectRefused(&o, invalid, "device_alloc", "device_free");
  o.device_free = NoFree;
  ExpectRefused(&o, invalid, "device_alloc", "CPU");
  o = good;
  o.device_alloc_user_data = &something;
  ExpectRefused(&o, invalid, "device_alloc_user_data", "CPU");
  o = good;
  o.select_on_host = 1;
  ExpectRefused(&o, invalid, "select_on_host", "CPU");
  o = good;
  o.debug = 1;
  ExpectRefused(&o, invalid, "debug", "CPU");
}

typedef struct last_line {
  char text[256];
} last_line;

static void KeepLine(kvevict_log_level level, const char* message,
                     void* user_data) {
  (void)level;
  last_line* line = user_data;
  snprintf(line->text, sizeof line->text, "%s", message);
}

Test(context, works_by_the_simd_target_it_is_given) {
  for (uint32_t i = 0; kvevict_simd_target_at(i) != NULL; ++i) {
    last_line line = {""};
    char expected[64], name[32];
    snprintf(name, sizeof name, "%s", kvevict_simd_target_at(i));
    snprintf(expected, sizeof expected, "SIMD target %s,", name);
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    options.log = KeepLine;
    options.log_user_data = &line;
    options.log_level = KVEVICT_LOG_INFO;
    options.simd_target = name;
    EXPECT_OK(CreateAndDestroy(&options));
    EXPECT(strstr(line.text, expected) != NULL, "%s: %s", name, line.text);
  }
}

Test(context, simd_targets_that_are_not_here_are_errors) {
  static const char* const kNames[] = {"", "avx2", "AVX", "EMU128 ", "best"};
  for (size_t i = 0; i < sizeof kNames / sizeof kNames[0]; ++i) {
    kvevict_context_options o = KVEVICT_CONTEXT_OPTIONS_INIT;
    o.simd_target = kNames[i];
    char quoted[32];
    snprintf(quoted, sizeof quoted, "simd_target \"%s\"", kNames[i]);
    ExpectRefused(&o, KVEVICT_ERROR_INVALID_ARGUMENT, quoted,
                  kvevict_simd_target_at(0));
  }
}

Test(context, thread_counts_up_to_1024_are_accepted) {
  const uint32_t kCounts[] = {0, 1, 2, 1024};
  for (int i = 0; i < 4; ++i) {
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    options.n_threads = kCounts[i];
    options.parallel = Serial;
    EXPECT_OK(CreateAndDestroy(&options));
  }
}

Test(context, missing_device_is_unavailable_with_a_reason) {
  if (kvevict_device_check(KVEVICT_DEVICE_CUDA) == KVEVICT_OK) {
    fprintf(stderr, "skipped: a CUDA device is there\n");
    cr_skip_test("a CUDA device is there");
  }
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.device = KVEVICT_DEVICE_CUDA;
  ExpectRefused(&options, KVEVICT_ERROR_UNAVAILABLE, "cuda", NULL);
}

Test(context, out_of_memory_is_reported) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.alloc = NoAlloc;
  options.free = NoFree;
  ExpectRefused(&options, KVEVICT_ERROR_OUT_OF_MEMORY, "context", NULL);
}

Test(context, destroying_null_does_nothing) { kvevict_context_destroy(NULL); }

Test(context, every_byte_is_freed_as_it_was_allocated) {
  test_allocator allocator;
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  test_allocator_install(&allocator, &options);
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(&options, &context));
  cr_assert(allocator.n_live > 0);
  kvevict_context_destroy(context);
  cr_assert_eq(allocator.n_live, 0);
  cr_assert_eq(allocator.n_complaints, 0);
}

typedef struct test_log {
  uint32_t n_lines[3];
  uint32_t n_complaints;
} test_log;

static void CountLine(kvevict_log_level level, const char* message,
                      void* user_data) {
  test_log* log = user_data;
  if (level < 0 || level > 2 || message == NULL ||
      strchr(message, '\n') != NULL || message[0] == '\0') {
    log->n_complaints += 1;
    return;
  }
  log->n_lines[level] += 1;
}

Test(context, lines_above_the_log_level_are_not_sent) {
  for (kvevict_log_level level = 0; level <= 2; ++level) {
    test_log log = {{0, 0, 0}, 0};
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    options.log = CountLine;
    options.log_user_data = &log;
    options.log_level = level;
    EXPECT_OK(CreateAndDestroy(&options));
    cr_expect_eq(log.n_complaints, 0);
    for (int above = level + 1; above <= 2; ++above) {
      cr_expect_eq(log.n_lines[above], 0);
    }
  }
}
