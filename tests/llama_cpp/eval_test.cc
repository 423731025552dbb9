// `kvevict-llama-cli eval`: its figures against separate runs of llama.cpp with the
// adapter, its file of results, its words.
#include <criterion/criterion.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/llama_cpp/expect.h"
#include "tests/llama_cpp/program.h"
#include "tests/llama_cpp/session.h"

namespace kvevict::tests {
namespace {

using nlohmann::json;

constexpr uint32_t kPrompt = 96, kPredict = 12;

// A random model whose tokens are characters, a text, and a folder for results.
struct Files {
  Files() {
    char name[] = "/tmp/kvevict-eval-XXXXXX";
    folder = mkdtemp(name);
    RandomModel shape;
    shape.has_characters = true;
    model = WriteRandomModel(shape);
    text = folder + "/text.txt";
    std::ofstream file(text, std::ios::binary);
    uint32_t x = 1;
    for (int i = 0; i < 600; ++i) {
      file << static_cast<char>('a' +
                                ((x = x * 1664525 + 1013904223) >> 24) % 26);
      if (i % 50 == 49) file << ".\r\n";
    }
  }
  ~Files() {
    std::filesystem::remove_all(folder);
    unlink(model.c_str());
  }
  std::string Arguments(const std::string& options,
                        const char* out = "out") const {
    return "eval -m " + model + " -f " + text + " -o " + folder + "/" + out +
           " --prompt " + std::to_string(kPrompt) + " --predict " +
           std::to_string(kPredict) +
           " --ubatch 64 --cache-type f32 --no-flash " +
           (options.starts_with("--tasks") ? "" : "--tasks 0 ") + options;
  }
  json Results(const char* out = "out") const {
    return json::parse(std::ifstream(folder + "/" + out + "/results.json"));
  }
  std::string folder, model, text;
};

const char kPolicies[] =
    "-p snapkv:sink=1,window=4 keydiff:sink=0 --keep 50 25 --windows ";

double LogSumExp(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]));
  return std::log(sum);
}

struct Figures {
  double nll = 0, kl = 0, agree = 0;
};

// Softmax by its definition; the random model's logits are small.
Figures Compare(const std::vector<float>& full,
                const std::vector<float>& evicted,
                const std::vector<llama_token>& following, size_t n_vocab) {
  Figures f;
  const size_t n = following.size() - 1;
  for (size_t i = 0; i < n; ++i) {
    const float *p = &full[i * n_vocab], *q = &evicted[i * n_vocab];
    const double zp = LogSumExp(p, n_vocab), zq = LogSumExp(q, n_vocab);
    for (size_t v = 0; v < n_vocab; ++v) {
      f.kl += std::exp(p[v] - zp) * ((p[v] - zp) - (q[v] - zq)) /
              static_cast<double>(n);
    }
    f.nll += (zq - q[following[i + 1]]) / static_cast<double>(n);
    f.agree += std::max_element(p, p + n_vocab) - p ==
                       std::max_element(q, q + n_vocab) - q
                   ? 1
                   : 0;
  }
  f.agree /= static_cast<double>(n);
  return f;
}

