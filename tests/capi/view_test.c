#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/random.h"

/* The token, head and block stride that the plane functions give, in bytes. */
static void ExpectStrides(kvevict_plane plane, int64_t token, int64_t head,
                          int64_t block) {
  EXPECT(plane.token_stride_bytes == token && plane.head_stride_bytes == head &&
             plane.block_stride_bytes == block && plane.data == 4096,
         "strides %lld, %lld, %lld", (long long)plane.token_stride_bytes,
         (long long)plane.head_stride_bytes,
         (long long)plane.block_stride_bytes);
}

Test(view, plane_functions_make_the_common_layouts) {
  void* at = (void*)(uintptr_t)4096;
  enum { kH = 3, kD = 64, kSlots = 40, kBlock = 16 };
  for (uint32_t i = 0;; ++i) {
    kvevict_dtype_info info = {.struct_size = sizeof info};
    if (kvevict_dtype_at(i, &info) != KVEVICT_OK) break;
    const int64_t row = info.dtype == KVEVICT_DTYPE_OPAQUE
                            ? kD
                            : kD / info.block_elements * info.block_bytes;
    const kvevict_plane plane =
        kvevict_plane_token_major(at, info.dtype, kH, kD);
    EXPECT(plane.dtype == info.dtype && plane.head_dim + plane.row_bytes == kD,
           "%s", info.name);
    ExpectStrides(plane, kH * row, row, 0);
    ExpectStrides(kvevict_plane_head_major(at, info.dtype, kSlots, kD), row,
                  kSlots * row, 0);
    ExpectStrides(
        kvevict_plane_token_major_blocks(at, info.dtype, kBlock, kH, kD),
        kH * row, row, kBlock * kH * row);
    ExpectStrides(
        kvevict_plane_head_major_blocks(at, info.dtype, kBlock, kH, kD), row,
        kBlock * row, kBlock * kH * row);
  }
}

/* A token-major f32 cache of 2 heads of 4 elements; nothing is dereferenced. */
static kvevict_view Contiguous(void) {
  kvevict_view view = {.struct_size = sizeof view, .n_kv_heads = 2};
  view.k.data = 0x10000;
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = 4;
  view.k.head_stride_bytes = 16;
  view.k.token_stride_bytes = 32;
  view.v = view.k;
  view.v.data = 0x90000;
  return view;
}

static kvevict_view Paged(const int32_t* table, size_t table_len) {
  kvevict_view view = Contiguous();
  view.block_size = 4;
  view.k.block_stride_bytes = view.v.block_stride_bytes = 128;
  view.block_table = table;
  view.block_table_len = table_len;
  return view;
}

Test(view, null_and_wrong_struct_sizes_are_errors) {
  EXPECT_INVALID(kvevict_view_validate(NULL, 4), "view", "NULL");
  GROWN(kvevict_view) grown = {Contiguous()};
  EXPECT_CHECKS_STRUCT_SIZE(grown, kvevict_view_validate(&grown.value, 4));
}

Test(view, token_counts_beyond_31_bits_are_errors) {
  kvevict_view view = Contiguous();
  view.v.data = UINT64_C(1) << 40;
  EXPECT_OK(kvevict_view_validate(&view, 2147483647));
  EXPECT_INVALID(kvevict_view_validate(&view, 2147483648u), "n_tokens",
                 "2147483648");
}

/* `change` to a valid view makes it invalid for 10 tokens, and the message says
 * why. */
#define EXPECT_BREAKS(change, ...)                                 \
  do {                                                             \
    kvevict_view view = Contiguous();                              \
    EXPECT_OK(kvevict_view_validate(&view, 10));                   \
    change;                                                        \
    EXPECT_INVALID(kvevict_view_validate(&view, 10), __VA_ARGS__); \
  } while (0)

Test(view, missing_rows_are_errors) {
  EXPECT_BREAKS(view.n_kv_heads = 0, "n_kv_heads", "0");
  EXPECT_BREAKS(view.n_kv_heads = 65536, "n_kv_heads 65536", "65535");
  EXPECT_BREAKS((view.k.data = 0, view.v.data = 0), "k.data", "0");
  EXPECT_BREAKS(view.k.head_dim = 0, "k.head_dim", "0");
  EXPECT_BREAKS(view.v.head_dim = 0, "v.head_dim", "0");
  EXPECT_BREAKS((view.k.dtype = KVEVICT_DTYPE_OPAQUE, view.k.head_dim = 0),
                "k.row_bytes", "0");
}

