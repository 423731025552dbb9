// Receives sequences from another adapter or a file.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "adapter.h"
#include "error.h"
#include "kvevict/batch.h"

using kvevict::llama::Check;
using kvevict::llama::CreatePolicy;
using kvevict::llama::Fail;
using kvevict::llama::Layer;
using kvevict::llama::LayerShape;
using kvevict::llama::PlanHandle;
using kvevict::llama::PolicyHandle;
using kvevict::llama::RopeFactors;
using kvevict::llama::Rows;
using kvevict::llama::Sequence;
using kvevict::llama::SequenceHandle;
using kvevict::llama::State;

namespace {

// LongRoPE's factors in a context: they depend on its length and on the model's
// length before stretching.
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

// The difference between a state's layer and the context's; "" if there is
// none.
std::string Difference(const LayerShape& state, const LayerShape& context) {
  if (state == context) return "";
  const auto type = [](const Rows& rows) {
    return std::string(ggml_type_name(static_cast<ggml_type>(rows.type)));
  };
  if (state.k.type != context.k.type) {
    return "K of " + type(state.k) + ", the context's is " + type(context.k);
  }
  if (state.v.type != context.v.type) {
    return "V of " + type(state.v) + ", the context's is " + type(context.v);
  }
  if (state.v.transposed != context.v.transposed) {
    return std::string("V of a context ") +
           (state.v.transposed != 0 ? "without" : "with") +
           " flash attention, the context is one " +
           (context.v.transposed != 0 ? "without" : "with");
  }
  return "another shape or attention than the context's";
}

const char* Name(RopeFactors factors) {
  return factors == RopeFactors::kLong ? "long" : "short";
}

}  // namespace

// Compares with the plan's layers, or with those seen so far.
void kvevict_llama::CheckSameLayers(llama_seq_id seq,
                                    const Incoming& incoming) const {
  if (plan_ == nullptr && observer_.layers().empty()) {
    if (NextOf(seq) == 0) return;
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "seq ", seq,
         " has tokens that the adapter does not know; remove it first");
  }
  std::vector<LayerShape> own = shapes_;
  if (plan_ == nullptr) {
    for (const Layer& layer : observer_.layers()) own.push_back(layer.shape);
  } else if (own.size() != incoming.shapes.size()) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "the state is of ",
         incoming.shapes.size(), " layers, the context's model has ",
         own.size());
  }
  for (const LayerShape& shape : incoming.shapes) {
    const auto at = std::find_if(
        own.begin(), own.end(),
        [&](const LayerShape& s) { return s.index == shape.index; });
    if (at == own.end()) {
      Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "the state has layer ", shape.index,
           ", the context's model has none");
    }
    if (const std::string why = Difference(shape, *at); !why.empty()) {
      Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "the state has in layer ",
           shape.index, " ", why);
    }
  }
}

void kvevict_llama::CheckRoom(llama_seq_id seq, uint32_t n_cells) const {
  const uint32_t n_ctx = llama_n_ctx_seq(ctx_);
  // An upper bound of the cells of other sequences.
  uint32_t n_others = 0;
  for (uint32_t i = 0; n_streams_ == 1 && i < n_seq_max_; ++i) {
    const auto other = static_cast<llama_seq_id>(i);
    if (other == seq) continue;
    const Sequence& s = sequences_[i];
    const uint32_t next = NextOf(other);
    n_others += s.unfit.empty() && s.next == next ? s.n_cells : next;
  }
  uint32_t wanted = n_cells + n_others;
  if (wanted > n_ctx) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "the context has room for ", n_ctx,
         " cells < ", n_cells, " of the state and ", n_others,
         " of other sequences; n_ctx has to be ", wanted, " or more");
  }
  if (!windowed_) return;
  const auto n_swa =
      static_cast<uint32_t>(llama_model_n_swa(llama_get_model(ctx_)));
  const uint32_t n_ubatch = llama_n_ubatch(ctx_);
  wanted = std::max(wanted, n_swa + n_ubatch);
  if (wanted <= n_ctx) return;
  Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "the context has room for ", n_ctx,
       " cells of a sequence < ", n_swa + n_ubatch,
       " that layers with a sliding window of ", n_swa,
       " need to take batches of n_ubatch ", n_ubatch, "; n_ctx has to be ",
       wanted, " or more for each sequence");
}

