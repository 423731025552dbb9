// The tokens that published implementations keep of a prompt: a function for every
// preset, with the constants of its source (their names and numbers, not this
// library's options), in double precision and without regard to speed.
#ifndef KVEVICT_TESTS_ORACLE_PRESETS_H_
#define KVEVICT_TESTS_ORACLE_PRESETS_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A prompt in a model whose layers are alike, all in f32.
typedef struct oracle_prompt {
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t n_tokens;
  const float* queries;     // [n_layers, n_q_heads, n_tokens, head_dim]
  const float* keys;        // [n_layers, n_kv_heads, n_tokens, head_dim]
  const float* values;      // [n_layers, n_kv_heads, n_tokens, head_dim]
  const float* weights;     // [n_layers, n_kv_heads, n_tokens]: ||V Wo||_1
  const float* mean;        // [n_layers, n_q_heads, head_dim]: queries to come
  const float* covariance;  // [n_layers, n_q_heads, head_dim, head_dim]
  const float* inv_freq;    // [head_dim / 2]
  const float* centers;     // [n_layers, n_q_heads, 3, head_dim / 2]
  uint32_t n_prompt;        // of a prompt that has ended; else 0
} oracle_prompt;

// The numbers that a run chooses. All others are the source's.
typedef struct oracle_sizes {
  double budget;  // tokens, or the kept ratio if the source has one
  uint32_t
      window;  // of queries, or recent tokens, or sinks: what the source has
  uint32_t block;  // LagKV's partition, ChunkKV's chunk, ChunkPress's
} oracle_sizes;

// A right answer holds all of `must` and none outside `may`, between `least` and
// `most` in number. These differ if ties or the last bits of f32 decide.
typedef struct oracle_kept {
  uint8_t* must;    // [n_layers, n_kv_heads, n_tokens] of 0 and 1
  uint8_t* may;     // [n_layers, n_kv_heads, n_tokens] of 0 and 1
  uint32_t* least;  // [n_layers, n_kv_heads]
  uint32_t* most;
} oracle_kept;

// False if there is no preset of that name.
bool oracle_preset(const char* name, const oracle_prompt* prompt,
                   const oracle_sizes* sizes, const oracle_kept* out);

// The names of all presets; NULL past the end.
const char* oracle_preset_at(uint32_t index);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_PRESETS_H_
