/* A library opened at run time explains a failure of a thread's first call without
 * memory: thread-local storage must need no allocation. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <features.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/kvevict.h"

#ifndef __GLIBC__
int main(void) {
  puts("skipped: only glibc allocates thread-local storage late");
  return 77;
}
#else

/* The whole process allocates here, the dynamic linker included. */
static atomic_int no_memory;
static atomic_int n_refused;

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

static int Refuses(void) {
  if (!no_memory) return 0;
  ++n_refused;
  errno = ENOMEM;
  return 1;
}

#pragma GCC visibility push(default)
void* malloc(size_t n) { return Refuses() ? NULL : __libc_malloc(n); }
void* calloc(size_t n, size_t size) {
  return Refuses() ? NULL : __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  return Refuses() ? NULL : __libc_realloc(p, n);
}
void* memalign(size_t alignment, size_t n) {
  return Refuses() ? NULL : __libc_memalign(alignment, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  return memalign(alignment, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
  *out = memalign(alignment, n);
  return *out == NULL ? ENOMEM : 0;
}
#pragma GCC visibility pop

static kvevict_status (*validate)(const kvevict_view*, uint32_t);
static kvevict_status (*create)(const kvevict_context_options*,
                                kvevict_context**);
static const char* (*message)(void);

static char failures[2][200];
static kvevict_status statuses[2];
static pthread_barrier_t has_begun, may_call;

static void* Call(void* unused) {
  kvevict_context* context = NULL;
  pthread_barrier_wait(&has_begun);
  pthread_barrier_wait(&may_call);
  statuses[0] = validate(NULL, 1);
  strncpy(failures[0], message(), sizeof failures[0] - 1);
  statuses[1] = create(NULL, &context);
  strncpy(failures[1], message(), sizeof failures[1] - 1);
  return unused;
}

static void Require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

int main(int argc, char** argv) {
  Require(argc == 2, "one argument: the library");
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  Require(library != NULL, "the library opens");
  *(void**)&validate = dlsym(library, "kvevict_view_validate");
  *(void**)&create = dlsym(library, "kvevict_context_create");
  *(void**)&message = dlsym(library, "kvevict_last_error_message");
  Require(validate != NULL && create != NULL && message != NULL, "symbols");

  pthread_t thread;
  pthread_barrier_init(&has_begun, NULL, 2);
  pthread_barrier_init(&may_call, NULL, 2);
  Require(pthread_create(&thread, NULL, Call, NULL) == 0, "a thread");
  pthread_barrier_wait(&has_begun); /* threads have what they need now */
  no_memory = 1;
  pthread_barrier_wait(&may_call);
  pthread_join(thread, NULL);
  no_memory = 0;

  Require(statuses[0] == KVEVICT_ERROR_INVALID_ARGUMENT, "INVALID_ARGUMENT");
  Require(strcmp(failures[0], "view is NULL") == 0, failures[0]);
  Require(statuses[1] == KVEVICT_ERROR_OUT_OF_MEMORY, "OUT_OF_MEMORY");
  Require(strstr(failures[1], "context") != NULL, failures[1]);
  Require(n_refused > 0, "memory was refused");
  printf("\"%s\", \"%s\"\n", failures[0], failures[1]);
  return 0;
}
#endif
