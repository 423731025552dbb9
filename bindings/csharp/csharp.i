/*
 * C# gets only what a P/Invoke needs. Every signature is blittable: enums, integers
 * and pointers to structs. Two internal
 * classes come out: NativePINVOKE, the imports, and Native, the same functions
 * with SafeHandles for handles and an exception for a status.
 */
%pragma(csharp) imclassclassmodifiers="internal static unsafe class"
%pragma(csharp) moduleclassmodifiers="internal static unsafe class"

/* Enums, structs and constants are made by bindings/table. */
%rename("$ignore", %$isclass) "";
%rename("$ignore", %$isvariable) "";
%rename("$ignore", %$isenum) "";
%rename("$ignore", %$isenumitem) "";
%rename("$ignore", %$isconstant) "";

/* A C type and the C# type with the same bits, in and out. */
%define KV_BLITTABLE(C_TYPE, CS_TYPE)
%typemap(ctype)  C_TYPE "$1_ltype"
%typemap(imtype) C_TYPE "CS_TYPE"
%typemap(cstype) C_TYPE "CS_TYPE"
%typemap(in)     C_TYPE "$1 = $input;"
%typemap(out)    C_TYPE "$result = $1;"
%typemap(csin)   C_TYPE "$csinput"
%typemap(csout, excode="") C_TYPE "{ return $imcall; }"
%enddef

KV_BLITTABLE(int32_t, int)
KV_BLITTABLE(uint32_t, uint)
KV_BLITTABLE(uint64_t, ulong)
KV_BLITTABLE(size_t, nuint)
KV_BLITTABLE(void *, void*)
KV_BLITTABLE(kvevict_stream, nint)

%define KV_POINTER(C_TYPE, CS_TYPE)
KV_BLITTABLE(C_TYPE *, CS_TYPE*)
KV_BLITTABLE(const C_TYPE *, CS_TYPE*)
%enddef

KV_POINTER(char, byte)
KV_POINTER(double, double)
KV_POINTER(float, float)
KV_POINTER(int32_t, int)
KV_POINTER(uint32_t, uint)
KV_POINTER(uint64_t, ulong)
KV_POINTER(size_t, nuint)

%define KV_STRUCT(NAME, CS_NAME)
KV_POINTER(NAME, CS_NAME)
%enddef
KV_FOR_EACH_STRUCT(KV_STRUCT)

%define KV_ENUM(NAME, CS_NAME)
KV_BLITTABLE(NAME, CS_NAME)
KV_POINTER(NAME, CS_NAME)
%enddef
KV_FOR_EACH_ENUM(KV_ENUM)

/* A status is a parameter of kvevict_status_name() alone; returned, it becomes an
 * exception, whose text is fetched on the same thread. So do callbacks' exceptions. */
%typemap(cstype, out="void") kvevict_status "KvStatus"
%typemap(csout, excode="") kvevict_status {
    var call = new NativeCall();
    call.End($imcall);
  }

/* A handle is a SafeHandle, which a call keeps open while it runs and a create function
 * fills, even if a callback threw. A destroy function gets the bare pointer. */
%define KV_HANDLE(NAME, CS_NAME)
KV_POINTER(NAME, void)
%typemap(cstype) NAME *, const NAME * "CS_NAME"
%typemap(csin,
         pre="    bool $csinput_held = false; $csinput?.DangerousAddRef(ref $csinput_held);",
         post="      if ($csinput_held) $csinput.DangerousRelease();")
  NAME *, const NAME * "NativeHandle.Pointer($csinput)"
KV_BLITTABLE(NAME **, void**)
%typemap(cstype) NAME ** "CS_NAME"
%typemap(csin, pre="    void* $csinput_made = null;", post="      $csinput.Own($csinput_made);")
  NAME ** "&$csinput_made"
%enddef
KV_FOR_EACH_HANDLE(KV_HANDLE)
