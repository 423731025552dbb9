// Package capturing captures streams of a CUDA driver for tests, which may not use cgo themselves.
package capturing

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static void* function(const char* libcuda, const char* name) {
  return dlsym(dlopen(libcuda, RTLD_NOW), name);
}

static int begin(const char* libcuda, uintptr_t stream) {
  int (*begin_capture)(uintptr_t, int) =
      function(libcuda, "cuStreamBeginCapture_v2");
  return begin_capture(stream, 0);
}

static int run(const char* libcuda, uintptr_t stream) {
  int (*end_capture)(uintptr_t, void**) =
      function(libcuda, "cuStreamEndCapture");
  int (*instantiate)(void**, void*, unsigned long long) =
      function(libcuda, "cuGraphInstantiateWithFlags");
  int (*launch)(void*, uintptr_t) = function(libcuda, "cuGraphLaunch");
  int (*destroy_exec)(void*) = function(libcuda, "cuGraphExecDestroy");
  int (*destroy)(void*) = function(libcuda, "cuGraphDestroy");
  void *graph, *exec;
  int result = end_capture(stream, &graph);
  if (!result) result = instantiate(&exec, graph, 0);
  if (!result) result = launch(exec, stream);
  if (!result) result = destroy_exec(exec);
  return result ? result : destroy(graph);
}
*/
import "C"

import "unsafe"

// Begin makes a stream of the driver collect the work queued on it; returns the driver's result.
func Begin(libcuda string, stream uintptr) int {
	path := C.CString(libcuda)
	defer C.free(unsafe.Pointer(path))
	return int(C.begin(path, C.uintptr_t(stream)))
}

// Run runs what the stream has collected since Begin; returns the driver's result.
func Run(libcuda string, stream uintptr) int {
	path := C.CString(libcuda)
	defer C.free(unsafe.Pointer(path))
	return int(C.run(path, C.uintptr_t(stream)))
}