Test(view, contradictory_planes_are_errors) {
  EXPECT_BREAKS(view.k.dtype = 99, "k.dtype", "99");
  EXPECT_BREAKS(view.v.dtype = -1, "v.dtype", "-1");
  EXPECT_BREAKS(view.k.row_bytes = 16, "k.row_bytes", "16");
  EXPECT_BREAKS((view.k.dtype = KVEVICT_DTYPE_OPAQUE, view.k.row_bytes = 16),
                "k.head_dim", "4");
  EXPECT_BREAKS((view.k.dtype = KVEVICT_DTYPE_OPAQUE, view.k.row_bytes = 16,
                 view.k.head_dim = 0, view.k.element_stride_bytes = 8),
                "element_stride_bytes", "8");
  EXPECT_BREAKS(view.k.reserved[0] = 1, "k.reserved", "1");
  EXPECT_BREAKS(view.v.reserved[2] = 2, "v.reserved", "2");
}

Test(view, absent_v_is_valid) {
  kvevict_view view = Contiguous();
  memset(&view.v, 0, sizeof view.v);
  EXPECT_OK(kvevict_view_validate(&view, 10));
}

/* A plane without an address would leave its rows behind. */
Test(view, planes_that_describe_rows_without_an_address_are_errors) {
  EXPECT_BREAKS(view.v.data = 0, "v.data is 0", "head_dim 4");
  EXPECT_BREAKS(view.k.data = 0, "k.data is 0", "head_dim 4");
  EXPECT_BREAKS((memset(&view.v, 0, sizeof view.v), view.v.row_bytes = 1),
                "v.data is 0", "row_bytes 1");
  EXPECT_BREAKS((memset(&view.v, 0, sizeof view.v), view.v.reserved[2] = 1),
                "v.data is 0");
}

Test(view, rows_that_overlap_are_errors) {
  EXPECT_BREAKS(view.k.token_stride_bytes = 31, "k", "overlap", "31");
  EXPECT_BREAKS(view.k.head_stride_bytes = 0, "k", "overlap", "0");
  EXPECT_BREAKS(view.k.element_stride_bytes = 3, "k", "overlap", "3");
}

Test(view, zero_strides_are_valid_where_there_is_one_row) {
  kvevict_view view = Contiguous();
  view.n_kv_heads = 1;
  view.k.head_stride_bytes = view.v.head_stride_bytes = 0;
  EXPECT_OK(kvevict_view_validate(&view, 10));
  view.k.token_stride_bytes = view.v.token_stride_bytes = 0;
  EXPECT_OK(kvevict_view_validate(&view, 1));
  EXPECT_OK(kvevict_view_validate(&view, 0));
  EXPECT_INVALID(kvevict_view_validate(&view, 2), "overlap");
}

Test(view, addresses_beyond_64_bits_are_errors) {
  EXPECT_BREAKS(view.k.data = UINT64_MAX - 300, "k", "64");
  EXPECT_BREAKS(view.v.token_stride_bytes = INT64_MAX, "v", "64");
  EXPECT_BREAKS(view.v.token_stride_bytes = INT64_MIN, "v", "64");
  EXPECT_BREAKS((view.k.token_stride_bytes = -32, view.k.data = 200), "k",
                "64");
}

Test(view, last_row_may_end_where_the_address_space_does) {
  kvevict_view view = Contiguous();
  view.k.data =
      UINT64_MAX - 319; /* 10 tokens of 32 bytes, the last byte is 2^64-1 */
  EXPECT_OK(kvevict_view_validate(&view, 10));
  view.k.data += 1;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "k");
}

