// Budgets of heads from importances found beforehand, as published.
#ifndef KVEVICT_TESTS_ORACLE_HEAD_TABLES_H_
#define KVEVICT_TESTS_ORACLE_HEAD_TABLES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// DuoAttention, as kvpress deploys it. streams[n]: 1 for a streaming head. These
// are the head_ratio of all heads with the lowest alpha[n], clipped to [0, 1].
void oracle_duo_heads(const double* alpha, uint32_t n, double head_ratio,
                      uint8_t* streams);

// HeadKV, as KVCache-Factory computes it with a cache of KV heads, from importance
// [n_layers, n_q_heads]. budgets[n_layers, n_kv_heads] include the window, which
// comes on top of each.
void oracle_headkv_budgets(const double* importance, uint32_t n_layers,
                           uint32_t n_q_heads, uint32_t n_kv_heads,
                           uint32_t capacity, uint32_t window,
                           uint32_t* budgets);

// LU-KV for n_tokens: prune[n] is the share of each head that is pruned.
void oracle_lukv_budgets(const double* prune, uint32_t n, uint32_t n_tokens,
                         uint32_t* budgets);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_HEAD_TABLES_H_
