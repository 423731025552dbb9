#include "tests/capi/support/sequence_kinds.h"

#include "tests/capi/support/choice.h"
#include "tests/capi/support/sequence_life.h"

enum {
  kLayers = 3,
  kHeads = TEST_CHOICE_HEADS,
  kHeadBudgets = 1,
  kLayerBudgets = 2,
  kAllLayers = 4
};

typedef struct kind {
  const char* policy;
  uint32_t n_protect;
  uint32_t flags;
} kind;

static const kind kKinds[] = {
    {"none", 4, 0},
    /* Places alone. */
    {"streaming-llm:budget=60", 0, kHeadBudgets},
    {"streaming-llm:budget=60,sink=3", 0, kLayerBudgets},
    {"streaming-llm:budget=60,sink=0", 4, kHeadBudgets},
    {"streaming-llm:budget=50,sink=3,split=geometric,alpha=0.8", 4, 0},
    {"streaming-llm:sink=3,recent=41,select_block=8", 4, 0},
    {"streaming-llm:sink=3,recent=41,select_block=16", 4, 0},
    {"streaming-llm:budget=60,sink=30,margin=9,every=4", 4, 0},
    {"streaming-llm:budget=20,sink=4,prompt=pinned-beside,every=7", 0, 0},
    {"streaming-llm:budget=40,sink=4,prompt=pinned,margin=5", 4, 0},
    {"streaming-llm:budget=20,sink=2,split=geometric,alpha=0.7,prompt=beside",
     0, 0},
    /* Given scores, exactly. */
    {"custom:budget=50,sink=3,recent=9,pool=max3,tie=higher", 4, kLayerBudgets},
    {"custom:budget=0.4,sink=0,recent=2,scope=layer,over=sum", 4, 0},
    {"custom:budget=60,sink=1,scope=model,over=max,pool=max7", 4, 0},
    {"custom:budget=60,sink=4,split=arithmetic-kvf,alpha=0.8,over=max", 4, 0},
    {"custom:budget=60,sink=4,recent=20,split=arithmetic-kvpress,scope=layer",
     4, 0},
    {"custom:budget=64,sink=30,recent=3,split=arithmetic-kvf,beta=1000", 0,
     kAllLayers},
    {"custom:budget=64,sink=20,recent=3,split=geometric,alpha=0.3", 0,
     kAllLayers},
    {"custom:budget=60,sink=0,recent=0", 0, kHeadBudgets},
    {"custom:budget=60,sink=1,recent=2,tie=higher", 4, kHeadBudgets},
    {"custom:budget=40,sink=0,select_block=9", 0, kHeadBudgets},
    {"custom:budget=30,sink=2,recent=3,prompt=pinned-beside,every=3", 0, 0},
    {"custom:budget=30,sink=0,prompt=beside,margin=6", 4, kLayerBudgets},
    {"custom:budget=40,sink=2,prompt=at-end,every=5", 4, 0},
    {"streaming-llm:budget=0.5,sink=4,prompt=beside", 0, 0},
    {"custom:budget=0.5,sink=4,recent=3,prompt=pinned-beside", 0, 0},
    {"snapkv:budget=0.5,sink=2,window=8,prompt=beside", 0, 0},
    /* Observed scores that decay, and observed sums. */
    {"custom:budget=26,sink=2,half_life=16", 4, 0},
    {"custom:budget=0.5,sink=0,recent=2,half_life=3", 4, 0},
    {"custom:budget=24,scope=layer,over=max,half_life=7", 4, 0},
    {"custom:sink=1,recent=8,heads=threshold,threshold=0.2,half_life=25", 4, 0},
    {"h2o:budget=40,recent=8,group=max,margin=9", 4, 0},
    {"h2o:budget=40,recent=8,group=max,sums=query,pool=max3", 4, 0},
    {"h2o:budget=40,recent=0,rows=mean,group=sum", 4, 0},
    {"h2o:budget=30,recent=4,heads=adaptive,floor=0.3", 4, 0},
    {"h2o:budget=30,recent=4,heads=adaptive,sums=query,rows=mean,every=4", 4,
     0},
    {"h2o:budget=30,recent=4,split=geometric,alpha=0.8", 4, 0},
    {"h2o:budget=40,recent=8,scope=layer,sums=layer,sum_pool=7,rows=mean", 4,
     0},
    {"h2o:budget=40,recent=8,scope=model,sums=layer,sum_pool=2", 4, 0},
    {"h2o:budget=40,recent=8,scope=model,over=sum,group=sum", 4, 0},
    {"h2o:budget=48,recent=8,select_block=16,sum_pool=3", 4, 0},
    {"h2o:budget=40,recent=8,sum_pool=1023,sink=2", 4, 0},
    /* In whole blocks. */
    {"custom:budget=47,sink=3,recent=5,select_block=6", 4, kLayerBudgets},
    {"custom:sink=0,budget=60,select_block=16,tie=higher", 4, 0},
    {"custom:budget=47,sink=9,select_block=6,scope=layer,over=sum", 4, 0},
    {"custom:sink=0,budget=50,recent=9,select_block=16,scope=model,over=max", 1,
     0},
    {"custom:budget=50,sink=1,recent=3,select_block=6,split=geometric,alpha=0."
     "8",
     1, 0},
    {"custom:budget=44,sink=1,recent=3,select_block=3,split=arithmetic-adakv,"
     "beta=3",
     1, 0},
    {"knorm:sink=0,budget=0.5,select_block=3", 0, 0},
    {"knorm:budget=99,sink=2,select_block=48,scope=layer,over=max", 4, 0},
    {"custom:budget=60,sink=0,select_block=48", 0, kHeadBudgets},
    {"tova:budget=40,select_block=3", 0, 0},
    {"knorm:sink=0,budget=40,select_block=9,weight=norm,epsilon=9", 0, 0},
    {"random:sink=0,budget=40,select_block=16", 0, 0},
    {"snapkv:budget=50,window=8,select_block=12,scope=layer,over=sum", 1, 0},
    {"snapkv:budget=0.5,window=8,select_block=3,scope=model,pool=max3", 0, 0},
    /* Blocks that are rescued or differ, and calls that are kept apart. */
    {"openvino-genai:budget=55,sink=8,recent=16,select_block=8,rescue=1", 4, 0},
    {"openvino-genai-sum:budget=50,sink=3,recent=7,select_block=3,scope=model,"
     "rescue=2,anchor=alternating",
     4, 0},
    {"openvino-genai:budget=47,sink=5,recent=9,select_block=4,rescue=3,"
     "anchor=ones",
     4, 0},
    {"custom:budget=50,sink=5,recent=7,select_block=6,scope=layer,over=sum,"
     "rescue=2,anchor=zeros",
     4, 0},
    {"custom:sink=0,budget=40,select_block=9,rescue=1,anchor=ones,margin=7", 4,
     0},
    {"knorm:budget=0.4,sink=2,select_block=3,rescue=2,scope=layer", 0, 0},
    {"openvino-genai-adaptive-r-kv:budget=50,sink=8,recent=16,select_block=8,"
     "diverse_mass=0.4",
     4, 0},
    {"openvino-genai-adaptive-r-kv:budget=40,sink=5,recent=6,select_block=3,"
     "sum_last=3,diverse_mass=0.3",
     4, 0},
    {"custom:budget=40,sink=5,recent=7,select_block=3,over=sum,scope=layer,tie="
     "higher,diverse_mass=0.3",
     4, 0},
    {"custom:budget=40,sink=5,recent=7,select_block=3,diverse_mass=0.2", 4, 0},
    {"snapkv:budget=48,window=8,select_block=6,diverse_mass=0.4", 0, 0},
    {"h2o:budget=40,recent=8,scope=model,sums=layer,sum_last=2,sum_pool=4", 4,
     0},
    {"h2o:budget=40,recent=4,scope=layer,sums=layer,sum_last=1,sum_pool=3,raw_"
     "first=yes,margin=5",
     4, 0},
    /* In chunks, which begin with a block in every layout. */
    {"custom:budget=50,sink=2,recent=20,chunk=48,pool=max5,tie=higher", 4, 0},
    {"custom:budget=0.4,sink=1,chunk=48", 4, kLayerBudgets},
    {"custom:sink=0,budget=0.5,recent=60,chunk=96,weight=given,secure=0.5", 4,
     0},
    {"custom:sink=0,budget=60,chunk=48,scope=layer,over=max", 4, 0},
    {"custom:sink=0,budget=60,chunk=48,scope=model,over=sum", 4, 0},
    {"custom:sink=3,budget=60,chunk=48,split=geometric,alpha=0.8", 0, 0},
    {"custom:sink=0,budget=30,chunk=960", 4, 0},
    {"random:sink=0,budget=0.3,chunk=48,seed=9", 4, 0},
    {"knorm:sink=0,budget=0.4,chunk=48", 4, 0},
    /* Heads share a layer's budget by scores. */
    {"custom:budget=40,sink=1,recent=2,heads=adaptive", 4, 0},
    {"custom:sink=0,budget=25,heads=adaptive,floor=0,tie=higher,margin=4", 0,
     0},
    {"custom:sink=0,budget=0.3,heads=adaptive,floor=1,split=geometric", 0, 0},
    {"custom:sink=0,budget=1.5,heads=adaptive,floor=0.9", 0, 0},
    {"custom:budget=30,sink=8,recent=16,heads=adaptive", 4, 0},
    {"custom:sink=0,budget=30,heads=adaptive,split=arithmetic-kvf", 0, 0},
    {"custom:budget=30,sink=2,recent=3,heads=adaptive-blend", 4, 0},
    {"custom:sink=0,budget=17,heads=adaptive-blend,floor=0.5", 0, 0},
    {"custom:sink=0,budget=1.5,heads=adaptive-blend,floor=0", 0, 0},
    {"custom:budget=40,sink=1,recent=6,heads=threshold,threshold=1", 4, 0},
    {"custom:sink=0,recent=3,heads=threshold,threshold=-7", 0, 0},
    {"custom:sink=0,budget=1.5,heads=threshold,threshold=99", 0, 0},
    {"knorm:sink=0,budget=40,heads=adaptive", 4, 0},
    {"custom:budget=30,sink=4,recent=4,heads=adaptive,normalize=yes", 4, 0},
    {"custom:budget=30,sink=1,heads=adaptive-blend,normalize=yes", 4, 0},
    {"custom:budget=24,sink=0,recent=2,heads=adaptive,normalize=yes,weight="
     "given,epsilon=0.5,secure=0.3",
     3, 0},
    {"custom:budget=12,sink=0,recent=0,heads=adaptive-blend,normalize=yes,"
     "weight=given,epsilon=1,secure=0.5",
     3, 0},
    /* Tokens of all layers compete. */
    {"custom:sink=0,budget=30,split=scores,heads=adaptive,floor=0", 2, 0},
    {"custom:sink=2,recent=5,budget=30,split=scores,heads=adaptive,floor=0.3",
     2, 0},
    {"custom:sink=0,budget=0.37,split=scores,heads=adaptive,floor=0,rounding="
     "together",
     0, 0},
    {"custom:sink=1,budget=30,split=scores,heads=adaptive,margin=9,tie=higher",
     2, 0},
    {"custom:sink=0,budget=30,split=scores,floor=0", 2, 0},
    {"custom:sink=2,recent=5,budget=30,split=scores,floor=0.4", 2, 0},
    {"custom:sink=0,budget=0.31,split=scores,floor=0,rounding=together", 0, 0},
    /* Two stages. */
    {"custom:sink=0,budget=30,weight=given,secure=0.5", 3, 0},
    {"custom:budget=31,weight=given,epsilon=0.25,secure=0.3,sink=3,recent=5", 3,
     0},
    {"custom:sink=0,budget=0.4,weight=given,secure=1,tie=higher", 0, 0},
    {"custom:sink=0,budget=30,weight=given,secure=0.01,recent=20", 3, 0},
    {"custom:sink=0,budget=20,weight=given,secure=0.5,heads=adaptive", 3, 0},
    {"custom:budget=24,weight=given,secure=0.25,heads=adaptive,floor=0.5,sink="
     "2",
     3, 0},
    {"custom:sink=0,budget=20,weight=given,secure=0.5,heads=adaptive-blend,"
     "recent=3",
     3, 0},
    /* Other scores, as kvevict_score() has them. */
    {"random:budget=0.5,sink=0,recent=0", 0, kHeadBudgets},
    {"random:budget=60,sink=2,recent=3", 4, kHeadBudgets},
    {"random:budget=28,scope=model,margin=5,seed=9", 4, 0},
    {"knorm:budget=40,sink=1,weight=norm,epsilon=9,scope=layer", 4, 0},
    {"knorm:budget=40,prompt=pinned,every=2", 0, 0},
    {"keydiff:budget=40,scope=layer,split=geometric,alpha=0.7", 4, 0},
    {"keydiff:budget=0.4,margin=3", 0, kLayerBudgets},
    {"lagkv:budget=40,block=10", 0, 0},
    {"cur:budget=40", 4, 0},
    /* Windows of queries, by the oracle's attention. */
    {"snapkv:budget=60,sink=2,window=8", 0, kHeadBudgets},
    {"snapkv:budget=60,sink=0,window=4,pool=max3,tie=higher", 4, kHeadBudgets},
    {"snapkv:budget=50,sink=0,window=4,prior=mean", 4, kHeadBudgets},
    {"snapkv:budget=50,window=12,pool=avg5,rows=mean,group=max", 4,
     kLayerBudgets},
    {"snapkv:budget=50,window=12,pool=max5,order=pool-reduce,scope=layer,over="
     "sum",
     4, 0},
    {"snapkv:budget=60,window=16,scope=model,over=max,tie=higher", 4, 0},
    {"snapkv:budget=40,window=8,heads=adaptive", 4, 0},
    {"pyramidkv:budget=60,window=8,alpha=0.8", 4, 0},
    {"pyramidkv:budget=50,sink=2,window=5,split=arithmetic-kvf,pool=avg7,over="
     "sum",
     0, 0},
    {"tova:budget=40,keep_window=no,margin=6,every=3", 4, 0},
    {"tova:budget=24,prompt=beside", 0, 0},
    {"r-kv:budget=40,window=8,redundancy=0", 4, 0},
    {"cake:budget=60,window=8", 0, 0},
    {"cake:budget=0.3,window=16,tau1=1.6,tau2=0.4", 0, 0},
    {"cake:budget=40,window=4,spread=0,sink=2,pool=max3,recent=9", 2, 0},
    {"snapkv:budget=90,window=32,split=cake,order=pool-reduce,pool=max5", 0, 0},
    {"cake:budget=60,window=8,softmax=past,group=max,scope=layer,over=sum", 0,
     0},
    {"cake:budget=50,window=8,heads=adaptive", 0, 0},
    {"snapkv:budget=60,sink=4,recent=50,window=8,split=lazy,lazy=0.5", 0, 0},
    {"snapkv:budget=40,sink=2,window=3,split=lazy,lazy=0.05,spread=9", 0, 0},
    {"snapkv:budget=0.4,window=2,split=lazy,lazy=0.1,scope=layer", 0, 0},
    /* Tokens that stay for their values. */
    {"custom:budget=30,sink=2,recent=3,secure_values=1", 2, 0},
    {"custom:budget=30,sink=2,recent=3,secure_values=9,value_measure=norm", 2,
     0},
    {"custom:budget=0.4,sink=2,secure_values=0.5,value_measure=variance", 0, 0},
    {"custom:budget=30,sink=2,secure_values=0.25,tie=higher", 2, 0},
    {"custom:budget=30,sink=2,recent=3,secure_values=500", 2, 0},
    /* Rows that go are merged into rows that stay. */
    {"streaming-llm:budget=40,merge=values", 0, 0},
    {"streaming-llm:budget=0.5,sink=2,merge=pivot", 0, 0},
    {"random:sink=0,budget=33,merge=values,merge_threshold=0.2,merge_fraction="
     "0.75",
     2, 0},
    {"custom:sink=0,budget=40,scope=layer,over=sum,merge=weighted", 2, 0},
    {"random:sink=0,budget=40,scope=model,merge=pivot", 0, 0},
    {"knorm:budget=45,sink=2,heads=adaptive,merge=values", 0, 0},
    {"random:sink=0,budget=45,heads=threshold,threshold=0.6,merge=weighted", 0,
     0},
    {"random:sink=0,budget=48,select_block=48,merge=values,merge_fraction=0.5",
     0, 0},
    {"custom:sink=0,budget=40,split=geometric,merge=pivot", 0, 0},
    {"snapkv:budget=50,window=8,merge=weighted", 0, 0},
    {"keydiff:sink=0,budget=40,merge=values", 0, 0},
    /* Values that stay are fitted to queries. */
    {"snapkv:budget=50,window=8,fit=values", 2, 0},
    {"snapkv:budget=40,window=8,reference=6,fit=values", 0, 0},
    {"snapkv:budget=20,window=8,reference=30,reference_weight=0.5,fit=values,"
     "fit_ridge=0.1",
     0, 0},
    {"snapkv:budget=40,window=8,split=scores,heads=adaptive,fit=values", 0, 0},
    {"tova:budget=40,reference=25,fit=values", 0, 0},
    {"r-kv:budget=40,window=8,redundancy=0,fit=values,fit_ridge=1", 0, 0},
    {"keydiff:sink=0,budget=30,reference=35,fit=values", 0, 0},
    {"streaming-llm:budget=0.5,sink=2,reference=10,fit=values", 0, 0},
    {"knorm:budget=45,sink=2,heads=adaptive,reference=40,fit=values", 0, 0},
    {"random:sink=0,budget=40,scope=model,reference=8,fit=values", 0, 0},
    {"random:sink=0,budget=20,scope=layer,reference=30,fit=values", 0, 0},
    {"random:sink=0,budget=63,select_block=48,scope=layer,reference=9,fit="
     "values",
     0, 0},
    {"snapkv:budget=50,window=8,fit=bias-values", 0, 0},
    {"snapkv:budget=20,window=8,reference=30,reference_weight=0.5,fit=bias-"
     "values,fit_ridge=0.1",
     0, 0},
    {"keydiff:sink=0,budget=30,reference=35,fit=bias-values", 0, 0},
    {"random:sink=0,budget=20,scope=layer,reference=30,fit=bias-values", 0, 0},
    /* Reference queries. */
    {"snapkv:budget=40,window=8,reference=5", 4, 0},
    {"snapkv:budget=40,window=8,reference=5,reference_weight=0.5", 4, 0},
    {"snapkv:budget=40,window=8,reference=5,keep_window=no", 4, 0},
    {"snapkv:budget=40,window=8,reference=4,heads=adaptive", 4, 0},
    {"snapkv:budget=40,window=8,reference=4,reference_weight=0.25,rows=max,"
     "group=max,heads=adaptive",
     4, 0},
    {"snapkv:budget=40,window=8,reference=4,reference_weight=0.7,rows=max,pool="
     "avg5,edge=mass,order=pool-rows,prior=mean",
     4, 0},
    {"tova:budget=40,reference=3,reference_weight=0.3", 4, 0},
    {"pyramidkv:budget=40,window=8,reference=6,alpha=0.9", 0, 0},
    {"r-kv:budget=40,window=8,reference=6,reference_weight=0.5,redundancy=0", 4,
     0},
    /* A prompt that stays, in one list of the model. */
    {"custom:budget=48,scope=model,over=max,margin=15,prompt=pinned", 4, 0},
    {"custom:budget=24,sink=0,scope=model,every=16,prompt=pinned-beside", 0, 0},
};

