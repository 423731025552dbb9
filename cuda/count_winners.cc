// Counts what lists of all layers keep if they compete: seven launches.
#include "cuda/kernels/contest.h"
#include "cuda/launch.h"
#include "cuda/list_keys.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

CheckedSize RowBytes(uint64_t n_lists) {
  return (CheckedSize(n_lists) * CheckedSize(kContestRow) *
          CheckedSize(sizeof(uint32_t)))
      .AlignUp(256);
}

ScratchNeeds ScratchBytes(const Context&, const CountWinnersArgs::Size& size) {
  return RowBytes(size.n_lists) + CheckedSize(3 * kBins * sizeof(uint64_t));
}

uint32_t ListsOf(Jobs<SelectJob> jobs) {
  uint32_t n = 0;
  for (const SelectJob& job : jobs) n += job.keep.n_lists;
  return n;
}

class Contest {
 public:
  Contest(const Context& context, Stream stream, const CountWinnersArgs& args)
      : context_(context), stream_(stream), args_(args) {
    p_.n_winners = args.n_winners;
    p_.n_all_lists = ListsOf(args.select.jobs);
    p_.rows = AddressOf(args.scratch.data());
    p_.totals = p_.rows + RowBytes(p_.n_all_lists).value();
    p_.winners = AddressOf(args.winners);
  }

  Status Run() {
    for (p_.round = 0; p_.round < 3; ++p_.round) {
      KV_RETURN_IF_ERROR(CountDigit());
      KV_RETURN_IF_ERROR(
          Launch(context_, stream_, KernelId::contest_totals,
                 {BlocksFor(ContestBins(p_.round), kSelectThreads), 1, 1,
                  kSelectThreads},
                 p_));
    }
    return Launch(
        context_, stream_, KernelId::contest_count,
        {BlocksFor(p_.n_all_lists, kSelectThreads), 1, 1, kSelectThreads}, p_);
  }

 private:
  Status CountDigit() {
    const SelectArgs& select = args_.select;
    uint32_t first_list = 0;
    return ForEachBatch(
        select.jobs, ContestParams::kMaxLayers, SelectTogether,
        [&](Jobs<SelectJob> jobs) {
          SelectParams of = ParamsFor(select, jobs);
          if (p_.round == 0) {
            KV_RETURN_IF_ERROR(MakeKeys(context_, stream_, select, jobs, &of));
          } else if (MakesKeys(select)) {
            ReadKeys(jobs, &of);
          }
          p_.lists = of.lists;
          p_.input = of.input;
          for (size_t i = 0; i < jobs.size(); ++i) {
            p_.layers[i] = {of.layers[i], args_.SafeOf(jobs[i]), first_list};
            first_list += jobs[i].keep.n_lists;
          }
          return Launch(context_, stream_, KernelId::contest_digit,
                        {of.lists.n_lists, Size(jobs), 1, kSelectThreads}, p_);
        });
  }

  const Context& context_;
  const Stream stream_;
  const CountWinnersArgs& args_;
  ContestParams p_{};
};

Status RunCountWinners(const Context& context, Stream stream,
                       const CountWinnersArgs& args) {
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  KV_RETURN_IF_ERROR(Require(context, stream, ModuleId::contest));
  return Contest(context, stream, args).Run();
}

}  // namespace

const Op<CountWinnersArgs> kOp_count_winners = {RunCountWinners, ScratchBytes};

}  // namespace kvevict::cuda