Test(llama_eval, figures_are_those_of_separate_prefills) {
  const Files files;
  OutputOf(files.Arguments(kPolicies + std::string("3")));
  const json results = files.Results();
  cr_assert(results["windows"].size() == 3);

  const auto model = LoadModel(files.model);
  std::string bytes;
  std::getline(std::ifstream(files.text, std::ios::binary), bytes, '\0');
  std::erase(bytes, '\r');
  std::vector<llama_token> tokens(bytes.size() + 8);
  tokens.resize(static_cast<size_t>(
      llama_tokenize(llama_model_get_vocab(model.get()), bytes.data(),
                     static_cast<int32_t>(bytes.size()), tokens.data(),
                     static_cast<int32_t>(tokens.size()), false, false)));

  const char* texts[] = {
      "snapkv:sink=1,window=4,budget=48", "snapkv:sink=1,window=4,budget=24",
      "keydiff:sink=0,budget=48", "keydiff:sink=0,budget=24"};
  for (size_t w = 0; w < 3; ++w) {
    const json& window = results["windows"][w];
    const size_t at = w * (kPrompt + kPredict);
    cr_assert(window["at"] == at);
    const auto begin = tokens.begin() + static_cast<ptrdiff_t>(at);
    const std::vector<llama_token> prompt(begin, begin + kPrompt);
    const std::vector<llama_token> following(begin + kPrompt,
                                             begin + kPrompt + kPredict);
    const std::span inputs = std::span(following).first(kPredict - 1);
    Session whole(model.get(), nullptr, {});
    whole.Decode(prompt);
    const std::vector<float> full = whole.Decode(inputs);
    const Figures self = Compare(full, full, following, whole.n_vocab());
    cr_expect(std::abs(window["full"]["nll"].get<double>() - self.nll) < 1e-6,
              "window %zu: nll %g", w, self.nll);
    for (size_t i = 0; i < 4; ++i) {
      const json& row = window["evicted"][i];
      Session session(model.get(), texts[i], {});
      session.Decode(prompt);
      cr_expect(session.Evict().cells_after == row["cells"]);
      const Figures f =
          Compare(full, session.Decode(inputs), following, session.n_vocab());
      // In f32 only the order of sums differs from cell to cell.
      cr_expect(std::abs(row["kl"].get<double>() - f.kl) < 1e-6 &&
                    std::abs(row["nll"].get<double>() - f.nll) < 1e-6 &&
                    row["agree"] == f.agree && f.kl > 1e-4,
                "window %zu, %s: KL %g, nll %g, agree %g, not %s", w, texts[i],
                f.kl, f.nll, f.agree, row.dump().c_str());
    }
  }
}

// The results as they are written, but for the times.
std::string WithoutTimings(json document) {
  document.erase("timings");
  return document.dump();
}

Test(llama_eval, threads_leave_no_trace) {
  const Files files;
  const std::string run = "-p snapkv:sink=1,window=4 --keep 25 --windows 1 -t ";
  OutputOf(files.Arguments(run + "1", "one"));
  OutputOf(files.Arguments(run + "2", "two"));
  cr_expect(WithoutTimings(files.Results("one")) ==
            WithoutTimings(files.Results("two")));
}

Test(llama_eval, goes_on_after_an_interruption) {
  const Files files;
  const std::string arguments = files.Arguments(kPolicies + std::string("3 "));
  OutputOf(arguments);
  const json whole = files.Results();
  // As it is in the second window.
  json document = whole;
  for (json* list : {&document["windows"], &document["timings"]["windows"]}) {
    list->erase(list->begin() + 1, list->end());
  }
  document["windows"][0]["full"]["nll"] = 7;  // is not measured again
  std::ofstream(files.folder + "/out/results.json") << document.dump();
  OutputOf(arguments);
  json resumed = files.Results();
  cr_expect(resumed["windows"][0]["full"]["nll"] == 7);
  resumed["windows"][0] = whole["windows"][0];
  cr_expect(WithoutTimings(resumed) == WithoutTimings(whole));
  OutputOf(arguments + "--fresh");
  cr_expect(WithoutTimings(files.Results()) == WithoutTimings(whole));
  std::fstream model(files.model,
                     std::ios::binary | std::ios::in | std::ios::out);
  model.seekp(-1, std::ios::end).put(1);  // a weight becomes another
  model.close();
  const ProgramRun run = RunProgram(arguments);
  cr_expect(run.status == 1 &&
                run.out.find("differs in model_end_fnv1a") != std::string::npos,
            "%d: %s", run.status, run.out.c_str());
}

