// Engines' layouts at the size of a model: none counts as an overlap, but each does
// when one layer is a byte off.
#include "core/view/overlap.h"

#include <criterion/criterion.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/view/view.h"
#include "tests/kernels/random.h"

namespace kvevict {
namespace {

constexpr uint32_t kLayers = 80;
constexpr int64_t kHeads = 8;
constexpr int64_t kRow = 256;  // 128 elements of two bytes
constexpr int64_t kToken = kHeads * kRow;
constexpr int64_t kTokens = 16384;
constexpr int64_t kBlock = 16;
constexpr int64_t kBlocks = kTokens / kBlock;
constexpr int64_t kPoolBlocks = 3 * kLayers * kBlocks;  // a third in use
constexpr int64_t kBase = int64_t{1} << 40;             // nothing is read there

// Layers, and the memory that their views point to.
struct Model {
  std::vector<kvevict_view> views = std::vector<kvevict_view>(kLayers);
  std::vector<kvevict_plane> companions =
      std::vector<kvevict_plane>(2 * kLayers);
  std::vector<std::vector<int32_t>> tables;
  std::vector<uint32_t> lengths = std::vector<uint32_t>(kLayers, kTokens);

  Model() {
    for (kvevict_view& view : views) {
      view = KVEVICT_VIEW_INIT;
      view.n_kv_heads = kHeads;
    }
  }
  // Scales: 4 bytes per token and head.
  kvevict_plane& Companion(uint32_t layer) {
    kvevict_view& view = views[layer];
    view.companions = &companions[2 * layer];
    kvevict_plane& plane = companions[2 * layer + view.n_companions++];
    plane.dtype = KVEVICT_DTYPE_OPAQUE;
    plane.row_bytes = 4;
    return plane;
  }
  void Table(uint32_t layer, const std::vector<int32_t>& ids,
             uint32_t block_size) {
    views[layer].block_size = block_size;
    views[layer].block_table = ids.data();
    views[layer].block_table_len = ids.size();
  }
  // One permuted table for all layers.
  void OneTable(uint32_t block_size) {
    tables.push_back(Permutation(kPoolBlocks, kTokens / block_size, 0)[0]);
    for (uint32_t l = 0; l < kLayers; ++l) Table(l, tables[0], block_size);
  }
  // Blocks of one pool, dealt to the layers.
  void TableEach() {
    tables = Permutation(kPoolBlocks, kBlocks, kLayers - 1);
    for (uint32_t l = 0; l < kLayers; ++l) Table(l, tables[l], kBlock);
  }
  static std::vector<std::vector<int32_t>> Permutation(int64_t n, int64_t each,
                                                       uint32_t more) {
    std::vector<int32_t> ids(n);
    std::iota(ids.begin(), ids.end(), 0);
    Random random(7);
    for (int64_t i = n - 1; i > 0; --i) {
      std::swap(ids[i], ids[random.Below(static_cast<uint32_t>(i + 1))]);
    }
    std::vector<std::vector<int32_t>> tables;
    for (int64_t l = 0; l <= more; ++l) {
      tables.emplace_back(ids.begin() + l * each, ids.begin() + (l + 1) * each);
    }
    return tables;
  }
};

kvevict_plane Rows(int64_t offset, int64_t token, int64_t head,
                   int64_t block = 0, uint32_t head_dim = kRow / 2,
                   int64_t element = 0) {
  kvevict_plane plane{};
  plane.data = static_cast<uint64_t>(kBase + offset);
  plane.dtype = KVEVICT_DTYPE_BF16;
  plane.head_dim = head_dim;
  plane.token_stride_bytes = token;
  plane.head_stride_bytes = head;
  plane.block_stride_bytes = block;
  plane.element_stride_bytes = element;
  return plane;
}

// Which block tables the layers have.
enum class Tables { kNone, kOneOfBlocks, kOneOfTokens, kEach };

struct Layout {
  const char* name;
  Tables tables;
  std::function<void(Model*, uint32_t)> set_layer;

