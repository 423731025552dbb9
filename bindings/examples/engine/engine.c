/* A small engine that owns its cache and uses kvevict; README.md has the model. */
#include <kvevict/kvevict.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef _WIN32 /* its C library has other names */
#include <malloc.h>
#define aligned_alloc(alignment, n) _aligned_malloc(n, alignment)
#define aligned_free _aligned_free
#else
#define aligned_free free
#endif

enum { L = 2, QH = 4, KVH = 2, D = 16, X = QH * D, KV = KVH * D, MAX = 160 };
enum { PROMPT = 104, STEPS = 12, DRAFTS = 3 };

typedef struct {
  uint32_t seed;
  kvevict_sequence* seq;
  float k[L][MAX][KV], v[L][MAX][KV]; /* the cache, by slot */
  float q[L][X];                      /* the queries of one token */
  int x[X];
  unsigned long long checksum;
} engine;

static void check(kvevict_status status) {
  if (status == KVEVICT_OK) return;
  fprintf(stderr, "%s\n", kvevict_last_error_message());
  exit(1);
}

static uint32_t hash(const engine* e, uint32_t a) {
  uint32_t h = (a ^ e->seed) * 2654435761u;
  h = (h ^ (h >> 15)) * 2246822519u;
  return h ^ (h >> 13);
}

/* Rows of so many heads, one after the other. */
static kvevict_plane rows(const float* data, int heads) {
  return kvevict_plane_token_major(data, KVEVICT_DTYPE_F32, heads, D);
}

/* Observes the queries of the token at a position. */
static void observe(engine* e, int layer, uint32_t position) {
  kvevict_plane queries = rows(e->q[layer], QH);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_observation shown = KVEVICT_OBSERVATION_INIT;
  inputs.queries = &queries, shown.layer = layer, shown.inputs = &inputs;
  check(kvevict_sequence_observe(e->seq, &shown, 1, 1, position, NULL));
}

static void attend(engine* e, int layer, uint32_t n_slots, const float* q) {
  for (int h = 0; h < QH; ++h) {
    double sum = 0, out[D] = {0};
    for (uint32_t s = 0; s < n_slots; ++s) {
      const float* k = e->k[layer][s] + h / (QH / KVH) * D;
      const float* v = e->v[layer][s] + h / (QH / KVH) * D;
      double dot = 0;
      for (int i = 0; i < D; ++i) dot += q[h * D + i] * k[i];
      double weight = dot > 0 ? 1 + dot * dot : 1;
      for (int i = 0; i < D; ++i) out[i] += weight * v[i];
      sum += weight;
    }
    for (int i = 0; i < D; ++i) {
      int* x = &e->x[h * D + i];
      *x = ((*x + (int)floor(4 * (out[i] / sum) + 0.5) + 8) & 15) - 8;
    }
  }
}

/* Runs one token through all layers; returns the next one. */
static uint32_t step(engine* e, uint32_t token) {
  uint32_t position, slot, next = 0;
  check(kvevict_sequence_logical_length(e->seq, &position));
  for (int i = 0; i < X; ++i)
    e->x[i] = (int)(hash(e, (token * 1024 + position) * X + i) >> 28) - 8;
  for (int l = 0; l < L; ++l) {
    check(kvevict_sequence_stored_length(e->seq, l, 0, &slot));
    for (int i = 0; i < X; ++i) e->q[l][i] = e->x[(5 * i + 3 * l + 1) % X];
    for (int i = 0; i < KV; ++i) {
      e->k[l][slot][i] = e->x[(7 * i + l) % X];
      e->v[l][slot][i] = e->x[(3 * i + 2 * l + 5) % X];
    }
    observe(e, l, position);
    attend(e, l, slot + 1, e->q[l]);
  }
  check(kvevict_sequence_append(e->seq, 1, NULL));
  for (int i = 0; i < X; ++i) next += (uint32_t)(e->x[i] + 8) * (i + 1);
  return next % 256;
}

/* Runs a token and drafts of the next ones through all layers. The first draft that
 * the model does not say, and all after it, are taken back. Returns the next token. */
static uint32_t speculate(engine* e, uint32_t token) {
  uint32_t length, accepted = 0, next = 0;
  int right = 1;
  check(kvevict_sequence_logical_length(e->seq, &length));
  for (uint32_t i = 0; i <= DRAFTS; ++i) {
    uint32_t said = step(e, token);
    /* This stands for a draft model that is wrong now and then. */
    token = said ^ (1 >> hash(e, 1000 + length + i) % 4);
    if (!right) continue;
    ++accepted, next = said, right = token == said;
    for (int j = 0; j < X; ++j)
      e->checksum = (e->checksum ^ (unsigned)(e->x[j] + 8)) * 1099511628211u;
  }
  check(kvevict_sequence_trim_to(e->seq, length + accepted, NULL));
  return next;
}

static void print_keep_positions(const engine* e, int layer, int head) {
  int32_t keep[MAX];
  size_t n;
  check(kvevict_sequence_keep_positions(e->seq, layer, head, keep, MAX, &n));
  printf("layer %d head %d keeps", layer, head);
  for (size_t i = 0; i < n; ++i) printf(" %d", keep[i]);
  printf("\n");
}

int main(int argc, char** argv) {
  engine* e = calloc(1, sizeof *e);
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_policy* policy;
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  kvevict_geometry model = KVEVICT_GEOMETRY_INIT;
  kvevict_workspace need = KVEVICT_WORKSPACE_INIT;
  kvevict_view views[L];
  uint32_t token = 0, length;
  e->checksum = 14695981039346656037u;
  e->seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
  layer.n_q_heads = QH, layer.n_kv_heads = KVH;
  layer.k_head_dim = layer.v_head_dim = D;
  model.n_layers = L, model.max_tokens = MAX;
  model.layers = &layer, model.layers_len = 1;
  check(kvevict_context_create(NULL, &context));
  check(kvevict_policy_create("snapkv:budget=40,window=8,sink=2", &policy));
  options.draft_tokens = DRAFTS; /* trims by so many keep the window */
  check(kvevict_plan_create(context, &model, policy, &options, &plan));
  kvevict_policy_destroy(policy);
  check(kvevict_sequence_create(plan, &e->seq));
  check(kvevict_sequence_begin_observing(e->seq, NULL, 0));
  check(kvevict_plan_workspace(plan, KVEVICT_OPERATION_EVICT, 0, &need));
  size_t bytes = (need.best_bytes + 63) / 64 * 64;
  void* scratch = aligned_alloc(need.alignment, bytes);
  for (int l = 0; l < L; ++l) {
    views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    views[l].n_kv_heads = KVH;
    views[l].k = rows(e->k[l][0], KVH), views[l].v = rows(e->v[l][0], KVH);
  }

  for (uint32_t i = 0; i < PROMPT; ++i) token = step(e, hash(e, i) % 256);
  check(kvevict_sequence_evict(e->seq, views, L, NULL, scratch, bytes, NULL));
  for (int i = 0; i < STEPS; ++i) {
    token = speculate(e, token);
    check(kvevict_sequence_evict(e->seq, views, L, NULL, scratch, bytes, NULL));
  }
  for (int l = 0; l < L; ++l)
    for (int h = 0; h < KVH; ++h) print_keep_positions(e, l, h);
  check(kvevict_sequence_logical_length(e->seq, &length));
  printf("length %u, last token %u, checksum %016llx\n", length, token,
         e->checksum);

  kvevict_sequence_destroy(e->seq);
  kvevict_plan_destroy(plan);
  kvevict_context_destroy(context);
  aligned_free(scratch);
  free(e);
}
