// The library's context for the engine's threads.
#ifndef KVEVICT_TOOLS_ENGINE_LIBRARY_CONTEXT_H_
#define KVEVICT_TOOLS_ENGINE_LIBRARY_CONTEXT_H_

#include <memory>

#include "kvevict/kvevict.h"
#include "tools/engine/kvevict_error.h"
#include "tools/engine/thread_pool.h"

namespace kvevict::tools {

struct DestroyContext {
  void operator()(kvevict_context* context) const {
    kvevict_context_destroy(context);
  }
};
using LibraryContext = std::unique_ptr<kvevict_context, DestroyContext>;

// `pool` must outlive it. simd_target names the SIMD target of the library;
// nullptr: the best one.
inline LibraryContext CreateContext(ThreadPool& pool, const char* simd_target) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.n_threads = pool.n_threads();
  options.parallel = &ThreadPool::Run;
  options.parallel_user_data = &pool;
  options.simd_target = simd_target;
  kvevict_context* context = nullptr;
  Check(kvevict_context_create(&options, &context));
  return LibraryContext(context);
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_LIBRARY_CONTEXT_H_
