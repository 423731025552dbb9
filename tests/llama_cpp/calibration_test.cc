// Calibrations that the adapter makes, against statistics in double of the queries before
// RoPE; and what evictions with a saved one keep.
#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/query_statistics.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

constexpr uint32_t kTokens = 150, kOfCalibration = 110, kBudget = 60;

void Expect(kvevict_status status) {
  cr_assert(status == KVEVICT_OK, "%s", kvevict_last_error_message());
}

// A calibration of kOfCalibration tokens, and what was captured beside it.
struct Calibrated {
  std::string bytes;
  Queries queries;
};

Calibrated CalibrateModel(llama_model* model, bool has_covariances,
                          uint32_t seed = 7) {
  Calibrated all;
  SessionOptions options;
  options.flash = true;
  options.n_ubatch = 25;
  options.callback = &CaptureQueries;
  options.callback_data = &all.queries;
  Session session(model, "none", options);
  const kvevict_calibration* calibration = session.Calibrate(has_covariances);
  all.queries.clear();
  session.Decode(RandomTokens(kOfCalibration, session.n_vocab(), seed));
  all.bytes = SaveCalibration(calibration);
  return all;
}

// Another session is calibrated by another text and told these statistics.
Test(llama_calibration, evictions_keep_what_its_statistics_score) {
  for (const char* arch : {"llama", "qwen3"}) {
    const RandomModel shape = SevenLayers(arch);
    const ModelHandle model = LoadRandomModel(shape);
    const QueryShape of_queries = MakeQueryShape(shape.n_heads, shape.head_dim,
                                                 std::string(arch) == "qwen3");
    const auto tokens = RandomTokens(kTokens, shape.n_vocab);
    for (const bool has_covariances : {true, false}) {
      const Calibrated calibrated =
                           CalibrateModel(model.get(), has_covariances),
                       other = CalibrateModel(model.get(), has_covariances, 8);
      std::vector<Moments> moments;
      std::vector<std::vector<float>> centers;
      for (uint32_t l = 0; l < shape.n_layers; ++l) {
        const std::vector<float>& rows = calibrated.queries.at(l);
        cr_assert(rows.size() ==
                  kOfCalibration * shape.n_heads * shape.head_dim);
        moments.push_back(ExpectedMoments(rows, of_queries, kTokens));
        centers.push_back(Centers(rows, of_queries));
      }
      std::vector<kvevict_plane> planes;
      for (uint32_t l = 0; l < shape.n_layers; ++l) {
        planes.push_back(Packed(moments[l].mean, 1, shape.head_dim));
        planes.push_back(
            Packed(moments[l].covariance, shape.head_dim, shape.head_dim));
        planes.push_back(Packed(centers[l], 3, shape.head_dim / 2));
      }
      for (const char* policy :
           {"triattention:budget=60", "triattention:budget=60,scope=model",
            "expected-attention:budget=60"}) {
        const bool is_expected = std::strncmp(policy, "expected", 8) == 0;
        std::vector<kvevict_signal_inputs> inputs;
        for (uint32_t l = 0; l < shape.n_layers; ++l) {
          inputs.push_back(KVEVICT_SIGNAL_INPUTS_INIT);
          if (!is_expected) {
            inputs.back().query_centers = &planes[3 * l + 2];
            continue;
          }
          inputs.back().query_mean = &planes[3 * l];
          if (has_covariances) {
            inputs.back().query_covariance = &planes[3 * l + 1];
          }
        }
        for (const auto way :
             {KVEVICT_LLAMA_WAY_IN_PLACE, KVEVICT_LLAMA_WAY_STATE}) {
          SessionOptions options;
          options.flash = true;
          options.calibration = calibrated.bytes;
          Session session(model.get(), policy, options);
          session.Decode(tokens);
          session.Evict(0, way);
          options.calibration = other.bytes;
          Session told(model.get(), policy, options);
          told.Decode(tokens);
          kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
          evict.inputs = inputs.data();
          evict.inputs_len = inputs.size();
          told.Evict(0, way, nullptr, &evict);
          Session by_other(model.get(), policy, options);
          by_other.Decode(tokens);
          by_other.Evict(0, way);
          bool differs = false;
          for (uint32_t l = 0; l < shape.n_layers; ++l) {
            for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
              const auto kept = session.Positions(l, h);
              cr_expect(kept == told.Positions(l, h), "%s %s: layer %u head %u",
                        policy, arch, l, h);
              differs |= kept != by_other.Positions(l, h);
            }
          }
          cr_expect(differs, "%s %s", policy, arch);
          if (!is_expected) continue;
          options.calibration = {};
          Session own(model.get(), policy, options);
          own.Decode(tokens);
          own.Evict(0, way);
          cr_expect(own.Positions() != session.Positions(), "%s", arch);
        }
      }
    }
  }
}

