// Scores from the keys of one head alone, in double precision, and how far from them
// arithmetic in f32 may be.
#ifndef KVEVICT_TESTS_ORACLE_KEY_SCORES_H_
#define KVEVICT_TESTS_ORACLE_KEY_SCORES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// keys[n_tokens, head_dim]; scores[n_tokens], bounds[n_tokens].

// KeyDiff: -cos(k, the mean of k / |k|), norms at least 1e-12 where a key is divided
// by its own and 1e-8 in the cosine. Finite keys.
void oracle_key_diff(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                     double* scores, double* bounds);

// The same block by block, as the paper does: the first n_keep tokens stay; of those that
// stayed and the next `block` the n_keep best stay, by -cos(k, the mean over just these),
// equal ones by their position, the lower or, if higher_wins, the higher ones. Keys with
// elements that are not finite are in no mean, score NaN and leave first. Others that
// leave score -2 less the blocks that came after. Returns by how much the scores of those
// that stay and of those that leave are apart in the closest block, less what f32 may be
// off: above 0 nothing else is right. Keys alike have one score, and count as apart.
double oracle_key_diff_blocks(const float* keys, uint32_t n_tokens,
                              uint32_t head_dim, uint32_t n_keep,
                              uint32_t block, int higher_wins, double* scores,
                              double* bounds);

// Q-Filter: -(filter . k).
void oracle_key_filter(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                       const float* filter, double* scores, double* bounds);

// R-KV: the softmax over the tokens of the means over i of the cosines C[i, j], 0 for
// j = i and for one j of every i: the last with C[i, j] > threshold, or 0. Keys with
// elements that are not finite score NaN, and are in no mean. All n_tokens^2 of them.
void oracle_redundancy(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                       double threshold, double* scores, double* bounds);
// How near to the threshold the nearest cosine of two keys is, less what f32 may be off.
double oracle_similarity_gap(const float* keys, uint32_t n_tokens,
                             uint32_t head_dim, double threshold);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_KEY_SCORES_H_
