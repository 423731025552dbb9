// local LLAMA ADAPTER: a program that links neither and loads both for itself
// alone, as ctypes does.
#include <dlfcn.h>
#include <kvevict-llama.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

template <typename Function>
Function* Get(void* library, const char* name) {
  void* const address = dlsym(library, name);
  if (address == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Function*>(address);
}

}  // namespace

int main(int, char** argv) {
  void* const llama = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void* const adapter = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (llama == nullptr || adapter == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto create =
      Get<decltype(kvevict_llama_create)>(adapter, "kvevict_llama_create");
  const auto attach =
      Get<decltype(kvevict_llama_attach)>(adapter, "kvevict_llama_attach");
  const auto use =
      Get<decltype(kvevict_llama_use)>(adapter, "kvevict_llama_use");
  const auto message = Get<decltype(kvevict_llama_last_error_message)>(
      adapter, "kvevict_llama_last_error_message");
  int failures = 0;
  const auto expect = [&](kvevict_status got, kvevict_status wanted,
                          const char* words) {
    const std::string said = got != KVEVICT_OK ? message() : "";
    if (got == wanted && said.find(words) != std::string::npos) return;
    std::fprintf(stderr, "status %d instead of %d, \"%s\" instead of \"%s\"\n",
                 got, wanted, said.c_str(), words);
    ++failures;
  };

  kvevict_llama* kv = nullptr;
  expect(create("snapkv:budget=64", nullptr, &kv), KVEVICT_OK, "");
  // An attachment calls this function first.
  expect(attach(kv, nullptr), KVEVICT_ERROR_UNSUPPORTED,
         "the program has no ggml_op_name(): libllama is not loaded, or its "
         "symbols are hidden; name it by kvevict_llama_use()");
  expect(use(nullptr, nullptr), KVEVICT_ERROR_INVALID_ARGUMENT, "exactly one");
  expect(use(argv[1], llama), KVEVICT_ERROR_INVALID_ARGUMENT, "exactly one");
  expect(use("/nowhere/libllama.so", nullptr), KVEVICT_ERROR_UNAVAILABLE,
         "/nowhere/libllama.so");
  expect(use(argv[2], nullptr), KVEVICT_ERROR_UNSUPPORTED, "() there");
  expect(attach(kv, nullptr), KVEVICT_ERROR_UNSUPPORTED, "the program has no");
  expect(use(argv[1], nullptr), KVEVICT_OK, "");
  expect(attach(kv, nullptr), KVEVICT_ERROR_INVALID_ARGUMENT, "ctx is NULL");
  expect(use(nullptr, llama), KVEVICT_OK, "");
  Get<decltype(kvevict_llama_destroy)>(adapter, "kvevict_llama_destroy")(kv);
  return failures;
}
