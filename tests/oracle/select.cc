#include "tests/oracle/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/oracle/reduce.h"

void oracle_combine(const float* rows, uint32_t n_rows, uint32_t n_tokens,
                    kvevict_reduce reduce, float* out) {
  for (uint32_t j = 0; j < n_tokens; ++j) {
    std::vector<double> terms;
    for (uint32_t r = 0; r < n_rows; ++r) {
      terms.push_back(rows[size_t{r} * n_tokens + j]);
    }
    out[j] = static_cast<float>(kvevict::oracle::Reduce(terms, reduce));
  }
}

void oracle_select(const float* scores, uint32_t n_tokens, uint32_t n_keep,
                   const uint8_t* forced, kvevict_tie tie, int32_t* keep) {
  const std::vector<int32_t> ranks(n_tokens, 0);
  oracle_select_ranked(scores, ranks.data(), n_tokens, n_keep, forced, 1, tie,
                       keep);
}

uint32_t oracle_select_blocks(const float* scores, uint32_t n_tokens,
                              uint32_t n_keep, const uint8_t* forced,
                              uint32_t block, kvevict_tie tie, int32_t* keep) {
  // The last block that is not full comes first.
  uint32_t n = n_tokens % block;
  if (n > n_keep) return 0;
  while (n + block <= std::min(n_keep, n_tokens)) n += block;
  const std::vector<int32_t> ranks(n_tokens, 0);
  oracle_select_ranked(scores, ranks.data(), n_tokens, n, forced, block, tie,
                       keep);
  return n;
}

void oracle_select_ranked(const float* scores, const int32_t* ranks,
                          uint32_t n_tokens, uint32_t n_keep,
                          const uint8_t* forced, uint32_t block,
                          kvevict_tie tie, int32_t* keep) {
  struct Block {
    uint32_t begin, end;
    bool stays;
    int32_t rank;
    double score;
  };
  std::vector<Block> blocks;
  for (uint32_t begin = 0; begin < n_tokens; begin += block) {
    Block b = {begin, std::min(n_tokens, begin + block), false, ranks[begin],
               0.0};
    b.stays = b.end - begin < block;
    for (uint32_t i = begin; i < b.end; ++i) {
      b.stays = b.stays || forced[i] != 0;
      b.rank = std::max(b.rank, ranks[i]);
      if (scores != nullptr) b.score += static_cast<double>(scores[i]);
    }
    b.score =
        static_cast<double>(static_cast<float>(b.score / (b.end - begin)));
    blocks.push_back(b);
  }
  std::sort(blocks.begin(), blocks.end(), [&](const Block& a, const Block& b) {
    if (a.stays != b.stays) return a.stays;
    if (a.rank != b.rank) return a.rank > b.rank;
    const bool a_nan = std::isnan(a.score), b_nan = std::isnan(b.score);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && a.score != b.score) return a.score > b.score;
    return tie == KVEVICT_TIE_LOWER_POSITION ? a.begin < b.begin
                                             : a.begin > b.begin;
  });
  uint32_t n = 0;
  for (size_t b = 0; b < blocks.size() && n < n_keep; ++b) {
    for (uint32_t i = blocks[b].begin; i < blocks[b].end; ++i) {
      keep[n++] = static_cast<int32_t>(i);
    }
  }
  std::sort(keep, keep + n);
}

bool oracle_selection_is_right(const double* scores, uint32_t n_tokens,
                               const int32_t* keep, uint32_t n_keep,
                               const uint8_t* forced, double tolerance) {
  std::vector<bool> kept(n_tokens, false);
  for (uint32_t i = 0; i < n_keep; ++i) {
    if (keep[i] < 0 || static_cast<uint32_t>(keep[i]) >= n_tokens) return false;
    if (i > 0 && keep[i] <= keep[i - 1]) return false;
    kept[keep[i]] = true;
  }
  double worst_kept = std::numeric_limits<double>::infinity();
  double best_lost = -std::numeric_limits<double>::infinity();
  for (uint32_t j = 0; j < n_tokens; ++j) {
    if (forced[j] && !kept[j]) return false;
    if (forced[j]) continue;
    if (kept[j]) worst_kept = std::min(worst_kept, scores[j]);
    if (!kept[j]) best_lost = std::max(best_lost, scores[j]);
  }
  return !(best_lost > worst_kept + tolerance);
}
