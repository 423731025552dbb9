/* Quantized rows that lack scales or minima, and roles that contradict the dtype. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

/* Two heads of 64 codes with scales and minima, contiguous; nothing is dereferenced. */
typedef struct scene {
  kvevict_view view;
  kvevict_plane companions[4];
} scene;

static void Build(scene* s) {
  s->view = (kvevict_view)KVEVICT_VIEW_INIT;
  s->view.n_kv_heads = 2;
  s->view.k.data = 0x100000;
  s->view.k.dtype = KVEVICT_DTYPE_U8;
  s->view.k.head_dim = 64;
  s->view.k.head_stride_bytes = 64;
  s->view.k.token_stride_bytes = 128;
  s->view.v = s->view.k;
  s->view.v.data = 0x200000;
  for (int i = 0; i < 4; ++i) {
    kvevict_plane* plane = &s->companions[i];
    *plane = (kvevict_plane)KVEVICT_PLANE_INIT;
    plane->data = 0x300000u + 0x10000u * (uint32_t)i;
    plane->dtype = KVEVICT_DTYPE_F16;
    plane->head_dim = 1;
    plane->head_stride_bytes = 2;
    plane->token_stride_bytes = 4;
    plane->role = (kvevict_role)(i + 1);
  }
  s->view.companions = s->companions;
  s->view.n_companions = 4;
}

#define EXPECT_BREAKS(change, ...)                                   \
  do {                                                               \
    scene s;                                                         \
    Build(&s);                                                       \
    EXPECT_OK(kvevict_view_validate(&s.view, 10));                   \
    change;                                                          \
    EXPECT_INVALID(kvevict_view_validate(&s.view, 10), __VA_ARGS__); \
  } while (0)

static void SetK(scene* s, kvevict_dtype dtype, uint32_t head_dim) {
  s->view.k.dtype = dtype;
  s->view.k.head_dim = head_dim;
  s->view.n_companions = 0;
}

Test(dtypes_errors, rows_are_whole_blocks) {
  EXPECT_BREAKS(SetK(&s, KVEVICT_DTYPE_Q8_0, 40), "k.head_dim 40",
                "multiple of 32", "q8_0");
  EXPECT_BREAKS(SetK(&s, KVEVICT_DTYPE_Q4_0, 16), "k.head_dim 16",
                "multiple of 32", "q4_0");
  EXPECT_BREAKS(SetK(&s, KVEVICT_DTYPE_U4, 63), "k.head_dim 63",
                "multiple of 2");
  EXPECT_BREAKS(SetK(&s, KVEVICT_DTYPE_U4_HALVES, 1), "k.head_dim 1",
                "multiple of 2");
}

Test(dtypes_errors, elements_of_blocks_lie_packed) {
  EXPECT_BREAKS(
      (SetK(&s, KVEVICT_DTYPE_U4, 64), s.view.k.element_stride_bytes = 1),
      "k.element_stride_bytes 1", "u4");
  EXPECT_BREAKS(
      (SetK(&s, KVEVICT_DTYPE_Q4_0, 64), s.view.k.element_stride_bytes = -1),
      "k.element_stride_bytes -1", "q4_0");
}

Test(dtypes_errors, blocks_count_in_bytes_where_rows_overlap) {
  EXPECT_BREAKS((SetK(&s, KVEVICT_DTYPE_Q8_0, 64)), "k", "rows of 68 bytes",
                "overlap");
  scene s;
  Build(&s);
  SetK(&s, KVEVICT_DTYPE_Q8_0, 64);
  s.view.k.head_stride_bytes = 68;
  s.view.k.token_stride_bytes = 136;
  EXPECT_OK(kvevict_view_validate(&s.view, 10));
  SetK(&s, KVEVICT_DTYPE_U4, 64);
  s.view.k.head_stride_bytes = 32;
  s.view.k.token_stride_bytes = 64;
  EXPECT_OK(kvevict_view_validate(&s.view, 10));
  s.view.k.token_stride_bytes = 63;
  EXPECT_INVALID(kvevict_view_validate(&s.view, 10), "rows of 32 bytes");
}

Test(dtypes_errors, roles_are_of_companions) {
  EXPECT_BREAKS(s.view.k.role = KVEVICT_ROLE_KEY_SCALE, "k.role 1");
  EXPECT_BREAKS(s.view.v.role = -1, "v.role -1");
  EXPECT_BREAKS(s.companions[1].role = 8, "companions[1]", "role 8");
  EXPECT_BREAKS(s.companions[1].role = -2, "companions[1]", "role -2");
}

