// Quantized rows are made, scored and attended to in random layouts, as on the CPU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/dtype.h"
#include "core/view/view.h"
#include "kvevict/attention.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/random_layer.h"
#include "tests/gpu/random_values.h"
#include "tests/gpu/score_error.h"

namespace kvevict::gpu {
namespace {

struct alignas(64) Bytes64 {
  uint8_t bytes[64];
};

constexpr uint32_t kCodeDim = 64;
constexpr uint32_t kCodeValueDim = 32;
constexpr uint32_t kCodeHeads = 2;
constexpr uint32_t kCodeQueryHeads = 6;
constexpr uint32_t kCodeQueries = 20;

// [rows, query heads, elements], packed, on both sides.
struct QueryHeadRows {
  std::vector<float> host;
  Buffer device;
  uint32_t dim;

  QueryHeadRows(const Gpu& gpu, uint64_t seed, uint32_t dim)
      : host(size_t{kCodeQueries} * kCodeQueryHeads * dim),
        device(gpu, host.size() * sizeof(float)),
        dim(dim) {
    FillWithValues(seed, KVEVICT_DTYPE_F32, host.size(), host.data());
    device.Write(host.data(), device.n_bytes());
  }

  kvevict_plane Plane(bool on_device) const {
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data =
        on_device ? device.address() : reinterpret_cast<uintptr_t>(host.data());
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = dim;
    plane.head_stride_bytes = static_cast<int64_t>(dim * sizeof(float));
    plane.token_stride_bytes = plane.head_stride_bytes * kCodeQueryHeads;
    return plane;
  }
};

kvevict_layer_geometry CodeGeometry(kvevict_dtype dtype) {
  kvevict_layer_geometry g = KVEVICT_LAYER_GEOMETRY_INIT;
  g.n_q_heads = kCodeQueryHeads;
  g.n_kv_heads = kCodeHeads;
  g.k_head_dim = kCodeDim;
  g.v_head_dim = kCodeValueDim;
  g.q_dtype = KVEVICT_DTYPE_F32;
  g.k_dtype = g.v_dtype = dtype;
  return g;
}

// A cache of n tokens on both sides.
struct Codes {
  const Gpu& gpu;
  kvevict_dtype dtype;
  uint32_t n_tokens;
  bool groups;  // groups of tokens share scales
  Random random;
  ContextHandle on_gpu;
  ContextHandle on_host;
  RandomLayer cache;
  QueryHeadRows queries;

