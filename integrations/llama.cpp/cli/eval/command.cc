#include "command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "candidates.h"
#include "ggml_weights.h"
#include "kvevict/kvevict.h"
#include "llama_prefill.h"
#include "maps.h"
#include "own_prefill.h"
#include "platform.h"
#include "policy.h"
#include "recall.h"
#include "report.h"
#include "results.h"
#include "shared_prefill.h"
#include "summary.h"
#include "tables.h"
#include "tasks.h"
#include "texts.h"
#include "tools/commands/output.h"
#include "tools/engine/progress_bar.h"
#include "tools/pictures/gnuplot.h"
#include "windows.h"
#include "wording.h"

namespace kvevict::llama_cli {
namespace eval {
namespace {

using nlohmann::json;

// Decoded one by one in the first window.
constexpr uint32_t kDecoded = 16;
// The places of a fact in a text, as shares of its length.
constexpr double kDepths[] = {0, 0.25, 0.5, 0.75, 1};

struct Arguments : ModelArguments {
  std::vector<std::string> texts, policies = DefaultPolicies();
  std::vector<double> keep = {50, 25, 12.5, 6.25};  // %
  uint32_t n_windows = 6, n_prompt = 0, n_predict = 0, stride = 0;
  uint32_t n_tasks = 1, n_task_tokens = 0;
  std::vector<std::string> kinds = TaskKinds();
  std::vector<double> task_keep = {75, 50, 25, 12.5};  // %
  uint32_t n_needles = 1;
  std::vector<uint32_t> needle_tokens;
  double needle_keep = 25;  // %
  uint64_t seed = 1;
  std::string wording_file;
  Wording wording;
  std::string out = "kvevict-eval";
  bool fresh = false, as_json = false;
  bool own_engine = false;
  std::string question;

  Engine engine() const {
    if (own_engine) return Engine::kKvevict;
    return calibration.empty() ? Engine::kLlamaCpp
                               : Engine::kCalibratedLlamaCpp;
  }
};

void AddOptions(CLI::App& app, Arguments& args) {
  AddModelOptions(app, args);
  app.add_option("-f,--file", args.texts,
                 "Text that windows are taken from; several are used in turn")
      ->required();
  app.add_option("-p,--policy", args.policies,
                 "Policy without a budget, e.g. snapkv:window=16; several are "
                 "compared")
      ->capture_default_str();
  app.add_option("--keep", args.keep, "Budgets: % of the bytes that stay")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 100.0));
  app.add_option("--windows", args.n_windows, "Windows, of all texts together")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{0}, uint32_t{100000}));
  app.add_option("--prompt", args.n_prompt,
                 "Tokens of a window before the eviction (default: 1536, or "
                 "three quarters of what the model was trained for)")
      ->check(CLI::Range(uint32_t{2}, kMostCells / 2));
  app.add_option("--predict", args.n_predict,
                 "Tokens of a window behind it; all but the first are "
                 "predicted after the eviction (default: a sixth)")
      ->check(CLI::Range(uint32_t{2}, kMostCells / 2));
  app.add_option("--stride", args.stride,
                 "Tokens from the beginning of a window to that of the next "
                 "one of its text (default: one after another)")
      ->check(CLI::Range(uint32_t{1}, kMostCells));
  app.add_option("--tasks", args.n_tasks,
                 "Contexts for each kind of task (single, multi-key, "
                 "multi-value and multi-query facts, variable tracking, common "
                 "and frequent words, questions), made from the texts")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{0}, uint32_t{1000}));
  app.add_option("--kinds", args.kinds, "Kinds of tasks")
      ->capture_default_str()
      ->check(CLI::IsMember(TaskKinds()));
  app.add_option("--task-tokens", args.n_task_tokens,
                 "Length of these (default: 1024, or half of what the model "
                 "was trained for)")
      ->check(CLI::Range(uint32_t{64}, kMostCells / 2));
  app.add_option("--task-keep", args.task_keep,
                 "Budgets for tasks: % of the bytes that stay")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 100.0));
  app.add_option("--needles", args.n_needles,
                 "Texts for each length and depth of a fact, for heat maps; "
                 "none without tasks")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{0}, uint32_t{1000}));
  app.add_option("--needle-tokens", args.needle_tokens,
                 "Lengths of these (default: a quarter, a half and all of "
                 "--task-tokens)")
      ->check(CLI::Range(uint32_t{64}, kMostCells / 2));
  app.add_option("--needle-keep", args.needle_keep,
                 "Budget for them: % of the bytes that stay")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 100.0));
  app.add_option("--seed", args.seed, "Of the tasks")->capture_default_str();
  app.add_option("--wording", args.wording_file,
                 "JSON file with the words of the single facts: system, "
                 "introduction, fact, question, answer, haystack; "
                 "docs/evaluation.md has an example");
  app.add_option(
         "-o,--out", args.out,
         "Folder for results.json, table.md, kl.svg, report.html and, where "
         "gnuplot is, pictures/; a run "
         "that was interrupted goes on with what is there")
      ->capture_default_str();
  app.add_flag("--own-engine", args.own_engine,
               "Run the model with kvevict's own engine, in f32 on the CPU: "
               "LLaMA's architecture alone, but also policies whose heads or "
               "layers keep different numbers of tokens. llama.cpp reads the "
               "file and makes tokens of texts");
  AddCalibrationOption(app, args)->excludes("--own-engine");
  app.add_option("--question", args.question,
                 "With --own-engine, a likely question: policies with "
                 "reference=N score by the queries of its last N tokens, or "
                 "fit values to them, as if it followed the prompt")
      ->needs("--own-engine");
  app.add_flag("--fresh", args.fresh, "Begin anew, whatever the folder has");
  app.add_flag("--json", args.as_json, "Print results.json, not the tables");
}

