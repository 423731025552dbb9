#include "jni_support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

static JavaVM* vm;
static jclass exception_class; /* dev.kvevict.KvEvictException */
static jmethodID exception_init;
static jclass hooks_class; /* dev.kvevict.Hooks */
static jmethodID hooks_log;
static jmethodID hooks_ask_for_help;
static jclass reading_class; /* dev.kvevict.Reading */
static jmethodID reading_forward;

static jclass global_class(JNIEnv* env, const char* name) {
  jclass local = (*env)->FindClass(env, name);
  return local ? (jclass)(*env)->NewGlobalRef(env, local) : NULL;
}

/* If it fails, an exception is pending, which System.load() passes on. */
JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* java_vm, void* reserved) {
  (void)reserved;
  JNIEnv* env = NULL;
  vm = java_vm;
  if ((*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_10) != JNI_OK) return JNI_ERR;
  if (!(exception_class = global_class(env, "dev/kvevict/KvEvictException")))
    return JNI_ERR;
  exception_init = (*env)->GetMethodID(env, exception_class, "<init>",
                                       "(ILjava/lang/String;)V");
  if (!exception_init) return JNI_ERR;
  if (!(hooks_class = global_class(env, "dev/kvevict/Hooks"))) return JNI_ERR;
  hooks_log = (*env)->GetStaticMethodID(env, hooks_class, "log",
                                        "(ILjava/lang/String;J)V");
  if (!hooks_log) return JNI_ERR;
  hooks_ask_for_help =
      (*env)->GetStaticMethodID(env, hooks_class, "askForHelp", "(IJJ)V");
  if (!hooks_ask_for_help) return JNI_ERR;
  if (!(reading_class = global_class(env, "dev/kvevict/Reading")))
    return JNI_ERR;
  reading_forward =
      (*env)->GetStaticMethodID(env, reading_class, "forward", "(IIJ)V");
  return reading_forward ? JNI_VERSION_10 : JNI_ERR;
}

JNIEXPORT void JNICALL JNI_OnUnload(JavaVM* java_vm, void* reserved) {
  (void)reserved;
  JNIEnv* env = NULL;
  if ((*java_vm)->GetEnv(java_vm, (void**)&env, JNI_VERSION_10) != JNI_OK)
    return;
  (*env)->DeleteGlobalRef(env, exception_class);
  (*env)->DeleteGlobalRef(env, hooks_class);
  (*env)->DeleteGlobalRef(env, reading_class);
}

/* The exception of a callback in this thread's call: a local reference,
 * valid until the native method returns. */
static _Thread_local jthrowable thrown;

static void throw_status(JNIEnv* env, kvevict_status status) {
  jstring message = (*env)->NewStringUTF(env, kvevict_last_error_message());
  if (!message) return; /* out of memory, and an exception is pending */
  jobject exception = (*env)->NewObject(env, exception_class, exception_init,
                                        (jint)status, message);
  if (!(*env)->ExceptionCheck(env)) (*env)->Throw(env, (jthrowable)exception);
}

void kv_return(JNIEnv* env, kvevict_status status) {
  jthrowable by_callback = thrown;
  thrown = NULL;
  if ((*env)->ExceptionCheck(env)) return;
  if (by_callback)
    (*env)->Throw(env, by_callback);
  else if (status != KVEVICT_OK)
    throw_status(env, status);
}

/* ---- Hooks: the library calls them on the thread that called the library ------- */

static JNIEnv* this_env(void) {
  JNIEnv* env = NULL;
  (*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_10);
  return env;
}

/* A callback may call the library itself. Exceptions from before play no part
 * there. */
static jthrowable begin_callback(void) {
  jthrowable earlier = thrown;
  thrown = NULL;
  return earlier;
}

/* Keeps the first exception; returns whether the callback has thrown. */
static int end_callback(JNIEnv* env, jthrowable earlier) {
  jthrowable now = (*env)->ExceptionOccurred(env);
  (*env)->ExceptionClear(env);
  thrown = earlier ? earlier : now;
  return now != NULL;
}

static kvevict_status forward_hook(uint32_t first_token, uint32_t n_tokens,
                                   void* user_data) {
  JNIEnv* env = this_env();
  jthrowable earlier = begin_callback();
  (*env)->CallStaticVoidMethod(env, reading_class, reading_forward,
                               (jint)first_token, (jint)n_tokens,
                               (jlong)(intptr_t)user_data);
  return end_callback(env, earlier) ? KVEVICT_ERROR_INTERNAL : KVEVICT_OK;
}

static void log_hook(kvevict_log_level level, const char* message,
                     void* user_data) {
  JNIEnv* env = this_env();
  jstring text = (*env)->NewStringUTF(env, message);
  if (text) {
    (*env)->CallStaticVoidMethod(env, hooks_class, hooks_log, (jint)level, text,
                                 (jlong)(intptr_t)user_data);
    (*env)->DeleteLocalRef(env, text);
  }
  if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env);
}

