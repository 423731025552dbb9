// A sequence, and a model of it that is made of plain vectors.
#ifndef KVEVICT_TESTS_FUZZ_SEQUENCE_LIFE_H_
#define KVEVICT_TESTS_FUZZ_SEQUENCE_LIFE_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/life_rows.h"
#include "tests/oracle/policy.h"
#include "tests/oracle/select.h"

namespace kvevict {

inline constexpr const char* kPolicies[] = {
    "custom:budget=12,sink=2,recent=2",
    "custom:budget=0.3,sink=1,scope=layer,over=sum,tie=higher",
    "custom:budget=20,sink=3,split=geometric,alpha=0.6",
    "custom:budget=10,sink=0,scope=model,over=max",
    "streaming-llm:budget=9",
    "streaming-llm:budget=0.5,sink=1",
    "streaming-llm:budget=12,sink=2,split=arithmetic-kvf",
    "none",
    "custom:budget=24,sink=1,recent=2,select_block=4",
    "custom:budget=0.5,sink=0,select_block=3,scope=layer,over=sum,tie=higher",
    "streaming-llm:budget=20,sink=3,select_block=6",
};

// A plan of one of the policies.
struct Made {
  oracle_policy policy{};
  kvevict_plan* plan = nullptr;

  Made(Draw& draw, const kvevict_context* context) {
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = layer.n_kv_heads = kHeads;
    layer.k_head_dim = 1;
    kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
    geometry.n_layers = kLayers;
    geometry.max_tokens = kMaxTokens;
    geometry.layers = &layer;
    geometry.layers_len = 1;
    kvevict_policy* handle = nullptr;
    FUZZ_CHECK(kvevict_policy_create(
                   kPolicies[draw.Below(std::size(kPolicies))], &handle) ==
               KVEVICT_OK);
    policy = oracle_policy_of(handle);
    FUZZ_CHECK(kvevict_plan_create(context, &geometry, handle, nullptr,
                                   &plan) == KVEVICT_OK);
    kvevict_policy_destroy(handle);
  }
};

// Memory from malloc of exactly the right size, so that a sanitizer sees overruns.
class Workspace {
 public:
  explicit Workspace(size_t n_bytes)
      : n_bytes_(n_bytes),
        memory_(n_bytes == 0 ? nullptr : std::aligned_alloc(64, n_bytes)) {
    FUZZ_CHECK(n_bytes % 64 == 0);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { std::free(memory_); }
  void* memory() const { return memory_; }
  size_t n_bytes() const { return n_bytes_; }

 private:
  const size_t n_bytes_;
  void* const memory_;
};

// The arguments of an eviction, and what it should do.
struct Eviction {
  kvevict_view views[kLayers];
  float scores[kLayers][kHeads][kMaxTokens];
  kvevict_plane planes[kLayers];
  kvevict_signal_inputs inputs[kLayers];
  std::vector<int32_t> protect;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  bool fits;
  std::vector<int32_t> left[kLayers][kHeads];
};

class Life {
 public:
  Life(kvevict::Draw& draw, const kvevict_context* context)
      : draw_(draw), context_(context), rows_(draw) {
    const Made made(draw, context);
    policy_ = made.policy;
    plan_ = made.plan;
    FUZZ_CHECK(kvevict_sequence_create(plan_, &sequence_) == KVEVICT_OK);
    FUZZ_CHECK(kvevict_sequence_begin_observing(sequence_, nullptr, 0) ==
               KVEVICT_OK);
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;
  ~Life() {
    kvevict_sequence_destroy(sequence_);
    kvevict_plan_destroy(plan_);
  }

  kvevict_sequence* sequence() const { return sequence_; }

  void Step() {
    switch (draw_.Below(17)) {
      case 0:
        FUZZ_CHECK(kvevict_sequence_reset(sequence_, nullptr) == KVEVICT_OK);
        for (auto& layer : held_) {
          for (auto& head : layer) head.clear();
        }
        n_seen_ = bound_ = 0;
        break;
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
      case 6:
        Append(draw_.Below(30));
        break;
      case 7:
        Trim(draw_.Below(n_seen_ + 2));
        break;
      case 8:
        Copy();
        break;
      case 9:
        ChangePlan();
        break;
      default:
        Evict();
    }
    Check();
  }

  // ---- The parts of a batch ----

  bool HasRoom(uint32_t n) const {
    return std::max(Stored(0), Stored(1)) + n <= kMaxTokens;
  }
  bool IsExact(uint32_t n) const {
    return n <= n_seen_ && (n >= bound_ || n <= Prefix());
  }
  uint32_t n_seen() const { return n_seen_; }

  uint32_t Held(uint32_t layer, uint32_t head) const {
    return static_cast<uint32_t>(held_[layer][head].size());
  }
  uint32_t Stored(uint32_t layer) const { return Held(layer, 0); }

  void Append(uint32_t n) {
    const bool fits = HasRoom(n);
    FUZZ_CHECK((kvevict_sequence_append(sequence_, n, nullptr) == KVEVICT_OK) ==
               fits);
    if (fits) Appended(n);
  }

  void Appended(uint32_t n) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        for (uint32_t i = 0; i < n; ++i) {
          const auto position = static_cast<int32_t>(n_seen_ + i);
          // A key is its token's name.
          rows_.Key(l, h, Held(l, h)) = Name(l, h, position);
          held_[l][h].push_back(position);
        }
      }
    }
    n_seen_ += n;
  }