void FitToModel(const llama_model* model, Arguments& args) {
  const auto trained = static_cast<uint32_t>(llama_model_n_ctx_train(model));
  if (args.n_prompt == 0) {
    args.n_prompt = std::clamp(trained / 4 * 3, 16u, 1536u);
  }
  if (args.n_task_tokens == 0) {
    args.n_task_tokens = std::clamp(trained / 2, 64u, 1024u);
  }
  if (args.n_tasks == 0) args.n_needles = 0;
  if (args.needle_tokens.empty()) {
    for (const uint32_t part : {4u, 2u, 1u}) {
      args.needle_tokens.push_back(std::max(64u, args.n_task_tokens / part));
    }
  }
  if (args.n_predict == 0) args.n_predict = std::max(2u, args.n_prompt / 6);
}

// True if the adapter for llama.cpp reads weights of the model.
bool ReadsWeightsOfModel(const Arguments& args) {
  return !args.own_engine &&
         std::any_of(args.policies.begin(), args.policies.end(),
                     [&](const std::string& policy) {
                       return ReadsWeights(ParsePolicy(policy, args.engine()));
                     });
}

// What runs the model.
class Runner {
 public:
  Runner(const Arguments& args, llama_model* model)
      : args_(args), model_(model) {
    if (!args.own_engine) return;
    pool_.emplace(args.context.n_threads);
    own_model_.emplace(ReadWeights(model, args.model), *pool_);
  }

  std::unique_ptr<SharedPrefill> Prefill(std::span<const Candidate> candidates,
                                         uint32_t n_prompt, uint32_t n_behind,
                                         SharedPrefill::Progress progress) {
    if (own_model_) {
      const std::vector<llama_token> question =
          args_.question.empty() ? std::vector<llama_token>()
                                 : TokenizeQuestion(model_, args_.question);
      return std::make_unique<OwnPrefill>(*own_model_, candidates, question,
                                          *pool_, n_prompt, n_behind,
                                          std::move(progress));
    }
    return std::make_unique<LlamaPrefill>(model_, candidates, args_.context,
                                          n_prompt, n_behind,
                                          std::move(progress));
  }

 private:
  const Arguments& args_;
  llama_model* model_;
  std::optional<tools::ThreadPool> pool_;
  std::optional<tools::LlamaModel> own_model_;
};

std::vector<double> Shares(const std::vector<double>& percents) {
  std::vector<double> shares;
  for (const double percent : percents) shares.push_back(percent / 100);
  return shares;
}

Candidates MakeWindowCandidates(const Arguments& args) {
  if (args.n_windows == 0) return {};
  Candidates candidates = MakeCandidates(args.policies, Shares(args.keep),
                                         args.n_prompt, args.engine());
  if (candidates.all.empty()) {
    throw std::runtime_error("no policy has room: " +
                             candidates.left_out.front());
  }
  return candidates;
}

