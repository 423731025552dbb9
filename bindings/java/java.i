/*
 * Java: addresses cross as `long`, a status becomes an exception, the one output
 * of a call becomes its result. Two package-private classes come out: NativeJNI,
 * the native methods, and Native, the same functions for the classes of
 * src/main/java. uint32_t is `int` (the library counts to 2^31 - 1) and
 * uint64_t is `long` with the same bits.
 */
%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"
%pragma(java) jniclasscode=%{
  static {
    NativeLoader.load();
  }
%}

%{
#include "jni_support.h"
%}

/* Enums, structs and constants are made by bindings/table. */
%rename("$ignore", %$isclass) "";
%rename("$ignore", %$isvariable) "";
%rename("$ignore", %$isenum) "";
%rename("$ignore", %$isenumitem) "";
%rename("$ignore", %$isconstant) "";

/* ---- Numbers and addresses ---------------------------------------------------- */

/* A C type and the Java number that has its bits, in and out. */
%define KV_NUMBER(C_TYPE, JNI_TYPE, JAVA_TYPE, CAST)
%typemap(jni)     C_TYPE "JNI_TYPE"
%typemap(jtype)   C_TYPE "JAVA_TYPE"
%typemap(jstype)  C_TYPE "JAVA_TYPE"
%typemap(javain)  C_TYPE "$javainput"
%typemap(javaout) C_TYPE "{ return $jnicall; }"
%typemap(in)      C_TYPE "$1 = ($1_ltype)CAST$input;"
%typemap(out)     C_TYPE "$result = (JNI_TYPE)$1;"
%enddef

%define KV_ADDRESS(C_TYPE)
KV_NUMBER(C_TYPE, jlong, long, (intptr_t))
KV_NUMBER(const C_TYPE, jlong, long, (intptr_t))
%enddef

%define KV_ENUM(NAME, JAVA_NAME)
KV_NUMBER(NAME, jint, int, )
KV_NUMBER(enum NAME, jint, int, )
%enddef
KV_FOR_EACH_ENUM(KV_ENUM)

KV_NUMBER(int32_t, jint, int, )
KV_NUMBER(uint32_t, jint, int, )
KV_NUMBER(uint64_t, jlong, long, )
KV_NUMBER(size_t, jlong, long, )
KV_ADDRESS(void *)
KV_NUMBER(kvevict_stream, jlong, long, (intptr_t))
KV_NUMBER(double, jdouble, double, )
KV_ADDRESS(float *)
KV_ADDRESS(int32_t *)
KV_ADDRESS(uint32_t *)

%define KV_POINTER(NAME, JAVA_NAME)
KV_ADDRESS(NAME *)
%enddef
KV_FOR_EACH_HANDLE(KV_POINTER)
KV_FOR_EACH_STRUCT(KV_POINTER)

/* A text that the call writes is memory; one that it reads stays a String. */
%apply char * { const char *text };
KV_NUMBER(char *text, jlong, long, (intptr_t))
%typemap(freearg) char *text ""

/* ---- Status ------------------------------------------------------------------- */

/* `ret` runs after `freearg`: no array is pinned while the exception is made.
 * The text is read here, since a virtual thread may be elsewhere afterwards. */
%typemap(jni)     kvevict_status "void"
%typemap(jtype)   kvevict_status "void"
%typemap(jstype)  kvevict_status "void"
%typemap(javaout) kvevict_status "{ $jnicall; }"
%typemap(out)     kvevict_status ""
%typemap(ret)     kvevict_status "kv_return(jenv, $1);"
%apply int32_t { kvevict_status status };

/* ---- The one output as result --------------------------------------------------- */

%define KV_OUTPUT(C_TYPE, NAME)
%typemap(in, numinputs=0) C_TYPE *NAME (C_TYPE value = 0) "$1 = &value;"
%enddef

/* KV_OUTPUT whose value FUNCTION returns. */
%define KV_RESULT(FUNCTION, JNI_TYPE, JAVA_TYPE)
%typemap(jni)     kvevict_status FUNCTION "JNI_TYPE"
%typemap(jtype)   kvevict_status FUNCTION "JAVA_TYPE"
%typemap(jstype)  kvevict_status FUNCTION "JAVA_TYPE"
%typemap(javaout) kvevict_status FUNCTION "{ return $jnicall; }"
%typemap(out)     kvevict_status FUNCTION "$result = 0;"
%enddef

KV_OUTPUT(kvevict_context *, out_context)
KV_OUTPUT(kvevict_policy *, out_policy)
KV_OUTPUT(kvevict_plan *, out_plan)
KV_OUTPUT(kvevict_sequence *, out_sequence)
KV_OUTPUT(kvevict_paged_cache *, out_cache)
KV_OUTPUT(kvevict_paged_sequence *, out_sequence)
KV_OUTPUT(size_t, out_text_len)
KV_OUTPUT(size_t, out_positions_len)
KV_OUTPUT(size_t, out_data_len)
KV_OUTPUT(size_t, out_bytes)
KV_OUTPUT(kvevict_calibration *, out_calibration)
KV_OUTPUT(uint64_t, out_rows)
KV_OUTPUT(uint32_t, out_budget)
KV_OUTPUT(uint32_t, out_length)
KV_OUTPUT(uint32_t, out_slots)
KV_OUTPUT(int32_t, out_position)
KV_OUTPUT(int32_t, out_slot)
KV_OUTPUT(kvevict_need, out_need)
KV_OUTPUT(double, out_value)

