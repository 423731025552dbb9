#include "upstream.h"

#include <ggml-backend.h>

#include <stdexcept>

#include "platform.h"

namespace kvevict::llama_cli {

void Check(kvevict_status status) {
  if (status != KVEVICT_OK) {
    throw std::runtime_error(kvevict_llama_last_error_message());
  }
}

Model LoadModel(const std::string& path, const std::string& backends,
                ggml_log_callback log,
                const std::function<void(llama_model_params&)>& adjust) {
  llama_log_set(log, nullptr);
  static const bool loaded = [&] {
    if (backends.empty()) ggml_backend_load_all();
    if (!backends.empty() || ggml_backend_reg_count() == 0) {
      const std::string folder =
          backends.empty() ? FolderOf(reinterpret_cast<void*>(&llama_decode))
                           : backends;
      ggml_backend_load_all_from_path(folder.c_str());
    }
    return ggml_backend_reg_count() > 0;
  }();
  if (!loaded) {
    throw std::runtime_error("no backend of ggml is found" +
                             (backends.empty()
                                  ? "; --backends names their folder"
                                  : " in " + backends));
  }
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  if (adjust) adjust(params);
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (model == nullptr) {
    throw std::runtime_error(path + ": llama.cpp cannot load it");
  }
  return model;
}

Adapter MakeAdapter(const char* policy, const ContextOptions& options) {
  kvevict_llama_options of_adapter = KVEVICT_LLAMA_OPTIONS_INIT;
  of_adapter.query_rows = options.query_rows;
  of_adapter.calibration = options.calibration.data();
  of_adapter.calibration_len = options.calibration.size();
  kvevict_llama* kv = nullptr;
  Check(kvevict_llama_create(policy, &of_adapter, &kv));
  return Adapter(kv);
}

Context OpenContext(
    llama_model* model, const char* policy, const ContextOptions& options,
    const std::function<void(llama_context_params&, kvevict_llama*)>& adjust) {
  Context context;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.n_ctx;
  params.n_batch = options.n_batch;
  params.n_ubatch = options.n_ubatch;
  params.n_seq_max = options.n_seq;
  params.kv_unified = options.unified;
  params.n_threads = params.n_threads_batch =
      static_cast<int32_t>(options.n_threads);
  params.type_k = options.type_k;
  params.type_v = options.type_v;
  params.flash_attn_type = options.flash;
  params.swa_full = options.swa_full;
  params.cb_eval = options.callback;
  params.cb_eval_user_data = options.callback_data;
  if (policy != nullptr) {
    context.kv = MakeAdapter(policy, options);
    kvevict_llama_install(context.kv.get(), &params);
  }
  if (adjust) adjust(params, context.kv.get());
  context.ctx.reset(llama_init_from_model(model, params));
  if (context.ctx == nullptr) {
    throw std::runtime_error("llama.cpp makes no context of " +
                             std::to_string(options.n_ctx) +
                             " cells with these options; its log tells why");
  }
  if (context.kv != nullptr) {
    Check(kvevict_llama_attach(context.kv.get(), context.ctx.get()));
  }
  return context;
}

void Batch::Add(llama_token token, llama_pos position, llama_seq_id seq,
                bool wants_logits) {
  const int32_t i = batch_.n_tokens++;
  batch_.token[i] = token;
  batch_.pos[i] = position;
  batch_.n_seq_id[i] = 1;
  batch_.seq_id[i][0] = seq;
  batch_.logits[i] = wants_logits ? 1 : 0;
}

void Batch::Decode(const Context& context) const {
  if (context.kv != nullptr) {
    Check(kvevict_llama_batch(context.kv.get(), &batch_));
  }
  if (const int32_t status = llama_decode(context.ctx.get(), batch_);
      status != 0) {
    throw std::runtime_error("llama_decode() failed: " +
                             std::to_string(status));
  }
}

}  // namespace kvevict::llama_cli