  void Build(Model* m) const {
    if (tables == Tables::kOneOfBlocks) m->OneTable(kBlock);
    if (tables == Tables::kOneOfTokens) m->OneTable(1);
    if (tables == Tables::kEach) m->TableEach();
    for (uint32_t l = 0; l < kLayers; ++l) set_layer(m, l);
  }
};

const std::vector<Layout>& Layouts() {
  static const std::vector<Layout> layouts = {
      {"[L, 2, S, H, D]", Tables::kNone,
       [](Model* m, uint32_t l) {
         m->views[l].k = Rows(2 * l * kTokens * kToken, kToken, kRow);
         m->views[l].v = Rows((2 * l + 1) * kTokens * kToken, kToken, kRow);
       }},
      {"[L, 2, H, S, D]", Tables::kNone,
       [](Model* m, uint32_t l) {
         m->views[l].k = Rows(2 * l * kTokens * kToken, kRow, kTokens * kRow);
         m->views[l].v =
             Rows((2 * l + 1) * kTokens * kToken, kRow, kTokens * kRow);
       }},
      {"[S, L, 2, H, D]: all layers of a token together", Tables::kNone,
       [](Model* m, uint32_t l) {
         constexpr int64_t kAll = 2 * kLayers * kToken;
         m->views[l].k = Rows(2 * l * kToken, kAll, kRow);
         m->views[l].v = Rows((2 * l + 1) * kToken, kAll, kRow);
       }},
      {"[L, S, H, 2, D]: K and V of a head together", Tables::kNone,
       [](Model* m, uint32_t l) {
         const int64_t base = 2 * l * kTokens * kToken;
         m->views[l].k = Rows(base, 2 * kToken, 2 * kRow);
         m->views[l].v = Rows(base + kRow, 2 * kToken, 2 * kRow);
       }},
      {"[S, L, H, D | D']: unlike head sizes in one row", Tables::kNone,
       [](Model* m, uint32_t l) {
         constexpr int64_t kAll = kLayers * kHeads * (kRow + 192);
         const int64_t base = l * kHeads * (kRow + 192);
         m->views[l].k = Rows(base, kAll, kRow);
         m->views[l].v = Rows(base + kToken, kAll, 192, 0, 96);
       }},
      {"K [H, S, D], V [H, D, S] behind it", Tables::kNone,
       [](Model* m, uint32_t l) {
         const int64_t base = 2 * l * kTokens * kToken;
         m->views[l].k = Rows(base, kRow, kTokens * kRow);
         m->views[l].v = Rows(base + kTokens * kToken, 2, kTokens * kRow, 0,
                              kRow / 2, kTokens * 2);
       }},
      {"pages [L, 2, blocks, bs, H, D], one table", Tables::kOneOfBlocks,
       [](Model* m, uint32_t l) {
         constexpr int64_t kPage = kBlock * kToken;
         m->views[l].k = Rows(2 * l * kPoolBlocks * kPage, kToken, kRow, kPage);
         m->views[l].v =
             Rows((2 * l + 1) * kPoolBlocks * kPage, kToken, kRow, kPage);
       }},
      {"pages [blocks, L, 2, H, bs, D], one table", Tables::kOneOfBlocks,
       [](Model* m, uint32_t l) {
         constexpr int64_t kPage = kBlock * kToken;
         for (int64_t p = 0; p < 2; ++p) {
           (p == 0 ? m->views[l].k : m->views[l].v) = Rows(
               (2 * l + p) * kPage, kRow, kBlock * kRow, 2 * kLayers * kPage);
         }
       }},
      {"pages [blocks, 2, bs, H, D], a table per layer", Tables::kEach,
       [](Model* m, uint32_t l) {
         constexpr int64_t kPage = kBlock * kToken;
         m->views[l].k = Rows(0, kToken, kRow, 2 * kPage);
         m->views[l].v = Rows(kPage, kToken, kRow, 2 * kPage);
       }},
      {"pages [2, blocks, bs, H, D], a table per layer", Tables::kEach,
       [](Model* m, uint32_t l) {
         constexpr int64_t kPage = kBlock * kToken;
         m->views[l].k = Rows(0, kToken, kRow, kPage);
         m->views[l].v = Rows(kPoolBlocks * kPage, kToken, kRow, kPage);
       }},
      {"pages [2, H, blocks, bs, D], a table per layer", Tables::kEach,
       [](Model* m, uint32_t l) {
         constexpr int64_t kPage = kBlock * kRow;
         m->views[l].k = Rows(0, kRow, kPoolBlocks * kPage, kPage);
         m->views[l].v = Rows(kHeads * kPoolBlocks * kPage, kRow,
                              kPoolBlocks * kPage, kPage);
       }},
      {"pages of K, V and their scales, a table per layer", Tables::kEach,
       [](Model* m, uint32_t l) {
         constexpr int64_t kPage = 2 * kBlock * (kToken + 4 * kHeads);
         m->views[l].k = Rows(0, kToken, kRow, kPage);
         m->views[l].v = Rows(kBlock * kToken, kToken, kRow, kPage);
         for (int64_t p = 0; p < 2; ++p) {
           kvevict_plane& scales = m->Companion(l);
           scales.data = kBase + 2 * kBlock * kToken + p * kBlock * kHeads * 4;
           scales.token_stride_bytes = kHeads * 4;
           scales.head_stride_bytes = 4;
           scales.block_stride_bytes = kPage;
         }
       }},
      {"token pool [L, 2, tokens, H, D], one index list", Tables::kOneOfTokens,
       [](Model* m, uint32_t l) {
         m->views[l].k =
             Rows(2 * l * kPoolBlocks * kToken, kToken, kRow, kToken);
         m->views[l].v =
             Rows((2 * l + 1) * kPoolBlocks * kToken, kToken, kRow, kToken);
       }},
      {"pages allocated one by one, of two sizes", Tables::kNone,
       [](Model* m, uint32_t l) {
         // The address counts in units of the page.
         const int64_t page = (l % 2 + 1) * 2 * kBlock * kToken;
         std::vector<int32_t> ids(kBlocks);
         for (size_t i = 0; i < ids.size(); ++i) {
           ids[i] = static_cast<int32_t>(l % 2 == 0 ? 4 * (i * kLayers + l)
                                                    : 2 * (i * kLayers + l));
         }
         m->tables.push_back(ids);
         m->Table(l, m->tables.back(), kBlock);
         m->lengths[l] = static_cast<uint32_t>(ids.size() * kBlock);
         m->views[l].k = Rows(0, kToken, kRow, page);
         m->views[l].v = Rows(kBlock * kToken, kToken, kRow, page);
       }},
      {"layers without pages between a pool's blocks", Tables::kNone,
       [](Model* m, uint32_t l) {
         constexpr int64_t kPage = 2 * kBlock * kToken;
         if (l == 0) {
           m->tables = {{}};
           for (int64_t b = 0; b < kBlocks; ++b) {
             m->tables[0].push_back(static_cast<int32_t>(
                 b < kBlocks / 2 ? b : b + 3 * kBlocks * kLayers));
           }
           m->views[l].k = Rows(0, kToken, kRow, kPage);
           m->views[l].v = Rows(kBlock * kToken, kToken, kRow, kPage);
           m->Table(l, m->tables[0], kBlock);
         } else {
           const int64_t base = (kBlocks + l * kBlocks) * kPage;
           m->views[l].k = Rows(base, kToken, kRow);
           m->views[l].v = Rows(base + kTokens * kToken, kToken, kRow);
         }
       }},
      {"one row of 576 per token, with positions beside it", Tables::kNone,
       [](Model* m, uint32_t l) {
         m->views[l].n_kv_heads = 1;
         m->views[l].k = Rows(int64_t{l} * kTokens * 1160, 1160, 0, 0, 576);
         kvevict_plane& positions = m->Companion(l);
         positions.data = m->views[l].k.data + 1152;
         positions.token_stride_bytes = 1160;
         positions.row_bytes = 8;
       }},
  };
  return layouts;
}

std::vector<LayerCache> CachesOf(const Model& m, bool on_host = true) {
  std::vector<LayerCache> caches;
  for (uint32_t l = 0; l < kLayers; ++l) {
    caches.push_back(CacheOf(m.views[l], l, m.lengths[l], on_host));
  }
  FindShared(caches);
  return caches;
}

TestSuite(overlap);

Test(overlap, layouts_of_engines_are_apart) {
  for (const Layout& layout : Layouts()) {
    Model m;
    layout.Build(&m);
    for (const bool on_host : {true, false}) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        const Status status = ValidateView(m.views[l], m.lengths[l], on_host);
        if (!status.ok()) {
          cr_assert_fail("%s: layer %u: %s", layout.name, l,
                         LastErrorMessage());
        }
      }
      const auto start = std::chrono::steady_clock::now();
      const std::vector<LayerCache> caches = CachesOf(m, on_host);
      const Status status = CheckApart("views", caches);
      const std::chrono::duration<double, std::milli> ms =
          std::chrono::steady_clock::now() - start;
      std::fprintf(stderr, "%-52s %s %6.2f ms\n", layout.name,
                   on_host ? "host  " : "device", ms.count());
      if (!status.ok()) {
        cr_assert_fail("%s: %s", layout.name, LastErrorMessage());
      }
      for (uint32_t l = 0; l < kLayers; ++l) {
        cr_assert(caches[l].owner == l && caches[l].shared_companions == 0);
      }
    }
  }
}

