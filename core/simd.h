// The SIMD targets of this build that this CPU can run. A context has one, and
// kernels are told which to use. Highway's own dispatch would read a variable
// of the whole process.
#ifndef KVEVICT_CORE_SIMD_H_
#define KVEVICT_CORE_SIMD_H_

#include <cstddef>
#include <cstdint>

namespace kvevict {

class Status;

struct SimdTarget {
  const char* name = nullptr;  // "AVX2"
  size_t index = 0;            // index of its functions in Highway's tables
};

// The targets, best first. Past the end it returns one without a name.
SimdTarget SimdTargetAt(uint32_t index);

// The target of that name, or the best one if it is NULL.
Status FindSimdTarget(const char* name, SimdTarget* out);

// The function in a HWY_EXPORT() table that is compiled for the target at
// `index`, or for the next worse one. Not every file is compiled for every
// target.
template <class Function, size_t n>
Function FunctionAt(Function const (&table)[n], size_t index) {
  while (table[index] == nullptr) ++index;
  return table[index];
}

// A function of HWY_EXPORT(), as compiled for `target`.
#define KV_DISPATCH(target, function) \
  (*FunctionAt(HWY_DISPATCH_TABLE(function), (target).index))

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIMD_H_