/* Budgets of heads, sometimes above what is ever held, or all alike. */
static void DrawBudgets(test_random* random, uint32_t least,
                        uint32_t* budgets) {
  const uint32_t way = test_random_below(random, 5);
  const uint32_t one = least + test_random_below(random, 60);
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    budgets[i] = way == 0   ? one
                 : way == 1 ? least + test_random_below(random, 3)
                            : least + test_random_below(random, 120);
    if (test_random_below(random, 8) == 0) budgets[i] = least;
    if (test_random_below(random, 8) == 0) budgets[i] = 4000000000u;
  }
}

/* f32 sums decide, which round little with some rows only. */
static bool IsMeasured(const oracle_policy* p) {
  return p->split == ORACLE_SPLIT_CAKE || p->split == ORACLE_SPLIT_LAZY;
}

/* Rows that change are neither quantized nor opaque. */
static bool ChangesRows(const oracle_policy* p) {
  return p->merge != 0 || p->fit != ORACLE_FIT_NONE;
}

static bool ReadsValues(const oracle_policy* p) {
  return p->secure_values > 0 || p->secure_values_share > 0 ||
         p->weight == ORACLE_WEIGHT_NORM || p->kind == ORACLE_LAGKV ||
         p->kind == ORACLE_CUR || ChangesRows(p);
}