  Codes(const Gpu& gpu, kvevict_dtype dtype, uint32_t n_tokens, bool groups,
        uint64_t seed)
      : gpu(gpu),
        dtype(dtype),
        n_tokens(n_tokens),
        groups(groups),
        random(seed),
        on_gpu(CreateContext(gpu.ContextOptions())),
        on_host(CreateContext(KVEVICT_CONTEXT_OPTIONS_INIT)),
        cache(gpu, &random, CodeGeometry(dtype), n_tokens, groups),
        queries(gpu, seed, kCodeDim) {
    for (uint32_t h = 0; h < kCodeHeads; ++h) {
      for (uint32_t t = 0; t < n_tokens; ++t) {
        cache.WriteRows(&random, h, t, /*special=*/false);
      }
    }
    cache.Upload();
  }
};

void ScoreCodes(const Codes& c, const std::string& text, Report* report) {
  const oracle_policy policy = ParsePolicy(text);
  const Geometry geometry = {1, c.n_tokens, {CodeGeometry(c.dtype)}};
  std::vector<float> scores[2];
  for (const bool on_device : {false, true}) {
    const PlanHandle plan =
        CreatePlan(on_device ? c.on_gpu.get() : c.on_host.get(), geometry,
                   policy, nullptr);
    const size_t n_bytes = WorkspaceBytes(plan.get(), KVEVICT_OPERATION_SCORE);
    std::vector<float>& out = scores[on_device];
    out.resize(size_t{kCodeHeads} * c.n_tokens);
    const Buffer device(c.gpu, out.size() * sizeof(float));
    const Buffer workspace(c.gpu, n_bytes);
    std::vector<Bytes64> host_workspace(n_bytes / sizeof(Bytes64) + 1);
    kvevict_plane rows = c.queries.Plane(on_device);
    const ScoreCall call = {
        plan.get(), 0, c.n_tokens,
        on_device ? &c.cache.device_view() : &c.cache.host_view(),
        policy.window > 0 ? &rows : nullptr};
    Check(Score(
        call, on_device ? device.pointer<float>() : out.data(), out.size(),
        on_device ? Scratch{workspace.pointer<void>(), n_bytes, c.gpu.stream()}
                  : Scratch{host_workspace.data(), n_bytes}));
    if (!on_device) continue;
    c.gpu.Synchronize();
    device.Read(out.data(), device.n_bytes());
  }
  double worst = 0;
  for (size_t i = 0; i < scores[0].size(); ++i) {
    const double error = ScoreError(policy, scores[1][i], scores[0][i]);
    worst = std::max(worst, error);
    if (error <= 1.0) continue;
    report->Fail(fmt::format("score {}: {} on the GPU, {} on the CPU", i,
                             scores[1][i], scores[0][i]));
  }
  report->Note("worst error of a score, of what is allowed", worst);
}

void AttendCodes(const Codes& c, Report* report) {
  QueryHeadRows out(c.gpu, 1, kCodeValueDim);
  for (const bool on_device : {false, true}) {
    const kvevict_context* context =
        on_device ? c.on_gpu.get() : c.on_host.get();
    const kvevict_plane queries = c.queries.Plane(on_device);
    const kvevict_plane attended = out.Plane(on_device);
    kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
    job.n_tokens = c.n_tokens;
    job.view = on_device ? &c.cache.device_view() : &c.cache.host_view();
    job.queries = &queries;
    job.out = &attended;
    job.n_q_heads = kCodeQueryHeads;
    job.n_queries = kCodeQueries;
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_attend_workspace(context, &job, 1, &size));
    const Buffer device(c.gpu, size.best_bytes);
    std::vector<Bytes64> host(size.best_bytes / sizeof(Bytes64) + 1);
    Check(kvevict_attend(
        context, &job, 1, on_device ? device.pointer<void>() : host.data(),
        size.best_bytes, on_device ? c.gpu.stream() : nullptr));
    if (on_device) c.gpu.Synchronize();
  }
  const std::vector<float> got = out.device.ReadAll<float>();
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    // Weights and their sums are exact to about 1e-5, and values are at most 4.
    const double error = std::abs(double{got[i]} - out.host[i]);
    worst = std::max(worst, error);
    if (error <= 1e-4) continue;
    report->Fail(fmt::format("element {}: {} on the GPU, {} on the CPU", i,
                             got[i], out.host[i]));
  }
  report->Note("worst error of attention", worst);
}

// A view with its rows' scales and minima, without other companions.
struct Rows {
  std::vector<kvevict_plane> numbers;
  kvevict_view view;

  explicit Rows(const kvevict_view& of) : view(of) {
    for (uint32_t i = 0; i < of.n_companions; ++i) {
      if (of.companions[i].role == KVEVICT_ROLE_NONE) continue;
      numbers.push_back(of.companions[i]);
    }
    view.companions = numbers.data();
    view.n_companions = static_cast<uint32_t>(numbers.size());
  }
};

kvevict_status Requantize(const Codes& c, const kvevict_view& from,
                          const kvevict_view& to, int32_t* slots, size_t n,
                          bool on_device) {
  const Rows source(from), destination(to);
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.slots = slots;
  keep.slots_len = n;
  keep.count = static_cast<uint32_t>(n);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = c.n_tokens;
  move.view = &source.view;
  move.keep = &keep;
  move.first_slot = 3;
  move.destination = &destination.view;
  return kvevict_compact(on_device ? c.on_gpu.get() : c.on_host.get(), &move, 1,
                         nullptr, 0, on_device ? c.gpu.stream() : nullptr);
}

// A cache with the scales that codes need.
std::unique_ptr<RandomLayer> NewDestination(Codes& c, const RandomLayer& from,
                                            kvevict_dtype dtype) {
  std::unique_ptr<RandomLayer> to;
  do {
    to =
        std::make_unique<RandomLayer>(c.gpu, &c.random, CodeGeometry(dtype),
                                      c.n_tokens, c.groups && dtype == c.dtype);
  } while (Requantize(c, from.host_view(), to->host_view(), nullptr, 0,
                      false) != KVEVICT_OK);
  return to;
}

