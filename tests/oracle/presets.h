// Which tokens published implementations keep of a prompt: for every preset a function
// with the constants of its source (their names and numbers, not this library's
// options), in double precision and without any thought of speed.
#ifndef KVEVICT_TESTS_ORACLE_PRESETS_H_
#define KVEVICT_TESTS_ORACLE_PRESETS_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A prompt in a model whose layers are alike, f32 throughout.
typedef struct oracle_prompt {
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t n_tokens;
  const float* queries;     // [n_layers, n_q_heads, n_tokens, head_dim]
  const float* keys;        // [n_layers, n_kv_heads, n_tokens, head_dim]
  const float* values;      // likewise
  const float* weights;     // [n_layers, n_kv_heads, n_tokens]: ||V Wo||_1
  const float* mean;        // [n_layers, n_q_heads, head_dim]: queries to come
  const float* covariance;  // [n_layers, n_q_heads, head_dim, head_dim]
  const float* inv_freq;    // [head_dim / 2]
  const float* centers;     // [n_layers, n_q_heads, 3, head_dim / 2]
  // While it decodes, where tokens are gone:
  uint32_t n_prompt;  // of them those of the prompt, once it has ended
  uint32_t n_seen;    // 0: n_tokens
  // [n_tokens], of all heads; NULL: 0, 1 .. Read by what keeps one list for the model.
  const int32_t* positions;
} oracle_prompt;

// Numbers that a run chooses; all others are the source's.
typedef struct oracle_sizes {
  double budget;  // tokens, or where the source has a ratio, the kept one
  uint32_t
      window;  // of queries, or recent tokens, or sinks: what the source has
  uint32_t block;  // LagKV's partition, ChunkKV's chunk, ChunkPress's
} oracle_sizes;

// Of each layer and KV head: what a right answer must hold, what it may hold, and how
// many. They differ where ties or the last bits of f32 decide.
typedef struct oracle_kept {
  uint8_t* must;    // [n_layers, n_kv_heads, n_tokens] of 0 and 1
  uint8_t* may;     // likewise
  uint32_t* least;  // [n_layers, n_kv_heads]
  uint32_t* most;
} oracle_kept;

// False: no preset of that name.
bool oracle_preset(const char* name, const oracle_prompt* prompt,
                   const oracle_sizes* sizes, const oracle_kept* out);

// The names there are, 0, 1, ...; NULL past the end.
const char* oracle_preset_at(uint32_t index);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_PRESETS_H_
