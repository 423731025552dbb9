#include "tests/oracle/preset_rules.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/oracle/numbers.h"

namespace kvevict::oracle {
namespace {

// Scores so near to a cut may be on either side of it in f32.
double DoubtOf(const Row& scores, double cut, double doubt) {
  if (doubt >= 0.0) return doubt;
  double largest = 0.0;
  for (const double s : scores) {
    if (std::isfinite(s)) largest = std::max(largest, std::abs(s));
  }
  return 2e-7 * largest + (std::isfinite(cut) ? 1e-5 * std::abs(cut) : 0.0);
}

// The n-th largest score.
double CutOf(Row scores, uint32_t n) {
  std::sort(scores.begin(), scores.end(), std::greater<>());
  return scores[n - 1];
}

}  // namespace

Rows Attention(const oracle_prompt& p, uint32_t layer, uint32_t q_head,
               uint32_t n_rows) {
  const uint32_t group = p.n_q_heads / p.n_kv_heads;
  const float* const queries =
      p.queries +
      size_t{layer * p.n_q_heads + q_head} * p.n_tokens * p.head_dim;
  Rows rows(n_rows, Row(p.n_tokens, 0.0));
  for (uint32_t w = 0; w < n_rows; ++w) {
    const uint32_t own = p.n_tokens - n_rows + w;
    double highest = -kInfinity;
    Row& row = rows[w];
    for (uint32_t j = 0; j <= own; ++j) {
      const float* const key = KeyOf(p, layer, q_head / group, j);
      double dot = 0.0;
      for (uint32_t d = 0; d < p.head_dim; ++d) {
        dot += double{queries[size_t{own} * p.head_dim + d]} * key[d];
      }
      row[j] = dot / std::sqrt(double{1} * p.head_dim);
      highest = std::max(highest, row[j]);
    }
    double sum = 0.0;
    for (uint32_t j = 0; j <= own; ++j) {
      sum += row[j] = std::exp(row[j] - highest);
    }
    for (uint32_t j = 0; j <= own; ++j) row[j] /= sum;
  }
  return rows;
}

Row SumOfRows(const Rows& rows) {
  Row sum(rows[0].size(), 0.0);
  for (const Row& row : rows) {
    for (size_t j = 0; j < row.size(); ++j) sum[j] += row[j];
  }
  return sum;
}

Row MeanOfRows(const Rows& rows) {
  Row mean = SumOfRows(rows);
  for (double& v : mean) v /= static_cast<double>(rows.size());
  return mean;
}

Row AveragePool(const Row& row, uint32_t n, uint32_t kernel) {
  Row out(n, 0.0);
  const int64_t half = kernel / 2;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i - half; j <= i + half; ++j) {
      if (j >= 0 && j < n) out[i] += row[j] / kernel;
    }
  }
  return out;
}

Row MaxPool(const Row& row, uint32_t n, uint32_t kernel) {
  Row out(n, -kInfinity);
  const int64_t half = kernel / 2;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i - half; j <= i + half; ++j) {
      if (j >= 0 && j < n) out[i] = std::max(out[i], row[j]);
    }
  }
  return out;
}

const float* KeyOf(const oracle_prompt& p, uint32_t layer, uint32_t head,
                   uint32_t token) {
  return p.keys + (size_t{layer * p.n_kv_heads + head} * p.n_tokens + token) *
                      p.head_dim;
}

const float* ValueOf(const oracle_prompt& p, uint32_t layer, uint32_t head,
                     uint32_t token) {
  return p.values + (KeyOf(p, layer, head, token) - p.keys);
}

double NormOf(const float* row, uint32_t n) {
  double sum = 0.0;
  for (uint32_t d = 0; d < n; ++d) sum += double{row[d]} * row[d];
  return std::sqrt(sum);
}

Kept Best(const Row& scores, uint32_t least, uint32_t most, double doubt) {
  const auto size = static_cast<uint32_t>(scores.size());
  Kept kept = {std::vector<uint8_t>(size, 0), std::vector<uint8_t>(size, 0),
               std::min(least, size), std::min(most, size)};
  if (kept.most == 0) return kept;
  const double sure = kept.least > 0 ? CutOf(scores, kept.least) : kInfinity;
  const double possible = CutOf(scores, kept.most);
  doubt = DoubtOf(scores, possible, doubt);
  // If as many are not below the sure cut as stay, none is in doubt.
  uint32_t n_near = 0;
  for (const double s : scores) n_near += s >= sure - doubt;
  for (uint32_t i = 0; i < size; ++i) {
    const double s = scores[i];
    kept.must[i] =
        kept.least > 0 && (s > sure + doubt || s == kInfinity ||
                           (n_near <= kept.least && s >= sure - doubt));
    kept.may[i] = s >= possible - doubt;
  }
  return kept;
}

Kept Best(const Row& scores, uint32_t n, double doubt) {
  return Best(scores, n, n, doubt);
}

Kept BestInTwoStages(const Row& scores, uint32_t first, const Row& then,
                     Kept number) {
  const Kept secured = Best(scores, first);
  Row rest = then;
  for (uint32_t i = 0; i < rest.size(); ++i) {
    if (secured.must[i]) rest[i] = kInfinity;
  }
  Kept kept = Best(rest, number.least, number.most, -1.0);
  if (secured.must == secured.may) return kept;
  kept.must = secured.must;  // the first stage is in doubt, so the second is
  kept.may.assign(rest.size(), 1);
  return kept;
}

