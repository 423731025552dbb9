// The cost of a request's state.
#include <fmt/format.h>

#include <string>

#include "tests/bench/plans.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

constexpr double kMinSeconds = 3e-3;

void BenchCreate(Session& session, const Workload& w, uint32_t n_layers) {
  const std::string name =
      fmt::format("sequence of {} layers, {}", n_layers, w.name);
  if (!session.Begins(name)) return;
  const ContextHandle context = CreateContext(session.simd.name);
  const PlanHandle plan =
      CreatePlan(context.get(), n_layers,
                 LayerOf(w.n_q_heads, w.n_kv_heads, w.head_dim), w.n_tokens,
                 fmt::format("snapkv:budget={},sink=4,window={},pool=avg7",
                             w.budget, w.window));
  Row& row = session.report.AddRow(name + ": create, destroy", 1, "sequence/s");
  Row& borrowing =
      session.report.AddRow(name + ": begin, end observing", 1, "pair/s");
  const SequenceHandle sequence = CreateSequence(plan.get());
  Repeat(session, [&](bool measured) {
    const Timing timing =
        TimeCalls([&] { CreateSequence(plan.get()); }, kMinSeconds);
    const Timing borrowed = TimeCalls(
        [&] {
          Check(kvevict_sequence_begin_observing(sequence.get(), nullptr, 0));
          Check(kvevict_sequence_end_observing(sequence.get()));
        },
        kMinSeconds);
    if (!measured) return;
    row.Add(timing, 1);
    borrowing.Add(borrowed, 1);
  });
}

}  // namespace

void BenchSequence(Session& session) {
  session.smoke ? BenchCreate(session, kSmoke, 2)
                : BenchCreate(session, kA, 32);
}

}  // namespace kvevict::bench
