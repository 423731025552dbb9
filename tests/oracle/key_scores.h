// Scores from the keys of one head in double precision, and how far f32 arithmetic
// may be off.
#ifndef KVEVICT_TESTS_ORACLE_KEY_SCORES_H_
#define KVEVICT_TESTS_ORACLE_KEY_SCORES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// keys[n_tokens, head_dim]; scores[n_tokens], bounds[n_tokens].

// KeyDiff: -cos(k, the mean of k / |k|). A key is divided by its own norm of at
// least 1e-12; norms in the cosine are at least 1e-8. Keys whose square f32 does not
// have are in no mean and score NaN.
void oracle_key_diff(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                     double* scores, double* bounds);

// The same block by block, as in the paper. The first n_keep tokens stay. Then the
// n_keep best of these and the next `block` tokens stay, by -cos(k, the mean over just
// these); equal ones by position, the lower, or the higher if higher_wins. Keys with
// elements that are not finite are in no mean, score NaN and leave first. Others that
// leave score -2 less the number of later blocks. Returns the smallest distance, over
// all blocks, between the scores that stay and those that leave, less the error of f32:
// above 0 nothing else is right. Equal keys have one score and count as apart.
double oracle_key_diff_blocks(const float* keys, uint32_t n_tokens,
                              uint32_t head_dim, uint32_t n_keep,
                              uint32_t block, int higher_wins, double* scores,
                              double* bounds);

// Q-Filter: -(filter . k).
void oracle_key_filter(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                       const float* filter, double* scores, double* bounds);

// R-KV: the softmax over tokens j of the mean over i of the cosines C[i, j]. C[i, j]
// counts as 0 for j = i and for one j of every i: the last with C[i, j] > threshold, or 0.
// Keys with elements that are not finite score NaN, and are in no mean. Computes all
// n_tokens^2.
void oracle_redundancy(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                       double threshold, double* scores, double* bounds);
// How near the nearest cosine of two keys is to the threshold, less the error of f32.
double oracle_similarity_gap(const float* keys, uint32_t n_tokens,
                             uint32_t head_dim, double threshold);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_KEY_SCORES_H_
