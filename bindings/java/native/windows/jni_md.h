/* The machine part of jni.h for Windows: a JDK only has its own system's. */
#ifndef KVEVICT_JAVA_WINDOWS_JNI_MD_H_
#define KVEVICT_JAVA_WINDOWS_JNI_MD_H_

#include <stdint.h>

#define JNIEXPORT __declspec(dllexport)
#define JNIIMPORT __declspec(dllimport)
#define JNICALL __stdcall

typedef int32_t jint;
typedef int64_t jlong;
typedef int8_t jbyte;

#endif /* KVEVICT_JAVA_WINDOWS_JNI_MD_H_ */
