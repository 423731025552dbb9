#include "jni_support.h"

#include <stdint.h>

static JavaVM* vm;
static jclass exception_class; /* dev.kvevict.KvEvictException */
static jmethodID exception_init;
static jclass hooks_class; /* dev.kvevict.Hooks */
static jmethodID hooks_log;
static jmethodID hooks_parallel;

static jclass global_class(JNIEnv* env, const char* name) {
  jclass local = (*env)->FindClass(env, name);
  return local ? (jclass)(*env)->NewGlobalRef(env, local) : NULL;
}

/* On failure an exception is pending, which System.load() passes on. */
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
  hooks_parallel =
      (*env)->GetStaticMethodID(env, hooks_class, "parallel", "(IJJJ)V");
  return hooks_parallel ? JNI_VERSION_10 : JNI_ERR;
}

JNIEXPORT void JNICALL JNI_OnUnload(JavaVM* java_vm, void* reserved) {
  (void)reserved;
  JNIEnv* env = NULL;
  if ((*java_vm)->GetEnv(java_vm, (void**)&env, JNI_VERSION_10) != JNI_OK)
    return;
  (*env)->DeleteGlobalRef(env, exception_class);
  (*env)->DeleteGlobalRef(env, hooks_class);
}

void kv_throw(JNIEnv* env, kvevict_status status) {
  if ((*env)->ExceptionCheck(env)) return;
  jstring message = (*env)->NewStringUTF(env, kvevict_last_error_message());
  if (!message) return; /* out of memory, and an exception is pending */
  jobject exception = (*env)->NewObject(env, exception_class, exception_init,
                                        (jint)status, message);
  if (!(*env)->ExceptionCheck(env)) (*env)->Throw(env, (jthrowable)exception);
}

/* ---- Hooks: the library calls them on the thread that called the library ------- */

static JNIEnv* this_env(void) {
  JNIEnv* env = NULL;
  (*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_10);
  return env;
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

static void parallel_hook(uint32_t n_items, kvevict_task_fn run, void* task,
                          void* user_data) {
  JNIEnv* env = this_env();
  (*env)->CallStaticVoidMethod(env, hooks_class, hooks_parallel, (jint)n_items,
                               (jlong)(intptr_t)run, (jlong)(intptr_t)task,
                               (jlong)(intptr_t)user_data);
  /* Hooks.parallel() throws only where the virtual machine has no memory left;
   * nobody knows then which items ran, and a cache may be half moved. */
  if ((*env)->ExceptionCheck(env))
    (*env)->FatalError(env, "kvevict: the parallel runner was cut off");
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

JNIEXPORT void JNICALL Java_dev_kvevict_NativeSupport_runTask(
    JNIEnv* env, jclass owner, jlong run, jlong task, jint item, jint worker) {
  (void)env;
  (void)owner;
  ((kvevict_task_fn)(intptr_t)run)((void*)(intptr_t)task, (uint32_t)item,
                                   (uint32_t)worker);
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