// All that the results depend on.
json Setup(const Arguments& args, const llama_model* model,
           const std::vector<Text>& texts, const Candidates& candidates) {
  char description[128] = "";
  llama_model_desc(model, description, sizeof description);
  json setup = {
      {"kvevict", kvevict_version()},
      {"model", std::filesystem::path(args.model).filename().string()},
      {"description", description},
      {"model_bytes", llama_model_size(model)},
      {"model_end_fnv1a", HashOfEnd(args.model)},
      {"texts", Describe(texts)},
      {"policies", args.policies},
      {"keep", args.keep},
      {"left_out", candidates.left_out},
      {"windows", args.n_windows},
      {"prompt", args.n_prompt},
      {"predict", args.n_predict},
      {"stride", args.stride},
      {"tasks", args.n_tasks},
      {"kinds", args.kinds},
      {"task_tokens", args.n_task_tokens},
      {"task_keep", args.task_keep},
      {"needles", args.n_needles},
      {"needle_tokens", args.needle_tokens},
      {"needle_keep", args.needle_keep},
      {"seed", args.seed},
      {"wording", Describe(args.wording)},
      {"own_engine", args.own_engine},
      {"question", args.question},
      {"cache_type", args.own_engine ? "f32" : args.cache_type},
      {"flash", !args.no_flash},
      {"ubatch", args.context.n_ubatch},
      {"gpu_layers", args.n_gpu_layers}};
  if (!args.calibration_file.empty()) {
    setup["calibration"] = Describe(
        {Text{std::filesystem::path(args.calibration_file).filename().string(),
              args.calibration,
              {}}});
  }
  return setup;
}

void MeasureWindows(const Arguments& args, llama_model* model, Runner& runner,
                    const std::vector<Text>& texts,
                    const Candidates& candidates, Results& results) {
  const size_t n_done = results.Count("windows");
  const std::vector<Window> windows =
      CutWindows(llama_model_get_vocab(model), texts, args.n_windows,
                 args.n_prompt + args.n_predict, args.stride);
  if (n_done >= windows.size()) return;
  const size_t n_of_window =
      args.n_prompt + (candidates.all.size() + 1) * (args.n_predict - 1);
  tools::ProgressBar bar("windows", (windows.size() - n_done) * n_of_window);
  size_t n_read = 0;
  const auto prefill =
      runner.Prefill(candidates.all, args.n_prompt, args.n_predict,
                     [&](size_t n) { bar.Update(n_read += n); });
  for (size_t i = n_done; i < windows.size(); ++i) {
    n_read = (i - n_done) * n_of_window;
    Measured window = MeasureWindow(*prefill, candidates.all, windows[i].tokens,
                                    args.n_prompt, i == 0 ? kDecoded : 0);
    window.results["text"] = windows[i].text->name;
    window.results["at"] = windows[i].at;
    results.Add("windows", std::move(window));
    results.SetPeakBytes(PeakBytes());
  }
}

std::vector<std::string> SentencesOf(const std::vector<Text>& texts) {
  std::vector<std::string> sentences;
  for (const Text& text : texts) {
    const auto more = Sentences(text.bytes);
    sentences.insert(sentences.end(), more.begin(), more.end());
  }
  if (sentences.empty()) {
    throw std::runtime_error(
        "the texts have no sentences for tasks; --tasks 0 goes without");
  }
  return sentences;
}

Measured MeasureTaskOf(const Arguments& args, llama_model* model,
                       Runner& runner, const Task& task,
                       const std::vector<double>& shares) {
  const TokenizedTask tokenized = TokenizeTask(model, task);
  const auto n_context = static_cast<uint32_t>(tokenized.context.size());
  const Candidates candidates =
      MakeCandidates(args.policies, shares, n_context, args.engine());
  const auto prefill =
      runner.Prefill(candidates.all, n_context, tokenized.Behind(), nullptr);
  return MeasureTask(*prefill, candidates.all, tokenized);
}

CountTokens CountBy(const llama_model* model) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  return [vocab](const std::string& piece) {
    return static_cast<uint32_t>(Tokenize(vocab, piece, false, false).size());
  };
}

void MeasureTasks(const Arguments& args, llama_model* model, Runner& runner,
                  const std::vector<Text>& texts, Results& results) {
  const std::vector<std::string>& kinds = args.kinds;
  const size_t n_done = results.Count("tasks"), n = args.n_tasks * kinds.size();
  if (n_done >= n) return;
  const std::vector<std::string> sentences = SentencesOf(texts);
  const CountTokens count = CountBy(model);
  tools::ProgressBar bar("tasks", n - n_done);
  for (size_t i = n_done; i < n; ++i) {
    const std::string& kind = kinds[i % kinds.size()];
    Measured measured = MeasureTaskOf(
        args, model, runner,
        MakeTask(kind, args.seed + i / kinds.size(), args.n_task_tokens,
                 sentences, args.wording, count),
        Shares(args.task_keep));
    measured.results["kind"] = kind;
    results.Add("tasks", std::move(measured));
    results.SetPeakBytes(PeakBytes());
    bar.Update(i + 1 - n_done);
  }
}

