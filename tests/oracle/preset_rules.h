// Rules from which the oracles of presets are built.
#ifndef KVEVICT_TESTS_ORACLE_PRESET_RULES_H_
#define KVEVICT_TESTS_ORACLE_PRESET_RULES_H_

#include <cstdint>
#include <vector>

#include "tests/oracle/presets.h"

namespace kvevict::oracle {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// ---- Numbers of tokens ----

// [n_rows][n_tokens]: the softmax weights of a query head's last rows over all keys
// up to their own; 0 beyond.
Rows Attention(const oracle_prompt& p, uint32_t layer, uint32_t q_head,
               uint32_t n_rows);
Row SumOfRows(const Rows& rows);
Row MeanOfRows(const Rows& rows);
// Pools a row's first n with stride 1. The average counts zeros beyond the edge.
Row AveragePool(const Row& row, uint32_t n, uint32_t kernel);
Row MaxPool(const Row& row, uint32_t n, uint32_t kernel);
const float* KeyOf(const oracle_prompt& p, uint32_t layer, uint32_t head,
                   uint32_t token);
const float* ValueOf(const oracle_prompt& p, uint32_t layer, uint32_t head,
                     uint32_t token);
double NormOf(const float* row, uint32_t n);

// ---- Tokens by number ----

// The tokens of a head that stay: infinity first, then the largest.
struct Kept {
  std::vector<uint8_t> must;
  std::vector<uint8_t> may;
  uint32_t least = 0;
  uint32_t most = 0;
};
// The n best. `doubt` is how near to the cut f32 may decide otherwise; < 0: as for
// attention.
Kept Best(const Row& scores, uint32_t n, double doubt = -1.0);
// Keeps between the `least` and the `most` best.
Kept Best(const Row& scores, uint32_t least, uint32_t most, double doubt);
// Chooses `first` of them by one row, the others by another.
Kept BestInTwoStages(const Row& scores, uint32_t first, const Row& then,
                     Kept number);
Kept All(uint32_t n);

// How many of the n best of all rows belong to a row: between these numbers.
struct Share {
  uint32_t least;
  uint32_t most;
};
std::vector<Share> Contest(const Rows& heads, uint32_t n);

// int(n * ratio), as kvpress truncates it.
uint32_t Truncated(uint32_t n, double ratio);

// A preset's answer for one layer: a Kept per KV head.
using Heads = std::vector<Kept>;

// ---- Rules that several sources share ----

// One row per query head of a KV head.
template <typename Make>
Rows OfGroup(const oracle_prompt& p, uint32_t head, const Make& make) {
  const uint32_t group = p.n_q_heads / p.n_kv_heads;
  Rows rows;
  for (uint32_t q = head * group; q < (head + 1) * group; ++q) {
    rows.push_back(make(q));
  }
  return rows;
}

// What make(head) says of each KV head.
template <typename Make>
Heads OfEach(const oracle_prompt& p, const Make& make) {
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) heads.push_back(make(h));
  return heads;
}

// The row's first values, then infinity for the window.
Row WithWindow(Row past, uint32_t n_tokens);
// The last queries' attention: mean over rows and group.
Row HeadAttention(const oracle_prompt& p, uint32_t layer, uint32_t head,
                  uint32_t window);
// kvpress: mean over rows, avg_pool1d(5) of each query head's past, mean of the group.
Row KvpressSnap(const oracle_prompt& p, uint32_t layer, uint32_t head,
                uint32_t window);
// KVCache-Factory in kv_head mode: sums over rows, mean of the group, avg_pool1d(5).
Row KvfSnap(const oracle_prompt& p, uint32_t layer, uint32_t head,
            uint32_t window);
// AdaKV with gqa_func mean: mean over rows and group, max_pool1d(7).
Row AdaSnap(const oracle_prompt& p, uint32_t layer, uint32_t head,
            uint32_t window);
using HeadRow = Row (*)(const oracle_prompt&, uint32_t layer, uint32_t head,
                        uint32_t window);
Rows OfHeads(const oracle_prompt& p, uint32_t layer, uint32_t window,
             HeadRow make);
Heads BestOfEach(const Rows& rows, uint32_t n);
Heads AllOf(const oracle_prompt& p);
uint32_t Tokens(const oracle_sizes& s);

#define KVEVICT_PRESET_ORACLE(name, function)                            \
  Heads function(const oracle_prompt& prompt, const oracle_sizes& sizes, \
                 uint32_t layer);
#include "tests/oracle/presets.inc"
#undef KVEVICT_PRESET_ORACLE

}  // namespace kvevict::oracle

#endif  // KVEVICT_TESTS_ORACLE_PRESET_RULES_H_