%typemap(argout) kvevict_context **out_context, kvevict_policy **out_policy,
                 kvevict_plan **out_plan, kvevict_sequence **out_sequence,
                 kvevict_paged_cache **out_cache, kvevict_calibration **out_calibration,
                 kvevict_paged_sequence **out_sequence
  "$result = (jlong)(intptr_t)value$argnum;"
%typemap(argout) size_t *out_text_len, size_t *out_positions_len, size_t *out_data_len,
                 size_t *out_bytes, uint64_t *out_rows
  "$result = (jlong)value$argnum;"
%typemap(argout) uint32_t *out_budget, uint32_t *out_length, uint32_t *out_slots,
                 int32_t *out_position, int32_t *out_slot, kvevict_need *out_need
  "$result = (jint)value$argnum;"
%typemap(argout) double *out_value "$result = value$argnum;"

KV_RESULT(kvevict_context_create, jlong, long)
KV_RESULT(kvevict_policy_create, jlong, long)
KV_RESULT(kvevict_policy_copy, jlong, long)
KV_RESULT(kvevict_policy_get, jlong, long)
KV_RESULT(kvevict_policy_get_number, jdouble, double)
KV_RESULT(kvevict_plan_create, jlong, long)
KV_RESULT(kvevict_sequence_create, jlong, long)
KV_RESULT(kvevict_sequence_fork, jlong, long)
KV_RESULT(kvevict_sequence_save, jlong, long)
KV_RESULT(kvevict_sequence_undo_bytes, jlong, long)
KV_RESULT(kvevict_paged_cache_bytes, jlong, long)
KV_RESULT(kvevict_paged_cache_create, jlong, long)
KV_RESULT(kvevict_paged_sequence_create, jlong, long)
KV_RESULT(kvevict_paged_sequence_fork, jlong, long)
KV_RESULT(kvevict_paged_sequence_length, jint, int)
KV_RESULT(kvevict_calibration_create, jlong, long)
KV_RESULT(kvevict_calibration_rows, jlong, long)
KV_RESULT(kvevict_calibration_save, jlong, long)
KV_RESULT(kvevict_policy_format, jlong, long)
KV_RESULT(kvevict_sequence_keep_positions, jlong, long)
KV_RESULT(kvevict_policy_need, jint, int)
KV_RESULT(kvevict_auto_budget, jint, int)
KV_RESULT(kvevict_sequence_stored_length, jint, int)
KV_RESULT(kvevict_sequence_logical_length, jint, int)
KV_RESULT(kvevict_sequence_exact_prefix, jint, int)
KV_RESULT(kvevict_sequence_position_of_slot, jint, int)
KV_RESULT(kvevict_sequence_slot_of_position, jint, int)

/* ---- Heap arrays ---------------------------------------------------------------- */

/* One Java array for a pointer and its length, borrowed without a copy. MODE is
 * JNI_ABORT where the call only reads. Lengths are asked before any array is
 * pinned, since no other JNI call may come between. */
%define KV_ARRAY(C_TYPE, NAME, JNI_TYPE, JAVA_TYPE, MODE)
%typemap(jni)    (C_TYPE *NAME, size_t NAME##_len) "JNI_TYPE"
%typemap(jtype)  (C_TYPE *NAME, size_t NAME##_len) "JAVA_TYPE[]"
%typemap(jstype) (C_TYPE *NAME, size_t NAME##_len) "JAVA_TYPE[]"
%typemap(javain) (C_TYPE *NAME, size_t NAME##_len) "$javainput"
%typemap(in)     (C_TYPE *NAME, size_t NAME##_len)
  "$1 = NULL; $2 = $input ? (size_t)(*jenv)->GetArrayLength(jenv, $input) : 0;"
%typemap(check)  (C_TYPE *NAME, size_t NAME##_len)
  "if ($2) $1 = (C_TYPE *)(*jenv)->GetPrimitiveArrayCritical(jenv, $input, NULL);"
%typemap(freearg) (C_TYPE *NAME, size_t NAME##_len)
  "if ($1) (*jenv)->ReleasePrimitiveArrayCritical(jenv, $input, (void *)$1, MODE);"
%enddef

KV_ARRAY(uint32_t, budgets_array, jintArray, int, 0)

/* Second shapes of functions whose arrays are small. They call nothing back,
 * which none may do while an array is pinned. */
%{
#define kvevict_policy_layer_budgets_a kvevict_policy_layer_budgets
#define kvevict_plan_layer_budgets_a kvevict_plan_layer_budgets
%}
kvevict_status kvevict_policy_layer_budgets_a(
    const kvevict_policy *policy, uint32_t n_context, uint32_t *budgets_array,
    size_t budgets_array_len);
kvevict_status kvevict_plan_layer_budgets_a(
    const kvevict_plan *plan, uint32_t n_tokens, uint32_t *budgets_array,
    size_t budgets_array_len);