Test(llama_calibration, counts_the_layers_that_keep_every_token) {
  for (const char* arch : {"gemma3", "gemma2", "lfm2", "gpt-oss", "qwen2vl"}) {
    const ModelHandle model = LoadRandomModel(SevenLayers(arch));
    SessionOptions options;
    std::string bytes;
    {
      Session session(model.get(), "none", options);
      const kvevict_calibration* calibration = session.Calibrate(false);
      session.Decode(RandomTokens(kOfCalibration, session.n_vocab(), 7));
      uint32_t n_layers = 0, layer = 0;
      for (; kvevict_llama_layer(session.kv(), n_layers, &layer) == KVEVICT_OK;
           ++n_layers) {
        uint64_t n_rows = 0;
        Expect(kvevict_calibration_rows(calibration, n_layers, &n_rows));
        cr_expect(n_rows == kOfCalibration, "%s: layer %u", arch, layer);
      }
      uint64_t none = 0;
      cr_expect(n_layers > 0 &&
                kvevict_calibration_rows(calibration, n_layers, &none) ==
                    KVEVICT_ERROR_INVALID_ARGUMENT);
      bytes = SaveCalibration(calibration);
    }
    // The types of the cache and flash attention do not matter.
    options.calibration = bytes;
    options.flash = true;
    options.type_k = options.type_v = GGML_TYPE_F16;
    for (const char* policy :
         {"triattention:budget=60", "expected-attention:budget=60"}) {
      Session session(model.get(), policy, options);
      session.Decode(RandomTokens(kTokens, session.n_vocab()));
      cr_expect(session.Evict().cells_after == kBudget, "%s %s", arch, policy);
    }
  }
}

// Queries of several sequences in a batch count by their own positions.
Test(llama_calibration, does_not_depend_on_batches) {
  const ModelHandle model = LoadRandomModel(SevenLayers("llama"));
  const auto a = RandomTokens(60, 256, 7), b = RandomTokens(40, 256, 8);
  SessionOptions options;
  options.n_seq = 2;
  std::vector<std::vector<float>> means;
  for (const bool unified : {false, true}) {
    options.unified = unified;
    for (const bool together : {false, true}) {
      Session session(model.get(), "none", options);
      const kvevict_calibration* calibration = session.Calibrate(false);
      if (together) {
        session.DecodeTogether({a, b});
      } else {
        session.Decode(a, 0);
        session.Decode(b, 1);
      }
      uint64_t n_rows = 0;
      Expect(kvevict_calibration_rows(calibration, 1, &n_rows));
      cr_expect(n_rows == 100);
      auto& mean = means.emplace_back(4 * 32);
      Expect(kvevict_calibration_query_mean(calibration, 1, 0, 1, mean.data(),
                                            mean.size(), nullptr, 0));
    }
  }
  double most = 0;
  for (const float m : means[0]) most = std::max(most, double{std::abs(m)});
  for (const auto& mean : means) {
    // Sums of rows in another order, of products that llama.cpp rounds otherwise.
    cr_expect(MaxDifference(mean, means[0]) < 1e-5 * most);
  }
}

// Moments of a sequence's own queries go along with a copy.
Test(llama_calibration, copies_have_the_moments_of_their_source) {
  const ModelHandle model = LoadRandomModel(SevenLayers("llama"));
  const auto tokens = RandomTokens(kTokens, 256),
             more = RandomTokens(30, 256, 5);
  SessionOptions options;
  options.n_seq = 2;
  options.unified = true;
  const char* policy = "expected-attention:budget=60";
  Session copied(model.get(), policy, options);
  copied.Decode(tokens, 0);
  Check(kvevict_llama_copy(copied.kv(), 0, 1));
  copied.Decode(more, 1);
  copied.Evict(1);
  Session whole(model.get(), policy, options);
  whole.Decode(tokens, 0);
  whole.Decode(more, 0);
  whole.Evict(0);
  for (uint32_t l = 0; l < 7; ++l) {
    for (uint32_t h = 0; h < 2; ++h) {
      cr_expect(copied.Positions(l, h, 1) == whole.Positions(l, h, 0),
                "layer %u head %u", l, h);
    }
  }
  // The source has its own.
  copied.Evict(0);
  cr_expect(copied.Positions(0, 0, 0).size() == kBudget);
}

// ---- Refusals ------------------------------------------------------------------------

