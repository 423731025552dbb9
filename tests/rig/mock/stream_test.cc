// The order that streams and events give, and no other.
#include "tests/rig/mock/mock_test.h"

namespace kvevict::mock {
namespace {

constexpr unsigned kNonBlocking = cuda::CU_STREAM_NON_BLOCKING;

TestSuite(mock_streams);

// The result of two streams in many turns: the sum of 1 and 2 means both.
uint32_t SeenAfter(unsigned flags, bool with_event, bool by_legacy) {
  const Device device;
  const CUdeviceptr a = device.Allocate(4);
  const CUstream first = device.MakeStream(flags);
  const CUstream second = by_legacy ? nullptr : device.MakeStream(kNonBlocking);
  cuda::CUevent event = nullptr;
  cr_assert_eq(device.d.cuEventCreate(&event, 0), 0);
  uint32_t seen = 0;
  for (int turn = 0; turn < 30; ++turn) {
    cr_expect_eq(device.d.cuMemsetD32Async(a, 1, 1, first), 0);
    if (with_event) {
      cr_expect_eq(device.d.cuEventRecord(event, first), 0);
      cr_expect_eq(device.d.cuStreamWaitEvent(second, event, 0), 0);
    }
    cr_expect_eq(device.d.cuMemsetD32Async(a, 2, 1, second), 0);
    cr_expect_eq(device.d.cuCtxSynchronize(), 0);
    seen |= device.Word(a);
  }
  ExpectNoProblems();
  return seen;
}

Test(mock_streams, only_events_order_them) {
  cr_expect_eq(SeenAfter(kNonBlocking, false, false), 3u);
  cr_expect_eq(SeenAfter(kNonBlocking, true, false), 2u);
}

Test(mock_streams, the_legacy_stream_takes_turns_with_blocking_ones) {
  cr_expect_eq(SeenAfter(0, false, true), 2u);
  cr_expect_eq(SeenAfter(kNonBlocking, false, true), 3u);
}

Test(mock_streams, waiting_for_one_leaves_the_other) {
  const Device device;
  const CUdeviceptr a = device.Allocate(4);
  const CUstream first = device.MakeStream(kNonBlocking);
  const CUstream second = device.MakeStream(kNonBlocking);
  cr_expect_eq(device.d.cuMemsetD32Async(a, 1, 1, first), 0);
  cr_expect_eq(device.d.cuMemsetD32Async(a, 2, 1, second), 0);
  cr_expect_eq(device.d.cuStreamSynchronize(second), 0);
  cr_expect_eq(Pending(), 1u);
  cr_expect_eq(device.d.cuStreamSynchronize(first), 0);
  cr_expect_eq(Pending(), 0u);
  cr_expect_eq(device.Word(a), 1u);
}

// An event stands for the work queued when it was recorded.
Test(mock_streams, what_comes_after_an_event_is_not_awaited) {
  const Device device;
  const CUdeviceptr a = device.Allocate(4);
  const CUstream first = device.MakeStream(kNonBlocking);
  const CUstream second = device.MakeStream(kNonBlocking);
  cuda::CUevent event = nullptr;
  cr_assert_eq(device.d.cuEventCreate(&event, 0), 0);
  cr_expect_eq(device.d.cuStreamWaitEvent(second, event, 0), 0);  // no work yet
  cr_expect_eq(device.d.cuMemsetD32Async(a, 1, 1, first), 0);
  cr_expect_eq(device.d.cuEventRecord(event, first), 0);
  cr_expect_eq(device.d.cuMemsetD32Async(a, 3, 1, first), 0);
  cr_expect_eq(device.d.cuStreamWaitEvent(second, event, 0), 0);
  cr_expect_eq(device.d.cuMemsetD32Async(a, 2, 1, second), 0);
  cr_expect_eq(device.d.cuStreamSynchronize(second), 0);
  cr_expect_eq(Pending(), 1u);
  cr_expect_eq(device.Word(a), 3u);
}

// The mock cannot capture two streams of a graph in one.
Test(mock_streams, captures_know_no_events) {
  const Device device;
  const CUstream stream = device.MakeStream(kNonBlocking);
  cuda::CUevent event = nullptr;
  cr_assert_eq(device.d.cuEventCreate(&event, 0), 0);
  cr_assert_eq(device.d.cuStreamBeginCapture(
                   stream, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
               0);
  cr_expect_eq(device.d.cuStreamWaitEvent(stream, event, 0), 900);
  ExpectProblem("know no events");
}

}  // namespace
}  // namespace kvevict::mock