Test(view, companions_are_checked_like_k_and_v) {
  kvevict_view view = Contiguous();
  kvevict_plane good[2] = {view.k, view.k};
  good[0].data = 0x20000;
  good[1].data = 0x30000;
  kvevict_plane companions[2] = {good[0], good[1]};
  view.n_companions = 2;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "companions", "NULL", "2");
  view.companions = companions;
  EXPECT_OK(kvevict_view_validate(&view, 10));
  companions[1].token_stride_bytes = 8;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "companions[1]", "overlap");
  companions[1] = good[1];
  companions[0].data = 0;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "companions[0]", "data");
  companions[0] = good[0];
  companions[0].dtype = 99;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "companions[0]", "99");
}

Test(view, companions_are_64_at_most) {
  kvevict_view view = Contiguous();
  kvevict_plane companions[65];
  for (uint64_t i = 0; i < 65; ++i) {
    companions[i] = view.k;
    companions[i].data = 0x100000 + 0x1000 * i;
  }
  view.companions = companions;
  view.n_companions = 64;
  EXPECT_OK(kvevict_view_validate(&view, 10));
  view.n_companions = 65;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "n_companions 65", "64");
}

Test(view, planes_that_overlap_are_errors) {
  EXPECT_BREAKS(view.v.data = view.k.data, "k", "v", "overlap");
  kvevict_view view = Contiguous();
  kvevict_plane companion = view.k;
  view.n_companions = 1;
  view.companions = &companion;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "companions[0]", "overlap");
  companion = view.v;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "companions[0]", "overlap");
  companion.data = 0x20000;
  EXPECT_OK(kvevict_view_validate(&view, 10));
}

/* The check agrees with a count of every byte for random small strides of either sign. */
Test(view, overlap_is_found_exactly_in_plain_strides) {
  test_random random = test_random_start("view overlap");
  uint32_t n_apart = 0, n_overlap = 0, n_intricate = 0;
  for (int i = 0; i < 20000; ++i) {
    kvevict_view view = Contiguous();
    view.n_kv_heads = test_random_between(&random, 1, 3);
    const uint32_t n_tokens = test_random_between(&random, 1, 4);
    view.k.dtype = KVEVICT_DTYPE_F16;
    view.k.head_dim = test_random_between(&random, 1, 3);
    int64_t* strides[] = {&view.k.token_stride_bytes, &view.k.head_stride_bytes,
                          &view.k.element_stride_bytes};
    for (int s = 0; s < 3; ++s) {
      *strides[s] = (int64_t)test_random_below(&random, 60) - 30;
    }
    view.v = view.k;
    for (int s = 0; s < 3; ++s) { /* the same axes, perhaps backwards */
      int64_t* of_v[] = {&view.v.token_stride_bytes, &view.v.head_stride_bytes,
                         &view.v.element_stride_bytes};
      if (test_random_coin(&random)) *of_v[s] = -*of_v[s];
    }
    view.v.data += (uint64_t)test_random_below(&random, 300) - 150;
    uint8_t n_uses[2][2048] = {{0}};
    for (int p = 0; p < 2; ++p) {
      const kvevict_plane* plane = p == 0 ? &view.k : &view.v;
      const int64_t element =
          plane->element_stride_bytes != 0 ? plane->element_stride_bytes : 2;
      for (uint32_t t = 0; t < n_tokens; ++t) {
        for (uint32_t h = 0; h < view.n_kv_heads; ++h) {
          for (uint32_t e = 0; e < plane->head_dim; ++e) {
            for (int b = 0; b < 2; ++b) {
              n_uses[p][1024 + (int64_t)(plane->data - view.k.data) +
                        t * plane->token_stride_bytes +
                        h * plane->head_stride_bytes + e * element + b] += 1;
            }
          }
        }
      }
    }
    bool self = false, shared = false;
    for (int b = 0; b < 2048; ++b) {
      self = self || n_uses[0][b] > 1 || n_uses[1][b] > 1;
      shared = shared || (n_uses[0][b] > 0 && n_uses[1][b] > 0);
    }
    const kvevict_status status = kvevict_view_validate(&view, n_tokens);
    if (self) {
      EXPECT(status == KVEVICT_ERROR_INVALID_ARGUMENT,
             "rows overlap, and it is no error");
    } else if (status != KVEVICT_OK && !shared) {
      /* Axes that interleave without nesting are refused even if no rows overlap, and the
       * message does not claim that they do. Nothing else is refused without need. */
      EXPECT(strstr(kvevict_last_error_message(), "rows of") != NULL &&
                 strstr(kvevict_last_error_message(), "too intricate") != NULL,
             "planes apart: %s", kvevict_last_error_message());
      ++n_intricate;
    } else {
      EXPECT((status != KVEVICT_OK) == shared, "planes overlap: %d", shared);
      n_overlap += shared;
      n_apart += !shared;
    }
  }
  cr_assert(n_apart > 300 && n_overlap > 300 && n_intricate > 30,
            "%u apart, %u overlap, %u intricate", n_apart, n_overlap,
            n_intricate);
}

