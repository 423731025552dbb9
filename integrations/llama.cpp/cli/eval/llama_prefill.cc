#include "llama_prefill.h"

#include <algorithm>
#include <utility>

namespace kvevict::llama_cli::eval {

LlamaPrefill::LlamaPrefill(llama_model* model,
                           std::span<const Candidate> candidates,
                           ContextOptions options, uint32_t n_prompt,
                           uint32_t n_behind, Progress progress)
    : n_vocab_(static_cast<uint32_t>(
          llama_vocab_n_tokens(llama_model_get_vocab(model)))),
      n_batch_(options.n_ubatch),
      progress_(std::move(progress)) {
  for (const Candidate& c : candidates) {
    options.query_rows = c.QueryRows(n_prompt, n_behind);
    adapters_.push_back(MakeAdapter(c.text.c_str(), options));
  }
  options.query_rows = 0;
  adapters_.push_back(MakeAdapter("none", options));
  options.n_batch = options.n_ubatch;
  // A window's cache takes whole batches.
  const auto n_window = static_cast<uint32_t>(llama_model_n_swa(model));
  options.n_ctx = std::max(n_prompt + n_behind,
                           n_window == 0 ? 0 : n_window + options.n_ubatch);
  source_ = OpenContext(model, nullptr, options,
                        [&](llama_context_params& params, kvevict_llama*) {
                          for (const Adapter& adapter : adapters_) {
                            kvevict_llama_install(adapter.get(), &params);
                          }
                        });
  for (const Adapter& adapter : adapters_) {
    Check(kvevict_llama_attach(adapter.get(), source_.ctx.get()));
  }
  // A list for every head holds what any policy keeps.
  target_ = OpenContext(model, "random:budget=1", options);
}

std::vector<float> LlamaPrefill::Feed(const Context& context,
                                      std::span<const llama_token> tokens,
                                      uint32_t at, size_t first) {
  std::vector<float> logits;
  logits.reserve((tokens.size() - std::min(first, tokens.size())) * n_vocab_);
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min<size_t>(n_batch_, tokens.size() - done);
    Batch batch(n);
    size_t n_rows = 0;
    for (size_t i = done; i < done + n; ++i) {
      const bool wanted = i >= first;
      batch.Add(tokens[i], static_cast<llama_pos>(at + i), 0, wanted);
      n_rows += wanted ? 1 : 0;
    }
    batch.Decode(context);
    if (n_rows > 0) {
      const float* rows = llama_get_logits(context.ctx.get());
      logits.insert(logits.end(), rows, rows + n_rows * n_vocab_);
    }
    done += n;
    if (progress_) progress_(n);
  }
  return logits;
}

void LlamaPrefill::Read(std::span<const llama_token> prompt) {
  llama_memory_clear(llama_get_memory(source_.ctx.get()), true);
  length_ = 0;
  ReadOn(prompt, prompt.size());
}

std::vector<float> LlamaPrefill::ReadOn(std::span<const llama_token> tokens,
                                        size_t first) {
  std::vector<float> logits = Feed(source_, tokens, length_, first);
  length_ += static_cast<uint32_t>(tokens.size());
  return logits;
}

void LlamaPrefill::TakeBack(uint32_t length) {
  for (const Adapter& adapter : adapters_) {
    Check(kvevict_llama_trim_to(adapter.get(), 0, length));
  }
  length_ = length;
}

kvevict_llama_report LlamaPrefill::Evict(size_t candidate) {
  kvevict_llama_evict_options options = KVEVICT_LLAMA_EVICT_OPTIONS_INIT;
  options.target = target_.kv.get();
  kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
  Check(kvevict_llama_evict(adapters_[candidate].get(), 0, &options, &report));
  evicted_at_ = target_length_ = length_;
  return report;
}

const kvevict_sequence* LlamaPrefill::Evicted() const {
  const kvevict_sequence* sequence = nullptr;
  Check(kvevict_llama_sequence(target_.kv.get(), 0, &sequence));
  return sequence;
}

std::vector<float> LlamaPrefill::Continue(std::span<const llama_token> tokens,
                                          size_t first) {
  std::vector<float> logits = Feed(target_, tokens, target_length_, first);
  target_length_ += static_cast<uint32_t>(tokens.size());
  return logits;
}

void LlamaPrefill::TakeBackContinued() {
  if (target_length_ == evicted_at_) return;
  Check(kvevict_llama_trim_to(target_.kv.get(), 0, evicted_at_));
  target_length_ = evicted_at_;
}

}  // namespace kvevict::llama_cli::eval
