/*
 * Go: numbers of fixed width, handles and everything that may lie on a device as
 * uintptr, the rest as pointers to the types of internal/native, a status as error.
 * The output is internal/native/native.go and native_wrap.c, which are committed,
 * since users of the module have no swig.
 */

/* Enums, structs and constants are made by bindings/table. */
%rename("$ignore", %$isclass) "";
%rename("$ignore", %$isvariable) "";
%rename("$ignore", %$isenum) "";
%rename("$ignore", %$isenumitem) "";
%rename("$ignore", %$isconstant) "";

/* ---- Numbers and addresses ------------------------------------------------------ */

/* A C type and the Go type with the same bits, in and out. */
%define KV_NUMBER(C_TYPE, GO_TYPE)
%typemap(gotype) C_TYPE "GO_TYPE"
%typemap(imtype) C_TYPE "GO_TYPE"
%typemap(in)     C_TYPE "$1 = ($1_ltype)$input;"
%typemap(out)    C_TYPE "$result = $1;"
%typemap(goin)   C_TYPE ""
%typemap(goout)  C_TYPE ""
%enddef

%define KV_ADDRESS(C_TYPE)
KV_NUMBER(C_TYPE, uintptr)
KV_NUMBER(const C_TYPE, uintptr)
%enddef

%define KV_POINTER(C_TYPE, GO_TYPE)
KV_NUMBER(C_TYPE, GO_TYPE)
KV_NUMBER(const C_TYPE, GO_TYPE)
%enddef

%define KV_ENUM(NAME, GO_NAME)
KV_NUMBER(NAME, int32)
KV_NUMBER(enum NAME, int32)
KV_POINTER(NAME *, *int32)
%enddef
KV_FOR_EACH_ENUM(KV_ENUM)

KV_NUMBER(int32_t, int32)
KV_NUMBER(uint32_t, uint32)
KV_NUMBER(uint64_t, uint64)
KV_NUMBER(size_t, uint64)

%define KV_HANDLE(NAME, GO_NAME)
KV_ADDRESS(NAME *)
KV_NUMBER(NAME **, *uintptr)
%enddef
KV_FOR_EACH_HANDLE(KV_HANDLE)
KV_ADDRESS(void *)
KV_NUMBER(kvevict_stream, uintptr)

KV_POINTER(int32_t *, *int32)
KV_POINTER(uint32_t *, *uint32)
KV_NUMBER(size_t *, *uint64)
KV_NUMBER(uint64_t *, *uint64)
KV_POINTER(float *, *float32)
%define KV_STRUCT(NAME, GO_NAME)
KV_POINTER(NAME *, *GO_NAME)
%enddef
KV_FOR_EACH_STRUCT(KV_STRUCT)

KV_NUMBER(double, float64)
KV_NUMBER(double *, *float64)

/* Zero-terminated bytes; a function that returns text returns a string. */
%define KV_TEXT(NAME)
KV_POINTER(char *NAME, *byte)
%typemap(freearg) char *NAME, const char *NAME ""
%enddef
KV_TEXT(text)
KV_TEXT(name)
KV_TEXT(key)
KV_TEXT(value)

/* ---- Status ---------------------------------------------------------------------- */

/* The text is taken inside the failing call: afterwards the goroutine may be on
 * another thread, which has another last message. NULL stands for success. */
%{
#include "support.h"
%}
%typemap(gotype) kvevict_status "error"
%typemap(imtype) kvevict_status "uintptr"
%typemap(out)    kvevict_status "$result = $1 == KVEVICT_OK ? 0 : kv_go_take_error($1);"
%typemap(goout)  kvevict_status %{
	if $1 != 0 {
		$result = takeError($1)
	}
%}
%apply int32_t { kvevict_status status };
