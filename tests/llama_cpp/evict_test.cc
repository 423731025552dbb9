// Evictions in a llama_context with every kind of cache, row by row and against
// llama.cpp removing the same tokens itself.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/llama_cpp/query_statistics.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

struct Case {
  const char* name;
  RandomModel model;
  SessionOptions options;
  bool in_place;
};

SessionOptions Types(ggml_type type, bool flash) {
  SessionOptions options;
  options.type_k = options.type_v = type;
  options.flash = flash;
  return options;
}

std::vector<Case> Cases() {
  const RandomModel llama;
  RandomModel window, latent, hybrid;
  window.arch = "gemma3";
  window.n_layers = 7;
  latent.arch = "deepseek2";
  hybrid.arch = "lfm2";
  hybrid.n_layers = 4;
  hybrid.n_embd = hybrid.n_heads * hybrid.head_dim;
  RandomModel sections = hybrid;  // position sections: M-RoPE
  sections.arch = "qwen2vl";
  std::vector<Case> cases = {
      {"f32", llama, Types(GGML_TYPE_F32, false), true},
      {"f16", llama, Types(GGML_TYPE_F16, false), true},
      {"bf16", llama, Types(GGML_TYPE_BF16, false), true},
      {"f32 flash", llama, Types(GGML_TYPE_F32, true), true},
      {"f16 flash", llama, Types(GGML_TYPE_F16, true), true},
      {"bf16 flash", llama, Types(GGML_TYPE_BF16, true), true},
      {"q8_0 flash", llama, Types(GGML_TYPE_Q8_0, true), true},
      {"q4_0 flash", llama, Types(GGML_TYPE_Q4_0, true), true},
      {"MLA", latent, Types(GGML_TYPE_F32, false), true},
      {"MLA flash", latent, Types(GGML_TYPE_F16, true), true},
      {"M-RoPE", sections, Types(GGML_TYPE_F32, false), true},
      {"window", window, Types(GGML_TYPE_F32, false), false},
      {"window flash", window, Types(GGML_TYPE_F16, true), false},
      {"full window", window, Types(GGML_TYPE_F16, true), false},
      {"hybrid", hybrid, Types(GGML_TYPE_F32, false), false},
  };
  cases.back().options.n_ubatch = 64;
  cases[cases.size() - 2].options.swa_full = true;
  return cases;
}

// Compacts llama.cpp's way: a state holds no empty cells.
void CompactByState(Session& session) {
  std::vector<uint8_t> state(llama_state_seq_get_size(session.ctx(), 0));
  cr_assert(llama_state_seq_get_data(session.ctx(), state.data(), state.size(),
                                     0) == state.size());
  cr_assert(llama_state_seq_set_data(session.ctx(), state.data(), state.size(),
                                     0) == state.size());
}

std::vector<uint8_t> PartialState(Session& session) {
  constexpr auto flag = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
  std::vector<uint8_t> state(
      llama_state_seq_get_size_ext(session.ctx(), 0, flag));
  llama_state_seq_get_data_ext(session.ctx(), state.data(), state.size(), 0,
                               flag);
  return state;
}

using Row = std::vector<uint8_t>;

// The K or V row of a cell and KV head.
Row CacheRow(const ggml_tensor* t, bool transposed, uint32_t n_heads,
             uint32_t head, int64_t cell) {
  const auto* data = static_cast<const uint8_t*>(t->data);
  if (!transposed) {
    const size_t bytes = t->nb[1] / n_heads;
    const uint8_t* row = data + cell * t->nb[1] + head * bytes;
    return {row, row + bytes};
  }
  Row row;
  const size_t element = ggml_type_size(t->type);
  const int64_t dim = t->ne[0] / n_heads;
  for (int64_t e = head * dim; e < (head + 1) * dim; ++e) {
    const uint8_t* x = data + (e * t->ne[1] + cell) * element;
    row.insert(row.end(), x, x + element);
  }
  return row;
}

