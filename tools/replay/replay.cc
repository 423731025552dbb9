#include "tools/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "kvevict/experimental.h"
#include "tools/engine/policies.h"

namespace kvevict::tools {
namespace {

struct DestroySequence {
  void operator()(kvevict_sequence* sequence) const {
    kvevict_sequence_destroy(sequence);
  }
};
using Sequence = std::unique_ptr<kvevict_sequence, DestroySequence>;

[[noreturn]] void Refuse(const std::string& message) {
  throw KvevictError(KVEVICT_ERROR_INVALID_ARGUMENT, message);
}

void CheckInputs(const Policy& policy, const DumpInputs& inputs) {
  const kvevict_signal_inputs& given = inputs.layers()[0];
  const std::pair<kvevict_input, std::pair<const char*, const kvevict_plane*>>
      needed[] = {
          {KVEVICT_INPUT_SCORES, {"scores", given.scores}},
          {KVEVICT_INPUT_QUERY_MEAN, {"query_mean", given.query_mean}},
          {KVEVICT_INPUT_KEY_FILTER, {"key_filter", given.key_filter}},
          {KVEVICT_INPUT_TOKEN_WEIGHTS, {"token_weights", given.token_weights}},
          {KVEVICT_INPUT_QUERY_CENTERS, {"query_centers", given.query_centers}},
      };
  for (const auto& [input, tensor] : needed) {
    if (policy.Requires(input) && tensor.second == nullptr) {
      Refuse(std::string("it needs tensor '") + tensor.first + "'");
    }
  }
  if (policy.Number("rotate") != 0) {
    Refuse(
        "it rotates keys to their slots, but the dumped queries are rotated "
        "for their positions");
  }
}

kvevict_view View(const kvevict_plane& k, const kvevict_plane& v,
                  uint32_t n_heads) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = n_heads;
  view.k = k;
  view.v = v;
  return view;
}

// The plane of a copy of the rows.
kvevict_plane Copy(const DumpRows& rows, std::vector<uint8_t>* memory) {
  if (rows.n_heads == 0) return KVEVICT_PLANE_INIT;
  const int64_t n_bytes =
      kvevict_row_bytes(rows.plane.dtype, rows.plane.head_dim) * rows.n_heads *
      rows.n_tokens;
  const auto* const begin = reinterpret_cast<const uint8_t*>(rows.plane.data);
  memory->assign(begin, begin + n_bytes);
  kvevict_plane copy = rows.plane;
  copy.data = reinterpret_cast<uintptr_t>(memory->data());
  return copy;
}

kvevict_plane From(kvevict_plane plane, uint32_t row) {
  plane.data += static_cast<uint64_t>(plane.token_stride_bytes) * row;
  return plane;
}

uint8_t* Row(const kvevict_plane& plane, uint32_t head, size_t row) {
  return reinterpret_cast<uint8_t*>(plane.data) +
         plane.head_stride_bytes * head +
         plane.token_stride_bytes * static_cast<int64_t>(row);
}

// Puts the rows from `first` on behind those that a head kept.
void AppendRows(const DumpRows& rows, uint32_t head, uint32_t first,
                size_t n_kept, std::vector<uint8_t>* memory) {
  kvevict_plane to = rows.plane;
  to.data = reinterpret_cast<uintptr_t>(memory->data());
  const auto n_bytes = static_cast<size_t>(
      kvevict_row_bytes(rows.plane.dtype, rows.plane.head_dim));
  for (uint32_t t = first; t < rows.n_tokens; ++t) {
    std::memcpy(Row(to, head, n_kept + (t - first)), Row(rows.plane, head, t),
                n_bytes);
  }
}

// f32 [n_rows, n_heads, dim] at `data`.
kvevict_plane OutPlane(const float* data, uint32_t n_heads, uint32_t dim) {
  return kvevict_plane_token_major(data, KVEVICT_DTYPE_F32, n_heads, dim);
}

template <typename T>
double MeanOver(const std::vector<ReplayLayer>& layers, T value) {
  double sum = 0;
  size_t n = 0;
  for (const ReplayLayer& layer : layers) {
    for (const ReplayHead& head : layer.heads) {
      sum += value(head);
      ++n;
    }
  }
  return sum / static_cast<double>(n);
}

void Report(const kvevict_plan* plan, const kvevict_sequence* sequence,
            Replayed* result) {
  std::vector<kvevict_layer_info> infos(result->layers.size());
  size_t n_lists = 0;
  for (uint32_t l = 0; l < infos.size(); ++l) {
    infos[l].struct_size = sizeof(infos[l]);
    Check(kvevict_plan_layer(plan, l, &infos[l]));
    n_lists += infos[l].n_lists;
  }
  std::vector<kvevict_list_report> lists(n_lists, KVEVICT_LIST_REPORT_INIT);
  result->report = KVEVICT_EVICT_REPORT_INIT;
  Check(kvevict_sequence_report(sequence, &result->report, lists.data(),
                                lists.size()));
  for (uint32_t l = 0; l < infos.size(); ++l) {
    auto& heads = result->layers[l].heads;
    for (uint32_t h = 0; h < heads.size(); ++h) {
      uint32_t length = 0;
      Check(kvevict_sequence_stored_length(sequence, l, h, &length));
      heads[h].positions.resize(length);
      size_t n_written = 0;
      Check(kvevict_sequence_keep_positions(
          sequence, l, h, heads[h].positions.data(), length, &n_written));
      const uint32_t list = infos[l].n_lists > 1 ? h : 0;
      if (infos[l].n_lists > 0) {
        heads[h].policy_mass =
            double{lists[infos[l].first_list + list].mass_kept};
      }
    }
  }
}

void Average(Replayed* result) {
  result->mass =
      MeanOver(result->layers, [](const ReplayHead& h) { return h.mass; });
  result->policy_mass = MeanOver(
      result->layers, [](const ReplayHead& h) { return h.policy_mass; });
  for (const ReplayLayer& layer : result->layers) {
    result->error += layer.error / static_cast<double>(result->layers.size());
  }
}

}  // namespace