// Loads the lists of a state for the plan, whatever scope they were made with.
SequenceHandle kvevict_llama::LoadLists(std::span<const uint8_t> saved) const {
  const auto load = [&](const kvevict_plan* plan) {
    kvevict_sequence* handle = nullptr;
    Check(kvevict_sequence_create(plan, &handle));
    SequenceHandle loaded(handle);
    if (kvevict_sequence_load(handle, saved.data(), saved.size(), nullptr) !=
        KVEVICT_OK) {
      loaded.reset();
    }
    return loaded;
  };
  SequenceHandle own = load(plan_.get());
  if (own != nullptr) return own;
  const std::string why = kvevict_last_error_message();
  for (const char* text : {"random:budget=0.5,scope=head", "none"}) {
    const PolicyHandle policy = CreatePolicy(text);
    const PlanHandle plan =
        PlanFor(policy.get(), shapes_, sinks_, 0, RotationOfPlan(shapes_));
    const SequenceHandle loaded = load(plan.get());
    if (loaded == nullptr) continue;
    kvevict_fork_options options = KVEVICT_FORK_OPTIONS_INIT;
    options.plan = plan_.get();
    kvevict_sequence* fork = nullptr;
    if (kvevict_sequence_fork(loaded.get(), &options, &fork, nullptr) !=
        KVEVICT_OK) {
      Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
           "the state has the lists of scope=head, and the target's policy "
           "those of scope=layer or model: ",
           kvevict_last_error_message());
    }
    return SequenceHandle(fork);
  }
  Fail(KVEVICT_ERROR_INVALID_ARGUMENT, why);
}

void kvevict_llama::CheckIncoming(llama_seq_id seq, const Incoming& incoming) {
  CheckSeq(seq);
  CheckSameLayers(seq, incoming);
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
  CheckRoom(seq, incoming.n_cells);
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
  const bool was_empty = NextOf(seq) == 0, adopts = plan_ == nullptr;
  const bool adopts_rotations = rotations_.empty();
  const auto undo = [&] {
    if (adopts_rotations) rotations_.clear();
    if (!adopts) return;
    plan_.reset();
    shapes_.clear();
    sinks_.clear();
    rope_factors_ = RopeFactors::kNone;
  };
  SequenceHandle loaded;
  try {
    if (adopts_rotations) {
      rotations_.assign(incoming.rotations.begin(), incoming.rotations.end());
    }
    if (adopts) {
      AdoptLayers({incoming.shapes.begin(), incoming.shapes.end()},
                  {incoming.sinks.begin(), incoming.sinks.end()}, 0);
      rope_factors_ = incoming.rope_factors;
    }
    loaded = LoadLists(incoming.saved);
  } catch (...) {
    undo();
    throw;
  }

  if (!state_.Store(seq, incoming.state)) {
    undo();
    if (!was_empty) Lose(seq, "llama.cpp did not take the state");
    Fail(KVEVICT_ERROR_UNSUPPORTED, "seq ", seq,
         ": llama.cpp did not take the state; model, cache types, flash "
         "attention or free cells of the context are others than it needs");
  }
  Sequence& s = sequences_[static_cast<size_t>(seq)];
  Forget(s);
  s.handle = std::move(loaded);
  s.next = s.computed_to = incoming.next;
  s.evicted_at = incoming.evicted_at;
  s.n_cells = incoming.n_cells;
  s.placed = false;
  s.in_order = n_seq_max_ == 1;
  // Nothing is written. With windows, their part has by now the size that it
  // has here.
  const std::span<uint8_t> bytes{const_cast<uint8_t*>(incoming.state.data()),
                                 incoming.state.size()};
  const auto state = state_.TryParse(seq, bytes, shapes_);
  if (state && state->n_cells() > 0) {
    s.state_key = KeyIn(*state, state->LastCell());
    s.state_last = s.next - 1;
  }
}