// All heads share a list, so llama.cpp can remove the same tokens itself: logits
// are the same to the last bit.
Test(llama_evict, equals_what_llama_cpp_removes) {
  for (const Case& c : Cases()) {
    if (c.model.arch == "lfm2") continue;  // removes nothing from the middle
    const ModelHandle model = LoadRandomModel(c.model);
    const auto prompt = RandomTokens(200, c.model.n_vocab);
    const auto next = RandomTokens(70, c.model.n_vocab, 2);
    Session removed(model.get(), nullptr, c.options);
    const auto expected = removed.Decode(prompt);
    std::vector<float> compacted;
    for (const auto way : {KVEVICT_LLAMA_WAY_AUTO, KVEVICT_LLAMA_WAY_STATE}) {
      // The window of queries covers that of the sliding layers.
      Session evicted(model.get(), "snapkv:budget=80,window=40,scope=model",
                      c.options);
      cr_expect(evicted.Decode(prompt) == expected, "%s", c.name);
      const auto report = evicted.Evict(0, way);
      cr_expect(report.evicted == 1 && report.cells_before == 200 &&
                    report.cells_after == 80,
                "%s: %u of %u", c.name, report.cells_after,
                report.cells_before);
      cr_expect(
          report.in_place == (c.in_place && way == KVEVICT_LLAMA_WAY_AUTO),
          "%s", c.name);
      if (compacted.empty()) {
        RemoveOthers(removed, evicted.Positions(), 200);
        CompactByState(removed);
        compacted = removed.Decode(next);
      }
      cr_expect(evicted.Decode(next) == compacted, "%s way %d", c.name, way);
      // Another eviction follows, of old and new tokens.
      const auto again = evicted.Evict(0, way);
      cr_expect(again.cells_before == 150 && again.cells_after == 80, "%s",
                c.name);
      cr_expect(evicted.Positions().back() == 269);
      evicted.Decode(prompt);
    }
  }
}

// Values are fitted where they lie, and in a state on its way to another place.
Test(llama_evict, fits_values_the_same_by_every_way) {
  for (const Case& c : Cases()) {
    if (c.model.arch != "llama" || ggml_is_quantized(c.options.type_k))
      continue;
    const ModelHandle model = LoadRandomModel(c.model);
    const auto prompt = RandomTokens(200, c.model.n_vocab);
    const auto next = RandomTokens(20, c.model.n_vocab, 2);
    const auto after = [&](const char* policy, kvevict_llama_way way,
                           std::vector<int32_t>* positions) {
      Session session(model.get(), policy, c.options);
      session.Decode(prompt);
      const auto report = session.Evict(0, way);
      cr_expect((report.in_place == 1) == (way == KVEVICT_LLAMA_WAY_IN_PLACE));
      *positions = session.Positions(1, 1);
      return session.Decode(next);
    };
    std::vector<int32_t> kept, fitted, fitted_by_state;
    const auto plain =
        after("snapkv:budget=60,window=32", KVEVICT_LLAMA_WAY_IN_PLACE, &kept);
    const char* fit = "snapkv:budget=60,window=32,fit=values";
    const auto in_place = after(fit, KVEVICT_LLAMA_WAY_IN_PLACE, &fitted);
    const auto by_state = after(fit, KVEVICT_LLAMA_WAY_STATE, &fitted_by_state);
    cr_expect(fitted == kept && fitted_by_state == kept, "%s", c.name);
    cr_expect(in_place == by_state && in_place != plain, "%s", c.name);
  }
}

// Each head has a list: every row that stays is its position's, and everything else
// stays as it is.
Test(llama_evict, moves_the_rows_of_each_head) {
  for (Case& c : Cases()) {
    const ModelHandle model = LoadRandomModel(c.model);
    const bool latent = c.model.arch == "deepseek2";
    const uint32_t n_heads = latent ? 1 : c.model.n_kv_heads;
    Tensors tensors;
    c.options.callback = &CaptureTensors;
    c.options.callback_data = &tensors;
    for (const auto way : {KVEVICT_LLAMA_WAY_AUTO, KVEVICT_LLAMA_WAY_STATE}) {
      tensors.clear();
      Session session(model.get(), "snapkv:budget=50,window=8", c.options);
      session.Decode(RandomTokens(180, c.model.n_vocab));
      std::map<std::pair<std::string, uint32_t>, std::vector<Row>> before;
      const auto rows = [&](const std::string& name, uint32_t head, int64_t n) {
        std::vector<Row> result;
        const bool transposed = name[6] == 'v' && !c.options.flash;
        for (int64_t cell = 0; cell < n; ++cell) {
          result.push_back(
              CacheRow(tensors.at(name), transposed, n_heads, head, cell));
        }
        return result;
      };
      for (const auto& [name, tensor] : tensors) {
        // A sliding window's cache is smaller.
        if (!name.starts_with("cache_") || tensor->ne[1] < 180) continue;
        for (uint32_t h = 0; h < n_heads; ++h) {
          before[{name, h}] = rows(name, h, 180);
        }
      }
      const auto partial = PartialState(session);
      session.Evict(0, way);
      const bool windows = !c.in_place;
      cr_expect(!windows || PartialState(session) == partial, "%s", c.name);
      bool lists_differ = false;
      uint32_t llama_layer = 0;
      for (uint32_t i = 0;
           kvevict_llama_layer(session.kv(), i, &llama_layer) == KVEVICT_OK;
           ++i) {
        for (uint32_t h = 0; h < n_heads; ++h) {
          const auto kept = session.Positions(i, h);
          lists_differ |= kept != session.Positions();
          cr_assert(kept.size() == 50 && kept.back() == 179);
          for (const char* kind : {"cache_k_l", "cache_v_l"}) {
            const std::string name = kind + std::to_string(llama_layer);
            if (!tensors.contains(name)) {
              cr_assert(latent && name[6] == 'v', "%s", name.c_str());
              continue;
            }
            const auto after = rows(name, h, 50);
            const auto& was = before[std::pair(name, h)];
            for (size_t slot = 0; slot < 50; ++slot) {
              cr_assert(after[slot] == was[kept[slot]],
                        "%s %s head %u slot %zu", c.name, name.c_str(), h,
                        slot);
            }
          }
        }
      }
      cr_expect(lists_differ, "%s", c.name);
    }
  }
}

