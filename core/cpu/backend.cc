// The CPU's implementation of the backend table: memory, and what operations
// share. The operations are in the other files of this folder.
#include "core/backend.h"

#include <cstring>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/parts.h"

namespace kvevict {

namespace cpu {

Reduce ToReduce(kvevict_reduce reduce) {
  switch (reduce) {
    case KVEVICT_REDUCE_MAX:
      return Reduce::kMax;
    case KVEVICT_REDUCE_SUM:
      return Reduce::kSum;
    case KVEVICT_REDUCE_MEAN:
      return Reduce::kMean;
  }
  return Reduce::kMean;  // policies have been checked
}

CheckedSize SharesOf(const Context& context, CheckedSize bytes) {
  return bytes.AlignUp(kCacheLine) * CheckedSize(context.n_workers());
}

std::span<uint8_t> ShareOf(const Context& context, std::span<uint8_t> scratch,
                           uint32_t worker) {
  const size_t share =
      scratch.size() / context.n_workers() / kCacheLine * kCacheLine;
  return scratch.subspan(worker * share, share);
}

CheckedSize GroupRowsBytes(const kvevict_layer_geometry& g, uint32_t n_tokens) {
  return (CheckedSize(g.n_q_heads / g.n_kv_heads) * CheckedSize(n_tokens) *
          CheckedSize(sizeof(float)))
      .AlignUp(kCacheLine);
}

CheckedSize QueryTableBytes(uint32_t n_rows) {
  return (CheckedSize(n_rows) * CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

RowSource SourceOf(const QueryRows& queries, int32_t* table) {
  RowSource rows = queries.rows.Source();
  const uint32_t n_before_end = queries.ring_rows - queries.first_row;
  if (queries.n_rows <= n_before_end) {
    rows.base += int64_t{queries.first_row} * rows.row_stride;
    return rows;
  }
  for (uint32_t w = 0; w < queries.n_rows; ++w) {
    table[w] = static_cast<int32_t>(w < n_before_end ? queries.first_row + w
                                                     : w - n_before_end);
  }
  rows.block_size = 1;
  rows.block_table = table;
  rows.block_stride = rows.row_stride;
  return rows;
}

}  // namespace cpu

namespace {

using namespace cpu;  // NOLINT: this file makes one table of it

Status Check() { return Status(); }

Status Open(const Context&, const kvevict_context_options&, DeviceState** out) {
  *out = nullptr;
  return Status();
}

void Close(DeviceState*) {}

Status Prepare(const Context&) { return Status(); }

Status CheckCapture(const Context&, Stream, const Policy&, bool, bool) {
  return Status();
}

constexpr size_t kMemoryAlignment = 256;

Status Allocate(const Context& context, const char* what, size_t n_bytes,
                void** out) {
  *out = context.Allocate(n_bytes, kMemoryAlignment);
  if (*out == nullptr)
    return OutOfMemory("%s: no memory for %zu bytes", what, n_bytes);
  return Status();
}

void Free(const Context& context, void* memory, size_t n_bytes) {
  context.Free(memory, n_bytes, kMemoryAlignment);
}

Status Clear(const Context&, void* memory, size_t n_bytes) {
  std::memset(memory, 0, n_bytes);
  return Status();
}

Status Read(const Context&, Stream, const void* device, size_t n_bytes,
            void* host) {
  std::memcpy(host, device, n_bytes);
  return Status();
}

Status Write(const Context&, Stream, const void* host, size_t n_bytes,
             void* device) {
  std::memcpy(device, host, n_bytes);
  return Status();
}

Status Copy(const Context&, Stream, const void* from, size_t n_bytes,
            void* to) {
  std::memcpy(to, from, n_bytes);
  return Status();
}

// In the place of an operation that the build leaves out. Calls that need one
// have been refused.
template <typename Args>
constexpr Op<Args> kLeftOut = {[](const Context&, Stream, const Args&) {
  return Internal("an operation that this build leaves out");
}};

}  // namespace

const Backend kCpuBackend = {
    .name = "cpu",
    .workspace_alignment = kCacheLine,
    .on_host = true,
    .check = Check,
    .gpu_at = nullptr,
    .open = Open,
    .close = Close,
    .prepare = Prepare,
    .check_capture = CheckCapture,
    .allocate = Allocate,
    .free = Free,
    .clear = Clear,
    .read = Read,
    .write = Write,
    .copy = Copy,
#define KVEVICT_OP(name, Args) \
  .name = IsBuilt(#name) ? kOp_##name : kLeftOut<Args>,
#define KVEVICT_SCORE_OP(name) .name = IsBuilt(#name) ? &kOp_##name : nullptr,
#include "core/ops.inc"
};

}  // namespace kvevict
