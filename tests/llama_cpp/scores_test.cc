// The adapter reads the queries and scales of llama.cpp's attention: keep sets are
// those of its own softmax.
#include <criterion/criterion.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

constexpr uint32_t kTokens = 150, kWindow = 10, kBudget = 60, kSinks = 4;

// Weights [kv, rows, heads] of the last graph, by layer.
struct Weights {
  int64_t n_kv = 0, n_rows = 0, n_heads = 0;
  std::vector<float> values;
};
using Captured = std::map<int, Weights>;

bool Capture(ggml_tensor* node, bool ask, void* captured) {
  if (std::strncmp(node->name, "kq_soft_max-", 12) != 0) return false;
  if (ask) return true;
  const int layer = std::atoi(std::strrchr(node->name, '-') + 1);
  Weights& w = (*static_cast<Captured*>(captured))[layer];
  w = {node->ne[0], node->ne[1], node->ne[2], {}};
  w.values.resize(static_cast<size_t>(ggml_nelements(node)));
  std::memcpy(w.values.data(), node->data, w.values.size() * sizeof(float));
  return true;
}

// SnapKV for one KV head: the mean over the window's rows and the group, averaged
// over 7 neighbours; then sinks, the window and the best.
std::vector<int32_t> Oracle(const Weights& w, uint32_t n_kv_heads,
                            uint32_t head) {
  const int64_t group = w.n_heads / n_kv_heads;
  const int64_t past = kTokens - kWindow;
  std::vector<double> sums(past), pooled(past);
  for (int64_t q = head * group; q < (head + 1) * group; ++q) {
    for (int64_t r = w.n_rows - kWindow; r < w.n_rows; ++r) {
      for (int64_t t = 0; t < past; ++t) {
        sums[t] += w.values[(q * w.n_rows + r) * w.n_kv + t];
      }
    }
  }
  for (int64_t t = 0; t < past; ++t) {
    for (int64_t i = std::max<int64_t>(0, t - 3); i < std::min(past, t + 4);
         ++i) {
      pooled[t] += sums[i] / 7;
    }
  }
  std::vector<int32_t> order;
  for (int32_t t = kSinks; t < past; ++t) order.push_back(t);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return pooled[a] > pooled[b]; });
  order.resize(kBudget - kSinks - kWindow);
  for (int32_t t = 0; t < int32_t{kSinks}; ++t) order.push_back(t);
  for (int32_t t = past; t < int32_t{kTokens}; ++t) order.push_back(t);
  std::sort(order.begin(), order.end());
  return order;
}

Test(llama_scores, keep_sets_are_those_of_llama_cpps_softmax) {
  for (const char* arch :
       {"llama", "qwen3", "gemma2", "gemma3", "deepseek2", "lfm2", "gpt-oss"}) {
    const RandomModel shape = SevenLayers(arch);
    const ModelHandle model = LoadRandomModel(shape);
    const uint32_t n_kv_heads = shape.arch == "deepseek2" ? 1 : 2;
    Captured captured;
    SessionOptions options;
    options.callback = &Capture;
    options.callback_data = &captured;
    options.n_ubatch = 25;  // the window lies in the last one
    Session session(model.get(), "snapkv:budget=60,window=10", options);
    session.Decode(RandomTokens(kTokens, shape.n_vocab));
    session.Evict();
    // Flash attention rounds to f16 and has its scale, cap and sinks elsewhere.
    options.flash = true;
    options.callback = nullptr;
    Session flash(model.get(), "snapkv:budget=60,window=10", options);
    flash.Decode(RandomTokens(kTokens, shape.n_vocab));
    flash.Evict();
    uint32_t layer = 0, differing = 0, flash_differing = 0, lists = 0;
    for (uint32_t i = 0;
         kvevict_llama_layer(session.kv(), i, &layer) == KVEVICT_OK; ++i) {
      for (uint32_t h = 0; h < n_kv_heads; ++h, ++lists) {
        const auto expected = Oracle(captured.at(layer), n_kv_heads, h);
        const auto kept = session.Positions(i, h);
        cr_assert(kept.size() == expected.size());
        std::vector<int32_t> common;
        std::set_intersection(kept.begin(), kept.end(), expected.begin(),
                              expected.end(), std::back_inserter(common));
        differing += static_cast<uint32_t>(kept.size() - common.size());
        common.clear();
        const auto flash_kept = flash.Positions(i, h);
        std::set_intersection(kept.begin(), kept.end(), flash_kept.begin(),
                              flash_kept.end(), std::back_inserter(common));
        flash_differing += static_cast<uint32_t>(kept.size() - common.size());
      }
    }
    cr_expect(lists >= 2, "%s", arch);
    cr_expect(flash_differing <= lists, "%s: %u tokens of %u lists", arch,
              flash_differing, lists);
    // Scores that are nearly equal may change places.
    cr_expect(differing <= 1, "%s: %u tokens of %u lists", arch, differing,
              lists);
  }
}

// h2o scores by as many of the last queries as it is told, in whatever batches they came.
Test(llama_scores, h2o_does_not_depend_on_batches) {
  const RandomModel shape;
  const ModelHandle model = LoadRandomModel(shape);
  constexpr uint32_t kN = 230, kMore = 60;
  const auto tokens = RandomTokens(kN, shape.n_vocab);
  const auto more = RandomTokens(kMore, shape.n_vocab, 2);
  for (const uint32_t query_rows : {0u, 50u, 400u}) {
    std::vector<std::vector<int32_t>> first, second;
    for (const uint32_t way : {0, 1, 2, 3, 4}) {
      SessionOptions options;
      options.query_rows = query_rows;
      options.n_ubatch = way == 1 ? 97 : 512;
      Session session(model.get(), "h2o:budget=100", options);
      const auto feed = [&](std::span<const llama_token> text, size_t chunk) {
        for (size_t i = 0; i < text.size(); i += chunk) {
          session.Decode(text.subspan(i, std::min(chunk, text.size() - i)));
        }
      };
      switch (way) {
        case 0:
        case 1:
          feed(tokens, kN);
          break;
        case 2:
          feed(tokens, 97);
          break;
        case 3:  // the last ones come singly
          feed(std::span(tokens).first(kN - 60), kN);
          feed(std::span(tokens).subspan(kN - 60), 1);
          break;
        case 4:  // rejected tokens come in between
          feed(std::span(tokens).first(kN - 5), 33);
          feed(RandomTokens(12, shape.n_vocab, 3), 12);
          Check(kvevict_llama_trim_to(session.kv(), 0, kN - 5));
          feed(std::span(tokens).subspan(kN - 5), 5);
      }
      session.Evict();
      std::vector<std::vector<int32_t>> kept;
      for (uint32_t i = 0; i < 6; ++i) {
        kept.push_back(session.Positions(i / 2, i % 2));
      }
      if (way == 0) first = kept;
      cr_expect(kept == first, "%u rows, way %u", query_rows, way);
      // Another eviction scores by the queries since then.
      feed(more, way == 3 ? 1 : way == 2 ? 7 : kMore);
      session.Evict();
      kept.clear();
      for (uint32_t i = 0; i < 6; ++i) {
        kept.push_back(session.Positions(i / 2, i % 2));
      }
      if (way == 0) second = kept;
      cr_expect(kept == second, "%u rows again, way %u", query_rows, way);
    }
  }
}

}  // namespace
}  // namespace kvevict::tests
