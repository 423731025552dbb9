// A function of llama.cpp, defined once more: LD_PRELOAD, or a program that looks functions
// up here, puts this library before libllama. So the program calls the function here, which
// calls libllama's own.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_HOOK_H_
#define KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_HOOK_H_

#include <dlfcn.h>

namespace kvevict::llama_preload {

// Defines a function of llama.cpp. It has a C++ name of its own, since the headers may
// lack the function or declare it with other types.
#define HOOK(result, name, ...)                   \
  constexpr char k_##name[] = #name;              \
  __attribute__((visibility("default")))          \
  result Hook_##name(__VA_ARGS__) __asm__(#name); \
  result Hook_##name(__VA_ARGS__)

// libllama's own definition of a function that is hooked.
#define NEXT(name) Next<decltype(&Hook_##name), k_##name>()

template <typename Function, const char* name>
Function Next() {
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  return next;
}

// libllama's definition of any function of llama.h.
#define UPSTREAM(name) \
  reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name))

// llama.cpp and the adapter call hooked functions too. While an Inside lives, hooks in
// this thread only pass the call on.
inline thread_local bool inside = false;
class Inside {
 public:
  Inside() : before_(inside) { inside = true; }
  ~Inside() { inside = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool before_;
};

}  // namespace kvevict::llama_preload

#endif  // KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_HOOK_H_
