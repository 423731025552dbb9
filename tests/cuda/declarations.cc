// declarations.sh only compiles this: the library's declarations of the driver API
// and of NVRTC agree with NVIDIA's headers as far as calls through them can tell.
#include <cuda.h>
#include <nvrtc.h>

#include <string_view>
#include <type_traits>

#if CUDA_VERSION < 12080  // their header does not have them
enum { CUDA_ERROR_CONTAINED = 226, CUDA_ERROR_TENSOR_MEMORY_LEAK = 721 };
#endif
#include "enumerators.inc"  // static_assert(CUDA_ERROR_OUT_OF_MEMORY == 2); ...

// NVIDIA's enums are our numbers, and their handles our pointers.
template <class A, class B>
constexpr bool kPassedAlike =
    sizeof(A) == sizeof(B) &&
    std::is_pointer_v<A> ==
        std::is_pointer_v<B>&& std::is_floating_point_v<A> ==
        std::is_floating_point_v<B>;

template <class F, class G>
constexpr bool kCalledAlike = false;
template <class R, class... A, class S, class... B>
requires(sizeof...(A) ==
         sizeof...(B)) constexpr bool kCalledAlike<R(A...), S(B...)> =
    kPassedAlike<R, S> && (kPassedAlike<A, B> && ...);

#define KV_TEXT(x) #x
#define KV_EXPANDED_TEXT(x) KV_TEXT(x)

// The headers make macros of names: cuMemAlloc is cuMemAlloc_v2. Later headers may
// name later versions, which drivers have beside earlier ones.
#define KVEVICT_DRIVER(name, symbol, need, ...)                      \
  static_assert(CUDA_VERSION > 12040 ||                              \
                std::string_view(KV_EXPANDED_TEXT(name)) == symbol); \
  static_assert(kCalledAlike<CUresult(__VA_ARGS__), decltype(name)>);
#include "cuda/driver_functions.inc"

#define KVEVICT_NVRTC(name, ...) \
  static_assert(kCalledAlike<nvrtcResult(__VA_ARGS__), decltype(name)>);
#include "cuda/nvrtc_functions.inc"
