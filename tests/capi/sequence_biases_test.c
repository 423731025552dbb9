/* Biases that are refused. score_test.c has those of any policy, also ones that hide all
 * slots, edit_test.c those in paged caches. */
#include <stdio.h>
#include <string.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"

static void ExpectBias(kvevict_view* view, kvevict_plane bias,
                       const char* problem) {
  view->companions = &bias;
  view->n_companions = 1;
  if (problem == NULL) {
    EXPECT_OK(kvevict_view_validate(view, 10));
  } else {
    EXPECT_INVALID(kvevict_view_validate(view, 10), "companions", "bias",
                   problem);
  }
}

Test(sequence_biases, are_one_f32_of_each_slot) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 2;
  view.k = kvevict_plane_token_major((void*)0x10000, KVEVICT_DTYPE_F16, 2, 8);
  kvevict_plane bias =
      kvevict_plane_token_major((void*)0x20000, KVEVICT_DTYPE_F32, 2, 1);
  bias.role = KVEVICT_ROLE_BIAS;
  ExpectBias(&view, bias, NULL);
  kvevict_plane others[4] = {bias, bias, bias, bias};
  static const char* const kProblems[] = {
      "dtype f16", "head_dim 2", "token_stride_bytes 0", "group_tokens 2"};
  others[0].dtype = KVEVICT_DTYPE_F16;
  others[1].head_dim = 2, others[1].head_stride_bytes = 8;
  others[1].token_stride_bytes = 16;
  others[2].token_stride_bytes = 0;
  others[3].group_tokens = 2;
  for (int i = 0; i < 4; ++i) ExpectBias(&view, others[i], kProblems[i]);
  kvevict_plane two[2] = {bias, bias};
  two[1].data += 0x10000;
  view.companions = two;
  view.n_companions = 2;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "role bias",
                 "companions[0]");
  view.v = view.k;
  view.v.data += 0x100000;
  memset(&view.k, 0, sizeof view.k);
  ExpectBias(&view, bias, "k.data is 0");
}

static test_model* Model(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_companions = 1;
  return test_model_create(&spec, (test_random){4});
}

Test(sequence_biases, evictions_say_what_is_missing) {
  test_model* m = Model("snapkv:budget=40,window=8,fit=bias-values");
  test_model_step(m, 80);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[0]",
                 "none has role bias", "fit bias-values");
  m->live[0]->companions[0].role = KVEVICT_ROLE_BIAS;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[1]",
                 "none has role bias");
  test_model_check(m, "after errors");
  m->live[1]->companions[0].role = KVEVICT_ROLE_BIAS;
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

/* Layers that keep the same tokens may share other companions. */
Test(sequence_biases, belong_to_one_layer) {
  for (int fits = 0; fits < 2; ++fits) {
    test_model* m =
        Model(fits ? "streaming-llm:budget=40,reference=4,fit=bias-values"
                   : "streaming-llm:budget=40,reference=4,fit=values");
    test_model_step(m, 80);
    m->live[0]->companions[0].role = KVEVICT_ROLE_BIAS;
    m->views[1].companions = m->views[0].companions;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_model_give_reference(m, &inputs, &options);
    if (fits) {
      EXPECT_INVALID(test_model_evict(m, &options, NULL),
                     "views[1].companions[0]", "views[0]", "biases of its own");
    } else {
      EXPECT_OK(test_model_evict(m, &options, NULL));
    }
    test_model_destroy(m);
  }
}