Test(dtypes_errors, roles_say_what_planes_hold) {
  EXPECT_BREAKS(s.companions[2].dtype = KVEVICT_DTYPE_FP8_E4M3, "companions[2]",
                "dtype fp8_e4m3", "value_scale");
  EXPECT_BREAKS((s.companions[2].dtype = KVEVICT_DTYPE_OPAQUE,
                 s.companions[2].head_dim = 0, s.companions[2].row_bytes = 2),
                "companions[2]", "dtype opaque", "value_scale");
  EXPECT_BREAKS(
      (s.companions[0].head_dim = 2, s.companions[0].head_stride_bytes = 4,
       s.companions[0].token_stride_bytes = 8),
      "companions[0]", "head_dim 2", "key_scale");
  EXPECT_BREAKS(s.companions[3].role = KVEVICT_ROLE_KEY_SCALE, "companions[3]",
                "key_scale", "also that of companions[0]");
}

Test(dtypes_errors, roles_need_rows_that_have_such_numbers) {
  EXPECT_BREAKS(memset(&s.view.v, 0, sizeof s.view.v), "companions[2]",
                "value_scale", "v.data is 0");
  EXPECT_BREAKS(
      (s.view.k.dtype = KVEVICT_DTYPE_Q8_0, s.view.k.head_stride_bytes = 68,
       s.view.k.token_stride_bytes = 136),
      "companions[0]", "key_scale", "q8_0 has none");
  EXPECT_BREAKS(s.view.k.dtype = KVEVICT_DTYPE_FP8_E4M3, "companions[1]",
                "key_minimum", "fp8_e4m3 has none");
  EXPECT_BREAKS((s.view.v.dtype = KVEVICT_DTYPE_F16, s.view.v.head_dim = 32),
                "companions[2]", "value_scale", "f16 has none");
}

/* A scale of a block would have to move with rows that share it with others. */
Test(dtypes_errors, numbers_are_of_a_token_or_of_all) {
  scene s;
  Build(&s);
  static const int32_t kTable[3] = {0, 1, 2};
  s.view.block_size = 4;
  s.view.block_table = kTable;
  s.view.block_table_len = 3;
  s.view.k.block_stride_bytes = s.view.v.block_stride_bytes = 512;
  for (int i = 0; i < 4; ++i) s.companions[i].block_stride_bytes = 16;
  EXPECT_OK(kvevict_view_validate(&s.view, 10));
  s.companions[0].token_stride_bytes = 0;
  EXPECT_INVALID(kvevict_view_validate(&s.view, 10), "companions[0]",
                 "overlap");
  s.companions[0].block_stride_bytes = 0;
  EXPECT_OK(kvevict_view_validate(&s.view, 10));
  s.companions[0].head_stride_bytes = 0;
  EXPECT_OK(kvevict_view_validate(&s.view, 10));
  s.companions[0].data = UINT64_MAX;
  s.companions[0].head_stride_bytes = 2;
  EXPECT_INVALID(kvevict_view_validate(&s.view, 10), "companions[0]", "64");
}

/* Rows of codes can be moved without a scale. A call that reads them names what is
 * missing before anything changes. */
static void ExpectMissing(const char* policy, uint32_t missing,
                          const char* role, const char* rows) {
  test_model_spec spec = test_small_model(policy);
  test_random random = {3};
  spec.k_dtype = KVEVICT_DTYPE_U4;
  test_model* m = test_model_create(&spec, random);
  test_model_step(m, 60);
  test_cache* before = test_cache_clone(m->live[0]);
  for (uint32_t l = 0; l < spec.n_layers; ++l) {
    kvevict_plane* planes = m->live[l]->companions;
    memmove(planes + missing, planes + missing + 1,
            (3 - missing) * sizeof *planes);
    m->views[l].n_companions = 3;
  }
  if (role != NULL) {
    EXPECT_INVALID(test_model_evict(m, NULL, NULL), role, rows, "u4");
    test_expect_same_bytes(m->live[0], before, policy);
  } else {
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  test_cache_destroy(before);
  test_model_destroy(m);
}

Test(dtypes_errors, codes_are_read_with_scales_alone) {
  ExpectMissing("knorm:budget=20", 0, "key_scale", "k.dtype");
  ExpectMissing("snapkv:budget=40", 0, "key_scale", "k.dtype");
  ExpectMissing("knorm:budget=20", 1, NULL, NULL);
  ExpectMissing("knorm:budget=20", 2, NULL, NULL);
  ExpectMissing("streaming-llm:budget=20", 0, NULL, NULL);
  ExpectMissing("lagkv:budget=20,block=4", 1, "value_scale", "v.dtype");
  ExpectMissing("knorm:budget=20,weight=norm", 1, "value_scale", "v.dtype");
}