Test(llama_calibration, wrong_bytes_are_refused_and_change_nothing) {
  const ModelHandle model = LoadRandomModel(SevenLayers("llama"));
  const std::string good = CalibrateModel(model.get(), true).bytes;
  RandomModel fewer = SevenLayers("llama"), narrow = SevenLayers("llama");
  fewer.n_layers = 3;
  narrow.n_heads = 2;
  narrow.n_embd = 64;
  std::string damaged = good;
  damaged[good.size() / 2] ^= 1;
  const ModelHandle of_fewer = LoadRandomModel(fewer),
                    of_narrow = LoadRandomModel(narrow),
                    of_halves = LoadRandomModel(SevenLayers("qwen3"));
  const struct {
    std::string bytes;
    const char* why;
  } kCases[] = {
      {CalibrateModel(of_fewer.get(), true).bytes,
       "the number of layers with a full cache 3 is not the plan's 7"},
      {CalibrateModel(of_narrow.get(), false).bytes,
       "n_q_heads 2 is not the plan's 4"},
      {CalibrateModel(of_halves.get(), true).bytes,
       "rope_layout 0 is not the plan's 1"},
      {damaged, "damaged"},
      {good.substr(0, good.size() - 8), "bytes that were saved"},
      {"no calibration of a model's queries", "calibration"},
  };
  for (const auto& [bytes, why] : kCases) {
    for (const char* policy :
         {"triattention:budget=60", "expected-attention:budget=60"}) {
      SessionOptions options;
      options.calibration = bytes;
      Session session(model.get(), policy, options);
      session.Decode(RandomTokens(kTokens, session.n_vocab()));
      const std::string refused = session.EvictRefused();
      ExpectPart(refused, "options.calibration: ");
      ExpectPart(refused, why);
      cr_expect(session.Positions().size() == kTokens);
    }
    // Other policies do not read it.
    SessionOptions options;
    options.calibration = bytes;
    Session session(model.get(), "snapkv:budget=60", options);
    session.Decode(RandomTokens(kTokens, session.n_vocab()));
    cr_expect(session.Evict().cells_after == kBudget);
  }
}

Test(llama_calibration, arguments_and_models_without_rope_are_refused) {
  kvevict_llama* kv = nullptr;
  cr_expect(kvevict_llama_create("triattention:budget=60", nullptr, &kv) ==
            KVEVICT_ERROR_UNSUPPORTED);
  ExpectPart(kvevict_llama_last_error_message(), "options.calibration");
  kvevict_llama_options options = KVEVICT_LLAMA_OPTIONS_INIT;
  options.calibration_len = 5;
  cr_expect(kvevict_llama_create("none", &options, &kv) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  ExpectPart(kvevict_llama_last_error_message(),
             "options.calibration is NULL, but options.calibration_len is 5");
  options.calibration = "bytes";
  options.calibration_len = 0;
  cr_expect(kvevict_llama_create("none", &options, &kv) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);

  const kvevict_calibration* calibration = nullptr;
  const ModelHandle model = LoadRandomModel(SevenLayers("llama"));
  Session session(model.get(), "none", {});
  cr_expect(kvevict_llama_calibrate(session.kv(), 1, &calibration) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  ExpectPart(kvevict_llama_last_error_message(), "must decode a batch first");
  session.Decode(RandomTokens(10, session.n_vocab()));
  cr_expect(kvevict_llama_calibrate(session.kv(), 2, &calibration) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  ExpectPart(kvevict_llama_last_error_message(),
             "has_covariances 2 is not 0 or 1");
  cr_expect(kvevict_llama_calibrate(session.kv(), 1, nullptr) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);
  cr_expect(kvevict_llama_calibrate(nullptr, 1, &calibration) ==
            KVEVICT_ERROR_INVALID_ARGUMENT);

  const ModelHandle mla = LoadRandomModel(SevenLayers("deepseek2"));
  Session latent(mla.get(), "none", {});
  latent.Decode(RandomTokens(10, latent.n_vocab()));
  cr_expect(kvevict_llama_calibrate(latent.kv(), 1, &calibration) ==
            KVEVICT_ERROR_UNSUPPORTED);
  ExpectPart(kvevict_llama_last_error_message(), "no RoPE directly before");
  cr_expect(calibration == nullptr);
}

// triattention's plan needs RoPE, which a context shows with its first token.
Test(llama_calibration, serves_targets_and_sessions) {
  const ModelHandle model = LoadRandomModel(SevenLayers("llama"));
  const std::string bytes = CalibrateModel(model.get(), false).bytes;
  SessionOptions options;
  options.calibration = bytes;
  const char* policy = "triattention:budget=60";
  Session source(model.get(), policy, options);
  Session target(model.get(), policy, options);
  source.Decode(RandomTokens(kTokens, source.n_vocab()));
  source.Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target);
  cr_expect(target.Positions().size() == kBudget);
  source.Evict();
  cr_expect(source.Positions(2, 1) == target.Positions(2, 1));
  target.Decode(RandomTokens(20, target.n_vocab(), 3));
  cr_expect(target.Evict().cells_after == kBudget);

  const auto saved = source.Save();
  Session loaded(model.get(), policy, options);
  ExpectInvalid(loaded.Load(saved),
                "its RoPE is not known before a llama_decode()");
  loaded.Decode(RandomTokens(1, loaded.n_vocab()));
  Check(loaded.Load(saved));
  loaded.Decode(RandomTokens(20, loaded.n_vocab(), 3));
  cr_expect(loaded.Evict().cells_after == kBudget);
  cr_expect(loaded.Positions(2, 1) == target.Positions(2, 1));
}

}  // namespace
}  // namespace kvevict::tests
