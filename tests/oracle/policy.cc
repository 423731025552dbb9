#include "tests/oracle/policy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/oracle/layer_splits.h"

namespace {

bool ScoresByAttention(const oracle_policy& p) {
  return p.kind == ORACLE_SNAPKV || p.kind == ORACLE_PYRAMIDKV ||
         p.kind == ORACLE_TOVA || p.kind == ORACLE_R_KV ||
         p.kind == ORACLE_CAKE;
}

// Tells if kvevict_list_report has masses.
bool ScoresAreMass(const oracle_policy& p) {
  const bool of_attention = ScoresByAttention(p) || p.kind == ORACLE_H2O ||
                            p.kind == ORACLE_EXPECTED_ATTENTION ||
                            p.kind == ORACLE_NON_CAUSAL;
  if (!of_attention && p.kind != ORACLE_CUSTOM) return false;
  const bool secures = p.secure > 0.0 && p.weight != ORACLE_WEIGHT_NONE;
  if (ScoresByAttention(p) && p.first_stage_mass > 0.0) return false;
  return !p.draw && p.secure_values == 0 && p.secure_values_share == 0.0 &&
         p.prior == ORACLE_PRIOR_NONE && p.redundancy == 0.0 &&
         !p.standardize && p.leverage == 0.0 && !secures && p.rescue == 0 &&
         p.diverse_mass == 0.0;
}

uint32_t Blocks(const oracle_policy& p, uint32_t n_context) {
  return n_context / p.select_block + (n_context % p.select_block != 0);
}

// The tokens of so many blocks of a cache that include the last one.
double Tokens(const oracle_policy& p, double n_blocks, uint32_t n_context) {
  const uint32_t last = n_context - (Blocks(p, n_context) - 1) * p.select_block;
  return (n_blocks - 1) * p.select_block + last;
}

bool HasChunks(const oracle_policy& p) {
  return p.kind != ORACLE_NONE && p.kind != ORACLE_STREAMING_LLM && p.chunk > 0;
}

// The tokens that must stay of the slots [begin, end) of n, which begin with a chunk.
uint64_t ForcedOfChunk(const oracle_policy& p, uint64_t begin, uint64_t end,
                       uint64_t n) {
  const uint64_t sinks = std::min<uint64_t>(end, begin + p.sink);
  const uint64_t recent =
      std::max<uint64_t>(begin, n - std::min<uint64_t>(n, p.recent));
  if (recent >= end) return sinks - begin;
  return recent <= sinks ? end - begin : sinks - begin + (end - recent);
}

// Adds a function of each chunk's begin and end up over all chunks.
template <typename Of>
uint64_t OverChunks(const oracle_policy& p, uint64_t n, const Of& of) {
  uint64_t sum = 0;
  for (uint64_t begin = 0; begin < n; begin += p.chunk) {
    sum += of(begin, std::min<uint64_t>(n, begin + p.chunk));
  }
  return sum;
}

uint64_t LeastOfChunks(const oracle_policy& p, uint32_t n_context) {
  return OverChunks(p, n_context, [&](uint64_t begin, uint64_t end) {
    return std::max<uint64_t>(1, ForcedOfChunk(p, begin, end, n_context));
  });
}

// The budget in blocks as a real number, before it is rounded and clamped.
double RealBudget(const oracle_policy& p, uint32_t n_context) {
  const double n_blocks = Blocks(p, n_context);
  if (p.kind == ORACLE_NONE) return n_blocks;
  if (p.kind == ORACLE_LAGKV && p.of != 0) {
    // Sinks, all partitions except the last, then the rest.
    double kept = 0.0;
    uint32_t left = n_context;
    for (uint32_t i = 0; i < p.sink && left > 0; ++i, --left) kept += 1.0;
    while (left >= 2 * p.block) {
      double of_partition = p.budget > 1.0 ? p.budget : p.budget * p.block;
      if (of_partition > p.block) of_partition = p.block;
      kept += std::floor(of_partition);
      left -= p.block;
    }
    return kept + left;
  }
  double tokens = p.budget;
  if (p.kind == ORACLE_STREAMING_LLM && p.recent > 0) {
    tokens = static_cast<double>(p.sink) + static_cast<double>(p.recent);
  } else if (p.budget <= 1.0 && HasChunks(p)) {
    return static_cast<double>(
        OverChunks(p, n_context, [&](uint64_t begin, uint64_t end) {
          const auto part = static_cast<uint64_t>(
              p.budget * static_cast<double>(end - begin));
          return std::max<uint64_t>(
              {1, part, ForcedOfChunk(p, begin, end, n_context)});
        }));
  } else if (p.budget <= 1.0) {
    return p.budget * n_blocks;
  }
  // The tokens beyond the last block, in blocks. The sum rounds once: layers whose
  // share lies halfway between two numbers depend on it.
  return (tokens - Tokens(p, 1, n_context) + p.select_block) / p.select_block;
}

uint32_t BudgetBlocks(const oracle_policy& p, uint32_t n_context) {
  const double n_blocks = std::floor(RealBudget(p, n_context));
  return static_cast<uint32_t>(
      std::clamp(n_blocks, 1.0, static_cast<double>(Blocks(p, n_context))));
}

// The first tokens of all blocks that contain the first n, and the last tokens likewise.
uint64_t FirstInBlocks(const oracle_policy& p, uint64_t n) {
  while (n % p.select_block != 0) ++n;
  return n;
}

uint64_t LastInBlocks(const oracle_policy& p, uint64_t n, uint32_t n_context) {
  while (n < n_context && (n_context - n) % p.select_block != 0) ++n;
  return n;
}

// The last tokens that must stay.
uint64_t Recent(const oracle_policy& p) {
  if (p.kind == ORACLE_STREAMING_LLM) return 1;
  const bool window = ScoresByAttention(p) && p.keep_window != 0;
  return window ? std::max(p.recent, p.window) : p.recent;
}

// Whether both ends fit a budget that is less than the context.
bool Fits(const oracle_policy& p, uint64_t budget, uint32_t n_context) {
  if (p.kind == ORACLE_NONE) return true;
  uint64_t least = p.sink + Recent(p);
  if (ScoresByAttention(p) && p.split != ORACLE_SPLIT_LAZY) {
    ++least;  // one is chosen
  }
  return least <= budget &&
         FirstInBlocks(p, p.sink) + LastInBlocks(p, Recent(p), n_context) <=
             budget;
}

bool IsOfContext(const oracle_policy& p) {
  if (p.kind == ORACLE_LAGKV && p.of != 0) return true;
  const bool by_window = p.kind == ORACLE_STREAMING_LLM && p.recent > 0;
  return p.budget <= 1.0 && !by_window;
}

// A ratio of a context in which both ends do not fit keeps all of it. So does any
// budget if the context has no query for each row of the window.
uint32_t Budget(const oracle_policy& p, uint32_t n_context) {
  if (ScoresByAttention(p) && n_context < p.window) return n_context;
  const auto budget =
      static_cast<uint32_t>(Tokens(p, BudgetBlocks(p, n_context), n_context));
  return IsOfContext(p) && !Fits(p, budget, n_context) ? n_context : budget;
}

}  // namespace