// Stores some rows of `from` in a cache of another dtype: the CPU gives the same bytes.
void RequantizeTo(Codes& c, const RandomLayer& from, kvevict_dtype dtype,
                  Report* report) {
  std::vector<int32_t> slots;
  for (uint32_t t = 0; t + 3 < c.n_tokens; t += 1 + t % 3) {
    slots.push_back(static_cast<int32_t>(t));
  }
  const Buffer device_slots(c.gpu, slots.size() * sizeof(int32_t));
  device_slots.Write(slots.data(), device_slots.n_bytes());
  const auto to = NewDestination(c, from, dtype);
  Check(Requantize(c, from.host_view(), to->host_view(), slots.data(),
                   slots.size(), false));
  Check(Requantize(c, from.device_view(), to->device_view(),
                   device_slots.pointer<int32_t>(), slots.size(), true));
  c.gpu.Synchronize();
  report->Expect(from.Compare(c.n_tokens));
  report->Expect(to->Compare(c.n_tokens));
}

// Evicts and requantises the rows that stay, or all if none go; in place if `to` is
// `from`.
kvevict_status Evict(Codes& c, const RandomLayer& from, const RandomLayer& to,
                     kvevict_dtype dtype, const char* policy, bool on_device) {
  kvevict_plan_options plan_options = KVEVICT_PLAN_OPTIONS_INIT;
  plan_options.has_destinations = &to != &from;
  const PlanHandle plan = CreatePlan((on_device ? c.on_gpu : c.on_host).get(),
                                     {1, c.n_tokens, {CodeGeometry(dtype)}},
                                     ParsePolicy(policy), &plan_options);
  const SequenceHandle sequence = CreateSequence(plan.get());
  const kvevict_stream stream = on_device ? c.gpu.stream() : nullptr;
  Check(kvevict_sequence_append(sequence.get(), c.n_tokens, stream));
  const size_t n_bytes = WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT);
  std::vector<Bytes64> host(n_bytes / sizeof(Bytes64) + 1);
  const Buffer device(c.gpu, n_bytes);
  const Rows rows(on_device ? from.device_view() : from.host_view());
  const Rows destination(on_device ? to.device_view() : to.host_view());
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  if (&to != &from) {
    options.destinations = &destination.view;
    options.destinations_len = 1;
  }
  const kvevict_status status = kvevict_sequence_evict(
      sequence.get(), &rows.view, 1, &options,
      on_device ? device.pointer<void>() : host.data(), n_bytes, stream);
  if (on_device) c.gpu.Synchronize();
  return status;
}

void EvictTo(Codes& c, const RandomLayer& from, kvevict_dtype from_dtype,
             kvevict_dtype dtype, Report* report) {
  for (const char* policy :
       {"random:budget=60,scope=head", "random:budget=100000", "none"}) {
    const auto to = NewDestination(c, from, dtype);
    for (const bool on_device : {false, true}) {
      Check(Evict(c, from, *to, from_dtype, policy, on_device));
    }
    report->Expect(from.Compare(c.n_tokens));
    report->Expect(to->Compare(c.n_tokens));
  }
}

// Another cache like this one.
RandomLayer NewCache(Codes& c) {
  RandomLayer cache(c.gpu, &c.random, CodeGeometry(c.dtype), c.n_tokens,
                    c.groups);
  for (uint32_t h = 0; h < kCodeHeads; ++h) {
    for (uint32_t t = 0; t < c.n_tokens; ++t) {
      cache.WriteRows(&c.random, h, t, /*special=*/t % 16 == 0);
    }
  }
  cache.Upload();
  return cache;
}

// Rows that share scales get new ones in place.
void EvictInPlace(Codes& c, Report* report) {
  for (uint32_t n_kept = c.n_tokens - 1; n_kept > 0; n_kept /= 4) {
    const RandomLayer cache = NewCache(c);
    const uint32_t n_recent = RecentOf(cache.host_view(), c.n_tokens);
    if (n_recent > n_kept) continue;
    const std::string of_all = fmt::format("random:budget={},sink=0", n_kept);
    const std::string unlike = of_all + ",scope=head,heads=adaptive,floor=0.5";
    const bool is_ragged = n_recent == 0 && c.random.OneOf(2);
    const std::string policy = is_ragged           ? unlike
                               : c.random.OneOf(2) ? of_all + ",scope=head"
                                                   : of_all + ",scope=layer";
    if (n_recent > 0) {
      ExpectFailure(Evict(c, cache, cache, c.dtype, unlike.c_str(), true),
                    KVEVICT_ERROR_INVALID_ARGUMENT, {"views[0]", "recent rows"},
                    report);
    }
    for (const bool on_device : {false, true}) {
      Check(Evict(c, cache, cache, c.dtype, policy.c_str(), on_device));
    }
    report->Expect(cache.Compare(is_ragged ? n_kept / 2 : n_kept - n_recent));
  }
}

