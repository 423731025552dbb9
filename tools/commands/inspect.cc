// `kvevict inspect`: shows what this library is and can do on this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tools/commands/commands.h"
#include "tools/commands/parameters.h"
#include "tools/engine/text_table.h"

namespace kvevict::tools {
namespace {

// The rows of one of the library's tables: at(0), at(1), ... until it fails.
template <typename Info>
std::vector<Info> Enumerate(kvevict_status (*at)(uint32_t, Info*)) {
  std::vector<Info> rows;
  while (true) {
    Info info = {};
    info.struct_size = sizeof(info);
    if (at(static_cast<uint32_t>(rows.size()), &info) != KVEVICT_OK) break;
    rows.push_back(info);
  }
  return rows;
}

struct Inspection {
  std::vector<std::string> simd_targets;  // the first one is active
  std::string cuda_problem;               // empty: available
  std::vector<kvevict_gpu_info> gpus;
  std::vector<kvevict_policy_info> policies;
  std::vector<kvevict_preset_info> presets;
  std::vector<kvevict_dtype_info> dtypes;
};

Inspection Inspect() {
  Inspection found;
  for (uint32_t i = 0; const char* name = kvevict_simd_target_at(i); ++i) {
    found.simd_targets.emplace_back(name);
  }
  if (kvevict_device_check(KVEVICT_DEVICE_CUDA) != KVEVICT_OK) {
    found.cuda_problem = kvevict_last_error_message();
  }
  found.gpus = Enumerate(kvevict_gpu_at);
  found.policies = Enumerate(kvevict_policy_at);
  found.presets = Enumerate(kvevict_preset_at);
  found.dtypes = Enumerate(kvevict_dtype_at);
  return found;
}

// 12040 is "12.4".
std::string CudaVersion(uint32_t version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// 90 is "9.0".
std::string Capability(const kvevict_gpu_info& gpu) {
  return fmt::format("{}.{}", gpu.compute_capability / 10,
                     gpu.compute_capability % 10);
}

nlohmann::ordered_json ToJson(const Inspection& found) {
  using Json = nlohmann::ordered_json;
  Json cuda = {{"available", found.cuda_problem.empty()}};
  if (!found.cuda_problem.empty()) cuda["reason"] = found.cuda_problem;
  cuda["gpus"] = Json::array();
  for (const kvevict_gpu_info& gpu : found.gpus) {
    Json row = {{"name", gpu.name},
                {"compute_capability", Capability(gpu)},
                {"driver", CudaVersion(gpu.driver_version)}};
    if (gpu.problem[0] != '\0') {
      row["problem"] = gpu.problem;
    } else {
      row["nvrtc"] = CudaVersion(gpu.nvrtc_version);
      row["libnvrtc"] = gpu.nvrtc;
      row["target"] = gpu.target;
    }
    cuda["gpus"].push_back(row);
  }
  Json policies = Json::array();
  for (const kvevict_policy_info& p : found.policies) {
    policies.push_back({{"name", p.name},
                        {"signal", p.signal},
                        {"reads", InputsOf(p.name)},
                        {"summary", p.summary},
                        {"trigger", p.trigger},
                        {"paper", p.paper}});
  }
  Json parameters = Json::array();
  for (const kvevict_parameter_info& p : Parameters()) {
    parameters.push_back({{"key", p.key},
                          {"values", ValuesOf(p)},
                          {"default", p.default_text},
                          {"doc", p.doc}});
  }
  Json presets = Json::array();
  for (const kvevict_preset_info& p : found.presets) {
    presets.push_back({{"name", p.name},
                       {"policy", p.policy_text},
                       {"reproduces", p.reproduces}});
  }
  Json dtypes = Json::array();
  for (const kvevict_dtype_info& d : found.dtypes) {
    dtypes.push_back({{"name", d.name},
                      {"element_bytes", d.element_bytes},
                      {"block_elements", d.block_elements},
                      {"block_bytes", d.block_bytes},
                      {"can_move", d.can_move != 0},
                      {"can_score", d.can_score != 0},
                      {"can_rotate", d.can_rotate != 0}});
  }
  return {{"version", kvevict_version()},
          {"abi_version", kvevict_abi_version()},
          {"simd",
           {{"active", found.simd_targets.front()},
            {"targets", found.simd_targets}}},
          {"cuda", cuda},
          {"policies", policies},
          {"parameters", parameters},
          {"presets", presets},
          {"dtypes", dtypes}};
}

std::string ToText(const Inspection& found) {
  std::string text = fmt::format(
      "kvevict {}, ABI {}\nSIMD: {} (of {})\nCUDA: {}\n", kvevict_version(),
      kvevict_abi_version(), found.simd_targets.front(),
      fmt::join(found.simd_targets, ", "),
      found.cuda_problem.empty() ? "available" : found.cuda_problem);

  constexpr auto kLeft = TextTable::Align::kLeft;
  TextTable gpus({{"GPU"},
                  {"name", kLeft},
                  {"capability"},
                  {"driver"},
                  {"NVRTC"},
                  {"kernels", kLeft}});
  for (const kvevict_gpu_info& gpu : found.gpus) {
    const bool usable = gpu.problem[0] == '\0';
    gpus.AddRow({std::to_string(&gpu - found.gpus.data()), gpu.name,
                 Capability(gpu), CudaVersion(gpu.driver_version),
                 usable ? CudaVersion(gpu.nvrtc_version) : "-",
                 usable ? fmt::format("{} by {}", gpu.target, gpu.nvrtc)
                        : gpu.problem});
  }
  if (!found.gpus.empty()) text += "\n" + gpus.ToString();
  TextTable policies({{"policy", kLeft},
                      {"keeps", kLeft},
                      {"reads", kLeft},
                      {"trigger", kLeft},
                      {"paper", kLeft}});
  for (const kvevict_policy_info& p : found.policies) {
    policies.AddRow({p.name, p.summary,
                     fmt::format("{}", fmt::join(InputsOf(p.name), ", ")),
                     p.trigger, p.paper});
  }
  TextTable presets(
      {{"preset", kLeft}, {"policy", kLeft}, {"reproduces", kLeft}});
  for (const kvevict_preset_info& p : found.presets) {
    presets.AddRow({p.name, p.policy_text, p.reproduces});
  }
  const auto yes_no = [](uint32_t flag) { return flag != 0 ? "yes" : "no"; };
  TextTable dtypes({{"dtype", kLeft},
                    {"bytes"},
                    {"move", kLeft},
                    {"score", kLeft},
                    {"rotate", kLeft}});
  for (const kvevict_dtype_info& d : found.dtypes) {
    dtypes.AddRow({d.name,
                   d.block_elements > 1
                       ? fmt::format("{}/{}", d.block_bytes, d.block_elements)
                   : d.element_bytes != 0 ? std::to_string(d.element_bytes)
                                          : "-",
                   yes_no(d.can_move), yes_no(d.can_score),
                   yes_no(d.can_rotate)});
  }
  return text + "\n" + policies.ToString() + "\n" + presets.ToString() + "\n" +
         dtypes.ToString();
}

}  // namespace

void AddInspectCommand(CLI::App& app, Action& action) {
  CLI::App* inspect =
      app.add_subcommand("inspect",
                         "Lists GPUs, SIMD targets, policies, their "
                         "parameters, presets and dtypes");
  const CLI::Option* json = inspect->add_flag("--json")->description(
      "One JSON document instead of tables");
  const CLI::Option* parameters =
      inspect->add_flag("--parameters")
          ->description("What each parameter of policies is, as a page");
  inspect->callback([json, parameters, &action] {
    if (parameters->count() > 0) {
      action = ParametersPage;
      return;
    }
    action = [as_json = json->count() > 0] {
      const Inspection found = Inspect();
      return as_json ? ToJson(found).dump(2) + "\n" : ToText(found);
    };
  });
}

}  // namespace kvevict::tools
