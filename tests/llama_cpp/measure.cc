// kvevict_llama_measure [TOKENS BUDGET]: what evicting 8,192 tokens to 1,024 costs
// in llama.cpp, on a model of random weights with 8 layers and 8 KV heads of 64.
// Prints the table of docs/llama-cpp.md. Times are one thread's CPU time, so other
// load matters less.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "platform.h"
#include "tests/llama_cpp/session.h"

namespace {

using kvevict::tests::LoadRandomModel;
using kvevict::tests::ModelHandle;
using kvevict::tests::RandomModel;
using kvevict::tests::RandomTokens;
using kvevict::tests::Session;
using kvevict::tests::SessionOptions;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kChunk = 512;

// getrusage() counts in ticks of milliseconds.
double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

double ResidentMiB() {
  return static_cast<double>(kvevict::llama_cli::ResidentBytes()) / (1 << 20);
}

double TokensPerSecond(Session& session) {
  constexpr uint32_t kSteps = 24;
  const auto tokens = RandomTokens(kSteps, session.n_vocab(), 5);
  const auto start = Clock::now();
  for (uint32_t i = 0; i < kSteps; ++i) {
    session.Decode(std::span(tokens).subspan(i, 1));
  }
  return kSteps / std::chrono::duration<double>(Clock::now() - start).count();
}

struct Row {
  const char* name;
  ggml_type type;
  bool flash;
  bool smaller_context;
};

void Measure(llama_model* model, const Row& row, uint32_t n_tokens,
             uint32_t budget) {
  SessionOptions options;
  options.type_k = options.type_v = row.type;
  options.flash = row.flash;
  options.n_ctx = n_tokens + 256;
  options.n_ubatch = kChunk;
  options.last_logits_only = true;
  const std::string policy = "snapkv:budget=" + std::to_string(budget);
  double observing_s = 0;
  options.observing_s = &observing_s;
  auto session = std::make_unique<Session>(model, policy.c_str(), options);
  const auto prefill = Clock::now();
  const auto tokens = RandomTokens(n_tokens, session->n_vocab());
  for (uint32_t i = 0; i < n_tokens; i += kChunk) {
    session->Decode(
        std::span(tokens).subspan(i, std::min(kChunk, n_tokens - i)));
  }
  const double observing =
      observing_s /
      std::chrono::duration<double>(Clock::now() - prefill).count();
  const double resident_before = ResidentMiB();
  Session::Report report;
  double cpu_ms = 0, before = 0, after = 0, resident_after = resident_before;
  if (row.smaller_context) {
    options.n_ctx = budget + 64;
    Session target(model, policy.c_str(), options);
    const double start = CpuSeconds();
    report = session->Evict(0, KVEVICT_LLAMA_WAY_AUTO, &target);
    cpu_ms = 1e3 * (CpuSeconds() - start);
    before = TokensPerSecond(*session);
    session.reset();
    resident_after = ResidentMiB();
    after = TokensPerSecond(target);
  } else {
    const double start = CpuSeconds();
    report = session->Evict();
    cpu_ms = 1e3 * (CpuSeconds() - start);
    after = TokensPerSecond(*session);
  }
  const double mib = 1 << 20;
  const double kvevict_share = report.evict_ms / report.total_ms;
  std::printf(
      "| %s | %s | %.1f -> %.1f | %.1f | %.1f | %.1f | %.3f %% | ", row.name,
      row.smaller_context ? "smaller context"
      : report.in_place   ? "in place"
                          : "by state",
      static_cast<double>(report.bytes_before) / mib,
      static_cast<double>(report.bytes_after) / mib, cpu_ms,
      cpu_ms * kvevict_share, cpu_ms * (1 - kvevict_share), 100 * observing);
  if (row.smaller_context) {
    std::printf("%.0f -> %.0f | %.0f -> %.0f |\n", resident_before,
                resident_after, before, after);
  } else {
    std::printf("| -> %.0f |\n", after);
  }
  std::fflush(stdout);
}

std::string Processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t n_tokens = argc > 1 ? std::atoi(argv[1]) : 8192;
  const uint32_t budget = argc > 2 ? std::atoi(argv[2]) : 1024;
  RandomModel shape;
  shape.n_layers = 8;
  shape.n_heads = shape.n_kv_heads = 8;
  shape.head_dim = 64;
  shape.n_embd = 128;
  const ModelHandle model = LoadRandomModel(shape);
  std::printf(
      "%u -> %u tokens, 8 layers, 8 KV heads of 64, snapkv, 1 thread, %s\n\n"
      "| cache | evicted | KV MiB | ms | library ms | adapter ms | observing | "
      "process MiB | tokens/s |\n|---|---|---|---|---|---|---|---|---|\n",
      n_tokens, budget, Processor().c_str());
  for (const Row& row : {
           Row{"f16, flash attention", GGML_TYPE_F16, true, false},
           Row{"f16, V transposed", GGML_TYPE_F16, false, false},
           Row{"q8_0, flash attention", GGML_TYPE_Q8_0, true, false},
           Row{"f32, flash attention", GGML_TYPE_F32, true, false},
           Row{"f32, V transposed", GGML_TYPE_F32, false, false},
           Row{"f16, flash attention", GGML_TYPE_F16, true, true},
           // llama.cpp decodes it slowly.
           Row{"bf16, flash attention", GGML_TYPE_BF16, true, false},
       }) {
    Measure(model.get(), row, n_tokens, budget);
  }
  return 0;
}