static bool ReadsRows(const oracle_policy* p) {
  const bool by_rows = p->kind != ORACLE_NONE &&
                       p->kind != ORACLE_STREAMING_LLM &&
                       p->kind != ORACLE_CUSTOM && p->kind != ORACLE_H2O &&
                       p->kind != ORACLE_RANDOM;
  return by_rows || ReadsValues(p) || p->diverse_mass > 0;
}

/* Whether a layer may have another one's cache: nothing depends on all layers, and slots
 * have no numbers that are observed. */
static bool MayShare(const oracle_policy* p) {
  return p->scope != KVEVICT_SCOPE_MODEL && !IsMeasured(p) &&
         p->split != ORACLE_SPLIT_SCORES && p->kind != ORACLE_H2O &&
         p->half_life == 0;
}

/* Budgets of layers, some of them ratios. */
static const double* DrawLayerBudgets(test_random* random,
                                      const oracle_policy* p) {
  static double budgets[kLayers];
  const bool has_ratios =
      p->kind != ORACLE_STREAMING_LLM && p->select_block == 1;
  for (uint32_t l = 0; l < kLayers; ++l) {
    budgets[l] = has_ratios && test_random_coin(random)
                     ? 0.2 + 0.8 * test_random_unit(random)
                     : test_random_between(random, 32, 110);
  }
  return budgets;
}