Test(llama_evict, a_budget_beyond_the_prompt_changes_nothing) {
  for (const Case& c : Cases()) {
    const ModelHandle model = LoadRandomModel(c.model);
    Session plain(model.get(), nullptr, c.options);
    Session within(model.get(), "snapkv:budget=500,window=8", c.options);
    for (uint32_t seed = 1; seed < 4; ++seed) {
      const auto tokens = RandomTokens(60, c.model.n_vocab, seed);
      cr_expect(plain.Decode(tokens) == within.Decode(tokens), "%s", c.name);
      cr_expect(within.Evict().evicted == 0, "%s", c.name);
    }
  }
}

// The last token is where the next one's row goes, so it stays beside what a caller names.
Test(llama_evict, protected_positions_stay_and_so_does_the_last) {
  const RandomModel shape;
  const ModelHandle model = LoadRandomModel(shape);
  for (const std::vector<int32_t>& named :
       {std::vector<int32_t>{5}, {5, 119}}) {
    Session session(model.get(), "knorm:budget=30,sink=0", {});
    session.Decode(RandomTokens(120, shape.n_vocab));
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.protected_positions = named.data();
    options.protected_positions_len = named.size();
    session.Evict(0, KVEVICT_LLAMA_WAY_AUTO, nullptr, &options);
    for (uint32_t i = 0; i < shape.n_layers * shape.n_kv_heads; ++i) {
      const auto kept = session.Positions(i / 2, i % 2);
      cr_expect(kept.size() == 30 && kept.back() == 119 &&
                std::count(kept.begin(), kept.end(), 5) == 1);
    }
  }
}

Test(llama_evict, reports_the_mass_that_stays) {
  const RandomModel shape;
  const auto model = LoadRandomModel(shape);
  const auto tokens = RandomTokens(120, shape.n_vocab);
  float by_way[2];
  for (const auto way : {KVEVICT_LLAMA_WAY_IN_PLACE, KVEVICT_LLAMA_WAY_STATE}) {
    Session session(model.get(), "snapkv:budget=60,window=8", {});
    session.Decode(tokens);
    const float kept = by_way[way - 1] = session.Evict(0, way).mass_kept;
    kvevict_list_report lists[6];
    cr_assert(shape.n_layers * shape.n_kv_heads == 6);
    for (kvevict_list_report& list : lists) list = KVEVICT_LIST_REPORT_INIT;
    cr_assert(kvevict_sequence_report(session.sequence(), nullptr, lists, 6) ==
              KVEVICT_OK);
    float mean = 0;
    for (const kvevict_list_report& list : lists) mean += list.mass_kept / 6;
    cr_expect(std::abs(kept - mean) < 1e-6f && kept > 0.3f && kept < 1,
              "%g, lists %g", static_cast<double>(kept),
              static_cast<double>(mean));
  }
  cr_expect(by_way[0] == by_way[1]);
  Session whole(model.get(), "snapkv:budget=200,window=8", {});
  whole.Decode(tokens);
  cr_expect(whole.Evict().mass_kept == 1);
  Session norms(model.get(), "knorm:budget=60", {});
  norms.Decode(tokens);
  cr_expect(std::isnan(norms.Evict().mass_kept));
}

}  // namespace
}  // namespace kvevict::tests
