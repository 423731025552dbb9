// kvevict_attend(): attention without a sequence.
#include <algorithm>
#include <cmath>

#include "core/context.h"
#include "core/doors/checks.h"
#include "core/doors/doors.h"
#include "core/dtype.h"
#include "core/number_text.h"
#include "core/parts.h"
#include "core/view/extent.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// The dtype of a valid plane.
const DTypeInfo& InfoOf(const kvevict_plane& plane) {
  return kvevict::InfoOf(static_cast<DType>(plane.dtype));
}

Status CheckHeads(const AttendJob& job) {
  const uint32_t n_kv_heads = job.view.n_kv_heads;
  // ValidateView() reports it
  if (n_kv_heads < 1 || n_kv_heads > kMaxHeads) return Status();
  if (job.n_q_heads < 1 || job.n_q_heads > kMaxHeads) {
    return InvalidArgument("n_q_heads %u is not in [1, %u]", job.n_q_heads,
                           kMaxHeads);
  }
  if (job.n_q_heads % n_kv_heads == 0) return Status();
  return InvalidArgument("n_q_heads %u is not a multiple of n_kv_heads %u",
                         job.n_q_heads, n_kv_heads);
}

// Resolves dimensions that are 0 to those of the cache.
Status FindValues(AttendJob* job) {
  const bool has_values = IsPresent(job->view.v);
  const uint32_t dim = job->values().head_dim;
  if (job->v_head_dim == 0) job->v_head_dim = dim;
  if (has_values && job->v_head_dim != dim) {
    return InvalidArgument("v_head_dim %u is not 0 or the view's %u",
                           job->v_head_dim, dim);
  }
  if (job->v_head_dim <= dim) return Status();
  return InvalidArgument(
      "v_head_dim %u > %u, the elements of a key's row, but the view has no v",
      job->v_head_dim, dim);
}

Status CheckNumbers(AttendJob* job) {
  // Written so that NaN fails.
  const auto check = [](const char* name, float value) {
    if (value >= 0.0f && std::isfinite(value)) return Status();
    return InvalidArgument("%s %s is not a finite number >= 0", name,
                           NumberText(value).c_str());
  };
  KV_RETURN_IF_ERROR(check("softmax_scale", job->softmax_scale));
  KV_RETURN_IF_ERROR(check("logit_softcap", job->logit_softcap));
  if (job->non_causal > 1) {
    return InvalidArgument("non_causal %u is not 0 or 1", job->non_causal);
  }
  if (job->softmax_scale == 0.0f) {
    job->softmax_scale =
        1.0f / std::sqrt(static_cast<float>(job->view.k.head_dim));
  }
  const uint32_t n_kv_heads = job->view.n_kv_heads;
  uint32_t& n_sums = job->n_sum_heads;
  if (n_sums == 0) n_sums = job->n_q_heads;
  if (n_sums == job->n_q_heads || n_sums == n_kv_heads) return Status();
  return InvalidArgument(
      "n_sum_heads %u is not 0, n_q_heads %u or n_kv_heads %u", n_sums,
      job->n_q_heads, n_kv_heads);
}

Status CheckCache(const Context& context, bool reads_blocks, AttendJob* job) {
  if (job->tokens.most > INT32_MAX) {
    return InvalidArgument("n_tokens %u > %d", job->tokens.most, INT32_MAX);
  }
  KV_RETURN_IF_ERROR(CheckHeads(*job));
  if (reads_blocks && job->view.n_kv_heads <= kMaxHeads) {
    KV_RETURN_IF_ERROR(CheckCounts(context, "token_counts", job->tokens,
                                   job->view.n_kv_heads));
  }
  Status status = ValidateView(job->view, job->tokens, reads_blocks);
  if (status.ok() && !IsPresent(job->view.k)) {
    status = InvalidArgument("k.data is 0: no keys to attend to");
  }
  if (!status.ok()) return Prefixed(status, "view: ");
  for (const kvevict_plane* plane : {&job->view.k, &job->view.v}) {
    if (!IsPresent(*plane) || InfoOf(*plane).can_score) continue;
    return Unsupported("view: %s of dtype %s cannot be read",
                       plane == &job->view.k ? "k" : "v", InfoOf(*plane).name);
  }
  status = CheckScales(job->view, true, IsPresent(job->view.v));
  if (!status.ok()) return Prefixed(status, "view: ");
  KV_RETURN_IF_ERROR(FindValues(job));
  return CheckNumbers(job);
}