// Lists move rows from some slot on down, but no recent rows.
void CompactInPlace(Codes& c, Report* report) {
  for (const bool has_recent : {false, true}) {
    std::unique_ptr<RandomLayer> cache;
    uint32_t n_recent;
    do {
      cache = std::make_unique<RandomLayer>(NewCache(c));
      n_recent = RecentOf(cache->host_view(), c.n_tokens);
    } while ((n_recent > 1) != has_recent || n_recent > c.n_tokens - 20);
    constexpr uint32_t kFirst = 11;
    std::vector<int32_t> slots;
    for (uint32_t t = kFirst; t < c.n_tokens; ++t) {
      if (t + n_recent < c.n_tokens && c.random.OneOf(2)) continue;
      slots.push_back(static_cast<int32_t>(t));
    }
    const auto n_kept = static_cast<uint32_t>(slots.size());
    const Buffer device_slots(c.gpu, slots.size() * sizeof(int32_t));
    device_slots.Write(slots.data(), device_slots.n_bytes());
    const auto compact = [&](bool on_device, uint32_t count, uint32_t* counts) {
      const Rows rows(on_device ? cache->device_view() : cache->host_view());
      kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
      keep.n_lists = 1;
      keep.slots = on_device ? device_slots.pointer<int32_t>() : slots.data();
      keep.slots_len = slots.size();
      keep.count = count;
      keep.counts = counts;
      kvevict_move move = KVEVICT_MOVE_INIT;
      move.n_tokens = c.n_tokens;
      move.view = &rows.view;
      move.keep = &keep;
      move.first_slot = kFirst;
      return kvevict_compact(on_device ? c.on_gpu.get() : c.on_host.get(),
                             &move, 1, nullptr, 0,
                             on_device ? c.gpu.stream() : nullptr);
    };
    if (has_recent) {
      ExpectFailure(compact(true, n_recent - 1, nullptr),
                    KVEVICT_ERROR_INVALID_ARGUMENT,
                    {"keep.count", "recent rows"}, report);
      ExpectFailure(compact(true, n_kept, device_slots.pointer<uint32_t>()),
                    KVEVICT_ERROR_UNSUPPORTED, {"keep.counts"}, report);
    }
    for (const bool on_device : {false, true}) {
      Check(compact(on_device, n_kept, nullptr));
    }
    c.gpu.Synchronize();
    report->Expect(cache->Compare(kFirst + n_kept - n_recent));
  }
}

void RequantizeBothWays(Codes& c, Report* report) {
  RandomLayer rows(c.gpu, &c.random, CodeGeometry(KVEVICT_DTYPE_BF16),
                   c.n_tokens);
  for (uint32_t h = 0; h < kCodeHeads; ++h) {
    for (uint32_t t = 0; t < c.n_tokens; ++t) {
      rows.WriteRows(&c.random, h, t, /*special=*/t % 16 == 0);
    }
  }
  rows.Upload();
  RequantizeTo(c, rows, c.dtype, report);
  RequantizeTo(c, c.cache, KVEVICT_DTYPE_F32, report);
  EvictTo(c, rows, KVEVICT_DTYPE_BF16, c.dtype, report);
  EvictTo(c, c.cache, c.dtype, KVEVICT_DTYPE_F32, report);
}

