#include "cuda/list_keys.h"
#include "cuda/kernels/best_scores.h"
#include "cuda/kernels/head_split.h"
#include "cuda/kernels/rank_keys.h"

#include <algorithm>

#include "cuda/kernels/topk.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

SelectParams ParamsFor(const SelectArgs& args, Jobs<SelectJob> jobs) {
  const SelectJob& first = jobs.front();
  const Counts tokens(first.tokens);
  const Counts keep(first.keep.count);
  SelectParams p{};
  p.lists = {tokens.table(),
             keep.table(),
             KeepStride(first.keep),
             first.keep.n_lists,
             args.tie == KVEVICT_TIE_HIGHER_POSITION,
             args.forced.n_sink,
             args.forced.n_recent,
             args.blocks.size,
             first.slots.first,
             0};
  p.input = first.scores == nullptr ? kSelectNothing : kSelectScores;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SelectJob& job = jobs[i];
    p.layers[i] = {AddressOf(job.scores),
                   AddressOf(job.keep.slots),
                   job.tokens.most,
                   job.keep.count.most,
                   tokens.FirstOf(job.tokens),
                   keep.FirstOf(job.keep.count)};
  }
  return p;
}

void ReadKeys(Jobs<SelectJob> jobs, SelectParams* p) {
  p->input = kSelectKeys;
  for (size_t i = 0; i < jobs.size(); ++i) {
    p->layers[i].scores = AddressOf(jobs[i].keys);
  }
}

namespace {

Status LaunchMakeKeys(const Context& context, Stream stream,
                      const SelectArgs& args, Jobs<SelectJob> jobs,
                      SelectParams* p) {
  SelectParams make = *p;
  ReadKeys(jobs, p);
  for (size_t i = 0; i < jobs.size(); ++i) {
    make.layers[i].keep = p->layers[i].scores;
  }
  return Launch(context, stream, KernelId::make_keys,
                {BlocksFor(args.blocks.Count(LongestOf(jobs)), kKeysThreads),
                 jobs.front().keep.n_lists, Size(jobs), kKeysThreads},
                make);
}

Status LaunchPin(const Context& context, Stream stream, const SelectArgs& args,
                 Jobs<SelectJob> jobs) {
  std::span<const int32_t> rest = args.forced.protect;
  while (!rest.empty()) {
    const size_t n = std::min<size_t>(rest.size(), PinParams::kMaxPositions);
    PinParams p{};
    p.n_lists = jobs.front().keep.n_lists;
    p.n_positions = static_cast<uint32_t>(n);
    p.block = args.blocks.size;
    std::copy_n(rest.begin(), n, p.positions);
    KV_RETURN_IF_ERROR(
        ForEachBatch(jobs, PinParams::kMaxLayers, [&](Jobs<SelectJob> batch) {
          const Counts tokens(batch.front().tokens);
          const Counts kept(batch.front().slots.n_kept);
          p.tokens = tokens.table();
          p.kept = kept.table();
          for (size_t i = 0; i < batch.size(); ++i) {
            const SelectJob& job = batch[i];
            p.layers[i] = {AddressOf(job.keys), ParamsOf(job.slots, kept),
                           job.tokens.most, tokens.FirstOf(job.tokens)};
          }
          return Launch(context, stream, KernelId::pin_positions,
                        {BlocksFor(n, kKeysThreads), jobs.front().keep.n_lists,
                         Size(batch), kKeysThreads},
                        p);
        }));
    rest = rest.subspan(n);
  }
  return Status();
}

}  // namespace

bool SelectTogether(const SelectJob& a, const SelectJob& b) {
  return a.keep.n_lists == b.keep.n_lists &&
         KeepStride(a.keep) == KeepStride(b.keep) &&
         InOneTable(a.tokens, b.tokens) &&
         InOneTable(a.keep.count, b.keep.count) &&
         InOneTable(a.slots.n_kept, b.slots.n_kept) &&
         a.slots.first == b.slots.first &&
         (a.scores == nullptr) == (b.scores == nullptr);
}

bool MakesKeys(const SelectArgs& args) {
  return !args.forced.protect.empty() || args.blocks.size > 1 ||
         !args.ranges.empty();
}

Status RequireCounting(const Context& context, Stream stream,
                       const SelectArgs& args) {
  if (!args.heads.Counts()) return Status();
  return Require(context, stream, ModuleId::head_split);
}

Status MakeKeys(const Context& context, Stream stream, const SelectArgs& args,
                Jobs<SelectJob> jobs, SelectParams* p) {
  *p = ParamsFor(args, jobs);
  if (!MakesKeys(args)) return Status();
  KV_RETURN_IF_ERROR(LaunchMakeKeys(context, stream, args, jobs, p));
  return LaunchPin(context, stream, args, jobs);
}

