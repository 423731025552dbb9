#include "core/kernels/gather_rows.h"

#include <algorithm>
#include <cstring>

namespace kvevict {
namespace {

// Far enough ahead that a scattered row has come from memory when it is its turn.
constexpr uint32_t kPrefetchBytes = 8192;
constexpr uint32_t kCacheLine = 64;

// The cache is the caller's and writable; kernels that only read see it const.
uint8_t* Writable(const uint8_t* p) { return const_cast<uint8_t*>(p); }

// The length of the run of adjacent survivors that starts at place i.
uint32_t RunLength(const int32_t* keep, uint32_t i, uint32_t n_keep) {
  uint32_t n = 1;
  while (i + n < n_keep && keep[i + n] == keep[i] + static_cast<int32_t>(n)) {
    ++n;
  }
  return n;
}

// Rows that lie end to end: a run of survivors moves as one block.
void GatherRuns(const GatherRowsArgs& a, uint32_t begin) {
  const size_t bytes = a.row_bytes;
  uint8_t* base = Writable(a.rows.base);
  for (uint32_t i = begin; i < a.n_keep;) {
    const uint32_t run = RunLength(a.keep, i, a.n_keep);
    if (i + run < a.n_keep) {
      // The head of the next run; the hardware follows it from there.
      const uint8_t* next = base + a.keep[i + run] * bytes;
      for (uint32_t b = 0; b < std::min<size_t>(bytes, 4 * kCacheLine);
           b += kCacheLine) {
        __builtin_prefetch(next + b);
      }
    }
    std::memmove(base + i * bytes, base + a.keep[i] * bytes, run * bytes);
    i += run;
  }
}


// Copies n bytes that do not overlap; n >= 64 takes whole and one overlapping last
// chunk, which the compiler turns into vector moves.
inline void CopyRow(uint8_t* to, const uint8_t* from, uint32_t n) {
  if (n < kCacheLine) {
    std::memcpy(to, from, n);
    return;
  }
  uint32_t b = 0;
  for (; b + kCacheLine <= n; b += kCacheLine) {
    std::memcpy(to + b, from + b, kCacheLine);
  }
  std::memcpy(to + n - kCacheLine, from + n - kCacheLine, kCacheLine);
}

// Rows with anything between them.
void GatherSpread(const GatherRowsArgs& a, uint32_t begin) {
  const uint32_t ahead =
      std::max(1u, kPrefetchBytes / std::max(a.row_bytes, kCacheLine));
  for (uint32_t i = begin; i < a.n_keep; ++i) {
    if (i + ahead < a.n_keep) {
      const uint8_t* next = a.rows.Row(a.keep[i + ahead]);
      for (uint32_t b = 0; b < a.row_bytes; b += kCacheLine) {
        __builtin_prefetch(next + b);
      }
    }
    CopyRow(Writable(a.rows.Row(i)), a.rows.Row(a.keep[i]), a.row_bytes);
  }
}

}  // namespace

void GatherRowsInPlace(const GatherRowsArgs& args) {
  // What is in place already stays untouched.
  uint32_t begin = 0;
  while (begin < args.n_keep &&
         args.keep[begin] == static_cast<int32_t>(begin)) {
    ++begin;
  }
  GatherRowsArgs piece = args;
  for (uint32_t e = 0; e < args.n_elements; ++e) {
    if (args.rows.block_size == 0 &&
        args.rows.row_stride == int64_t{args.row_bytes}) {
      GatherRuns(piece, begin);
    } else {
      GatherSpread(piece, begin);
    }
    piece.rows.base += args.element_stride_bytes;
  }
}

}  // namespace kvevict
