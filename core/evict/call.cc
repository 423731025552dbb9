#include "core/evict/call.h"

namespace kvevict {

EvictCall::EvictCall(Sequence& of)
    : sequence(of),
      slots(of.slots()),
      plan(of.plan()),
      context(plan.context()),
      policy(plan.policy()),
      signal(plan.signal()),
      views_(context),
      inputs_(context),
      caches_(context),
      outcomes_(context),
      evictions_(context),
      host_jobs_(context),
      budgets_(context),
      chunk_ends_(context),
      chunked_layers_(context),
      measures_(context),
      winners_(context),
      host_scores_(context),
      host_keep_(context) {}

Status EvictCall::Allocate() {
  const CheckedSize n_layers(plan.n_layers());
  const CheckedSize n_views =
      n_layers * CheckedSize(plan.HasDestinations() ? 2 : 1);
  KV_RETURN_IF_ERROR(views_.Allocate("views of the layers", n_views));
  KV_RETURN_IF_ERROR(inputs_.Allocate("inputs of the layers", n_layers));
  KV_RETURN_IF_ERROR(caches_.Allocate("caches of the layers", n_views));
  if (TouchesNothing(policy) && !plan.HasDestinations()) return Status();
  KV_RETURN_IF_ERROR(budgets_.Allocate("budgets of the layers", n_layers));
  KV_RETURN_IF_ERROR(outcomes_.Allocate("outcomes of the layers", n_layers));
  KV_RETURN_IF_ERROR(evictions_.Allocate("evictions of the layers", n_layers));
  if (HasChunks(policy)) {
    const Chunks most(policy, plan.max_tokens());
    KV_RETURN_IF_ERROR(chunk_ends_.Allocate(
        "ends of the chunks", n_layers * CheckedSize(most.Count())));
    KV_RETURN_IF_ERROR(chunked_layers_.Allocate("layers in chunks", n_layers));
  }
  if (MeasuresLayers(policy)) {
    KV_RETURN_IF_ERROR(measures_.Allocate("measures of the layers",
                                          n_layers * CheckedSize(2)));
  }
  if (LayersCompete(policy)) {
    KV_RETURN_IF_ERROR(
        winners_.Allocate("winners of the lists", CheckedSize(plan.n_lists())));
  }
  if (context.options().select_on_host == 0) return Status();
  KV_RETURN_IF_ERROR(host_jobs_.Allocate("jobs on the host", n_layers));
  KV_RETURN_IF_ERROR(host_scores_.AllocateUncleared(
      "scores on the host", CheckedSize(plan.n_scores())));
  return host_keep_.AllocateUncleared("keep lists on the host",
                                      plan.keep_capacity());
}

void EvictCall::Begin(const kvevict_evict_options& with, void* memory,
                      const EvictWorkspace& parts, uint32_t n_longest,
                      bool due) {
  options = with;
  workspace = static_cast<uint8_t*>(memory);
  layout = parts;
  n_tokens = n_longest;
  is_due = due;
  is_begun = true;
  layers = {};
  active = {};
  forced = {};
}

}  // namespace kvevict
