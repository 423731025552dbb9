/*
 * What the generated JNI code and the classes NativeSupport and KvEvictException
 * need from C beside the library itself.
 */
#ifndef KVEVICT_BINDINGS_JAVA_JNI_SUPPORT_H_
#define KVEVICT_BINDINGS_JAVA_JNI_SUPPORT_H_

#include <jni.h>

#include "kvevict/kvevict.h"

/* Throws a KvEvictException with the calling thread's last message, unless an
 * exception is pending already. */
void kv_throw(JNIEnv* env, kvevict_status status);

#endif /* KVEVICT_BINDINGS_JAVA_JNI_SUPPORT_H_ */