Status RequireRanking(const Context& context, Stream stream,
                      const SelectArgs& args) {
  if (args.ranges.empty()) return Status();
  return Require(context, stream, ModuleId::rank_keys);
}

Status RankKeys(const Context& context, Stream stream, const SelectArgs& args,
                Jobs<SelectJob> jobs, const SelectParams& p,
                const RankShare& share) {
  if (args.ranges.empty()) return Status();
  static_assert(RankParams::kMaxRanges == TokenRanges::kMost);
  RankParams q{};
  q.lists = p.lists;
  q.share = share.share;
  q.n_ranges = static_cast<uint32_t>(args.ranges.size());
  for (size_t i = 0; i < args.ranges.size(); ++i) {
    const TokenRange& range = args.ranges[i];
    q.ranges[i] = {range.first, range.end, range.rank};
  }
  const Counts kept(jobs.front().slots.n_kept);
  q.kept = kept.table();
  for (size_t i = 0; i < jobs.size();) {
    const size_t n = std::min<size_t>(jobs.size() - i, RankParams::kMaxLayers);
    for (size_t j = 0; j < n; ++j) {
      const SelectJob& job = jobs[i + j];
      const uint32_t n_least =
          share.n_least == nullptr ? 0 : share.n_least(*share.args, job);
      q.layers[j] = {p.layers[i + j], ParamsOf(job.slots, kept), n_least, 0};
    }
    KV_RETURN_IF_ERROR(Launch(
        context, stream, KernelId::rank_keys,
        {p.lists.n_lists, static_cast<uint32_t>(n), 1, kSelectThreads}, q));
    i += n;
  }
  return Status();
}

Status CountKept(const Context& context, Stream stream, const SelectArgs& args,
                 Jobs<SelectJob> jobs, const SelectParams& p) {
  const HeadSplit& heads = args.heads;
  static_assert(int{kHeadsAdaptive} == static_cast<int>(HeadRule::kAdaptive) &&
                int{kHeadsBlend} ==
                    static_cast<int>(HeadRule::kAdaptiveBlend) &&
                int{kHeadsThreshold} == static_cast<int>(HeadRule::kThreshold));
  HeadSplitParams q{};
  q.lists = p.lists;
  q.input = p.input;
  q.kind = static_cast<uint32_t>(heads.kind);
  q.won_part = heads.won_part();
  q.threshold = static_cast<float>(heads.threshold);
  for (size_t i = 0; i < jobs.size();) {
    const size_t n =
        std::min<size_t>(jobs.size() - i, HeadSplitParams::kMaxLayers);
    for (size_t j = 0; j < n; ++j) {
      const uint32_t budget = jobs[i + j].budget;
      q.layers[j] = {p.layers[i + j], budget, heads.OwnOf(budget, args.forced),
                     jobs[i + j].together};
    }
    KV_RETURN_IF_ERROR(Launch(context, stream, KernelId::count_kept,
                              {static_cast<uint32_t>(n), 1, 1, kSelectThreads},
                              q));
    i += n;
  }
  return Status();
}

Status ForBestOf(const Context& context, Stream stream, const BestArgs& args,
                 KernelId kernel, bool secures,
                 uint32_t (*n_best)(const BestArgs& args,
                                    const SelectJob& job)) {
  const SelectArgs& select = args.select;
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  KV_RETURN_IF_ERROR(RequireCounting(context, stream, select));
  KV_RETURN_IF_ERROR(RequireRanking(context, stream, select));
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::best_scores));
  Jobs<ShapeJob> shapes = args.shapes;
  return ForEachBatch(
      select.jobs, BestParams::kMaxLayers, SelectTogether,
      [&](Jobs<SelectJob> jobs) {
        SelectParams p{};
        KV_RETURN_IF_ERROR(MakeKeys(context, stream, select, jobs, &p));
        if (secures && select.heads.Counts()) {
          KV_RETURN_IF_ERROR(CountKept(context, stream, select, jobs, p));
        }
        if (secures) {
          KV_RETURN_IF_ERROR(
              RankKeys(context, stream, select, jobs, p,
                       {static_cast<float>(args.share), n_best, &args}));
        }
        BestParams q{};
        q.lists = p.lists;
        q.input = p.input;
        q.share = static_cast<float>(args.share);
        for (size_t i = 0; i < jobs.size(); ++i) {
          q.layers[i] = {p.layers[i], AddressOf(jobs[i].scores),
                         AddressOf(shapes[i].scores), n_best(args, jobs[i]), 0};
        }
        shapes = shapes.subspan(jobs.size());
        return Launch(context, stream, kernel,
                      {p.lists.n_lists, Size(jobs), 1, kSelectThreads}, q);
      });
}

}  // namespace kvevict::cuda
