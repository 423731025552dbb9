/*
 * What the generated JNI code and the classes NativeSupport and KvEvictException
 * need from C beside the library itself.
 */
#ifndef KVEVICT_BINDINGS_JAVA_JNI_SUPPORT_H_
#define KVEVICT_BINDINGS_JAVA_JNI_SUPPORT_H_

#include <jni.h>

#include "kvevict/all.h"

/* Ends a call: throws what a callback threw in it, or else a KvEvictException
 * with the thread's last message unless the status is OK. What is pending already
 * stays. */
void kv_return(JNIEnv* env, kvevict_status status);

#endif /* KVEVICT_BINDINGS_JAVA_JNI_SUPPORT_H_ */