Replay::Replay(const Dump& dump, const DumpInputs& inputs,
               const ReplayOptions& options, ThreadPool& pool)
    : dump_(dump),
      inputs_(inputs),
      options_(options),
      context_(CreateContext(pool, nullptr)),
      n_held_(dump.n_tokens - (options.unseen ? options.n_measured : 0)) {
  for (uint32_t l = 0; options.n_measured > 0 && l < dump.layers.size(); ++l) {
    all_.push_back(AttendAll(l));
  }
}

void Replay::RunJobs(std::span<const kvevict_attention_job> jobs) {
  for (size_t done = 0; done < jobs.size(); done += KVEVICT_MAX_JOBS) {
    const auto part = jobs.subspan(
        done, std::min<size_t>(jobs.size() - done, KVEVICT_MAX_JOBS));
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_attend_workspace(context_.get(), part.data(), part.size(),
                                   &size));
    workspace_.Fit(size);
    Check(kvevict_attend(context_.get(), part.data(), part.size(),
                         workspace_.data(), workspace_.size(), nullptr));
  }
}

Replay::Attention Replay::AttendAll(uint32_t layer) {
  const DumpLayer& rows = dump_.layers[layer];
  const uint32_t v_dim = rows.v_dim();
  Attention all;
  all.out.resize(size_t{options_.n_measured} * rows.q.n_heads * v_dim);
  all.sums.resize(size_t{rows.k.n_heads} * dump_.n_tokens);
  const kvevict_view view = View(rows.k.plane, rows.v.plane, rows.k.n_heads);
  const kvevict_plane queries =
      From(rows.q.plane, rows.q.n_tokens - options_.n_measured);
  const kvevict_plane out = OutPlane(all.out.data(), rows.q.n_heads, v_dim);
  const kvevict_plane sums = kvevict_plane_head_major(
      all.sums.data(), KVEVICT_DTYPE_F32, dump_.n_tokens, 1);
  kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
  job.n_tokens = dump_.n_tokens;
  job.view = &view;
  job.queries = &queries;
  job.out = &out;
  job.n_q_heads = rows.q.n_heads;
  job.n_queries = options_.n_measured;
  job.softmax_scale = options_.softmax_scale;
  job.logit_softcap = options_.logit_softcap;
  job.n_sum_heads = rows.k.n_heads;
  job.attention_sums = &sums;
  RunJobs({&job, 1});
  return all;
}

