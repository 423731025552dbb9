// Allocations, copies and fills.
#include "tests/rig/mock/mock_test.h"

namespace kvevict::mock {
namespace {

TestSuite(mock_memory);

Test(mock_memory, ranges) {
  const Device device;
  const CUdeviceptr a = device.Allocate(16);
  uint32_t words[8] = {};
  cr_expect_eq(device.d.cuMemcpyHtoD(a, words, 17), 1);
  ExpectProblem("17 bytes");
  cr_expect_eq(device.d.cuMemcpyDtoHAsync(words, a + 12, 8, nullptr), 1);
  ExpectProblem("8 bytes");
  cr_expect_eq(device.d.cuMemsetD32Async(a + 2, 0, 1, nullptr), 1);
  ExpectProblem("misaligned");
  cr_expect_eq(device.d.cuMemcpyDtoDAsync(a + 4, a, 8, nullptr), 1);
  ExpectProblem("overlap");
  cr_expect_eq(device.d.cuMemFree(a + 4), 1);
  ExpectProblem("no allocation");
}

Test(mock_memory, is_not_zero_at_first) {
  const Device device;
  cr_expect_eq(device.Word(device.Allocate(4)), 0xFFFFFFFFu);
}

// Page-locked memory is read when the stream gets there, other memory at once.
Test(mock_memory, when_the_host_is_read) {
  const Device device;
  const CUdeviceptr a = device.Allocate(8);
  const CUstream stream = device.MakeStream();
  uint32_t pageable = 1;
  void* locked = nullptr;
  cr_assert_eq(device.d.cuMemAllocHost(&locked, 4), 0);
  *static_cast<uint32_t*>(locked) = 1;
  cr_expect_eq(device.d.cuMemcpyHtoDAsync(a, &pageable, 4, stream), 0);
  cr_expect_eq(device.d.cuMemcpyHtoDAsync(a + 4, locked, 4, stream), 0);
  pageable = 2;
  *static_cast<uint32_t*>(locked) = 2;
  cr_expect_eq(device.Word(a), 1u);
  cr_expect_eq(device.Word(a + 4), 2u);
  cr_expect_eq(device.d.cuMemFreeHost(locked), 0);
}

Test(mock_memory, waits_until_somebody_synchronises) {
  const Device device;
  const CUdeviceptr a = device.Allocate(4);
  const CUstream stream = device.MakeStream();
  uint32_t word = 5;
  cr_expect_eq(device.d.cuMemsetD32Async(a, 9, 1, stream), 0);
  cr_expect_eq(device.d.cuMemcpyDtoHAsync(&word, a, 4, stream), 0);
  cr_expect_eq(word, 5u);
  cr_expect_eq(Pending(), 2u);
  cr_expect_eq(Waits(), 0u);
  cr_expect_eq(device.d.cuStreamSynchronize(stream), 0);
  cr_expect_eq(word, 9u);
  cr_expect_eq(Pending(), 0u);
  cr_expect_eq(Waits(), 1u);
}

Test(mock_memory, an_end) {
  const Device device({.memory_bytes = 1000});
  const CUdeviceptr a = device.Allocate(600);
  CUdeviceptr b = 0;
  cr_expect_eq(device.d.cuMemAlloc(&b, 600), 2);
  cr_expect_eq(device.d.cuMemFree(a), 0);
  cr_expect_eq(device.d.cuMemAlloc(&b, 600), 0);
  cr_expect_eq(device.d.cuMemAlloc(&b, 0), 1);
  ExpectProblem("0 bytes");
}

}  // namespace
}  // namespace kvevict::mock