  // The tokens that every list still has in the slots of their numbers.
  uint32_t Prefix() const {
    uint32_t n = n_seen_;
    for (const auto& layer : held_) {
      for (const auto& head : layer) {
        uint32_t own = 0;
        while (own < head.size() && head[own] == static_cast<int32_t>(own)) {
          ++own;
        }
        n = std::min(n, own);
      }
    }
    return n;
  }

  void Trim(uint32_t n) {
    const bool is_exact = IsExact(n);
    FUZZ_CHECK((kvevict_sequence_trim_to(sequence_, n, nullptr) ==
                KVEVICT_OK) == is_exact);
    if (is_exact) Trimmed(n);
  }

  void Trimmed(uint32_t n) {
    for (auto& layer : held_) {
      for (auto& head : layer) {
        while (!head.empty() && head.back() >= static_cast<int32_t>(n)) {
          head.pop_back();
        }
      }
    }
    if (n < bound_) bound_ = 0;
    n_seen_ = n;
  }

  // Goes on with a fork or with what was saved.
  void Copy() {
    kvevict_sequence* copy = nullptr;
    if (draw_.Below(2) == 0) {
      FUZZ_CHECK(kvevict_sequence_fork(sequence_, nullptr, &copy, nullptr) ==
                 KVEVICT_OK);
    } else {
      size_t n = 0;
      FUZZ_CHECK(kvevict_sequence_save(sequence_, nullptr, 0, &n) ==
                 KVEVICT_OK);
      std::vector<uint8_t> data(n);
      FUZZ_CHECK(kvevict_sequence_save(sequence_, data.data(), n, nullptr) ==
                 KVEVICT_OK);
      FUZZ_CHECK(kvevict_sequence_create(plan_, &copy) == KVEVICT_OK);
      data[draw_.Below(static_cast<uint32_t>(n))] ^= 1;
      FUZZ_CHECK(kvevict_sequence_load(copy, data.data(), n, nullptr) !=
                 KVEVICT_OK);
      FUZZ_CHECK(kvevict_sequence_save(sequence_, data.data(), n, nullptr) ==
                 KVEVICT_OK);
      FUZZ_CHECK(kvevict_sequence_load(copy, data.data(), n, nullptr) ==
                 KVEVICT_OK);
    }
    kvevict_sequence_destroy(sequence_);
    sequence_ = copy;
  }

  // Goes on by another policy, if heads and layers that share a list can.
  void ChangePlan() {
    const Made made(draw_, context_);
    const bool shares = made.policy.kind != ORACLE_CUSTOM ||
                        made.policy.scope != KVEVICT_SCOPE_KV_HEAD;
    bool fits = true;
    for (uint32_t l = 0; l < kLayers && shares; ++l) {
      fits = fits && held_[l][0] == held_[l][1];
      fits = fits && (made.policy.scope != KVEVICT_SCOPE_MODEL ||
                      held_[l][0] == held_[0][0]);
    }
    kvevict_fork_options options = KVEVICT_FORK_OPTIONS_INIT;
    options.plan = made.plan;
    kvevict_sequence* fork = nullptr;
    FUZZ_CHECK((kvevict_sequence_fork(sequence_, &options, &fork, nullptr) ==
                KVEVICT_OK) == fits);
    if (!fits) return kvevict_plan_destroy(made.plan);
    kvevict_sequence_destroy(sequence_);
    kvevict_plan_destroy(plan_);
    sequence_ = fork;
    plan_ = made.plan;
    policy_ = made.policy;
  }