// Every query by itself, since heads differ in how many rows they kept of the
// tokens before it.
std::vector<float> Replay::AttendKept(uint32_t layer, const ReplayLayer& kept) {
  const DumpLayer& rows = dump_.layers[layer];
  const uint32_t n = options_.n_measured, n_heads = rows.k.n_heads;
  const uint32_t v_dim = rows.v_dim();
  const uint32_t n_out = rows.q.n_heads * v_dim;
  std::vector<float> out(size_t{n} * n_out);
  kvevict_plane k = rows.k.plane, v = rows.v.plane;
  k.data = reinterpret_cast<uintptr_t>(kept.k.data());
  if (rows.v.n_heads > 0) v.data = reinterpret_cast<uintptr_t>(kept.v.data());
  const kvevict_view view = View(k, v, n_heads);
  std::vector<uint32_t> counts(size_t{n} * n_heads);
  std::vector<kvevict_plane> planes(2 * size_t{n});
  std::vector<kvevict_attention_job> jobs(n, KVEVICT_ATTENTION_JOB_INIT);
  for (uint32_t i = 0; i < n; ++i) {
    const auto position = static_cast<int32_t>(dump_.n_tokens - n + i);
    const auto own = std::span(counts).subspan(i * n_heads, n_heads);
    for (uint32_t h = 0; h < n_heads; ++h) {
      const auto& held = kept.heads[h].positions;
      own[h] = static_cast<uint32_t>(
          std::upper_bound(held.begin(), held.end(), position) - held.begin());
      if (options_.unseen) own[h] += i + 1;
    }
    planes[2 * i] = From(rows.q.plane, rows.q.n_tokens - n + i);
    planes[2 * i + 1] =
        OutPlane(out.data() + size_t{i} * n_out, rows.q.n_heads, v_dim);
    kvevict_attention_job& job = jobs[i];
    job.n_tokens = *std::max_element(own.begin(), own.end());
    job.token_counts = own.data();
    job.view = &view;
    job.queries = &planes[2 * i];
    job.out = &planes[2 * i + 1];
    job.n_q_heads = rows.q.n_heads;
    job.n_queries = 1;
    job.softmax_scale = options_.softmax_scale;
    job.logit_softcap = options_.logit_softcap;
  }
  RunJobs(jobs);
  return out;
}

void Replay::Measure(uint32_t layer, ReplayLayer* kept) {
  const DumpLayer& rows = dump_.layers[layer];
  const uint32_t group = rows.q.n_heads / rows.k.n_heads;
  const uint32_t v_dim = rows.v_dim();
  const Attention& all = all_[layer];
  for (uint32_t h = 0; options_.unseen && h < rows.k.n_heads; ++h) {
    const size_t n_kept = kept->heads[h].positions.size();
    AppendRows(rows.k, h, n_held_, n_kept, &kept->k);
    if (rows.v.n_heads > 0) AppendRows(rows.v, h, n_held_, n_kept, &kept->v);
  }
  const std::vector<float> out = AttendKept(layer, *kept);
  double layer_lost = 0, layer_whole = 0;
  for (uint32_t h = 0; h < rows.k.n_heads; ++h) {
    ReplayHead& head = kept->heads[h];
    const auto sums =
        std::span(all.sums).subspan(size_t{h} * dump_.n_tokens, dump_.n_tokens);
    double stayed = std::accumulate(sums.begin() + n_held_, sums.end(), 0.0);
    for (const int32_t p : head.positions) {
      stayed += static_cast<double>(sums[static_cast<size_t>(p)]);
    }
    head.mass = stayed / std::accumulate(sums.begin(), sums.end(), 0.0);
    double lost = 0, whole = 0;
    for (uint32_t i = 0; i < options_.n_measured; ++i) {
      const size_t first = (size_t{i} * rows.k.n_heads + h) * group * v_dim;
      for (size_t e = first; e < first + size_t{group} * v_dim; ++e) {
        lost += std::pow(double{out[e]} - double{all.out[e]}, 2);
        whole += std::pow(double{all.out[e]}, 2);
      }
    }
    head.error = whole > 0 ? std::sqrt(lost / whole) : 0;
    layer_lost += lost;
    layer_whole += whole;
  }
  kept->error = layer_whole > 0 ? std::sqrt(layer_lost / layer_whole) : 0;
}

