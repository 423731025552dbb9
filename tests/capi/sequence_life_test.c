/* Lives of sequences under every kind of choice, against a naive model and the oracle. */
#include "tests/capi/support/sequence_life.h"
#include "tests/capi/support/choice.h"
#include "tests/capi/support/expect.h"

enum {
  kLayers = 3,
  kHeads = TEST_CHOICE_HEADS,
  kAnyRows = 1, /* rows need not be read */
  kHeadBudgets = 2,
  kAllLayers = 4,
  kValues = 8,    /* values are read */
  kMeasures = 16, /* f32 sums decide, which round little with such rows */
  kLayerBudgets = 32
};

typedef struct kind {
  const char* policy;
  uint32_t least; /* what must stay: budgets of heads begin there */
  uint32_t n_protect;
  uint32_t flags;
} kind;

static const kind kKinds[] = {
    {"none", 0, 4, kAnyRows},
    /* Places alone. */
    {"streaming-llm:budget=60", 5, 0, kAnyRows | kHeadBudgets},
    {"streaming-llm:budget=60,sink=3", 0, 0, kAnyRows | kLayerBudgets},
    {"streaming-llm:budget=60,sink=0", 5, 4, kAnyRows | kHeadBudgets},
    {"streaming-llm:budget=50,sink=3,split=geometric,alpha=0.8", 0, 4,
     kAnyRows},
    {"streaming-llm:sink=3,recent=41,select_block=8", 0, 4, kAnyRows},
    {"streaming-llm:budget=60,sink=30,margin=9,every=4", 0, 4, kAnyRows},
    {"streaming-llm:budget=20,sink=4,prompt=pinned-beside,every=7", 0, 0,
     kAnyRows},
    {"streaming-llm:budget=40,sink=4,prompt=pinned,margin=5", 0, 4, kAnyRows},
    {"streaming-llm:budget=20,sink=2,split=geometric,alpha=0.7,prompt=beside",
     0, 0, kAnyRows},
    /* Given scores, exactly. */
    {"custom:budget=50,sink=3,recent=9,pool=max3,tie=higher", 0, 4,
     kAnyRows | kLayerBudgets},
    {"custom:budget=0.4,sink=0,recent=2,scope=layer,over=sum", 0, 4, kAnyRows},
    {"custom:budget=60,sink=1,scope=model,over=max,pool=max7", 0, 4, kAnyRows},
    {"custom:budget=60,sink=4,split=arithmetic-kvf,alpha=0.8,over=max", 0, 4,
     kAnyRows},
    {"custom:budget=60,sink=4,recent=20,split=arithmetic-kvpress,scope=layer",
     0, 4, kAnyRows},
    {"custom:budget=64,sink=30,recent=3,split=arithmetic-kvf,beta=1000", 0, 0,
     kAnyRows | kAllLayers},
    {"custom:budget=64,sink=20,recent=3,split=geometric,alpha=0.3", 0, 0,
     kAnyRows | kAllLayers},
    {"custom:budget=60,sink=0,recent=0", 0, 0, kAnyRows | kHeadBudgets},
    {"custom:budget=60,sink=1,recent=2,tie=higher", 7, 4,
     kAnyRows | kHeadBudgets},
    {"custom:budget=40,sink=0,select_block=10", 0, 0, kAnyRows | kHeadBudgets},
    {"custom:budget=30,sink=2,recent=3,prompt=pinned-beside,every=3", 0, 0,
     kAnyRows},
    {"custom:budget=30,sink=0,prompt=beside,margin=6", 0, 4,
     kAnyRows | kLayerBudgets},
    {"custom:budget=40,sink=2,prompt=at-end,every=5", 0, 4, kAnyRows},
    /* In whole blocks. */
    {"custom:budget=47,sink=3,recent=5,select_block=8", 0, 4,
     kAnyRows | kLayerBudgets},
    {"custom:sink=0,budget=60,select_block=16,tie=higher", 0, 4, kAnyRows},
    {"custom:budget=47,sink=9,select_block=7,scope=layer,over=sum", 0, 4,
     kAnyRows},
    {"custom:sink=0,budget=50,recent=9,select_block=16,scope=model,over=max", 0,
     1, kAnyRows},
    {"custom:budget=50,sink=1,recent=3,select_block=6,split=geometric,alpha=0."
     "8",
     0, 1, kAnyRows},
    {"custom:budget=44,sink=1,recent=3,select_block=5,split=arithmetic-adakv,"
     "beta=3",
     0, 1, kAnyRows},
    {"knorm:sink=0,budget=0.5,select_block=8", 0, 0, 0},
    {"snapkv:budget=50,window=8,select_block=20,scope=layer,over=sum", 0, 1, 0},
    {"snapkv:budget=0.5,window=8,select_block=5,scope=model,pool=max3", 0, 0,
     0},
    /* In chunks, which begin with a block in every layout. */
    {"custom:budget=50,sink=2,recent=20,chunk=48,pool=max5,tie=higher", 0, 4,
     kAnyRows},
    {"custom:budget=0.4,sink=1,chunk=48", 0, 4, kAnyRows | kLayerBudgets},
    {"custom:sink=0,budget=0.5,recent=60,chunk=96,weight=given,secure=0.5", 0,
     4, kAnyRows},
    {"custom:sink=0,budget=60,chunk=48,scope=layer,over=max", 0, 4, kAnyRows},
    {"custom:sink=0,budget=60,chunk=48,scope=model,over=sum", 0, 4, kAnyRows},
    {"custom:sink=3,budget=60,chunk=48,split=geometric,alpha=0.8", 0, 0,
     kAnyRows},
    {"custom:sink=0,budget=30,chunk=960", 0, 4, kAnyRows},
    {"random:sink=0,budget=0.3,chunk=48,seed=9", 0, 4, kAnyRows},
    /* Heads share a layer's budget by scores. */
    {"custom:budget=40,sink=1,recent=2,heads=adaptive", 0, 4, kAnyRows},
    {"custom:sink=0,budget=25,heads=adaptive,floor=0,tie=higher,margin=4", 0, 0,
     kAnyRows},
    {"custom:sink=0,budget=0.3,heads=adaptive,floor=1,split=geometric", 0, 0,
     kAnyRows},
    {"custom:sink=0,budget=1.5,heads=adaptive,floor=0.9", 0, 0, kAnyRows},
    {"custom:budget=30,sink=8,recent=16,heads=adaptive", 0, 4, kAnyRows},
    {"custom:sink=0,budget=30,heads=adaptive,split=arithmetic-kvf", 0, 0,
     kAnyRows},
    {"custom:budget=30,sink=2,recent=3,heads=adaptive-blend", 0, 4, kAnyRows},
    {"custom:sink=0,budget=17,heads=adaptive-blend,floor=0.5", 0, 0, kAnyRows},
    {"custom:sink=0,budget=1.5,heads=adaptive-blend,floor=0", 0, 0, kAnyRows},
    {"custom:budget=40,sink=1,recent=6,heads=threshold,threshold=1", 0, 4,
     kAnyRows},
    {"custom:sink=0,recent=3,heads=threshold,threshold=-7", 0, 0, kAnyRows},
    {"custom:sink=0,budget=1.5,heads=threshold,threshold=99", 0, 0, kAnyRows},
    {"knorm:sink=0,budget=40,heads=adaptive", 0, 4, 0},
    /* Tokens of all layers compete. */
    {"custom:sink=0,budget=30,split=scores,heads=adaptive,floor=0", 0, 2,
     kAnyRows | kAllLayers},
    {"custom:sink=2,recent=5,budget=30,split=scores,heads=adaptive,floor=0.3",
     0, 2, kAnyRows | kAllLayers},
    {"custom:sink=0,budget=0.37,split=scores,heads=adaptive,floor=0,rounding="
     "together",
     0, 0, kAnyRows | kAllLayers},
    {"custom:sink=1,budget=30,split=scores,heads=adaptive,margin=9,tie=higher",
     0, 2, kAnyRows | kAllLayers},
    {"custom:sink=0,budget=30,split=scores,floor=0", 0, 2,
     kAnyRows | kAllLayers},
    {"custom:sink=2,recent=5,budget=30,split=scores,floor=0.4", 0, 2,
     kAnyRows | kAllLayers},
    {"custom:sink=0,budget=0.31,split=scores,floor=0,rounding=together", 0, 0,
     kAnyRows | kAllLayers},
    /* Two stages. */
    {"custom:sink=0,budget=30,weight=given,secure=0.5", 0, 3, kAnyRows},
    {"custom:budget=31,weight=given,epsilon=0.25,secure=0.3,sink=3,recent=5", 0,
     3, kAnyRows},
    {"custom:sink=0,budget=0.4,weight=given,secure=1,tie=higher", 0, 0,
     kAnyRows},
    {"custom:sink=0,budget=30,weight=given,secure=0.01,recent=20", 0, 3,
     kAnyRows},
    {"custom:sink=0,budget=20,weight=given,secure=0.5,heads=adaptive", 0, 3,
     kAnyRows},
    {"custom:budget=24,weight=given,secure=0.25,heads=adaptive,floor=0.5,sink="
     "2",
     0, 3, kAnyRows},
    {"custom:sink=0,budget=20,weight=given,secure=0.5,heads=adaptive-blend,"
     "recent=3",
     0, 3, kAnyRows},
    /* Other scores, as kvevict_score() has them. */
    {"random:budget=0.5,sink=0,recent=0", 0, 0, kAnyRows | kHeadBudgets},
    {"random:budget=60,sink=2,recent=3", 9, 4, kAnyRows | kHeadBudgets},
    {"random:budget=28,scope=model,margin=5,seed=9", 0, 4, kAnyRows},
    {"knorm:budget=40,sink=1,weight=norm,epsilon=9,scope=layer", 0, 4, kValues},
    {"knorm:budget=40,prompt=pinned,every=2", 0, 0, 0},
    {"keydiff:budget=40,scope=layer,split=geometric,alpha=0.7", 0, 4, 0},
    {"keydiff:budget=0.4,margin=3", 0, 0, kLayerBudgets},
    {"lagkv:budget=40,block=10", 0, 0, kValues},
    {"cur:budget=40", 0, 4, kValues},
    /* Windows of queries, by the oracle's attention. */
    {"snapkv:budget=60,sink=2,window=8", 10, 0, kHeadBudgets},
    {"snapkv:budget=60,sink=0,window=4,pool=max3,tie=higher", 8, 4,
     kHeadBudgets},
    {"snapkv:budget=50,sink=0,window=4,prior=mean", 8, 4, kHeadBudgets},
    {"snapkv:budget=50,window=12,pool=avg5,rows=mean,group=max", 0, 4,
     kLayerBudgets},
    {"snapkv:budget=50,window=12,pool=max5,order=pool-reduce,scope=layer,over="
     "sum",
     0, 4, 0},
    {"snapkv:budget=60,window=16,scope=model,over=max,tie=higher", 0, 4, 0},
    {"snapkv:budget=40,window=8,heads=adaptive", 0, 4, 0},
    {"pyramidkv:budget=60,window=8,alpha=0.8", 0, 4, 0},
    {"pyramidkv:budget=50,sink=2,window=5,split=arithmetic-kvf,pool=avg7,over="
     "sum",
     0, 0, 0},
    {"tova:budget=40,keep_window=no,margin=6,every=3", 0, 4, 0},
    {"tova:budget=24,prompt=beside", 0, 0, 0},
    {"r-kv:budget=40,window=8,redundancy=0", 0, 4, 0},
    {"cake:budget=60,window=8", 0, 0, kMeasures},
    {"cake:budget=0.3,window=16,tau1=1.6,tau2=0.4", 0, 0, kMeasures},
    {"cake:budget=40,window=4,spread=0,sink=2,pool=max3,recent=9", 0, 2,
     kMeasures},
    {"snapkv:budget=90,window=32,split=cake,order=pool-reduce,pool=max5", 0, 0,
     kMeasures},
    {"cake:budget=60,window=8,softmax=past,group=max,scope=layer,over=sum", 0,
     0, kMeasures},
    {"cake:budget=50,window=8,heads=adaptive", 0, 0, kMeasures},
    {"snapkv:budget=60,sink=4,recent=50,window=8,split=lazy,lazy=0.5", 0, 0,
     kMeasures},
    {"snapkv:budget=40,sink=2,window=3,split=lazy,lazy=0.05,spread=9", 0, 0,
     kMeasures},
    {"snapkv:budget=0.4,window=2,split=lazy,lazy=0.1,scope=layer", 0, 0,
     kMeasures},
    /* Reference queries. */
    {"snapkv:budget=40,window=8,reference=5", 0, 4, 0},
    {"snapkv:budget=40,window=8,reference=5,reference_weight=0.5", 0, 4, 0},
    {"snapkv:budget=40,window=8,reference=5,keep_window=no", 0, 4, 0},
    {"snapkv:budget=40,window=8,reference=4,heads=adaptive", 0, 4, 0},
    {"snapkv:budget=40,window=8,reference=4,reference_weight=0.25,rows=max,"
     "group=max,"
     "heads=adaptive",
     0, 4, 0},
    {"snapkv:budget=40,window=8,reference=4,reference_weight=0.7,rows=max,pool="
     "avg5,"
     "edge=mass,order=pool-rows,prior=mean",
     0, 4, 0},
    {"tova:budget=40,reference=3,reference_weight=0.3", 0, 4, 0},
    {"pyramidkv:budget=40,window=8,reference=6,alpha=0.9", 0, 0, 0},
    {"r-kv:budget=40,window=8,reference=6,reference_weight=0.5,redundancy=0", 0,
     4, 0},
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

/* Budgets of layers, some of them ratios. */
static const double* DrawLayerBudgets(test_random* random, const kind* k) {
  static double budgets[kLayers];
  const bool has_ratios = strncmp(k->policy, "streaming", 9) != 0 &&
                          strstr(k->policy, "select_block") == NULL;
  for (uint32_t l = 0; l < kLayers; ++l) {
    budgets[l] = has_ratios && test_random_coin(random)
                     ? 0.2 + 0.8 * test_random_unit(random)
                     : test_random_between(random, 32, 110);
  }
  return budgets;
}

static test_model* DrawModel(test_random* random, const kind* k) {
  static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                         KVEVICT_DTYPE_BF16};
  static const uint32_t kGroups[] = {1, 3, 4, 8};
  static uint32_t budgets[kLayers * kHeads];
  test_model_spec spec = {.policy = k->policy,
                          .max_positions = TEST_SEQUENCE_POSITIONS + 20};
  spec.n_layers = (k->flags & kAllLayers) != 0
                      ? kLayers
                      : test_random_between(random, 1, kLayers);
  spec.n_kv_heads = test_random_between(random, 1, kHeads);
  spec.n_q_heads = spec.n_kv_heads * kGroups[test_random_below(random, 4)];
  spec.max_tokens = test_random_between(random, 100, 180);
  spec.k_head_dim = test_random_between(random, 1, 40);
  spec.v_head_dim = test_random_between(random, (k->flags & kValues) != 0, 20);
  spec.q_dtype = kTypes[test_random_below(random, 3)];
  spec.k_dtype = kTypes[test_random_below(random, 3)];
  if (test_random_below(random, 3) == 0) {
    test_draw_quantized(&spec, random);
  } else if ((k->flags & kAnyRows) != 0 && test_random_coin(random)) {
    spec.k_dtype = KVEVICT_DTYPE_OPAQUE;
    spec.v_head_dim += 1;
  }
  if ((k->flags & kMeasures) != 0) {
    spec.k_head_dim = 16;
    spec.q_dtype = KVEVICT_DTYPE_F16;
    spec.k_dtype = KVEVICT_DTYPE_F32;
  }
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  spec.n_companions = test_random_below(random, 3);
  spec.n_threads = test_random_between(random, 1, 4);
  spec.draft_tokens = test_random_below(random, 4);
  spec.report_mass = test_random_below(random, 2);
  DrawBudgets(random, k->least, budgets);
  spec.head_budgets = (k->flags & kHeadBudgets) != 0 ? budgets : NULL;
  if ((k->flags & kLayerBudgets) != 0 && test_random_coin(random)) {
    spec.layer_budgets = DrawLayerBudgets(random, k);
  }
  test_model* m = test_model_create(&spec, *random);
  test_random_u64(random);
  return m;
}

TestSuite(life);

Test(life, of_any_sequence_is_as_a_naive_model_says) {
  test_random random = test_random_start("life");
  test_lived all = {0, 0, 0, 0};
  for (size_t k = 0; k < sizeof kKinds / sizeof *kKinds; ++k) {
    test_lived sum = {0, 0, 0, 0};
    for (int i = 0; i < 4; ++i) {
      test_live(DrawModel(&random, &kKinds[k]), kKinds[k].n_protect, &random,
                i > 1, &sum);
    }
    EXPECT(sum.n_evicted > 0 || k == 0, "%s: %u evictions", kKinds[k].policy,
           sum.n_evicted);
    all.n_evicted += sum.n_evicted;
    all.n_refused += sum.n_refused;
    all.n_undone += sum.n_undone;
    all.n_copied += sum.n_copied;
  }
  EXPECT(all.n_refused * 20 < all.n_evicted &&
             all.n_undone * 10 > all.n_evicted && all.n_copied > 300,
         "%u evictions, %u refused, %u taken back, %u copies", all.n_evicted,
         all.n_refused, all.n_undone, all.n_copied);
}
