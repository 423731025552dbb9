// What the adapter reads of the model for a policy is what the model computes with.
#include <criterion/criterion.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/query_statistics.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

constexpr uint32_t kTokens = 150;

std::vector<uint32_t> Layers(Session& session) {
  std::vector<uint32_t> layers;
  uint32_t layer = 0;
  session.sequence();
  for (uint32_t i = 0;
       kvevict_llama_layer(session.kv(), i, &layer) == KVEVICT_OK; ++i) {
    layers.push_back(layer);
  }
  return layers;
}

void ExpectSameLists(Session& a, Session& b, uint32_t n_layers,
                     uint32_t n_kv_heads, const std::string& what) {
  for (uint32_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < n_kv_heads; ++h) {
      cr_expect(a.Positions(l, h) == b.Positions(l, h), "%s: layer %u head %u",
                what.c_str(), l, h);
    }
  }
}

// ---- Weights of tokens ----------------------------------------------------------

float Element(const ggml_tensor* t, size_t i) {
  if (t->type == GGML_TYPE_F32) return static_cast<const float*>(t->data)[i];
  return ggml_fp16_to_fp32(static_cast<const ggml_fp16_t*>(t->data)[i]);
}

// ||V Wo||_1, the mean over a KV head's query heads.
std::vector<float> Weights(const Tensors& tensors, const RandomModel& shape,
                           uint32_t layer, bool transposed) {
  const std::string number = std::to_string(layer);
  const ggml_tensor* wo = tensors.at("blk." + number + ".attn_output.weight");
  const ggml_tensor* v = tensors.at("cache_v_l" + number);
  const size_t dim = shape.head_dim, row = shape.n_kv_heads * dim;
  const auto n_cells = static_cast<size_t>(v->ne[1]);
  const uint32_t group = shape.n_heads / shape.n_kv_heads;
  std::vector<float> weights;
  for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
    for (size_t t = 0; t < kTokens; ++t) {
      double sum = 0;
      for (size_t q = h * group; q < (h + 1) * group; ++q) {
        for (int64_t r = 0; r < wo->ne[1]; ++r) {
          double out = 0;
          for (size_t i = 0; i < dim; ++i) {
            const size_t e = h * dim + i;
            out +=
                double{Element(v, transposed ? e * n_cells + t : t * row + e)} *
                Element(wo, static_cast<size_t>(r * wo->ne[0]) + q * dim + i);
          }
          sum += std::fabs(out);
        }
      }
      weights.push_back(static_cast<float>(sum / group));
    }
  }
  return weights;
}

Test(llama_inputs, token_weights_are_norms_of_projected_values) {
  const char* policy = "knorm:budget=60,weight=given";
  for (const char* arch : {"llama", "qwen3", "gemma2", "gpt-oss", "lfm2"}) {
    const RandomModel shape = SevenLayers(arch);
    const ModelHandle model = LoadRandomModel(shape);
    const auto tokens = RandomTokens(kTokens, shape.n_vocab);
    for (const bool flash : {false, true}) {
      for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
        Tensors tensors;
        SessionOptions options;
        options.flash = flash;
        options.type_k = options.type_v = type;
        Session own(model.get(), policy, options);
        own.Decode(tokens);
        own.Evict();
        options.callback = &CaptureTensors;
        options.callback_data = &tensors;
        Session given(model.get(), policy, options);
        given.Decode(tokens);
        const auto layers = Layers(given);
        std::vector<std::vector<float>> weights;
        std::vector<kvevict_plane> planes;
        std::vector<kvevict_signal_inputs> inputs;
        for (const uint32_t layer : layers) {
          weights.push_back(Weights(tensors, shape, layer, !flash));
          planes.push_back(Packed(weights.back(), kTokens, 1));
        }
        for (const kvevict_plane& plane : planes) {
          inputs.push_back(KVEVICT_SIGNAL_INPUTS_INIT);
          inputs.back().token_weights = &plane;
        }
        kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
        evict.inputs = inputs.data();
        evict.inputs_len = inputs.size();
        given.Evict(0, KVEVICT_LLAMA_WAY_AUTO, nullptr, &evict);
        ExpectSameLists(own, given, static_cast<uint32_t>(layers.size()),
                        shape.n_kv_heads,
                        std::string(arch) + (flash ? " flash " : " ") +
                            ggml_type_name(type));
        Session plain(model.get(), "knorm:budget=60", options);
        plain.Decode(tokens);
        plain.Evict();
        cr_expect(plain.Positions() != own.Positions(), "%s", arch);
      }
    }
  }
}