bool oracle_resolve(const oracle_policy* policy, uint32_t n_context,
                    kvevict_resolved_policy* out) {
  const oracle_policy& p = *policy;
  const uint64_t budget = Budget(p, n_context);
  uint64_t sink = 0;
  uint64_t recent = 0;
  if (p.kind != ORACLE_NONE) {
    sink = std::min(FirstInBlocks(p, p.sink), budget);
    recent = budget - sink;
    if (p.kind != ORACLE_STREAMING_LLM) {
      recent = std::min(LastInBlocks(p, Recent(p), n_context), recent);
    }
  }
  if (HasChunks(p)) {
    if (budget < n_context && LeastOfChunks(p, n_context) > budget) {
      return false;
    }
    sink = OverChunks(p, n_context, [&](uint64_t begin, uint64_t end) {
      return std::min<uint64_t>(p.sink, end - begin);
    });
    sink = std::min(sink, budget);
    recent = std::min(recent, budget - sink);
  }
  out->struct_size = sizeof(*out);
  out->budget = static_cast<uint32_t>(budget);
  out->n_sink = static_cast<uint32_t>(sink);
  out->n_recent = static_cast<uint32_t>(recent);
  out->n_selected = static_cast<uint32_t>(budget - sink - recent);
  const bool others_score = p.reference > 0 && p.reference_weight == 1.0;
  out->n_query_rows = ScoresByAttention(p)   ? (others_score ? 0 : p.window)
                      : p.kind == ORACLE_H2O ? KVEVICT_QUERY_ROWS_ANY
                      : p.kind == ORACLE_NON_CAUSAL ? KVEVICT_QUERY_ROWS_ALL
                                                    : 0;
  out->scores_are_mass = ScoresAreMass(p);
  return true;
}