std::vector<kvevict_signal_inputs> Replay::InputsFor(const Policy& policy) {
  CheckInputs(policy, inputs_);
  std::vector<kvevict_signal_inputs> inputs = inputs_.layers();
  const uint32_t n_rows = policy.Resolve(n_held_).n_query_rows;
  const bool all = n_rows == KVEVICT_QUERY_ROWS_ALL;
  const bool any = n_rows == KVEVICT_QUERY_ROWS_ANY;
  if (n_rows == 0 || (any && inputs_.has_attention_sums())) return inputs;
  // Rows of tokens that are held.
  const uint32_t n_behind = dump_.n_tokens - n_held_;
  const uint32_t n_given =
      dump_.n_queries > n_behind ? dump_.n_queries - n_behind : 0;
  const uint32_t n_wanted = all   ? n_held_
                            : any ? std::max(n_given, 1u)
                                  : n_rows;
  if (n_given < n_wanted) {
    Refuse(fmt::format(
        "it reads the queries of {} {}, but tensor 'q' has "
        "{} rows{}",
        all ? "all" : "the last",
        any ? "tokens" : fmt::format("{} tokens", n_wanted), dump_.n_queries,
        options_.unseen
            ? fmt::format(", {} of them unseen", options_.n_measured)
            : ""));
  }
  queries_.clear();
  for (const DumpLayer& layer : dump_.layers) {
    queries_.push_back(From(layer.q.plane, n_given - n_wanted));
  }
  for (size_t l = 0; l < inputs.size(); ++l) {
    inputs[l].queries = &queries_[l];
    inputs[l].n_query_rows = n_wanted;
  }
  return inputs;
}

Replay::Plan Replay::MakePlan(const Policy& policy) const {
  std::vector<kvevict_layer_geometry> layers;
  for (uint32_t l = 0; l < dump_.layers.size(); ++l) {
    const DumpLayer& rows = dump_.layers[l];
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = inputs_.n_q_heads(l);
    layer.n_kv_heads = rows.k.n_heads;
    layer.k_head_dim = rows.k.plane.head_dim;
    layer.v_head_dim = rows.v.n_heads > 0 ? rows.v_dim() : 0;
    if (dump_.n_queries > 0) layer.q_dtype = rows.q.plane.dtype;
    layer.k_dtype = rows.k.plane.dtype;
    if (rows.v.n_heads > 0) layer.v_dtype = rows.v.plane.dtype;
    layer.softmax_scale = options_.softmax_scale;
    layer.logit_softcap = options_.logit_softcap;
    layers.push_back(layer);
  }
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = static_cast<uint32_t>(layers.size());
  geometry.max_tokens = n_held_;
  geometry.layers = layers.data();
  geometry.layers_len = layers.size();
  geometry.rope_inv_freq = inputs_.rope_inv_freq().data();
  geometry.rope_inv_freq_len = inputs_.rope_inv_freq().size();
  geometry.rope_layout = options_.rope_interleaved
                             ? KVEVICT_ROPE_LAYOUT_INTERLEAVED
                             : KVEVICT_ROPE_LAYOUT_HALF;
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.report_mass = 1;
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context_.get(), &geometry, policy.get(), &options,
                            &plan));
  return Plan(plan);
}

Replayed Replay::Evict(const Policy& policy) {
  const auto inputs = InputsFor(policy);
  Replayed result;
  result.layers.resize(dump_.layers.size());
  std::vector<kvevict_view> views;
  for (size_t l = 0; l < dump_.layers.size(); ++l) {
    const DumpLayer& rows = dump_.layers[l];
    ReplayLayer& kept = result.layers[l];
    kept.heads.resize(rows.k.n_heads);
    views.push_back(
        View(Copy(rows.k, &kept.k), Copy(rows.v, &kept.v), rows.k.n_heads));
  }
  const Plan plan = MakePlan(policy);
  kvevict_sequence* handle = nullptr;
  Check(kvevict_sequence_create(plan.get(), &handle));
  const Sequence sequence(handle);
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_plan_workspace(plan.get(), KVEVICT_OPERATION_EVICT, 0, &size));
  workspace_.Fit(size);
  Check(kvevict_sequence_append(sequence.get(), n_held_, nullptr));

  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs.data();
  options.inputs_len = inputs.size();
  const auto start = std::chrono::steady_clock::now();
  Check(kvevict_sequence_evict(sequence.get(), views.data(), views.size(),
                               &options, workspace_.data(), workspace_.size(),
                               nullptr));
  result.milliseconds = std::chrono::duration<double, std::milli>(
                            std::chrono::steady_clock::now() - start)
                            .count();
  Report(plan.get(), sequence.get(), &result);
  for (uint32_t l = 0; l < result.layers.size(); ++l) {
    if (options_.n_measured > 0) Measure(l, &result.layers[l]);
  }
  Average(&result);
  return result;
}

}  // namespace kvevict::tools
