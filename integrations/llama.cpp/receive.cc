// Sequences that another adapter or a file had.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "adapter.h"
#include "error.h"

using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::RopeFactors;
using kvevict::llama::Sequence;
using kvevict::llama::SequenceHandle;
using kvevict::llama::State;

namespace {

// LongRoPE's factors in a context: by its length, and the model's before it was
// stretched.
RopeFactors FactorsOf(const llama_context* ctx) {
  const llama_model* model = llama_get_model(ctx);
  char arch[64] = "", text[32] = "";
  llama_model_meta_val_str(model, "general.architecture", arch, sizeof arch);
  const std::string key =
      std::string(arch) + ".rope.scaling.original_context_length";
  if (llama_model_meta_val_str(model, key.c_str(), text, sizeof text) < 0) {
    return RopeFactors::kNone;
  }
  return llama_n_ctx_seq(ctx) > std::strtoul(text, nullptr, 10)
             ? RopeFactors::kLong
             : RopeFactors::kShort;
}

const char* Name(RopeFactors factors) {
  return factors == RopeFactors::kLong ? "long" : "short";
}

}  // namespace

void kvevict_llama::CheckIncoming(llama_seq_id seq, const Incoming& incoming) {
  CheckSeq(seq);
  if (plan_ != nullptr &&
      !std::equal(incoming.shapes.begin(), incoming.shapes.end(),
                  shapes_.begin(), shapes_.end())) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
         "the context has another model, other cache types or other flash "
         "attention than the state");
  }
  if (incoming.n_cells > llama_n_ctx_seq(ctx_)) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "the context has room for ",
         llama_n_ctx_seq(ctx_), " cells < ", incoming.n_cells);
  }
  const uint32_t n_streams = State::CountStreams(incoming.state);
  if (n_streams_ == 0) {
    n_streams_ = n_seq_max_ == 1 ? 1 : state_.CountStreams(seq);
  }
  if (n_streams != n_streams_) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "the context's cache has ", n_streams_,
         n_streams_ == 1 ? " stream" : " streams", ", the state's ", n_streams,
         ": llama.cpp takes a state only where kv_unified and n_seq_max make "
         "as many");
  }
  CheckRowsAreThere(seq);
  CheckNoneCopies(seq);
  if (incoming.rope_factors == RopeFactors::kNone) return;
  const RopeFactors own = FactorsOf(ctx_);
  if (own != incoming.rope_factors) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "the context, of ", llama_n_ctx_seq(ctx_),
         " cells, turns keys by LongRoPE's ", Name(own),
         " factors, and those of the state were turned by its ",
         Name(incoming.rope_factors), " ones");
  }
}

void kvevict_llama::Receive(llama_seq_id seq, const Incoming& incoming) {
  CheckIncoming(seq, incoming);
  if (plan_ == nullptr) {
    AdoptLayers({incoming.shapes.begin(), incoming.shapes.end()},
                {incoming.sinks.begin(), incoming.sinks.end()}, 0);
    rope_factors_ = incoming.rope_factors;
  }
  kvevict_sequence* handle = nullptr;
  Check(kvevict_sequence_create(plan_.get(), &handle));
  SequenceHandle loaded(handle);
  Check(kvevict_sequence_load(handle, incoming.saved.data(),
                              incoming.saved.size(), nullptr));

  if (!state_.Store(seq, incoming.state)) {
    Lose(seq, "llama.cpp did not take the state");
  }
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  Forget(s);
  s.handle = std::move(loaded);
  s.next = s.computed_to = incoming.next;
  s.evicted_at = incoming.evicted_at;
  s.n_cells = incoming.n_cells;
  s.placed = false;
  s.in_order = n_seq_max_ == 1;
}