uint32_t oracle_last_tokens(const oracle_policy* policy,
                            const kvevict_resolved_policy* resolved) {
  if (HasChunks(*policy)) return policy->recent;
  if (policy->kind != ORACLE_STREAMING_LLM) return resolved->n_recent;
  return 1;
}

bool oracle_layer_budgets(const oracle_policy* policy, uint32_t n_context,
                          uint32_t* budgets, uint32_t n_layers) {
  const oracle_policy& p = *policy;
  const uint32_t budget = Budget(p, n_context);
  std::fill(budgets, budgets + n_layers, budget);
  if (budget == n_context) return true;
  kvevict_resolved_policy resolved;
  if (!oracle_resolve(policy, n_context, &resolved)) return false;
  // A schedule spreads what remains after what must stay, in blocks.
  const uint64_t last =
      LastInBlocks(p, oracle_last_tokens(policy, &resolved), n_context);
  resolved.budget = BudgetBlocks(p, n_context);
  resolved.n_sink = Blocks(p, resolved.n_sink);
  resolved.n_recent = Blocks(p, static_cast<uint32_t>(last));
  resolved.n_selected = resolved.budget - resolved.n_sink - resolved.n_recent;
  std::fill(budgets, budgets + n_layers, resolved.budget);
  const uint64_t least = HasChunks(p)
                             ? LeastOfChunks(p, n_context)
                             : uint64_t{resolved.n_sink} + resolved.n_recent;
  const kvevict::oracle::Split split = {
      p, Blocks(p, n_context), RealBudget(p, n_context), resolved,
      std::max(1u, static_cast<uint32_t>(least))};
  switch (p.split) {
    case ORACLE_SPLIT_UNIFORM:
      break;
    case ORACLE_SPLIT_GEOMETRIC:
      SplitGeometric(split, budgets, n_layers);
      break;
    case ORACLE_SPLIT_ARITHMETIC_KVF:
      SplitKvf(split, budgets, n_layers);
      break;
    case ORACLE_SPLIT_ARITHMETIC_KVPRESS:
      SplitKvpress(split, budgets, n_layers);
      break;
    case ORACLE_SPLIT_ARITHMETIC_ADAKV:
      SplitAdakv(split, budgets, n_layers);
      break;
    case ORACLE_SPLIT_CAKE:
    case ORACLE_SPLIT_LAZY:
    case ORACLE_SPLIT_SCORES:
      return false;  // scores decide
  }
  for (uint32_t l = 0; l < n_layers; ++l) {
    budgets[l] = static_cast<uint32_t>(Tokens(p, budgets[l], n_context));
  }
  return true;
}

void oracle_chunk_counts(const oracle_policy* policy, uint32_t n_tokens,
                         uint32_t budget, uint32_t* counts) {
  const oracle_policy& p = *policy;
  const uint64_t size = std::min(p.chunk, n_tokens);
  const uint64_t n = (n_tokens + size - 1) / size;
  const auto length = [&](uint64_t i) {
    return std::min<uint64_t>(size, n_tokens - i * size);
  };
  uint64_t least = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t forced =
        ForcedOfChunk(p, i * size, i * size + length(i), n_tokens);
    counts[i] = std::max({counts[i], 1u, static_cast<uint32_t>(forced)});
    least += counts[i];
  }
  // Shares grow from nothing, token by token. The next token goes to the chunk that
  // reaches it first.
  std::vector<uint64_t> share(n, 0);
  for (uint64_t kept = least; kept <= budget;) {
    uint64_t next = n;  // the chunk with the smallest (share + 1) / length
    for (uint64_t i = 0; i < n; ++i) {
      if (share[i] == length(i)) continue;
      if (next == n ||
          (share[i] + 1) * length(next) < (share[next] + 1) * length(i)) {
        next = i;
      }
    }
    if (next == n) break;
    std::vector<uint64_t> higher = share;
    for (uint64_t i = 0; i < n; ++i) {
      higher[i] +=
          (share[i] + 1) * length(next) == (share[next] + 1) * length(i);
    }
    kept = 0;
    for (uint64_t i = 0; i < n; ++i) {
      kept += std::max<uint64_t>(counts[i], higher[i]);
    }
    if (kept <= budget) share = higher;
  }
  uint64_t sum = 0;
  for (uint64_t i = 0; i < n; ++i) {
    counts[i] = std::max(counts[i], static_cast<uint32_t>(share[i]));
    sum += counts[i];
  }
  for (uint64_t i = 0; sum < budget; ++i) {
    if (counts[i] == length(i)) continue;
    ++counts[i];
    ++sum;
  }
}