/* ---- The parallel runner --------------------------------------------------------
 *
 * Items are handed out here and not in Java, where anything may be thrown between
 * taking an item and running it. Who starts late, or twice, finds no open job of
 * that number, or no worker's number left, and touches nothing. */

struct job {
  uint64_t number;
  uint32_t n_items;
  kvevict_task_fn run;
  void* task;
  atomic_uint next_item;
  /* The rest is guarded by `jobs`. */
  uint32_t n_workers; /* numbers given out; 0 is the calling thread's */
  uint32_t n_helpers; /* at work */
  pthread_cond_t idle;
  struct job* next;
};

static pthread_mutex_t jobs = PTHREAD_MUTEX_INITIALIZER;
static struct job* open_jobs;
static uint64_t last_number;

static void do_items(struct job* job, uint32_t worker) {
  uint32_t item;
  while ((item = atomic_fetch_add(&job->next_item, 1)) < job->n_items)
    job->run(job->task, item, worker);
}

static void open_job(struct job* job) {
  pthread_cond_init(&job->idle, NULL);
  pthread_mutex_lock(&jobs);
  job->number = ++last_number;
  job->next = open_jobs;
  open_jobs = job;
  pthread_mutex_unlock(&jobs);
}

/* Waits for the helpers that have begun; nobody waits for the others. */
static void close_job(struct job* job) {
  pthread_mutex_lock(&jobs);
  struct job** place = &open_jobs;
  while (*place != job) place = &(*place)->next;
  *place = job->next;
  while (job->n_helpers) pthread_cond_wait(&job->idle, &jobs);
  pthread_mutex_unlock(&jobs);
  pthread_cond_destroy(&job->idle);
}

static void help(uint64_t number, uint32_t max_workers) {
  pthread_mutex_lock(&jobs);
  struct job* job = open_jobs;
  while (job && job->number != number) job = job->next;
  if (job && job->n_workers < max_workers) {
    uint32_t worker = job->n_workers++;
    ++job->n_helpers;
    pthread_mutex_unlock(&jobs);
    do_items(job, worker);
    pthread_mutex_lock(&jobs);
    if (--job->n_helpers == 0) pthread_cond_signal(&job->idle);
  }
  pthread_mutex_unlock(&jobs);
}

static void parallel_hook(uint32_t n_items, kvevict_task_fn run, void* task,
                          void* user_data) {
  JNIEnv* env = this_env();
  struct job job = {
      .n_items = n_items, .run = run, .task = task, .n_workers = 1};
  open_job(&job);
  jthrowable earlier = begin_callback();
  (*env)->CallStaticVoidMethod(env, hooks_class, hooks_ask_for_help,
                               (jint)n_items, (jlong)job.number,
                               (jlong)(intptr_t)user_data);
  (void)end_callback(env, earlier);
  do_items(&job, 0);
  close_job(&job);
}

/* ---- Native methods of dev.kvevict.NativeSupport -------------------------------- */

JNIEXPORT jlong JNICALL Java_dev_kvevict_NativeSupport_addressOf(
    JNIEnv* env, jclass owner, jobject buffer) {
  (void)owner;
  return (jlong)(intptr_t)(*env)->GetDirectBufferAddress(env, buffer);
}

JNIEXPORT jstring JNICALL Java_dev_kvevict_NativeSupport_stringAt(
    JNIEnv* env, jclass owner, jlong address) {
  (void)owner;
  return address ? (*env)->NewStringUTF(env, (const char*)(intptr_t)address)
                 : NULL;
}

JNIEXPORT jobject JNICALL Java_dev_kvevict_NativeSupport_bytesAt(JNIEnv* env,
                                                                 jclass owner,
                                                                 jlong address,
                                                                 jint bytes) {
  (void)owner;
  return (*env)->NewDirectByteBuffer(env, (void*)(intptr_t)address, bytes);
}

JNIEXPORT void JNICALL Java_dev_kvevict_NativeSupport_help(JNIEnv* env,
                                                           jclass owner,
                                                           jlong job,
                                                           jint max_workers) {
  (void)env;
  (void)owner;
  help((uint64_t)job, (uint32_t)max_workers);
}

JNIEXPORT jlong JNICALL Java_dev_kvevict_NativeSupport_logHook(JNIEnv* env,
                                                               jclass owner) {
  (void)env;
  (void)owner;
  return (jlong)(intptr_t)log_hook;
}

JNIEXPORT jlong JNICALL
Java_dev_kvevict_NativeSupport_parallelHook(JNIEnv* env, jclass owner) {
  (void)env;
  (void)owner;
  return (jlong)(intptr_t)parallel_hook;
}

JNIEXPORT jlong JNICALL
Java_dev_kvevict_NativeSupport_forwardHook(JNIEnv* env, jclass owner) {
  (void)env;
  (void)owner;
  return (jlong)(intptr_t)forward_hook;
}