// A layer has the cache of the one before, a byte off.
Test(overlap, a_byte_off_is_found) {
  for (const Layout& layout : Layouts()) {
    for (const int64_t step : {-1, 1}) {
      Model m;
      layout.Build(&m);
      m.views[50] = m.views[49];
      m.lengths[50] = m.lengths[49];
      cr_expect(CheckApart("views", CachesOf(m)).ok(), "%s: %s", layout.name,
                LastErrorMessage());
      cr_expect_eq(CachesOf(m)[50].owner, 49);
      m.views[50].k.data += static_cast<uint64_t>(step);
      cr_expect_not(CheckApart("views", CachesOf(m)).ok(), "%s", layout.name);
      cr_expect_not_null(std::strstr(LastErrorMessage(), "views[50].k"), "%s",
                         LastErrorMessage());
    }
  }
}

// Layers that share a pool's block are found through their tables.
Test(overlap, a_block_in_two_tables_is_found) {
  Model m;
  Layouts()[8].Build(&m);
  for (uint32_t l = 1; l < kLayers; ++l) {
    const int32_t own = m.tables[l][3 * l];
    m.tables[l][3 * l] = m.tables[l - 1][5 * l];
    m.Table(l, m.tables[l], kBlock);
    cr_assert_not(CheckApart("views", CachesOf(m)).ok());
    const std::string names = "views[" + std::to_string(l - 1) + "]";
    cr_assert(std::string(LastErrorMessage()).find(names) != std::string::npos,
              "%s", LastErrorMessage());
    m.tables[l][3 * l] = own;
  }
  cr_assert(CheckApart("views", CachesOf(m)).ok());
}

