// Scores to keep lists: one launch where nothing but the ends must stay and a
// block holds a list.
#include <algorithm>

#include "core/policy.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/topk.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kMaxLayers = SelectParams::kMaxLayers;

class Selector {
 public:
  Selector(const Context& context, Stream stream, const SelectArgs& args)
      : context_(context),
        stream_(stream),
        args_(args),
        n_lists_(args.n_lists) {}

  Status Run(Jobs<SelectJob> jobs) const;

 private:
  SelectParams ParamsFor(Jobs<SelectJob> jobs) const;
  Status MakeKeys(Jobs<SelectJob> jobs, SelectParams* p) const;
  Status Pin(Jobs<SelectJob> jobs) const;
  Status SelectShort(Jobs<SelectJob> jobs, const SelectParams& p) const;
  Status SelectLong(Jobs<SelectJob> jobs, SelectParams p) const;

  const Context& context_;
  const Stream stream_;
  const SelectArgs& args_;
  const uint32_t n_lists_;
};

Status Selector::Run(Jobs<SelectJob> jobs) const {
  SelectParams p = ParamsFor(jobs);
  if (!args_.forced.protect.empty()) {
    KV_RETURN_IF_ERROR(MakeKeys(jobs, &p));
    KV_RETURN_IF_ERROR(Pin(jobs));
  }
  // Further lists, which a policy that ranks nothing is asked for, are alike.
  const uint32_t n_wanted = jobs.front().keep.n_lists;
  for (uint32_t list = 0; list < n_wanted; list += n_lists_) {
    KV_RETURN_IF_ERROR(LongestOf(jobs) <= kMaxShortKeys ? SelectShort(jobs, p)
                                                        : SelectLong(jobs, p));
    for (size_t i = 0; i < jobs.size(); ++i) {
      p.layers[i].keep +=
          uint64_t{n_lists_} * jobs[i].keep.count * sizeof(int32_t);
    }
  }
  return Status();
}

SelectParams Selector::ParamsFor(Jobs<SelectJob> jobs) const {
  SelectParams p{};
  p.n_lists = n_lists_;
  p.input = jobs.front().scores == nullptr ? kSelectNothing : kSelectScores;
  p.higher_wins = args_.tie == KVEVICT_TIE_HIGHER_POSITION;
  p.n_sink = args_.forced.n_sink;
  p.n_recent = args_.forced.n_recent;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SelectJob& job = jobs[i];
    p.layers[i] = {AddressOf(job.scores), AddressOf(job.keep.slots),
                   job.n_tokens, job.keep.count};
  }
  return p;
}

Status Selector::MakeKeys(Jobs<SelectJob> jobs, SelectParams* p) const {
  SelectParams make = *p;
  for (size_t i = 0; i < jobs.size(); ++i) {
    make.layers[i].keep = p->layers[i].scores = AddressOf(jobs[i].keys);
  }
  p->input = kSelectKeys;
  return Launch(context_, stream_, KernelId::make_keys,
                {BlocksFor(LongestOf(jobs), kKeysThreads), n_lists_, Size(jobs),
                 kKeysThreads},
                make);
}

Status Selector::Pin(Jobs<SelectJob> jobs) const {
  std::span<const int32_t> rest = args_.forced.protect;
  while (!rest.empty()) {
    const size_t n = std::min<size_t>(rest.size(), PinParams::kMaxPositions);
    PinParams p{};
    p.n_lists = n_lists_;
    p.n_positions = static_cast<uint32_t>(n);
    std::copy_n(rest.begin(), n, p.positions);
    KV_RETURN_IF_ERROR(
        ForEachBatch(jobs, PinParams::kMaxLayers, [&](Jobs<SelectJob> batch) {
          for (size_t i = 0; i < batch.size(); ++i) {
            const SelectJob& job = batch[i];
            p.layers[i] = {AddressOf(job.keys), ParamsOf(job.slots),
                           job.n_tokens, 0};
          }
          return Launch(
              context_, stream_, KernelId::pin_positions,
              {BlocksFor(n, kKeysThreads), n_lists_, Size(batch), kKeysThreads},
              p);
        }));
    rest = rest.subspan(n);
  }
  return Status();
}

Status Selector::SelectShort(Jobs<SelectJob> jobs,
                             const SelectParams& p) const {
  return Launch(context_, stream_, KernelId::select_topk,
                {n_lists_, Size(jobs), 1, kSelectThreads}, p);
}

Status Selector::SelectLong(Jobs<SelectJob> jobs, SelectParams p) const {
  p.n_chunks = LongChunks(LongestOf(jobs));
  p.scratch = AddressOf(args_.scratch.data());
  KV_RETURN_IF_ERROR(
      Clear(context_, stream_, p.scratch,
            sizeof(uint32_t) * LongWords(p.n_chunks) * n_lists_ * jobs.size()));
  const LaunchShape shape{p.n_chunks, n_lists_, Size(jobs), kSelectThreads};
  for (p.round = 0; p.round < 3; ++p.round) {
    KV_RETURN_IF_ERROR(
        Launch(context_, stream_, KernelId::select_long_digit, shape, p));
  }
  KV_RETURN_IF_ERROR(
      Launch(context_, stream_, KernelId::select_long_count, shape, p));
  return Launch(context_, stream_, KernelId::select_long_emit, shape, p);
}

}  // namespace

CheckedSize SelectScratchBytes(const Context&, const kvevict_geometry& g,
                               const kvevict_policy& policy,
                               uint32_t n_layers) {
  if (g.max_tokens <= kMaxShortKeys) return CheckedSize(0);
  return CheckedSize(sizeof(uint32_t)) *
         CheckedSize(LongWords(LongChunks(g.max_tokens))) *
         CheckedSize(ListsPerLayer(g, policy)) *
         CheckedSize(std::min(n_layers, kMaxLayers));
}

Status Run_select(const Context& context, Stream stream,
                  const SelectArgs& args) {
  const Selector selector(context, stream, args);
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::topk));
  return ForEachBatch(
      args.jobs, kMaxLayers,
      [](const SelectJob& a, const SelectJob& b) {
        return a.keep.n_lists == b.keep.n_lists &&
               (a.scores == nullptr) == (b.scores == nullptr);
      },
      [&](Jobs<SelectJob> jobs) { return selector.Run(jobs); });
}

}  // namespace kvevict::cuda