Test(llama_inputs, critical_kv_needs_nothing_from_the_caller) {
  const RandomModel shape = SevenLayers("llama");
  const ModelHandle model = LoadRandomModel(shape);
  const auto tokens = RandomTokens(kTokens, shape.n_vocab);
  SessionOptions options;
  for (const auto way : {KVEVICT_LLAMA_WAY_IN_PLACE, KVEVICT_LLAMA_WAY_STATE}) {
    Session session(model.get(), "criticalkv-kvpress:budget=60,window=10",
                    options);
    session.Decode(tokens);
    cr_expect(session.Evict(0, way).cells_after == 60);
  }
  const RandomModel latent = SevenLayers("deepseek2");
  const ModelHandle mla = LoadRandomModel(latent);
  Session session(mla.get(), "criticalkv-kvpress:budget=60,window=10", options);
  session.Decode(tokens);
  const std::string why = session.EvictRefused();
  ExpectPart(why, "no output projection");
  cr_expect(session.Positions().size() == kTokens);
}

// ---- Moments of queries -----------------------------------------------------------

Test(llama_inputs,
     expected_attention_takes_moments_of_the_queries_before_rope) {
  const char* policy = "expected-attention:budget=60";
  for (const char* arch : {"llama", "qwen3"}) {
    const RandomModel shape = SevenLayers(arch);
    const ModelHandle model = LoadRandomModel(shape);
    const auto tokens = RandomTokens(kTokens, shape.n_vocab);
    const QueryShape of_queries = MakeQueryShape(shape.n_heads, shape.head_dim,
                                                 std::string(arch) == "qwen3");
    for (const bool flash : {false, true}) {
      Queries queries;
      SessionOptions options;
      options.flash = flash;
      options.n_ubatch = 25;
      Session own(model.get(), policy, options);
      own.Decode(tokens);
      own.Evict();
      options.callback = &CaptureQueries;
      options.callback_data = &queries;
      Session given(model.get(), policy, options);
      given.Decode(tokens);
      const auto layers = Layers(given);
      std::vector<Moments> moments;
      std::vector<kvevict_plane> planes;
      for (const uint32_t layer : layers) {
        const std::vector<float>& rows = queries.at(layer);
        cr_assert(rows.size() == kTokens * shape.n_heads * shape.head_dim);
        // Those of the sinks do not count.
        moments.push_back(ExpectedMoments(
            std::span(rows).subspan(4 * shape.n_heads * shape.head_dim),
            of_queries, kTokens));
      }
      for (const Moments& m : moments) {
        planes.push_back(Packed(m.mean, 1, shape.head_dim));
        planes.push_back(Packed(m.covariance, shape.head_dim, shape.head_dim));
      }
      std::vector<kvevict_signal_inputs> inputs;
      for (size_t l = 0; l < layers.size(); ++l) {
        inputs.push_back(KVEVICT_SIGNAL_INPUTS_INIT);
        inputs.back().query_mean = &planes[2 * l];
        inputs.back().query_covariance = &planes[2 * l + 1];
      }
      kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
      evict.inputs = inputs.data();
      evict.inputs_len = inputs.size();
      given.Evict(0, KVEVICT_LLAMA_WAY_AUTO, nullptr, &evict);
      ExpectSameLists(own, given, static_cast<uint32_t>(layers.size()),
                      shape.n_kv_heads, arch);
    }
  }
}

Test(llama_inputs, expected_attention_knows_what_it_has_not_seen) {
  SessionOptions options;
  const auto tokens = RandomTokens(kTokens, 256);
  for (const char* arch : {"gemma3", "gemma2", "lfm2", "gpt-oss", "qwen2vl"}) {
    const ModelHandle model = LoadRandomModel(SevenLayers(arch));
    Session session(model.get(), "expected-attention:budget=60", options);
    session.Decode(tokens);
    cr_expect(session.Evict().cells_after == 60, "%s", arch);
    session.Decode(tokens);
    cr_expect(session.Evict().cells_after == 60, "%s", arch);
  }
  const ModelHandle mla = LoadRandomModel(SevenLayers("deepseek2"));
  Session latent(mla.get(), "expected-attention:budget=60", options);
  latent.Decode(tokens);
  const std::string why = latent.EvictRefused();
  ExpectPart(why, "no RoPE directly before");
  cr_expect(latent.Positions().size() == kTokens);
  // A new context has seen no queries of a sequence that it receives.
  const ModelHandle model = LoadRandomModel(SevenLayers("llama"));
  Session source(model.get(), "expected-attention:budget=100", options);
  Session target(model.get(), "expected-attention:budget=60", options);
  source.Decode(tokens);
  source.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target);
  const std::string unseen = target.EvictRefused();
  ExpectPart(unseen, "of which none is known");
  target.Decode(RandomTokens(20, 256, 3));
  cr_expect(target.Evict().cells_after == 60);
}

}  // namespace
}  // namespace kvevict::tests