// Checks a plane that is written. Its rows must not overlap.
Status CheckOutput(const char* name, const kvevict_plane& rows,
                   kvevict_dtype dtype, uint32_t head_dim, uint32_t n_heads,
                   uint32_t n_rows) {
  KV_RETURN_IF_ERROR(
      ValidateRows(name, rows, dtype, head_dim, n_heads, n_rows));
  if (n_rows == 0 || Grid(PlaneAxes(rows, n_heads, n_rows)).Nests()) {
    return Status();
  }
  return InvalidArgument(
      "%s: rows of %u elements overlap with token_stride_bytes %lld, "
      "head_stride_bytes %lld, element_stride_bytes %lld",
      name, head_dim, static_cast<long long>(rows.token_stride_bytes),
      static_cast<long long>(rows.head_stride_bytes),
      static_cast<long long>(rows.element_stride_bytes));
}

// Checks a plane of floats that are written, one per row.
Status CheckFloats(const char* name, const kvevict_plane& rows,
                   uint32_t n_heads, uint32_t n_rows) {
  KV_RETURN_IF_ERROR(
      CheckOutput(name, rows, KVEVICT_DTYPE_F32, 1, n_heads, n_rows));
  constexpr uint64_t kElement = sizeof(float);
  for (const uint64_t place :
       {rows.data, static_cast<uint64_t>(rows.token_stride_bytes),
        static_cast<uint64_t>(rows.head_stride_bytes)}) {
    if (place % kElement == 0) continue;
    return InvalidArgument(
        "%s: data 0x%llx and strides are not multiples of %llu", name,
        static_cast<unsigned long long>(rows.data),
        static_cast<unsigned long long>(kElement));
  }
  return Status();
}

Status CheckPlanes(const AttendJob& job) {
  const kvevict_plane& queries = job.queries;
  KV_RETURN_IF_ERROR(ValidateRows("queries", queries, queries.dtype,
                                  job.view.k.head_dim, job.n_q_heads,
                                  job.n_queries));
  if (!InfoOf(queries).is_plain()) {
    return Unsupported("queries of dtype %s cannot be read",
                       InfoOf(queries).name);
  }
  const kvevict_plane& out = job.out;
  KV_RETURN_IF_ERROR(CheckOutput("out", out, out.dtype, job.v_head_dim,
                                 job.n_q_heads, job.n_queries));
  if (!InfoOf(out).is_plain()) {
    return Unsupported("out of dtype %s cannot be written", InfoOf(out).name);
  }
  if (IsPresent(job.row_lse)) {
    KV_RETURN_IF_ERROR(
        CheckFloats("row_lse", job.row_lse, job.n_q_heads, job.n_queries));
  }
  if (!IsPresent(job.attention_sums)) return Status();
  return CheckFloats("attention_sums", job.attention_sums, job.n_sum_heads,
                     job.tokens.most);
}

// ---- Memory that is written must not overlap anything else ----

// The memory that a job reads and writes. Rows outside the cache are treated as
// caches of their own. Parts from kOut on are written.
enum Part : uint32_t { kView, kQueries, kSinks, kOut, kLse, kSums, kNParts };
constexpr const char* kPartNames[] = {"view", "queries", "sink_logits",
                                      "out",  "row_lse", "attention_sums"};

// A part as a cache, which points to the view.
struct PartCache {
  kvevict_view view = KVEVICT_VIEW_INIT;
  LayerCache cache;
};

void FindCache(const AttendJob& job, uint32_t part, bool on_host,
               PartCache* out) {
  ListCounts tokens = job.n_queries;
  kvevict_view& view = out->view;
  view.n_kv_heads = job.n_q_heads;
  switch (part) {
    case kView:
      view = job.view;
      tokens = job.tokens;
      break;
    case kQueries:
      view.k = job.queries;
      break;
    case kSinks:
      view.k = KVEVICT_PLANE_INIT;
      view.k.data = reinterpret_cast<uintptr_t>(job.sink_logits);
      view.k.dtype = KVEVICT_DTYPE_F32;
      view.k.head_dim = 1;
      view.k.head_stride_bytes = sizeof(float);
      tokens = 1;
      break;
    case kOut:
      view.k = job.out;
      break;
    case kLse:
      view.k = job.row_lse;
      break;
    case kSums:
      view.k = job.attention_sums;
      view.n_kv_heads = job.n_sum_heads;
      tokens = job.tokens.most;
      break;
  }
  if (!IsPresent(view.k)) tokens = 0;
  out->cache = CacheOf(view, 0, tokens, on_host);
}

