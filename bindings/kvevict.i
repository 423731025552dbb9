/*
 * The one interface of all bindings: the public headers and nothing beside them.
 *
 * A language's file (csharp/csharp.i, java/java.i, go/go.i) comes before the
 * headers and says how types cross the border, with a macro of its own for each
 * of the lists.
 *
 *     swig -csharp|-java|-go -Wall -Werror -Ibindings -Icapi/include -ITABLE
 */
%module Native

%{
#include "kvevict/all.h"
%}

/* The headers' types, listed: KV_FOR_EACH_ENUM, _HANDLE and _STRUCT, each with
 * APPLY(c_name, name_here). Made by bindings/table. */
%include "kvevict_types.i"

/* C has an enum's tag and the typedef of the same name side by side; SWIG has
 * one table for both and would warn of the second. */
%define KV_ENUM_AND_TYPEDEF(NAME, NAME_HERE)
%warnfilter(302) NAME;
%enddef
KV_FOR_EACH_ENUM(KV_ENUM_AND_TYPEDEF)

/* ---- The language ------------------------------------------------------------ */

#if defined(SWIGCSHARP)
%include "csharp/csharp.i"
#elif defined(SWIGJAVA)
%include "java/java.i"
#elif defined(SWIGGO)
%include "go/go.i"
#else
#error "no typemaps for this language"
#endif

%include "kvevict/kvevict.h"
%include "kvevict/attention.h"
%include "kvevict/batch.h"
%include "kvevict/calibration.h"
%include "kvevict/edit.h"
%include "kvevict/experimental.h"
%include "kvevict/paged.h"
%include "kvevict/prefill.h"