// A call's memory ends a byte before all rows, or lies on one of them. A host sees
// its own caches, and a device's whose block tables it cannot read.
Test(overlap, memory_on_a_row_is_found) {
  const auto is_apart = [](uint64_t address, uint64_t n_bytes,
                           const std::vector<LayerCache>& caches) {
    return CheckApartFrom("workspace", reinterpret_cast<void*>(address),
                          n_bytes, "views", caches)
        .ok();
  };
  for (const Layout& layout : Layouts()) {
    Model m;
    layout.Build(&m);
    const kvevict_view& view = m.views[50];
    const bool is_paged = view.block_size != 0;
    const int64_t block = is_paged ? view.block_table[0] : 0;
    const uint64_t row =
        view.k.data + static_cast<uint64_t>(block * view.k.block_stride_bytes);
    for (const bool on_host : {true, false}) {
      const std::vector<LayerCache> caches = CachesOf(m, on_host);
      for (const uint64_t n : {0, 1, 63, 64, 4096}) {
        cr_expect(is_apart(kBase - n, n, caches), "%s: %s", layout.name,
                  LastErrorMessage());
        if (n == 0 || (is_paged && !on_host)) continue;
        cr_expect_not(is_apart(row - n + 1, n, caches), "%s: %llu bytes",
                      layout.name, static_cast<unsigned long long>(n));
      }
      if (is_paged && !on_host) continue;
      cr_expect_not(is_apart(row, 1, caches), "%s", layout.name);
      cr_expect_not_null(std::strstr(LastErrorMessage(), "overlaps views[50]"),
                         "%s: %s", layout.name, LastErrorMessage());
    }
  }
}

}  // namespace
}  // namespace kvevict
