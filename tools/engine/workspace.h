// The workspace for calls of the library.
#ifndef KVEVICT_TOOLS_ENGINE_WORKSPACE_H_
#define KVEVICT_TOOLS_ENGINE_WORKSPACE_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "kvevict/kvevict.h"
#include "tools/engine/platform.h"

namespace kvevict::tools {

// Keeps as much memory as the largest call has needed.
class Workspace {
 public:
  // Makes room for the best size.
  void Fit(const kvevict_workspace& size) {
    if (size.best_bytes <= bytes_) return;
    const size_t rounded = (size.best_bytes + size.alignment - 1) /
                           size.alignment * size.alignment;
    memory_.reset(AllocateAligned(size.alignment, rounded));
    bytes_ = memory_ == nullptr ? 0 : size.best_bytes;
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_.get(), 0, rounded);  // page faults now, not in a call
  }

  void* data() const { return memory_.get(); }
  size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { FreeAligned(memory); }
  };

  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_WORKSPACE_H_