Test(llama_eval, tasks_are_asked_with_and_without_eviction) {
  const Files files;
  const std::string arguments =
      "--tasks 1 --windows 0 --task-tokens 640 -p keydiff:sink=0 "
      "--task-keep 100 20 ";
  OutputOf(files.Arguments(arguments));
  const json results = files.Results();
  cr_assert(results["tasks"].size() == 8);
  bool some_differ = false;
  for (const json& task : results["tasks"]) {
    const json& full = task["full"]["unseen"];
    const size_t n =
        task["kind"] == "multi-key" || task["kind"] == "question" ? 2 : 1;
    cr_expect(full["lp"].size() == n && full["exact"].size() == n);
    cr_expect(full["lp"][0] < 0);
    // A budget of all tokens evicts nothing.
    json whole = task["evicted"][0]["unseen"];
    cr_expect(whole["kl"] == std::vector<double>(n, 0));
    whole.erase("kl");
    cr_expect(whole == full, "%s", task.dump().c_str());
    some_differ = some_differ || task["evicted"][1]["unseen"] != full;
    some_differ = some_differ && task["evicted"][1]["seen"]["lp"].size() == n;
  }
  cr_expect(some_differ);
  // A fact at five depths in texts of three lengths.
  cr_assert(results["needles"].size() == 15);
  for (size_t i = 0; i < 15; ++i) {
    const json& needle = results["needles"][i];
    cr_expect(needle["length"] == 640 >> (2 - i / 5));
    cr_expect(needle["depth"] == 0.25 * static_cast<double>(i % 5));
    cr_expect(needle["evicted"].size() == 1 &&
              needle["evicted"][0]["share"] == 0.25);
  }
  // One kind alone asks the same, and another seed something else.
  const std::string one = arguments + "--needles 0 --kinds single ";
  OutputOf(files.Arguments(one, "again"));
  const json again = files.Results("again")["tasks"];
  cr_expect(again.size() == 1 && again[0] == results["tasks"][0]);
  OutputOf(files.Arguments(one + "--seed 2", "other"));
  cr_expect(files.Results("other")["tasks"] != again);
}

// The own engine computes in another order than llama.cpp.
Test(llama_eval, the_own_engine_measures_the_same) {
  const Files files;
  // llama.cpp's last token always stays.
  const std::string arguments =
      "-p snapkv:sink=1,window=4 keydiff:sink=0,recent=1 --keep 50 25 "
      "--windows 2 ";
  OutputOf(files.Arguments(arguments));
  OutputOf(files.Arguments(arguments + "--own-engine", "own"));
  const json theirs = files.Results(), ours = files.Results("own");
  cr_assert(ours["windows"].size() == 2);
  for (size_t w = 0; w < 2; ++w) {
    const json &a = theirs["windows"][w], &b = ours["windows"][w];
    cr_expect(std::abs(a["full"]["nll"].get<double>() -
                       b["full"]["nll"].get<double>()) < 1e-4);
    cr_expect(a["full"]["bytes"] == b["full"]["bytes"]);
    for (size_t i = 0; i < 4; ++i) {
      const json &x = a["evicted"][i], &y = b["evicted"][i];
      cr_expect(x["mass"].is_number() == (i < 2) &&
                x["mass"].is_null() == y["mass"].is_null());
      if (i < 2) {
        cr_expect(std::abs(x["mass"].get<double>() - y["mass"].get<double>()) <
                  1e-4);
      }
      cr_expect(x["bytes"] == y["bytes"] &&
                    std::abs(x["kl"].get<double>() - y["kl"].get<double>()) <
                        1e-3 * x["kl"].get<double>() + 1e-6,
                "window %zu: %s, not %s", w, y.dump().c_str(),
                x.dump().c_str());
    }
  }
}

