/* Runs the cases that criterion/criterion.h registers: those whose "suite/name" matches
 * --filter, which may end in one '*', but not those that the file KVEVICT_TEST_LEAVE_OUT
 * names, a line each. The exit code is 1 if one fails, and 77 if none ran or all were
 * skipped. How long a case took is printed from two seconds on. As with Criterion each
 * has a process of its own; on Windows, where that takes longer than most cases, those
 * have it that failed beside others. WebAssembly has no processes: pkg/cross/wasi.mjs
 * reads the names from --list and gives each case an instance. */
#include <criterion/criterion.h>
#ifndef __wasi__
#include <signal.h>
#endif
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef _WIN32
#include <process.h>
#elif !defined(__wasi__)
#include <sys/wait.h>
#include <unistd.h>
#endif

enum { kPassed = 0, kFailed = 1, kSkipped = 77 };

static struct criterion_case* cases;
static struct criterion_case* at; /* the running case */
static int has_failed, is_skipped;

#ifdef __wasi__
static void leave(void) {
  fflush(stdout);
  _Exit(has_failed ? kFailed : kSkipped);
}
#else
static void* way_out[5];
static void leave(void) { __builtin_longjmp(way_out, 1); }
#endif

/* Adds in the order of the file. */
void criterion_add(struct criterion_case* one) {
  struct criterion_case** last = &cases;
  while (*last != NULL) last = &(*last)->next;
  *last = one;
}

static void say(const char* file, int line, const char* what,
                const char* format, va_list args) {
  if (file != NULL) printf("%s:%d: ", file, line);
  printf("%s/%s: %s:", at->suite, at->name, what);
  vprintf(format, args);
  printf("\n");
  fflush(stdout);
}

void criterion_fail(int is_fatal, const char* file, int line, const char* what,
                    const char* format, ...) {
  va_list args;
  va_start(args, format);
  say(file, line, what, format, args);
  va_end(args);
  has_failed = 1;
  if (is_fatal) leave();
}

void criterion_skip(const char* format, ...) {
  va_list args;
  va_start(args, format);
  say(NULL, 0, "skipped", format, args);
  va_end(args);
  is_skipped = 1;
  leave();
}

#ifndef __wasi__
static void crash(int number) {
  printf("%s/%s: ended by signal %d\n", at->suite, at->name, number);
  fflush(stdout);
  _Exit(1);
}
#endif

static int is_wanted(const struct criterion_case* one, const char* filter) {
  char name[256];
  if (one->name == NULL) return 0;
  if (filter == NULL) return 1;
  snprintf(name, sizeof name, "%s/%s", one->suite, one->name);
  const size_t n = strlen(filter);
  const int is_open = n > 0 && filter[n - 1] == '*';
  return is_open ? strncmp(name, filter, n - 1) == 0
                 : strcmp(name, filter) == 0;
}

static int is_left_out(const struct criterion_case* one) {
  const char* const path = getenv("KVEVICT_TEST_LEAVE_OUT");
  if (path == NULL) return 0;
  FILE* const file = fopen(path, "r");
  if (file == NULL) {
    printf("KVEVICT_TEST_LEAVE_OUT: cannot read %s\n", path);
    exit(kFailed);
  }
  char name[256], line[256];
  snprintf(name, sizeof name, "%s/%s\n", one->suite, one->name);
  int found = 0;
  while (!found && fgets(line, sizeof line, file) != NULL) {
    found = strcmp(line, name) == 0;
  }
  fclose(file);
  return found;
}

static struct criterion_options options_of(const struct criterion_case* one) {
  struct criterion_options all = one->options;
  for (const struct criterion_case* c = cases; c != NULL; c = c->next) {
    if (c->name != NULL || strcmp(c->suite, one->suite) != 0) continue;
    if (all.init == NULL) all.init = c->options.init;
    if (all.fini == NULL) all.fini = c->options.fini;
  }
  return all;
}

/* A function of its own: none of its locals live across the jump back. */
static __attribute__((noinline)) void run_all_of(
    const struct criterion_case* one) {
  const struct criterion_options options = options_of(one);
  struct criterion_test_params given = {0, NULL, 1};
  if (one->parameters != NULL) given = one->parameters();
  for (size_t i = 0; i < given.length; ++i) {
    if (options.init != NULL) options.init();
    if (one->run != NULL) one->run();
    if (one->run_with != NULL) {
      one->run_with((char*)given.params + i * given.size);
    }
    if (options.fini != NULL) options.fini();
  }
}

static __attribute__((noinline)) void run_here(
    const struct criterion_case* one) {
#ifndef __wasi__
  if (__builtin_setjmp(way_out) != 0) return;
#endif
  run_all_of(one);
}

static int outcome_here(const struct criterion_case* one) {
  has_failed = is_skipped = 0;
  run_here(one);
  return has_failed ? kFailed : is_skipped ? kSkipped : kPassed;
}

#ifdef __wasi__
static int outcome(const struct criterion_case* one, const char* program) {
  (void)program;
  return outcome_here(one);
}
#elif defined(_WIN32)
static int is_alone;

static int outcome(const struct criterion_case* one, const char* program) {
  const int found = outcome_here(one);
  if (found != kFailed || is_alone) return found;
  char name[256];
  snprintf(name, sizeof name, "%s/%s", one->suite, one->name);
  printf("%s: again, in a process of its own\n", name);
  fflush(stdout);
  return (int)_spawnl(_P_WAIT, program, program, "--alone", "--filter", name,
                      NULL);
}
#else
static int outcome(const struct criterion_case* one, const char* program) {
  (void)program;
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int found = outcome_here(one);
    fflush(stdout);
    fflush(stderr);
    _exit(found);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return kFailed;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
}
#endif

int main(int argc, char** argv) {
  const char* filter = NULL;
  int is_list = 0;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc) filter = argv[i + 1];
#ifdef _WIN32
    if (strcmp(argv[i], "--alone") == 0) is_alone = 1;
#endif
    if (strcmp(argv[i], "--list") == 0) is_list = 1;
  }
  for (at = cases; is_list && at != NULL; at = at->next) {
    if (at->name != NULL) printf("%s/%s\n", at->suite, at->name);
  }
  if (is_list) return kPassed;
#ifndef __wasi__
  const int fatal[] = {SIGSEGV, SIGABRT, SIGILL, SIGFPE};
  for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; ++i) {
    signal(fatal[i], crash);
  }
#endif
  int n = 0, n_failed = 0, n_skipped = 0, n_left_out = 0;
  for (at = cases; at != NULL; at = at->next) {
    if (!is_wanted(at, filter)) continue;
    if (is_left_out(at)) {
      ++n_left_out;
      continue;
    }
    const time_t begin = time(NULL);
    const int found = outcome(at, argv[0]);
    const long seconds = (long)(time(NULL) - begin);
    if (seconds > 1) printf("%s/%s: %ld s\n", at->suite, at->name, seconds);
    ++n;
    n_failed += found != kPassed && found != kSkipped;
    n_skipped += found == kSkipped;
  }
  printf("%d passed, %d failed, %d skipped, %d left out\n",
         n - n_failed - n_skipped, n_failed, n_skipped, n_left_out);
  if (n_failed > 0 || n + n_left_out == 0) return kFailed;
  return n_skipped == n ? kSkipped : kPassed;
}