  static float Name(uint32_t layer, uint32_t head, int32_t position) {
    return static_cast<float>(position * 8 +
                              static_cast<int>(layer * 2 + head));
  }

  void Evict() {
    Eviction eviction;
    Draw(&eviction);
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    FUZZ_CHECK(kvevict_plan_workspace(plan_, KVEVICT_OPERATION_EVICT, 0,
                                      &size) == KVEVICT_OK);
    const Workspace workspace(size.best_bytes);
    const kvevict_status status = kvevict_sequence_evict(
        sequence_, eviction.views, kLayers, &eviction.options,
        workspace.memory(), workspace.n_bytes(), nullptr);
    FUZZ_CHECK((status == KVEVICT_OK) == eviction.fits);
    if (eviction.fits) Evicted(eviction);
  }

  void Draw(Eviction* e) {
    for (uint32_t l = 0; l < kLayers; ++l) e->views[l] = rows_.View(l);
    // A few bytes make all scores: there are few values, so they tie.
    uint32_t state = draw_.Below(65536);
    for (auto& layer : e->scores) {
      for (auto& head : layer) {
        for (float& score : head) {
          state = state * 1103515245 + 12345;
          score = static_cast<float>((state >> 16) % 9);
        }
      }
    }
    for (uint32_t n = draw_.Below(6); n > 2 && n_seen_ > 0; --n) {
      e->protect.push_back(static_cast<int32_t>(draw_.Below(n_seen_)));
    }
    std::sort(e->protect.begin(), e->protect.end());
    e->protect.erase(std::unique(e->protect.begin(), e->protect.end()),
                     e->protect.end());
    e->options.protected_positions = e->protect.data();
    e->options.protected_positions_len = e->protect.size();
    for (uint32_t l = 0; l < kLayers; ++l) {
      e->planes[l] = KVEVICT_PLANE_INIT;
      e->planes[l].data = reinterpret_cast<uint64_t>(e->scores[l][0]);
      e->planes[l].token_stride_bytes = sizeof(float);
      e->planes[l].head_stride_bytes = sizeof(e->scores[l][0]);
      e->planes[l].dtype = KVEVICT_DTYPE_F32;
      e->planes[l].head_dim = 1;
      e->inputs[l] = KVEVICT_SIGNAL_INPUTS_INIT;
      e->inputs[l].scores = &e->planes[l];
    }
    if (policy_.kind == ORACLE_CUSTOM) {
      e->options.inputs = e->inputs;
      e->options.inputs_len = kLayers;
    }
    e->options.by_table = draw_.Below(rows_.has_tables() ? 2 : 16) == 1;
    e->fits = Expect(e->scores, e->protect, e->left);
    if (e->options.by_table != 0 && !rows_.has_tables() &&
        policy_.kind != ORACLE_NONE) {
      e->fits = false;
    }
  }