void MeasureNeedles(const Arguments& args, llama_model* model, Runner& runner,
                    const std::vector<Text>& texts, Results& results) {
  const size_t n_cells = args.needle_tokens.size() * std::size(kDepths);
  const size_t n_done = results.Count("needles"), n = args.n_needles * n_cells;
  if (n_done >= n) return;
  const std::vector<std::string> sentences = SentencesOf(texts);
  const CountTokens count = CountBy(model);
  tools::ProgressBar bar("needles", n - n_done);
  for (size_t i = n_done; i < n; ++i) {
    const double depth = kDepths[i % std::size(kDepths)];
    const uint32_t length =
        args.needle_tokens[i % n_cells / std::size(kDepths)];
    Measured measured =
        MeasureTaskOf(args, model, runner,
                      MakeNeedle(depth, args.seed + i / n_cells, length,
                                 sentences, args.wording, count),
                      {args.needle_keep / 100});
    measured.results["depth"] = depth;
    measured.results["length"] = length;
    results.Add("needles", std::move(measured));
    results.SetPeakBytes(PeakBytes());
    bar.Update(i + 1 - n_done);
  }
}

// Draws the heat maps, and the charts as PNG, to `folder`. Returns the reason why
// not.
std::string DrawPictures(const json& document, const std::vector<Chart>& charts,
                         const std::string& folder) {
  if (tools::GnuplotVersion().empty()) {
    return "gnuplot is not here (Debian's package is gnuplot-nox).";
  }
  std::vector<tools::HeatMap> maps;
  for (const auto& more :
       {NeedleMaps(document, false), NeedleMaps(document, true),
        PositionMaps(document), ByteMaps(document)}) {
    maps.insert(maps.end(), more.begin(), more.end());
  }
  tools::DrawHeatMaps(folder, maps);
  DrawPngs(folder, charts);
  return "";
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace
}  // namespace eval

int Evaluate(int argc, char** argv) {
  using namespace eval;
  CLI::App app("Compares policies and budgets on windows of a text",
               "kvevict-llama-cli eval");
  Arguments args;
  AddOptions(app, args);
  app.footer(&PoliciesThatCannotWork);
  if (const auto status = Parse(app, argc, argv, args)) return *status;
  if (args.n_windows == 0 && args.n_tasks == 0) {
    throw std::runtime_error(
        "--windows 0 and --tasks 0 leave nothing to measure");
  }
  CheckPolicies(args.policies, args.engine());
  if (!args.wording_file.empty()) args.wording = ReadWording(args.wording_file);
  const Model model = Load(args, ReadsWeightsOfModel(args));
  FitToModel(model.get(), args);
  const std::vector<Text> texts =
      ReadTexts(llama_model_get_vocab(model.get()), args.texts);
  const Candidates candidates = MakeWindowCandidates(args);
  for (const std::string& why : candidates.left_out) {
    fmt::print(stderr, "left out: {}\n", why);
  }

  std::filesystem::create_directories(args.out);
  const std::string path = args.out + "/results.json";
  if (args.fresh) std::filesystem::remove(path);
  Results results(path, Setup(args, model.get(), texts, candidates));
  Runner runner(args, model.get());
  MeasureWindows(args, model.get(), runner, texts, candidates, results);
  MeasureTasks(args, model.get(), runner, texts, results);
  MeasureNeedles(args, model.get(), runner, texts, results);

  const json& document = results.document();
  if (args.as_json) {
    tools::WriteOutput(document.dump(1) + "\n");
    return 0;
  }
  const Summary summary = Summarize(document);
  const TaskSummary tasks = SummarizeTasks(document);
  std::string markdown, text;
  if (summary.n_windows > 0) {
    const Grid grid = WindowsGrid(summary);
    const std::string setup = SetupText(document, summary);
    markdown += setup + "\n" + AsMarkdown(grid);
    text += setup + "\n" + AsText(grid) + "\n" + Notes() + "\n" +
            Verdict(document, summary);
  }
  if (tasks.n_contexts > 0) {
    const Grid grid = TasksGrid(tasks);
    markdown += "\n" + Ceilings(tasks) + "\n" + AsMarkdown(grid);
    text += "\n" + AsText(grid) + "\n" + Ceilings(tasks) + "\n" +
            TasksVerdict(tasks);
  }
  WriteFile(args.out + "/table.md", markdown);
  if (summary.n_windows > 0) {
    WriteFile(args.out + "/kl.svg", Svg(KlChart(document, summary)));
  }
  const std::string pictures = args.out + "/pictures";
  const std::string no_maps =
      DrawPictures(document, Charts(document, summary, tasks), pictures);
  if (!no_maps.empty())
    fmt::print(stderr, "no heat maps and no PNG: {}\n", no_maps);
  WriteFile(args.out + "/report.html",
            Report(document, summary, tasks, pictures, no_maps));
  tools::WriteOutput(text);
  return 0;
}

}  // namespace kvevict::llama_cli