// Kernels load scales or minima, or a block's own scale. Each needs its alignment,
// read or written, and a call without it touches nothing.
void CheckAlignment(const Gpu& gpu, kvevict_dtype dtype, Report* report) {
  constexpr uint32_t kTokens = 4;
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const Buffer codes(gpu, 4096), rows(gpu, 4096), numbers(gpu, 4096);
  const Buffer slots(gpu, kTokens * sizeof(int32_t));
  const int32_t all[kTokens] = {0, 1, 2, 3};
  slots.Write(all, sizeof(all));
  const auto plane_at = [](uint64_t data, kvevict_dtype of, uint32_t dim) {
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = data;
    plane.dtype = of;
    plane.head_dim = dim;
    plane.token_stride_bytes =
        static_cast<int64_t>(PackedBytes(static_cast<DType>(of), dim));
    plane.head_stride_bytes = 512;
    return plane;
  };
  const bool has_blocks = dtype == KVEVICT_DTYPE_Q4_0;
  kvevict_plane ours[] = {
      plane_at(numbers.address(), KVEVICT_DTYPE_F16, 1),
      plane_at(numbers.address() + 64, KVEVICT_DTYPE_F32, 1)};
  ours[0].role = KVEVICT_ROLE_KEY_SCALE;
  ours[1].role = KVEVICT_ROLE_KEY_MINIMUM;
  kvevict_view coded = KVEVICT_VIEW_INIT, plain = KVEVICT_VIEW_INIT;
  coded.n_kv_heads = plain.n_kv_heads = 2;
  coded.k = plane_at(codes.address(), dtype, 32);
  coded.companions = ours;
  coded.n_companions = has_blocks ? 0 : 2;
  plain.k = plane_at(rows.address(), KVEVICT_DTYPE_BF16, 32);
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.slots = slots.pointer<int32_t>();
  keep.slots_len = keep.count = kTokens;
  const auto move = [&](bool makes_codes) {
    kvevict_move m = KVEVICT_MOVE_INIT;
    m.n_tokens = kTokens;
    m.view = makes_codes ? &plain : &coded;
    m.keep = &keep;
    m.destination = makes_codes ? &coded : &plain;
    return kvevict_compact(context.get(), &m, 1, nullptr, 0, gpu.stream());
  };
  const auto refuses = [&](kvevict_plane* plane, const char* what,
                           uint32_t bytes) {
    const std::string multiple = fmt::format("multiples of {} bytes", bytes);
    const kvevict_plane aligned = *plane;
    for (int i = 0; i < 3; ++i) {
      plane->data += i == 0;
      plane->token_stride_bytes += i == 1;
      plane->head_stride_bytes += i == 2;
      for (const bool makes_codes : {false, true}) {
        ExpectFailure(move(makes_codes), KVEVICT_ERROR_UNSUPPORTED,
                      {what, multiple.c_str()}, report);
      }
      *plane = aligned;
    }
  };
  if (has_blocks) {
    refuses(&coded.k, "", 2);
  } else {
    refuses(&ours[0], "scales", 2);
    refuses(&ours[1], "minima", 4);
    coded.k.data += 1;  // codes are bytes
  }
  refuses(&plain.k, "", 2);
  for (const bool makes_codes : {false, true}) Check(move(makes_codes));
  gpu.Synchronize();
}

}  // namespace

// Checks random layouts of a dtype.
static void CheckLayouts(const Gpu& gpu, kvevict_dtype dtype, uint32_t n_tokens,
                         bool groups, uint64_t seed, Report* report) {
  const std::string name =
      fmt::format("codes: {}{}", InfoOf(static_cast<DType>(dtype)).name,
                  groups ? " in groups" : "");
  Codes codes(gpu, dtype, n_tokens, groups, seed);
  for (const char* policy : {"snapkv:budget=60,window=16", "knorm:budget=60",
                             "keydiff:budget=60", "lagkv:budget=60"}) {
    report->Check(fmt::format("{}, {}", name, policy),
                  [&] { ScoreCodes(codes, policy, report); });
  }
  report->Check(name + ", attention", [&] { AttendCodes(codes, report); });
  report->Check(name + ", requantized",
                [&] { RequantizeBothWays(codes, report); });
  if (!groups) return;
  report->Check(name + ", in place", [&] {
    EvictInPlace(codes, report);
    CompactInPlace(codes, report);
  });
}

void CheckCodes(const Gpu& gpu, const Effort& effort, Report* report) {
  uint64_t seed = effort.seed;
  const uint32_t n_tokens = effort.full ? 5000 : 150;
  for (const DTypeInfo& info : kDTypes) {
    if (!info.is_quantized()) continue;
    // Full runs take some dtypes, since each is compiled anew.
    const bool is_chosen = info.dtype == DType::kU8 ||
                           info.dtype == DType::kU4Halves ||
                           info.dtype == DType::kQ4_0;
    const bool has_groups = info.dtype == DType::kU4;
    const auto dtype = static_cast<kvevict_dtype>(info.dtype);
    const bool takes_all = effort.full || effort.times > 1;
    if (takes_all || is_chosen) {
      CheckLayouts(gpu, dtype, n_tokens, /*groups=*/false, ++seed, report);
    }
    if (info.takes_minimum && (takes_all || has_groups)) {
      CheckLayouts(gpu, dtype, n_tokens, /*groups=*/true, ++seed, report);
    }
    if (dtype == KVEVICT_DTYPE_U8 || dtype == KVEVICT_DTYPE_Q4_0) {
      report->Check(fmt::format("codes: {}, alignment", info.name),
                    [&] { CheckAlignment(gpu, dtype, report); });
    }
  }
}

}  // namespace kvevict::gpu