  void Evicted(const Eviction& eviction) {
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        if (held_[l][h] != eviction.left[l][h]) bound_ = n_seen_;
        held_[l][h] = eviction.left[l][h];
      }
    }
  }

  // A ratio without room for what must stay leaves a layer alone.
  bool IsRatio() const {
    return policy_.budget <= 1.0 &&
           (policy_.kind != ORACLE_STREAMING_LLM || policy_.recent == 0);
  }

  // The positions that should be left; false if the call should fail.
  bool Expect(const float (*scores)[kHeads][kMaxTokens],
              const std::vector<int32_t>& protect,
              std::vector<int32_t> (*left)[kHeads]) const {
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) left[l][h] = held_[l][h];
    }
    if (n_seen_ == 0) return true;
    const uint32_t block = policy_.select_block;
    for (uint32_t l = 0; l < kLayers; ++l) {
      const uint32_t n = Stored(l);
      uint32_t n_context = std::min(n_seen_, kMaxTokens);
      // Blocks end where those of the cache do.
      while (n_context % block != n % block) --n_context;
      uint32_t budgets[kLayers];
      if (!oracle_layer_budgets(&policy_, n_context, budgets, kLayers)) {
        return false;
      }
      if (budgets[l] >= n) continue;
      kvevict_resolved_policy r;
      if (!oracle_resolve(&policy_, n_context, &r)) return false;
      const uint32_t n_last = oracle_last_tokens(&policy_, &r);
      std::vector<uint8_t> forced_of[kHeads];
      bool has_room = true;
      for (uint32_t h = 0; h < kHeads; ++h) {
        std::vector<uint8_t>& forced = forced_of[h];
        forced.resize(n);
        uint32_t n_forced = 0;
        for (uint32_t slot = 0; slot < n; ++slot) {
          forced[slot] = slot < r.n_sink || slot + n_last >= n ||
                         std::binary_search(protect.begin(), protect.end(),
                                            held_[l][h][slot]);
        }
        for (uint32_t begin = 0; begin < n; begin += block) {
          const uint32_t end = std::min(n, begin + block);
          const auto first = forced.begin() + begin;
          if (end - begin < block || std::find(first, forced.begin() + end,
                                               1) != forced.begin() + end) {
            n_forced += end - begin;
          }
        }
        has_room = has_room && n_forced <= budgets[l];
      }
      if (!has_room && !IsRatio()) return false;
      for (uint32_t h = 0; h < kHeads && has_room; ++h) {
        const std::vector<uint8_t>& forced = forced_of[h];
        std::vector<float> rows;
        uint32_t n_rows = 0;
        for (uint32_t l2 = 0; l2 < kLayers; ++l2) {
          if (l2 != l && policy_.scope != KVEVICT_SCOPE_MODEL) continue;
          for (uint32_t h2 = 0; h2 < kHeads; ++h2) {
            if (h2 != h && policy_.scope == KVEVICT_SCOPE_KV_HEAD) continue;
            rows.insert(rows.end(), scores[l2][h2], scores[l2][h2] + n);
            ++n_rows;
          }
        }
        std::vector<float> combined(n);
        oracle_combine(rows.data(), n_rows, n, policy_.over, combined.data());
        if (policy_.kind == ORACLE_STREAMING_LLM) {  // by position
          std::iota(combined.begin(), combined.end(), 0.0f);
        }
        std::vector<int32_t> keep(n);
        keep.resize(oracle_select_blocks(
            combined.data(), n, budgets[l], forced.data(), block,
            policy_.kind == ORACLE_STREAMING_LLM ? KVEVICT_TIE_HIGHER_POSITION
                                                 : policy_.tie,
            keep.data()));
        left[l][h].clear();
        for (int32_t slot : keep) left[l][h].push_back(held_[l][h][slot]);
      }
    }
    return true;
  }

  void Check() {
    uint32_t length = 0;
    FUZZ_CHECK(kvevict_sequence_logical_length(sequence_, &length) ==
               KVEVICT_OK);
    FUZZ_CHECK(length == n_seen_);
    FUZZ_CHECK(kvevict_sequence_exact_prefix(sequence_, &length) == KVEVICT_OK);
    FUZZ_CHECK(length == Prefix());
    for (uint32_t l = 0; l < kLayers; ++l) {
      FUZZ_CHECK(kvevict_sequence_stored_length(sequence_, l, 0, &length) ==
                 KVEVICT_OK);
      FUZZ_CHECK(length == Stored(l));
      for (uint32_t h = 0; h < kHeads; ++h) {
        std::vector<int32_t> positions(length);
        size_t n = 0;
        FUZZ_CHECK(kvevict_sequence_keep_positions(sequence_, l, h,
                                                   positions.data(), length,
                                                   &n) == KVEVICT_OK);
        FUZZ_CHECK(positions == held_[l][h]);
        for (uint32_t slot = 0; slot < length; ++slot) {
          FUZZ_CHECK(rows_.Key(l, h, slot) == Name(l, h, positions[slot]));
          int32_t found = -2;
          FUZZ_CHECK(kvevict_sequence_slot_of_position(
                         sequence_, l, h,
                         static_cast<uint32_t>(positions[slot]),
                         &found) == KVEVICT_OK);
          FUZZ_CHECK(found == static_cast<int32_t>(slot));
        }
      }
    }
  }

 private:
  kvevict::Draw& draw_;
  const kvevict_context* const context_;
  kvevict_plan* plan_ = nullptr;
  kvevict_sequence* sequence_ = nullptr;
  oracle_policy policy_{};
  std::vector<int32_t> held_[kLayers][kHeads];
  LifeRows rows_;
  uint32_t n_seen_ = 0;
  uint32_t bound_ = 0;  // the logical length at the last eviction
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_FUZZ_SEQUENCE_LIFE_H_
