/*
 * The one interface of all bindings: the public header and nothing beside it.
 *
 * A language's file (csharp/csharp.i, java/java.i, go/go.i) comes before the
 * header and says how types cross the border, with a macro of its own for each
 * of the lists below.
 *
 *     swig -csharp|-java|-go -Wall -Werror -Ibindings -Icapi/include
 */
%module Native

%{
#include "kvevict/kvevict.h"
%}

/* ---- The header's types, listed --------------------------------------------- */

/* Every enum, APPLY(c_name). */
%define KV_FOR_EACH_ENUM(APPLY)
APPLY(kvevict_status)
APPLY(kvevict_device)
APPLY(kvevict_dtype)
APPLY(kvevict_log_level)
APPLY(kvevict_policy_kind)
APPLY(kvevict_pool)
APPLY(kvevict_pool_edge)
APPLY(kvevict_reduce)
APPLY(kvevict_shaping_order)
APPLY(kvevict_scope)
APPLY(kvevict_tie)
APPLY(kvevict_layer_split)
APPLY(kvevict_operation)
APPLY(kvevict_reason)
%enddef

/* Every opaque handle, APPLY(c_name). */
%define KV_FOR_EACH_HANDLE(APPLY)
APPLY(kvevict_context)
APPLY(kvevict_plan)
APPLY(kvevict_sequence)
%enddef

/* Every struct, APPLY(c_name). */
%define KV_FOR_EACH_STRUCT(APPLY)
APPLY(kvevict_gpu_info)
APPLY(kvevict_dtype_info)
APPLY(kvevict_context_options)
APPLY(kvevict_policy)
APPLY(kvevict_resolved_policy)
APPLY(kvevict_policy_info)
APPLY(kvevict_preset_info)
APPLY(kvevict_plane)
APPLY(kvevict_view)
APPLY(kvevict_geometry)
APPLY(kvevict_capabilities)
APPLY(kvevict_evict_options)
APPLY(kvevict_evict_report)
APPLY(kvevict_sequence_memory)
%enddef

/* C has an enum's tag and the typedef of the same name side by side; SWIG has
 * one table for both and would warn of the second. */
%define KV_ENUM_AND_TYPEDEF(NAME)
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