Test(llama_eval, tasks_may_be_asked_of_uneven_heads) {
  const Files files;
  OutputOf(files.Arguments(
      "--tasks 2 --windows 0 --task-tokens 900 --kinds single question "
      "--own-engine -p layer-defensivekv defensivekv snapkv "
      "--task-keep 100 20"));
  const json results = files.Results();
  cr_assert(results["tasks"].size() == 4);
  for (const json& task : results["tasks"]) {
    const std::string kind = task["kind"];
    cr_expect(kind == "single" || kind == "question");
    for (const char* mode : {"seen", "unseen"}) {
      const size_t n = task["full"][mode]["lp"].size();
      for (size_t i = 0; i < 6; ++i) {
        const json& row = task["evicted"][i];
        cr_assert(row[mode]["kl"].size() == n);
        for (size_t q = 0; q < n; ++q) {
          const double kl = row[mode]["kl"][q];
          // A budget of all tokens evicts nothing, unless the question counts.
          const bool is_whole =
              row["share"] == 1.0 && std::string(mode) == "unseen";
          cr_expect(is_whole ? kl == 0 : kl > 0, "%s: %g", row.dump().c_str(),
                    kl);
        }
      }
    }
  }
}

// A context of one kind is shorter than that of another.
Test(llama_eval, tasks_compare_policies_on_the_same_contexts) {
  const Files files;
  const std::string out = OutputOf(files.Arguments(
      "--tasks 2 --windows 0 --needles 0 --task-tokens 900 -p "
      "snapkv:sink=0,window=170 keydiff:sink=0 --task-keep 20"));
  const json results = files.Results();
  size_t n_without = 0;
  double kl = 0;
  for (const json& task : results["tasks"]) {
    const json& rows = task["evicted"];
    n_without += rows.size() == 1 ? 1 : 0;
    cr_assert(rows.back()["policy"] == "keydiff:sink=0");
    double sum = 0;
    for (const json& x : rows.back()["unseen"]["kl"]) sum += x.get<double>();
    kl += sum / static_cast<double>(rows.back()["unseen"]["kl"].size()) / 16;
  }
  cr_assert(n_without > 0 && n_without < 16, "%zu", n_without);
  const std::string left_out = "Left out: snapkv:sink=0,window=170 at 20 %: " +
                               std::to_string(n_without) +
                               " of 16 contexts have no room for it\n";
  cr_expect(Has(out, left_out.c_str()), "%s", out.c_str());
  std::string table;
  std::getline(std::ifstream(files.folder + "/out/table.md"), table, '\0');
  cr_expect(!Has(table, "| `snapkv"), "%s", table.c_str());
  char cell[32];
  std::snprintf(cell, sizeof cell, "| %.3f ± ", kl);
  const size_t row = table.find("| `keydiff:sink=0` | 20 |");
  cr_assert(row != std::string::npos);
  cr_expect(Has(table.substr(row), cell), "%s, not %s", cell, table.c_str());
  ExpectPart(out, "With 20 % of the bytes answers lose least with keydiff");
}

// A policy without room leaves cells of a heat map empty, and no more.
Test(llama_eval, texts_may_be_too_short_for_every_policy) {
  const Files files;
  const std::string out = OutputOf(
      files.Arguments("--tasks 1 --windows 1 --task-tokens 900 --kinds single "
                      "--needle-tokens 400 900 -p snapkv:sink=0,window=20 "
                      "snapkv:sink=0,window=21 --keep 50 --needle-keep 5"));
  ExpectPart(out, "With 50 % of the bytes ");
  const json results = files.Results();
  cr_assert(results["needles"].size() == 10);
  for (const json& needle : results["needles"]) {
    cr_expect(needle["evicted"].size() == (needle["length"] == 400 ? 0 : 2));
  }
}

