// `kvevict inspect` as its user sees it, and the tables of docs/ that it agrees with.
#include <criterion/criterion.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/paths.h"
#include "tests/tools/program.h"
#include "tools/engine/policy.h"

namespace kvevict::tools {
namespace {

using nlohmann::json;

std::string Page(const char* name) {
  std::ifstream file(std::string(test_source_dir) + "/docs/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

Test(inspect_program, lists_what_the_library_enumerates) {
  const json document = JsonOf("inspect --json");
  cr_expect(document.at("version") == kvevict_version());
  cr_expect(document.at("abi_version") == kvevict_abi_version());
  cr_expect(document.at("simd").at("active") == kvevict_simd_target_at(0));
  for (size_t i = 0; i < document.at("simd").at("targets").size(); ++i) {
    const char* name = kvevict_simd_target_at(static_cast<uint32_t>(i));
    cr_expect(document.at("simd").at("targets")[i] == name);
  }
  const bool cuda = kvevict_device_check(KVEVICT_DEVICE_CUDA) == KVEVICT_OK;
  cr_expect(document.at("cuda").at("available") == cuda);
  if (!cuda) {
    cr_expect(document.at("cuda").at("reason") == kvevict_last_error_message());
  }

  kvevict_gpu_info gpu = {};
  gpu.struct_size = sizeof(gpu);
  const json& gpus = document.at("cuda").at("gpus");
  uint32_t n = 0;
  for (; kvevict_gpu_at(n, &gpu) == KVEVICT_OK; ++n) {
    const json& row = gpus.at(n);
    cr_expect(row.at("name") == gpu.name);
    const std::string digits = row.at("compute_capability");
    cr_expect(std::stof(digits) * 10 == gpu.compute_capability);
    cr_expect(row.value("problem", "") == gpu.problem);
    cr_expect(row.value("libnvrtc", "") == gpu.nvrtc);
    cr_expect(row.value("target", "") == gpu.target);
  }
  cr_expect(n == gpus.size());

  kvevict_policy_info policy = {};
  policy.struct_size = sizeof(policy);
  for (n = 0; kvevict_policy_at(n, &policy) == KVEVICT_OK; ++n) {
    const json& row = document.at("policies").at(n);
    cr_expect(row.at("name") == policy.name);
    cr_expect(row.at("signal") == policy.signal);
    cr_expect(row.at("summary") == policy.summary);
    cr_expect(row.at("trigger") == policy.trigger);
    cr_expect(row.at("paper") == policy.paper);
    const json& reads = row.at("reads");
    const Policy of_name(policy.name);
    cr_expect((std::find(reads.begin(), reads.end(), "V") != reads.end()) ==
                  of_name.Requires(KVEVICT_INPUT_VALUES),
              "%s", policy.name);
    cr_expect((std::find(reads.begin(), reads.end(), "[log-sum-exps]") !=
               reads.end()) == (of_name.Need(KVEVICT_INPUT_ROW_LSE) ==
                                KVEVICT_NEED_OPTIONAL),
              "%s", policy.name);
  }
  cr_expect(n == document.at("policies").size() && n >= 6);

  kvevict_preset_info preset = {};
  preset.struct_size = sizeof(preset);
  for (n = 0; kvevict_preset_at(n, &preset) == KVEVICT_OK; ++n) {
    cr_expect(document.at("presets").at(n).at("name") == preset.name);
  }
  cr_expect(n == document.at("presets").size() && n >= 4);

  kvevict_dtype_info dtype = {};
  dtype.struct_size = sizeof(dtype);
  for (n = 0; kvevict_dtype_at(n, &dtype) == KVEVICT_OK; ++n) {
    const json& row = document.at("dtypes").at(n);
    cr_expect(row.at("name") == dtype.name);
    cr_expect(row.at("can_move") == (dtype.can_move == 1));
    cr_expect(row.at("can_score") == (dtype.can_score == 1));
    cr_expect(row.at("can_rotate") == (dtype.can_rotate == 1));
  }
  cr_expect(n == document.at("dtypes").size() && n >= 4);
}

Test(inspect_program, prints_the_page_of_parameters) {
  const Outcome run = Run("inspect --parameters");
  cr_expect(run.status == 0 && run.out == Page("parameters.md"),
            "docs/parameters.md is not what `kvevict inspect --parameters` "
            "prints");
}

Test(inspect_program, prints_tables) {
  const Outcome run = Run("inspect");
  cr_assert(run.status == 0, "%s", run.err.c_str());
  for (const char* word : {"kvevict ", "SIMD: ", "CUDA: ", "snapkv", "bf16"}) {
    cr_expect(run.out.find(word) != std::string::npos, "%s", word);
  }
  kvevict_gpu_info gpu = {};
  gpu.struct_size = sizeof(gpu);
  for (uint32_t i = 0; kvevict_gpu_at(i, &gpu) == KVEVICT_OK; ++i) {
    for (const char* word : {gpu.name, gpu.nvrtc, gpu.target, gpu.problem}) {
      cr_expect(run.out.find(word) != std::string::npos, "%s", word);
    }
  }
}

// The cells of a table's row, without blanks and backquotes.
std::vector<std::string> Cells(const std::string& row) {
  std::vector<std::string> cells;
  std::istringstream in(row.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t begin = cell.find_first_not_of(" `");
    const size_t end = cell.find_last_not_of(" `");
    cells.push_back(begin == cell.npos ? ""
                                       : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

// "a row of D elements": how many are stored together, in how many bytes.
std::pair<uint32_t, uint32_t> Block(const kvevict_dtype_info& info,
                                    const std::string& bytes) {
  unsigned n = 0, of = 0;
  if (std::sscanf(bytes.c_str(), "%u per %u", &n, &of) == 2) return {of, n};
  if (std::sscanf(bytes.c_str(), "D / %u", &of) == 1) return {of, 1};
  if (std::sscanf(bytes.c_str(), "%u D", &n) == 1) return {1, n};
  if (bytes == "D") return {1, 1};
  cr_expect(bytes == "row_bytes", "%s: %s", info.name, bytes.c_str());
  return {0, 0};
}

Test(inspect_program, docs_have_the_table_of_dtypes) {
  std::istringstream page(Page("dtypes.md"));
  std::string row;
  while (std::getline(page, row) && !row.starts_with("| dtype |")) {
  }
  std::getline(page, row);
  uint32_t n = 0;
  for (; std::getline(page, row) && row.starts_with("|"); ++n) {
    kvevict_dtype_info info = {};
    info.struct_size = sizeof(info);
    cr_assert(kvevict_dtype_at(n, &info) == KVEVICT_OK, "row %u", n);
    const std::vector<std::string> cells = Cells(row);
    cr_assert(cells.size() == 6, "%s", row.c_str());
    const std::string& scale = cells[3];
    cr_expect(cells[0] == info.name && info.dtype == static_cast<int>(n));
    const auto block = Block(info, cells[1]);
    cr_expect(
        block.first == info.block_elements && block.second == info.block_bytes,
        "%s: a row of D elements", info.name);
    cr_expect(info.element_bytes == (block.first == 1 ? info.block_bytes : 0),
              "%s", info.name);
    cr_expect(info.takes_scale == (scale.starts_with("scale;")  ? 2u
                                   : scale.starts_with("scale") ? 1u
                                                                : 0u),
              "%s: scale", info.name);
    cr_expect(info.takes_minimum == (scale.find("minimum") != scale.npos),
              "%s: minimum", info.name);
    cr_expect(info.can_move == 1, "%s", info.name);
    cr_expect(info.can_score == (cells[4] == "yes"), "%s", info.name);
    cr_expect(info.can_rotate == (cells[5] == "yes"), "%s", info.name);
  }
  kvevict_dtype_info past = {};
  past.struct_size = sizeof(past);
  cr_expect(n > 0 && kvevict_dtype_at(n, &past) != KVEVICT_OK, "%u rows", n);
}

}  // namespace
}  // namespace kvevict::tools
