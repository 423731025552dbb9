// Two variants of one kernel file in one program keep their own constants.
#include "tests/rig/simt/variant.h"

#include <vector>

#include "tests/rig/simt/run.h"
#include "tests/thread/check.h"

namespace kvevict::cuda {
namespace step3 {
void count_steps(const VariantParams&);
}
namespace step5 {
void count_steps(const VariantParams&);
}
}  // namespace kvevict::cuda

namespace {

using kvevict::cuda::VariantParams;

uint32_t Count(void (*kernel)(const VariantParams&), uint32_t n_steps) {
  std::vector<uint32_t> out(32);
  kvevict::simt::RunAll([&](auto options) {
    return kvevict::simt::Launch(
        kernel, {}, {32}, 0,
        VariantParams{kvevict::simt::AddressOf(out), n_steps}, options);
  });
  for (const uint32_t v : out) CHECK(v == out[0]);
  return out[0];
}

}  // namespace

int main() {
  CHECK(Count(kvevict::cuda::step3::count_steps, 7) == 21);
  CHECK(Count(kvevict::cuda::step5::count_steps, 7) == 35);
  return 0;
}