Test(llama_eval, words_of_tasks_come_from_a_file) {
  const Files files;
  const std::string wording = files.folder + "/wording.json";
  const auto write = [&](const json& document) {
    std::ofstream(wording) << document.dump();
  };
  const auto run = [&](const char* out) {
    OutputOf(
        files.Arguments("--tasks 1 --windows 0 --needles 0 --kinds single "
                        "multi-key --task-tokens 900 -p knorm --wording " +
                            wording,
                        out));
    return files.Results(out);
  };
  // A member that is left out stays as it is.
  write({{"fact", "The {noun}'s code, {adjective}, is {number}."}});
  const json facts = run("facts");
  cr_expect(facts["setup"]["wording"]["answer"] ==
            "The secret number of the {adjective} {noun} is ");
  // Tokens are characters.
  write({{"fact", "{noun} {number}"}, {"answer", "{noun} "}});
  const json shorter = run("shorter");
  for (const size_t kind : {0, 1}) {
    cr_expect((facts["tasks"][kind] == shorter["tasks"][kind]) == (kind == 1),
              "only single facts have these words");
  }
  // A haystack of one sentence leaves less room than its length.
  write({{"fact", "{noun} {number}"},
         {"introduction", "x"},
         {"haystack", {std::string(399, 'y')}}});
  const json hay = run("hay");
  cr_expect(hay["tasks"][0]["tokens"].get<int>() >= 800 &&
                hay["tasks"][0]["tokens"].get<int>() <= 840,
            "%s", hay["tasks"][0]["tokens"].dump().c_str());
  const auto refused = [&](const json& document, const char* why) {
    write(document);
    const ProgramRun got = RunProgram(
        files.Arguments("--tasks 1 --windows 0 --wording " + wording));
    cr_expect(got.status == 1 && Has(got.out, (wording + ": ").c_str()) &&
                  Has(got.out, why),
              "%d, %s", got.status, got.out.c_str());
  };
  refused({{"facts", "{number}"}}, "no member is called \"facts\"");
  refused({{"fact", "The {noun} is tall."}}, "\"fact\" has no {number}");
  refused({{"fact", "{key} {number}"}}, "\"fact\" has {key}; {adjective}, ");
  refused({{"answer", "It is {number}"}}, "\"answer\" gives the {number} away");
  refused({{"answer", ""}}, "\"answer\" is empty");
}

Test(llama_eval, makes_a_page_with_pictures) {
  const Files files;
  OutputOf(files.Arguments(kPolicies + std::string("2")));
  std::string page;
  std::getline(std::ifstream(files.folder + "/out/report.html"), page, '\0');
  ExpectPart(page, "<svg");
  ExpectPart(page, "keydiff:sink=0, 25 %");
  cr_expect(!Has(page, "href=\"http") && !Has(page, "src="));
  cr_expect(std::filesystem::exists(files.folder + "/out/kl.svg"));
  const std::string pictures = files.folder + "/out/pictures/";
  if (std::system("gnuplot --version >/dev/null 2>&1") != 0) {
    cr_expect(Has(page, "No heat maps: gnuplot is not here"));
    fprintf(stderr, "skipped: heat maps, since gnuplot is not here\n");
    return;
  }
  for (const char* name : {"kept-0", "kept-1", "bytes-0"}) {
    for (const char* ending : {".svg", ".png"}) {
      cr_expect(std::filesystem::file_size(pictures + name + ending) > 1000,
                "%s%s", name, ending);
    }
  }
  for (const char* name : {"kl", "agreement", "perplexity", "evict-ms"}) {
    cr_expect(std::filesystem::file_size(pictures + name + ".png") > 5000, "%s",
              name);
  }
  cr_expect(!std::filesystem::exists(pictures + "right-seen.png"));
  // Every policy keeps as many bytes, and no task was set.
  cr_expect(!std::filesystem::exists(pictures + "bytes-1.svg"));
  cr_expect(!std::filesystem::exists(pictures + "needle-seen-0.svg"));
  cr_expect(Has(page, "Which rows stay") && !Has(page, "No heat maps"));
  // An axis of one budget has room on both sides.
  const ProgramRun one = RunProgram(
      files.Arguments("-p keydiff:sink=0 --keep 25 --windows 1", "one"));
  cr_expect(one.status == 0 && !Has(one.out, "arning"), "%s", one.out.c_str());
}