Test(view, block_tables_must_cover_the_tokens) {
  const int32_t table[3] = {5, 0, 9};
  kvevict_view view = Paged(table, 3);
  EXPECT_OK(kvevict_view_validate(&view, 12));
  EXPECT_INVALID(kvevict_view_validate(&view, 13), "block_table_len", "3");
  view = Paged(table, 2);
  EXPECT_OK(kvevict_view_validate(&view, 8));
  EXPECT_INVALID(kvevict_view_validate(&view, 9), "block_table_len", "2");
  view = Paged(NULL, 3);
  EXPECT_INVALID(kvevict_view_validate(&view, 9), "block_table", "NULL");
  view = Paged(NULL, 0);
  EXPECT_OK(kvevict_view_validate(&view, 0));
}

Test(view, block_ids_must_not_be_negative_where_they_are_used) {
  const int32_t table[3] = {5, 0, -1};
  kvevict_view view = Paged(table, 3);
  EXPECT_OK(kvevict_view_validate(&view, 8));
  EXPECT_INVALID(kvevict_view_validate(&view, 9), "block_table[2]", "-1");
}

Test(view, blocks_that_overlap_are_errors) {
  const int32_t table[3] = {5, 0, 9};
  kvevict_view view = Paged(table, 3);
  view.k.block_stride_bytes = 127;
  EXPECT_INVALID(kvevict_view_validate(&view, 12), "k", "overlap", "127");
  view = Paged(table, 3);
  view.v.block_stride_bytes = 0;
  EXPECT_INVALID(kvevict_view_validate(&view, 12), "v", "overlap");
}

Test(view, far_blocks_are_reached_in_64_bits) {
  const int32_t table[2] = {INT32_MAX, 0};
  kvevict_view view = Paged(table, 2);
  view.k.block_stride_bytes = view.v.block_stride_bytes = INT64_C(1) << 30;
  EXPECT_OK(kvevict_view_validate(&view, 8));
  view.k.block_stride_bytes = INT64_C(1) << 34;
  EXPECT_INVALID(kvevict_view_validate(&view, 8), "k", "64");
}

Test(view, random_views_never_crash) {
  test_random random = test_random_start("view random");
  uint32_t n_valid = 0;
  for (int i = 0; i < 20000; ++i) {
    int32_t table[4];
    for (int b = 0; b < 4; ++b)
      table[b] = (int32_t)test_random_below(&random, 9) - 1;
    kvevict_view view =
        test_random_coin(&random) ? Contiguous() : Paged(table, 4);
    for (int n = 0; n < 2; ++n) {
      kvevict_plane* plane = test_random_coin(&random) ? &view.k : &view.v;
      const uint64_t any =
          test_random_u64(&random) >> test_random_below(&random, 64);
      switch (test_random_below(&random, 8)) {
        case 0:
          plane->data = any;
          break;
        case 1:
          plane->token_stride_bytes = (int64_t)any;
          break;
        case 2:
          plane->head_stride_bytes = -(int64_t)any;
          break;
        case 3:
          plane->block_stride_bytes = (int64_t)any;
          break;
        case 4:
          plane->head_dim = (uint32_t)any;
          break;
        case 5:
          plane->dtype = (kvevict_dtype)(any & 7);
          break;
        case 6:
          view.n_kv_heads = (uint32_t)any;
          break;
        default:
          view.block_size = (uint32_t)any;
          break;
      }
    }
    n_valid += kvevict_view_validate(&view, test_random_below(&random, 20)) ==
               KVEVICT_OK;
  }
  cr_assert(n_valid > 100 && n_valid < 19900, "%u valid views", n_valid);
}
