// Captured streams, graphs, and what is illegal during a capture.
#include <functional>
#include <thread>

#include "tests/rig/mock/mock_test.h"

namespace kvevict::mock {
namespace {

constexpr unsigned kNonBlocking = cuda::CU_STREAM_NON_BLOCKING;

void Begin(
    const Device& device, CUstream stream,
    cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL) {
  cr_assert_eq(device.d.cuStreamBeginCapture(stream, mode), 0);
}

TestSuite(mock_capture);

// Each makes the capture invalid.
Test(mock_capture, unsafe_calls) {
  const Device device;
  const CUdeviceptr a = device.Allocate(4);
  const std::string ptx = AddModule();
  uint32_t word = 0;
  CUdeviceptr b = 0;
  CUmodule module = nullptr;
  CUstream stream = nullptr;
  const std::function<int()> kCalls[] = {
      [&] { return device.d.cuMemAlloc(&b, 4); },
      [&] { return device.d.cuMemFree(a); },
      [&] { return device.d.cuMemcpyHtoD(a, &word, 4); },
      [&] { return device.d.cuMemcpyDtoH(&word, a, 4); },
      [&] { return device.d.cuModuleLoadData(&module, ptx.c_str()); },
      [&] { return device.d.cuCtxSynchronize(); },
      [&] { return device.d.cuStreamSynchronize(stream); },
  };
  for (const auto& call : kCalls) {
    stream = device.MakeStream(kNonBlocking);
    Begin(device, stream);
    cr_expect_eq(call(), 900);
    ExpectProblem("captured");
    cr_expect_eq(device.d.cuMemsetD32Async(a, 0, 1, stream), 901);
    ExpectProblem("invalid");
    CUgraph graph = nullptr;
    cr_expect_eq(device.d.cuStreamEndCapture(stream, &graph), 901);
    cr_expect_null(graph);
  }
}

Test(mock_capture, the_legacy_stream) {
  const Device device;
  const CUdeviceptr a = device.Allocate(4);
  cuda::CUstreamCaptureStatus status{};
  for (const unsigned flags : {0u, kNonBlocking}) {
    const bool blocking = flags == 0;
    const CUstream stream = device.MakeStream(flags);
    Begin(device, stream);
    cr_expect_eq(device.d.cuStreamIsCapturing(nullptr, &status),
                 blocking ? 906 : 0);
    ExpectNoProblems();
    cr_expect_eq(device.d.cuMemsetD32Async(a, 0, 1, nullptr),
                 blocking ? 906 : 0);
    if (blocking) ExpectProblem("legacy default stream");
    CUgraph graph = nullptr;
    cr_expect_eq(device.d.cuStreamEndCapture(stream, &graph),
                 blocking ? 901 : 0);
  }
}

// Each thread has one and can have it captured.
Test(mock_capture, the_stream_of_the_thread) {
  const Device device;
  const auto per_thread = reinterpret_cast<CUstream>(uintptr_t{2});
  const CUdeviceptr a = device.Allocate(4);
  Begin(device, per_thread);
  cuda::CUstreamCaptureStatus status{};
  cr_expect_eq(device.d.cuStreamIsCapturing(per_thread, &status), 0);
  cr_expect_eq(status, cuda::CU_STREAM_CAPTURE_STATUS_ACTIVE);
  cr_expect_eq(device.d.cuStreamIsCapturing(nullptr, &status), 906);
  cr_expect_eq(device.d.cuMemsetD32Async(a, 0, 1, per_thread), 0);
  cr_expect_eq(Pending(), 0u);
  std::thread([&] {
    cr_assert_eq(device.d.cuCtxPushCurrent(device.context), 0);
    cr_expect_eq(device.d.cuStreamIsCapturing(per_thread, &status), 0);
    cr_expect_eq(status, cuda::CU_STREAM_CAPTURE_STATUS_NONE);
  }).join();
  CUgraph graph = nullptr;
  cr_expect_eq(device.d.cuStreamEndCapture(per_thread, &graph), 0);
  cr_expect_eq(device.d.cuGraphDestroy(graph), 0);
  cr_expect(Leaks().size() == 1, "more than the allocation");
  ExpectNoProblems();
}

Test(mock_capture, modes) {
  const Device device;
  const CUstream stream = device.MakeStream();
  const auto allocate_elsewhere = [&](int mode) {
    int result = -1;
    std::thread([&] {
      auto exchanged = static_cast<cuda::CUstreamCaptureMode>(mode);
      device.d.cuThreadExchangeStreamCaptureMode(&exchanged);
      cr_expect_eq(exchanged, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL);
      cr_assert_eq(device.d.cuCtxPushCurrent(device.context), 0);
      CUdeviceptr address = 0;
      result = device.d.cuMemAlloc(&address, 4);
    }).join();
    return result;
  };
  CUgraph graph = nullptr;
  Begin(device, stream);
  cr_expect_eq(allocate_elsewhere(2), 0);
  cr_expect_eq(allocate_elsewhere(1), 0);
  cr_expect_eq(allocate_elsewhere(0), 900);
  ClearProblems();
  cr_expect_eq(device.d.cuStreamEndCapture(stream, &graph), 901);

  Begin(device, stream, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  cr_expect_eq(allocate_elsewhere(0), 0);
  CUdeviceptr address = 0;
  cr_expect_eq(device.d.cuMemAlloc(&address, 4), 900);
  ClearProblems();
  cr_expect_eq(device.d.cuStreamEndCapture(stream, &graph), 901);

  Begin(device, stream, cuda::CU_STREAM_CAPTURE_MODE_RELAXED);
  cr_expect_eq(device.d.cuMemAlloc(&address, 4), 0);
  cr_expect_eq(device.d.cuStreamEndCapture(stream, &graph), 0);
}

Test(mock_capture, begin_and_end) {
  const Device device;
  const CUstream stream = device.MakeStream();
  CUgraph graph = nullptr;
  cr_expect_eq(device.d.cuStreamEndCapture(stream, &graph), 401);
  ExpectProblem("not captured");
  Begin(device, stream);
  cr_expect_eq(device.d.cuStreamBeginCapture(
                   stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
               401);
  ExpectProblem("captured already");
}

}  // namespace
}  // namespace kvevict::mock