/* Whole blocks may go by tables, which lists of heads have if heads have tables. */
static void DrawBlocks(test_random* random, const oracle_policy* p,
                       test_model_spec* spec) {
  static const test_layout kOfHeads[] = {
      TEST_PAGED_3_OF_HEADS, TEST_PAGED_16_OF_HEADS, TEST_PAGES_3_OF_HEADS};
  const bool shares =
      p->scope != KVEVICT_SCOPE_KV_HEAD || p->kind == ORACLE_STREAMING_LLM;
  if (test_random_below(random, 4) == 0) return;
  spec->layout = shares ? (test_layout)test_random_between(
                              random, TEST_PAGED_1, TEST_PAGES_3_OF_HEADS)
                        : kOfHeads[test_random_below(random, 3)];
}

static test_model* DrawModel(test_random* random, const kind* k) {
  static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                         KVEVICT_DTYPE_BF16};
  static const uint32_t kGroups[] = {1, 3, 4, 8};
  static uint32_t budgets[kLayers * kHeads];
  const oracle_policy p = oracle_policy_from(k->policy);
  test_model_spec spec = {.policy = k->policy,
                          .max_positions = TEST_SEQUENCE_POSITIONS + 40};
  const bool is_whole =
      (k->flags & kAllLayers) != 0 || p.split == ORACLE_SPLIT_SCORES;
  spec.n_layers = is_whole ? kLayers : test_random_between(random, 1, kLayers);
  spec.n_kv_heads = test_random_between(random, 1, kHeads);
  spec.n_q_heads = spec.n_kv_heads * kGroups[test_random_below(random, 4)];
  if (p.kind == ORACLE_H2O) {
    spec.n_q_heads = spec.n_kv_heads * test_random_between(random, 1, 2);
  }
  spec.max_tokens = test_random_between(random, 100, 180);
  spec.k_head_dim = test_random_between(random, 1, 40);
  spec.v_head_dim = test_random_between(random, ReadsValues(&p), 20);
  spec.q_dtype = kTypes[test_random_below(random, 3)];
  spec.k_dtype = kTypes[test_random_below(random, 3)];
  if (!ChangesRows(&p) && test_random_below(random, 3) == 0) {
    test_draw_quantized(&spec, random);
  } else if (!ReadsRows(&p) && test_random_coin(random)) {
    spec.k_dtype = KVEVICT_DTYPE_OPAQUE;
    spec.v_head_dim += 1;
  }
  if (IsMeasured(&p)) {
    spec.k_head_dim = 16;
    spec.q_dtype = KVEVICT_DTYPE_F16;
    spec.k_dtype = KVEVICT_DTYPE_F32;
  }
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  if (p.select_block > 1) DrawBlocks(random, &p, &spec);
  spec.n_companions = test_random_below(random, 3);
  spec.n_threads = test_random_between(random, 1, 4);
  spec.draft_tokens = test_random_below(random, 4);
  spec.report_mass = test_random_below(random, 2);
  DrawBudgets(random, p.sink + test_last_of(&p) + k->n_protect, budgets);
  spec.head_budgets = (k->flags & kHeadBudgets) != 0 ? budgets : NULL;
  if ((k->flags & kLayerBudgets) != 0 && test_random_coin(random)) {
    spec.layer_budgets = DrawLayerBudgets(random, &p);
  }
  const bool fits_biases = p.fit > ORACLE_FIT_VALUES;
  if (fits_biases && spec.n_companions == 0) spec.n_companions = 1;
  spec.last_shares = MayShare(&p) && test_random_below(random, 4) == 0;
  test_model* m = test_model_create(&spec, test_random_apart(random));
  const bool has_biases =
      fits_biases || (spec.n_companions > 0 && ReadsRows(&p) &&
                      !IsMeasured(&p) && test_random_coin(random));
  for (uint32_t l = 0; l < spec.n_layers; ++l) {
    if (has_biases) m->live[l]->companions[0].role = KVEVICT_ROLE_BIAS;
  }
  return m;
}

const char* test_sequence_kind(uint32_t i) {
  return i < sizeof kKinds / sizeof *kKinds ? kKinds[i].policy : NULL;
}

void test_live_kind(uint32_t i, test_random* random, bool decodes,
                    test_lived* sum) {
  test_live(DrawModel(random, &kKinds[i]), kKinds[i].n_protect, random, decodes,
            sum);
}