Test(llama_eval, tells_which_rows_stay) {
  const Files files;
  OutputOf(files.Arguments(kPolicies + std::string("2")));
  const json results = files.Results();
  cr_expect(!results["windows"][1]["evicted"][0].contains("kept"));
  for (const json& row : results["windows"][0]["evicted"]) {
    const json& kept = row["kept"];
    cr_assert(!kept["rows"].empty() &&
              kept["rows"].size() == kept["shares"].size());
    for (size_t l = 0; l < kept["rows"].size(); ++l) {
      for (const json& n : kept["rows"][l]) cr_expect(n == row["cells"]);
      // 96 positions are 64 parts: one and two positions by turns.
      const json& shares = kept["shares"][l];
      cr_assert(shares.size() == 64);
      double sum = 0;
      for (size_t i = 0; i < 64; ++i) {
        sum += shares[i].get<double>() * (i % 2 == 0 ? 2 : 1);
      }
      // Each share is rounded to a thousandth.
      cr_expect(std::abs(sum - row["cells"].get<double>()) < 96 * 5e-4, "%g",
                sum);
      // snapkv keeps one sink and the window.
      if (row["policy"] == "snapkv:sink=1,window=4") {
        cr_expect(shares[0] >= 0.5 && shares[63] == 1 && shares[62] == 1);
      }
    }
  }
}

Test(llama_eval, says_what_it_found) {
  const Files files;
  const std::string out = OutputOf(
      files.Arguments("-p snapkv streaming-llm --keep 50 10 --windows 2"));
  ExpectPart(out, "left out: snapkv at 10 %: sink 4 + window 32 >= budget 9");
  ExpectPart(out, "With 50 % of the bytes ");
  ExpectPart(out, "With 10 % of the bytes streaming-llm changes");
  ExpectPart(out, "standard errors over 2 windows, 22 predictions");
  const std::string all = OutputOf(files.Arguments(
      "-p snapkv streaming-llm --keep 50 10 --windows 2 --json"));
  const json printed = json::parse(all.substr(all.find('{')));
  cr_expect(printed == files.Results());
}

Test(llama_eval, says_what_is_wrong) {
  const Files files;
  const auto refused = [&](const std::string& options, int status,
                           const char* why) {
    ExpectRun(files.Arguments(options), status, why);
  };
  refused("-p snapkv:budget=40 --windows 1", 1,
          "policy \"snapkv:budget=40\": the budgets are those of --keep");
  refused("-p snapkv:budget=5 --windows 1", 1,
          "policy \"snapkv:budget=5\": the budgets are those of --keep");
  refused("-p knorm --windows 0", 1, "leave nothing to measure");
  refused("-p knorm --windows 1 --question Who?", 2, "--own-engine");
  refused("-p pyramidkv", 1, "its layers keep different numbers of tokens");
  refused("-p defensivekv", 1, "its heads keep different numbers of tokens");
  refused("--kinds all", 2, "--kinds: all not in");
  refused("-p snapkv --keep 5", 1,
          "no policy has room: snapkv at 5 %: sink 4 + window 32 >= budget 4");
  refused("--windows 9", 1, "the end of window 6 of --windows 9");
  refused("--keep 0", 2, "--keep: Value 0 not in range");
  refused("--prompt 1", 2, "--prompt: Value 1 not in range");
  cr_expect(Has(RunProgram("eval").out, "--model is required"));
  OutputOf(files.Arguments("-p knorm --windows 1"));
  refused("-p keydiff --windows 1", 1,
          "results of another evaluation, which differs in policies; --out");
  std::ofstream(files.folder + "/out/results.json") << "{}";
  refused("-p knorm --windows 1", 1, "no results of an evaluation");
}

}  // namespace
}  // namespace kvevict::tests
