// The C API of a build of kvevict: the one in this program, or a libkvevict.so,
// so that one process times both on the same memory.
#ifndef KVEVICT_TESTS_GPU_LIBRARY_H_
#define KVEVICT_TESTS_GPU_LIBRARY_H_

#include <memory>
#include <string>

#include "kvevict/all.h"

namespace kvevict::gpu::rows {

struct Library {
#define KVEVICT_LIBRARY(name) decltype(&kvevict_##name) name = nullptr;
#include "tests/gpu/library_functions.inc"
#undef KVEVICT_LIBRARY

  // This program's own.
  static Library Linked();
  // Throws the reason if the file cannot be opened or lacks a function. It stays
  // open until the program ends.
  static Library Open(const std::string& path);

  // Throws std::runtime_error with this library's message.
  void Check(kvevict_status status) const;

  std::shared_ptr<kvevict_context> Context(
      const kvevict_context_options& options) const;
  std::shared_ptr<kvevict_plan> Plan(const kvevict_context* context,
                                     const kvevict_geometry& geometry,
                                     const std::string& policy) const;
  std::shared_ptr<kvevict_sequence> Sequence(const kvevict_plan* plan) const;
  size_t WorkspaceBytes(const kvevict_plan* plan,
                        kvevict_operation operation) const;
};

}  // namespace kvevict::gpu::rows

#endif  // KVEVICT_TESTS_GPU_LIBRARY_H_
