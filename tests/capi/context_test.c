#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"

Test(context, null_options_mean_defaults) {
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(NULL, &context));
  cr_assert_not_null(context);
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

static int something;

/* `change` to good options o is refused. */
#define EXPECT_REFUSED(change, first, second)                         \
  do {                                                                \
    kvevict_context_options o = KVEVICT_CONTEXT_OPTIONS_INIT;         \
    change;                                                           \
    ExpectRefused(&o, KVEVICT_ERROR_INVALID_ARGUMENT, first, second); \
  } while (0)

Test(context, bad_options_are_errors) {
  EXPECT_REFUSED(o.device = 7, "device", "7");
  EXPECT_REFUSED(o.n_threads = 2, "n_threads", "2");
  EXPECT_REFUSED((o.parallel = Serial, o.n_threads = 1025), "n_threads",
                 "1024");
  EXPECT_REFUSED(o.alloc = NoAlloc, "alloc", "free");
  EXPECT_REFUSED(o.free = NoFree, "alloc", "free");
  EXPECT_REFUSED(o.log_level = 3, "log_level", "3");
  EXPECT_REFUSED(o.log_level = -1, "log_level", "-1");
  EXPECT_REFUSED(o.debug = 2, "debug", "2");
  EXPECT_REFUSED(o.select_on_host = 9, "select_on_host", "9");
}

Test(context, options_of_cuda_are_errors_on_the_cpu) {
  EXPECT_REFUSED(o.cuda_context = &something, "cuda_context", "CPU");
  EXPECT_REFUSED(o.libcuda_path = "libcuda.so.1", "libcuda_path", "CPU");
  EXPECT_REFUSED(o.libnvrtc_path = "libnvrtc.so.12", "libnvrtc_path", "CPU");
  EXPECT_REFUSED(o.kernel_cache_dir = "kernels", "kernel_cache_dir", "CPU");
  EXPECT_REFUSED(o.device_alloc = NoAlloc, "device_alloc", "device_free");
  EXPECT_REFUSED((o.device_alloc = NoAlloc, o.device_free = NoFree),
                 "device_alloc", "CPU");
  EXPECT_REFUSED(o.device_alloc_user_data = &something,
                 "device_alloc_user_data", "CPU");
  EXPECT_REFUSED(o.select_on_host = 1, "select_on_host", "CPU");
  EXPECT_REFUSED(o.debug = 1, "debug", "CPU");
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

Test(context, destroying_null_does_nothing) { kvevict_context_destroy(NULL); }

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