Kept All(uint32_t n) {
  return {std::vector<uint8_t>(n, 1), std::vector<uint8_t>(n, 1), n, n};
}

std::vector<Share> Contest(const Rows& heads, uint32_t n) {
  Row all;
  for (const Row& row : heads) all.insert(all.end(), row.begin(), row.end());
  const double cut = CutOf(all, n);
  const double doubt = DoubtOf(all, cut, -1.0);
  std::vector<Share> shares;
  uint32_t n_sure = 0;
  uint32_t n_in_doubt = 0;
  for (const Row& row : heads) {
    Share share = {0, 0};
    for (const double s : row) {
      share.least += s > cut + doubt;
      share.most += s >= cut - doubt;
    }
    n_sure += share.least;
    n_in_doubt += share.most - share.least;
    shares.push_back(share);
  }
  // A head gets the tokens that the others cannot take.
  const uint32_t n_left = n - n_sure;
  for (Share& share : shares) {
    const uint32_t own = share.most - share.least;
    const uint32_t others = n_in_doubt - own;
    const uint32_t most = share.least + std::min(own, n_left);
    share.least += n_left > others ? n_left - others : 0;
    share.most = most;
  }
  return shares;
}

uint32_t Truncated(uint32_t n, double ratio) {
  return static_cast<uint32_t>(n * ratio);
}

// ---- Rules that several sources share ----

Row WithWindow(Row past, uint32_t n_tokens) {
  past.resize(n_tokens, kInfinity);
  return past;
}

Row HeadAttention(const oracle_prompt& p, uint32_t layer, uint32_t head,
                  uint32_t window) {
  return MeanOfRows(OfGroup(p, head, [&](uint32_t q) {
    return MeanOfRows(Attention(p, layer, q, window));
  }));
}

Row KvpressSnap(const oracle_prompt& p, uint32_t layer, uint32_t head,
                uint32_t window) {
  return WithWindow(
      MeanOfRows(OfGroup(p, head,
                         [&](uint32_t q) {
                           return AveragePool(
                               MeanOfRows(Attention(p, layer, q, window)),
                               p.n_tokens - window, 5);
                         })),
      p.n_tokens);
}

Row KvfSnap(const oracle_prompt& p, uint32_t layer, uint32_t head,
            uint32_t window) {
  const Row of_group = MeanOfRows(OfGroup(p, head, [&](uint32_t q) {
    return SumOfRows(Attention(p, layer, q, window));
  }));
  return WithWindow(AveragePool(of_group, p.n_tokens - window, 5), p.n_tokens);
}

Row AdaSnap(const oracle_prompt& p, uint32_t layer, uint32_t head,
            uint32_t window) {
  return WithWindow(
      MaxPool(HeadAttention(p, layer, head, window), p.n_tokens - window, 7),
      p.n_tokens);
}

Rows OfHeads(const oracle_prompt& p, uint32_t layer, uint32_t window,
             HeadRow make) {
  Rows rows;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    rows.push_back(make(p, layer, h, window));
  }
  return rows;
}

Heads BestOfEach(const Rows& rows, uint32_t n) {
  Heads heads;
  for (const Row& row : rows) heads.push_back(Best(row, n));
  return heads;
}

Heads AllOf(const oracle_prompt& p) {
  return Heads(p.n_kv_heads, All(p.n_tokens));
}

uint32_t Tokens(const oracle_sizes& s) {
  return static_cast<uint32_t>(s.budget);
}

}  // namespace kvevict::oracle

using kvevict::oracle::Heads;
using kvevict::oracle::Kept;

namespace {

struct NamedOracle {
  const char* name;
  Heads (*heads)(const oracle_prompt&, const oracle_sizes&, uint32_t);
};
constexpr NamedOracle kOracles[] = {
#define KVEVICT_PRESET_ORACLE(name, function) {name, kvevict::oracle::function},
#include "tests/oracle/presets.inc"
#undef KVEVICT_PRESET_ORACLE
};

}  // namespace

const char* oracle_preset_at(uint32_t index) {
  return index < std::size(kOracles) ? kOracles[index].name : nullptr;
}

bool oracle_preset(const char* name, const oracle_prompt* prompt,
                   const oracle_sizes* sizes, const oracle_kept* out) {
  for (const NamedOracle& oracle : kOracles) {
    if (std::strcmp(oracle.name, name) != 0) continue;
    for (uint32_t l = 0; l < prompt->n_layers; ++l) {
      const Heads heads = oracle.heads(*prompt, *sizes, l);
      for (uint32_t h = 0; h < prompt->n_kv_heads; ++h) {
        const Kept& kept = heads[h];
        const size_t list = l * prompt->n_kv_heads + h;
        const size_t row = list * prompt->n_tokens;
        std::copy(kept.must.begin(), kept.must.end(), out->must + row);
        std::copy(kept.may.begin(), kept.may.end(), out->may + row);
        out->least[list] = kept.least;
        out->most[list] = kept.most;
      }
    }
    return true;
  }
  return false;
}