Status CheckApart(std::span<const AttendJob> jobs, bool on_host,
                  std::span<const uint8_t> workspace) {
  Reaches reaches[kMaxJobs][kNParts];
  const auto begin = reinterpret_cast<uintptr_t>(workspace.data());
  const auto check = [&](size_t i, uint32_t part, size_t j, uint32_t other) {
    if (i == j && part == other) return Status();
    if (!reaches[i][part].Meets(reaches[j][other])) return Status();
    PartCache a, b;
    FindCache(jobs[i], part, on_host, &a);
    FindCache(jobs[j], other, on_host, &b);
    if (!Overlap(a.cache, b.cache)) return Status();
    return InvalidArgument("jobs[%zu].%s overlaps jobs[%zu].%s", i,
                           kPartNames[part], j, kPartNames[other]);
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (uint32_t part = 0; part < kNParts; ++part) {
      PartCache one;
      FindCache(jobs[i], part, on_host, &one);
      const Reaches& reach = reaches[i][part] = one.cache.reach;
      if (workspace.empty()) continue;
      if (!reach.Meets(Reach{begin, begin + workspace.size() - 1})) continue;
      one.cache.number = static_cast<uint32_t>(i);
      KV_RETURN_IF_ERROR(CheckApartFrom("workspace", workspace.data(),
                                        workspace.size(), "jobs",
                                        {&one.cache, 1}));
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (uint32_t part = kOut; part < kNParts; ++part) {
      for (size_t j = 0; j < jobs.size(); ++j) {
        for (uint32_t other = 0; other < kNParts; ++other) {
          KV_RETURN_IF_ERROR(check(i, part, j, other));
        }
      }
    }
  }
  return Status();
}

// ---- The call ----

Status CheckJobs(const Context& context, bool reads_memory,
                 std::span<AttendJob> jobs) {
  if constexpr (!IsBuilt("attend")) {
    return Unsupported("this build leaves out attention");
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    Status status = CheckCache(context, reads_memory, &jobs[i]);
    if (status.ok()) status = CheckPlanes(jobs[i]);
    if (!status.ok()) {
      return jobs.size() == 1 ? status : Prefixed(status, "jobs[%zu]: ", i);
    }
  }
  return Status();
}

Status FindNeeds(const Context& context, Jobs<AttendJob> jobs,
                 WorkspaceNeeds* out) {
  const ScratchNeeds needs = context.backend().attend.scratch(context, jobs);
  out->least = needs.least;
  out->best = needs.best;
  KV_RETURN_IF_ERROR(CheckFits(out->least));
  return CheckFits(out->best);
}

}  // namespace

Status AttendWorkspace(const Context& context, std::span<AttendJob> jobs,
                       WorkspaceNeeds* out) {
  KV_RETURN_IF_ERROR(CheckJobs(context, false, jobs));
  return FindNeeds(context, std::span<const AttendJob>(jobs), out);
}

Status Attend(const Context& context, std::span<AttendJob> jobs,
              const CallMemory& memory) {
  const Backend& backend = context.backend();
  KV_RETURN_IF_ERROR(CheckJobs(context, backend.on_host, jobs));
  const Jobs<AttendJob> all(std::span<const AttendJob>{jobs});
  WorkspaceNeeds needs;
  KV_RETURN_IF_ERROR(FindNeeds(context, all, &needs));
  KV_RETURN_IF_ERROR(
      CheckWorkspace(context, memory.workspace, memory.workspace_bytes, needs));
  const std::span<uint8_t> workspace(
      static_cast<uint8_t*>(memory.workspace),
      std::min(memory.workspace_bytes, needs.best.value()));
  KV_RETURN_IF_ERROR(CheckApart(jobs, backend.on_host, workspace));
  const AttendArgs args{all, workspace};
  KV_RETURN_IF_ERROR(backend.attend.check(context, memory.stream, args));
  return backend.attend(context, memory.stream, args);
}

}  // namespace kvevict
