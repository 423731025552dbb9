/*
 * The least that JNI can do: prepared structs, bare addresses of direct buffers, a status
 * that is compared. Benchmark.java measures the public layer against it. It has its own
 * handles, since the package's library shows no function of kvevict.
 */
#include <jni.h>
#include <kvevict/kvevict.h>

enum { LAYERS = 2, QH = 8, KVH = 2, D = 64, TOKENS = 256, WINDOW = 8 };

static kvevict_plan* plan;
static kvevict_sequence* sequence;
static kvevict_view views[LAYERS];
static kvevict_plane queries;
static kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;

static void check(JNIEnv* env, kvevict_status status) {
  if (status == KVEVICT_OK) return;
  (*env)->ThrowNew(env,
                   (*env)->FindClass(env, "java/lang/IllegalStateException"),
                   kvevict_last_error_message());
}

static kvevict_plane rows(JNIEnv* env, jobject buffer, int heads) {
  kvevict_plane plane = {0};
  plane.data = (uintptr_t)(*env)->GetDirectBufferAddress(env, buffer);
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.token_stride_bytes = heads * D * 4;
  plane.head_stride_bytes = D * 4;
  plane.head_dim = D;
  return plane;
}

JNIEXPORT void JNICALL Java_dev_kvevict_Benchmark_handInit(JNIEnv* env,
                                                           jclass owner,
                                                           jobject q, jobject k,
                                                           jobject v) {
  (void)owner;
  kvevict_context* context;
  kvevict_policy* policy;
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  kvevict_geometry model = KVEVICT_GEOMETRY_INIT;
  layer.n_q_heads = QH, layer.n_kv_heads = KVH;
  layer.k_head_dim = layer.v_head_dim = D;
  model.n_layers = LAYERS, model.max_tokens = TOKENS;
  model.layers = &layer, model.layers_len = 1;
  if (kvevict_context_create(NULL, &context) != KVEVICT_OK ||
      kvevict_policy_create("snapkv:budget=64,window=8", &policy) !=
          KVEVICT_OK ||
      kvevict_plan_create(context, &model, policy, NULL, &plan) != KVEVICT_OK)
    return check(env, KVEVICT_ERROR_INTERNAL);
  kvevict_policy_destroy(policy);
  check(env, kvevict_sequence_create(plan, &sequence));
  check(env, kvevict_sequence_begin_observing(sequence, NULL, 0));
  queries = rows(env, q, QH), inputs.queries = &queries;
  for (int l = 0; l < LAYERS; ++l) {
    views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    views[l].n_kv_heads = KVH;
    views[l].k = rows(env, k, KVH), views[l].v = rows(env, v, KVH);
    views[l].k.data += l * TOKENS * KVH * D * 4;
    views[l].v.data += l * TOKENS * KVH * D * 4;
  }
}

JNIEXPORT jint JNICALL Java_dev_kvevict_Benchmark_handNoOp(JNIEnv* env,
                                                           jclass owner) {
  (void)env;
  (void)owner;
  return (jint)kvevict_abi_version();
}

JNIEXPORT jint JNICALL Java_dev_kvevict_Benchmark_handLength(JNIEnv* env,
                                                             jclass owner) {
  (void)owner;
  uint32_t length = 0;
  check(env, kvevict_sequence_stored_length(sequence, 0, 0, &length));
  return (jint)length;
}

JNIEXPORT void JNICALL Java_dev_kvevict_Benchmark_handScore(
    JNIEnv* env, jclass owner, jobject scores, jint scores_len,
    jobject workspace, jint workspace_bytes) {
  (void)owner;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = TOKENS;
  job.view = &views[0];
  job.inputs = &inputs;
  job.scores = (*env)->GetDirectBufferAddress(env, scores);
  job.scores_len = (size_t)scores_len;
  check(env, kvevict_score(plan, &job, 1,
                           (*env)->GetDirectBufferAddress(env, workspace),
                           (size_t)workspace_bytes, NULL));
}

JNIEXPORT void JNICALL Java_dev_kvevict_Benchmark_handReset(JNIEnv* env,
                                                            jclass owner) {
  (void)owner;
  check(env, kvevict_sequence_reset(sequence, NULL));
}

JNIEXPORT void JNICALL Java_dev_kvevict_Benchmark_handObserve(JNIEnv* env,
                                                              jclass owner,
                                                              jint layer) {
  (void)owner;
  kvevict_observation shown = KVEVICT_OBSERVATION_INIT;
  shown.layer = (uint32_t)layer, shown.inputs = &inputs;
  check(env, kvevict_sequence_observe(sequence, &shown, 1, WINDOW,
                                      TOKENS - WINDOW, NULL));
}

JNIEXPORT void JNICALL Java_dev_kvevict_Benchmark_handAppend(JNIEnv* env,
                                                             jclass owner) {
  (void)owner;
  check(env, kvevict_sequence_append(sequence, TOKENS, NULL));
}

JNIEXPORT void JNICALL Java_dev_kvevict_Benchmark_handEvict(
    JNIEnv* env, jclass owner, jobject workspace, jint workspace_bytes) {
  (void)owner;
  check(env,
        kvevict_sequence_evict(sequence, views, LAYERS, NULL,
                               (*env)->GetDirectBufferAddress(env, workspace),
                               (size_t)workspace_bytes, NULL));
}
