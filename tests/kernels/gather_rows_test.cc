// Compaction of rows against a copy, on every target; nothing else is touched.
#include "core/kernels/gather_rows.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr uint32_t kRows = 40;

std::vector<int32_t> RandomKeep(Random& random) {
  std::vector<int32_t> all(kRows), keep;
  std::iota(all.begin(), all.end(), 0);
  const uint32_t density = 1 + random.Below(10);
  const bool runs = random.Below(2) == 0;
  for (int32_t row : all) {
    const uint32_t draw =
        runs ? static_cast<uint32_t>(row / 5 * 7 % 10) : random.Below(10);
    if (draw < density) keep.push_back(row);
  }
  return keep;
}

// Moves kept rows of `args`, whose rows lie in `memory`, and checks every byte.
void ExpectMoved(GatherRowsArgs args, GuardedPages& memory, size_t n_bytes,
                 const std::vector<int32_t>& keep, const char* what) {
  const std::vector<uint8_t> before(memory.data(), memory.data() + n_bytes);
  std::vector<uint8_t> expected = before;
  std::vector<bool> is_row(n_bytes,
                           false);  // of a row whose content is open now
  const auto offset = [&](uint32_t row, uint32_t element) {
    return static_cast<size_t>(args.rows.Row(row) - memory.data() +
                               element * args.element_stride_bytes);
  };
  for (uint32_t e = 0; e < args.n_elements; ++e) {
    for (uint32_t i = 0; i < kRows; ++i) {
      for (uint32_t b = 0; b < args.row_bytes; ++b) {
        is_row[offset(i, e) + b] = i >= keep.size();
      }
    }
    for (uint32_t i = 0; i < keep.size(); ++i) {
      std::memcpy(&expected[offset(i, e)],
                  &before[offset(static_cast<uint32_t>(keep[i]), e)],
                  args.row_bytes);
    }
  }
  args.keep = keep.data();
  args.n_keep = static_cast<uint32_t>(keep.size());
  GatherRowsInPlace(args);
  for (size_t i = 0; i < n_bytes; ++i) {
    if (memory.data()[i] != expected[i] && !is_row[i]) {
      cr_assert_fail("%s, rows of %u bytes, %zu kept: byte %zu", what,
                     args.row_bytes, keep.size(), i);
    }
  }
}

void Fill(GuardedPages& memory, size_t n_bytes, Random& random) {
  for (size_t i = 0; i < n_bytes; ++i) {
    memory.data()[i] = static_cast<uint8_t>(random.Next());
  }
}

constexpr auto kEnds = {GuardedPages::Against::kEnd,
                        GuardedPages::Against::kBegin};

TestSuite(gather_rows);

Test(gather_rows, packed_rows_of_every_size) {
  Random random(TestSeed("gather_rows/packed_rows_of_every_size"));
  ForEachTarget([&](const char* target) {
    for (uint32_t bytes = 1; bytes <= 5000; bytes += 1 + bytes / 9) {
      for (const auto against : kEnds) {
        GuardedPages memory(kRows * bytes, against);
        Fill(memory, kRows * bytes, random);
        GatherRowsArgs args;
        args.rows.base = memory.data();
        args.rows.row_stride = bytes;
        args.row_bytes = bytes;
        ExpectMoved(args, memory, kRows * bytes, RandomKeep(random), target);
      }
    }
  });
}

Test(gather_rows, rows_with_gaps_and_from_the_end) {
  Random random(TestSeed("gather_rows/rows_with_gaps_and_from_the_end"));
  ForEachTarget([&](const char* target) {
    for (uint32_t bytes : {1u, 3u, 16u, 33u, 64u, 129u, 2048u, 2049u}) {
      for (uint32_t gap : {0u, 1u, 7u}) {
        for (bool backwards : {false, true}) {
          const size_t n_bytes = kRows * (bytes + gap) - gap;
          GuardedPages memory(n_bytes);
          Fill(memory, n_bytes, random);
          GatherRowsArgs args;
          args.row_bytes = bytes;
          args.rows.row_stride = int64_t{bytes} + gap;
          args.rows.base = memory.data();
          if (backwards) {
            args.rows.base += n_bytes - bytes;
            args.rows.row_stride = -args.rows.row_stride;
          }
          ExpectMoved(args, memory, n_bytes, RandomKeep(random), target);
        }
      }
    }
  });
}

Test(gather_rows, rows_whose_elements_are_apart) {
  Random random(TestSeed("gather_rows/rows_whose_elements_are_apart"));
  ForEachTarget([&](const char* target) {
    for (uint32_t element : {1u, 2u, 4u}) {
      for (uint32_t n_elements : {2u, 5u, 64u}) {
        const size_t n_bytes = size_t{kRows} * n_elements * element;
        GuardedPages memory(n_bytes);
        Fill(memory, n_bytes, random);
        GatherRowsArgs args;  // transposed: [n_elements, rows]
        args.rows.base = memory.data();
        args.rows.row_stride = element;
        args.row_bytes = element;
        args.n_elements = n_elements;
        args.element_stride_bytes = int64_t{kRows} * element;
        ExpectMoved(args, memory, n_bytes, RandomKeep(random), target);
      }
    }
  });
}

Test(gather_rows, paged_rows) {
  Random random(TestSeed("gather_rows/paged_rows"));
  ForEachTarget([&](const char* target) {
    for (uint32_t block_size : {1u, 3u, 8u, 64u}) {
      for (uint32_t bytes : {2u, 40u, 256u, 4096u}) {
        const uint32_t n_blocks = (kRows + block_size - 1) / block_size;
        std::vector<int32_t> table(n_blocks);
        std::iota(table.begin(), table.end(), 0);
        for (uint32_t i = n_blocks; i > 1; --i) {
          std::swap(table[i - 1], table[random.Below(i)]);
        }
        const size_t block_bytes = size_t{block_size} * bytes + 5;
        const size_t n_bytes = n_blocks * block_bytes - 5;
        GuardedPages memory(n_bytes);
        Fill(memory, n_bytes, random);
        GatherRowsArgs args;
        args.rows.base = memory.data();
        args.rows.row_stride = bytes;
        args.rows.block_size = block_size;
        args.rows.block_stride = static_cast<int64_t>(block_bytes);
        args.rows.block_table = table.data();
        args.row_bytes = bytes;
        ExpectMoved(args, memory, n_bytes, RandomKeep(random), target);
      }
    }
  });
}

}  // namespace
}  // namespace kvevict
