// kvevict_pages: writes the program's manual page and its completion for bash
// from the command line parser itself.
//
//   kvevict_pages man TEMPLATE   the template with @VERSION@ and @COMMANDS@ set
//   kvevict_pages bash
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kvevict/experimental.h"
#include "tools/commands/commands.h"
#include "tools/commands/output.h"

namespace kvevict::tools {
namespace {

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

bool TakesValue(const CLI::Option& option) {
  return !option.get_type_name().empty();  // a flag has none
}

// ---- The manual page ----

// Escapes text for roff.
std::string Roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '-' || c == '\\') out += '\\';
    out += c == '\\' ? 'e' : c;
  }
  return out;
}

std::string Entry(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) {
    names += fmt::format("{}\\fB\\-{}\\fR", names.empty() ? "" : ", ", name);
  }
  for (const std::string& name : option.get_lnames()) {
    names += fmt::format("{}\\fB\\-\\-{}\\fR", names.empty() ? "" : ", ",
                         Roff(name));
  }
  if (TakesValue(option)) {
    names += fmt::format("{}\\fI{}\\fR", names.empty() ? "" : " ",
                         Roff(option.get_type_name()));
  }
  return fmt::format(".TP\n{}\n{}\n", names, Roff(option.get_description()));
}

std::string Manual(const CLI::App& app) {
  std::string text;
  const auto add_options = [&](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) text += Entry(*option);
  };
  add_options(app);
  for (const CLI::App* command : Commands(app)) {
    std::string usage;
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional()) usage += " " + option->get_type_name();
    }
    text += fmt::format(".SS kvevict {}{} [options]\n{}\n", command->get_name(),
                        usage, Roff(command->get_description() + "."));
    add_options(*command);
  }
  return text;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return text;
}

void FillIn(std::string& page, std::string_view place,
            const std::string& text) {
  const size_t at = page.find(place);
  if (at == std::string::npos) {
    throw std::runtime_error(fmt::format("no {} in the template", place));
  }
  page.replace(at, place.size(), text);
}

// ---- Completion ----

std::string PolicyNames() {
  std::string names;
  kvevict_policy_info policy = {};
  policy.struct_size = sizeof(policy);
  for (uint32_t i = 0; kvevict_policy_at(i, &policy) == KVEVICT_OK; ++i) {
    names += std::string(names.empty() ? "" : " ") + policy.name;
  }
  kvevict_preset_info preset = {};
  preset.struct_size = sizeof(preset);
  for (uint32_t i = 0; kvevict_preset_at(i, &preset) == KVEVICT_OK; ++i) {
    names += std::string(" ") + preset.name;
  }
  return names;
}

// The values of an option, as arguments of compgen; "" if they are not known.
std::string ValuesOf(const CLI::Option& option) {
  std::string type = option.get_type_name();
  if (type == "FILE") return "-f";
  if (type == "POLICY") return fmt::format("-W '{}'", PolicyNames());
  if (type.find('|') == std::string::npos) return "";
  std::replace(type.begin(), type.end(), '|', ' ');
  return fmt::format("-W '{}'", type);
}

std::string Completion(const CLI::App& app) {
  std::string names;         // of commands, as a pattern
  std::string values;        // cases: values of an option of a command
  std::string words;         // cases: words that a command takes
  bool takes_files = false;  // the current command takes files
  const auto add = [&](const CLI::App& of, const std::string& name) {
    std::string own;
    takes_files = false;
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& lname : option->get_lnames()) {
        own += " --" + lname;
        if (!TakesValue(*option)) continue;
        values += fmt::format("    {},--{}) reply {}; return ;;\n", name, lname,
                              ValuesOf(*option));
      }
      if (!option->get_positional()) continue;
      const std::string type = option->get_type_name();
      if (type == "POLICY") own += " " + PolicyNames();
      takes_files = takes_files || type == "FILE";
    }
    return own;
  };
  std::string top = add(app, "");
  for (const CLI::App* command : Commands(app)) {
    const std::string& name = command->get_name();
    names += (names.empty() ? "" : "|") + name;
    top += " " + name;
    const std::string own = add(*command, name).substr(1);
    words += fmt::format("    {}) reply {}-W '{}' ;;\n", name,
                         takes_files ? "-f " : "", own);
  }
  return fmt::format(R"(# Completion of kvevict for bash.
_kvevict() {{
  local word command= current=${{COMP_WORDS[COMP_CWORD]}}
  # What compgen makes of its arguments; nothing without any.
  reply() {{
    COMPREPLY=()
    [[ $# -eq 0 ]] || mapfile -t COMPREPLY < <(compgen "$@" -- "$current")
    [[ ${{1-}} != -f ]] || compopt -o filenames 2>/dev/null
  }}
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in {}) command=$word && break ;; esac
  done
  case $command,${{COMP_WORDS[COMP_CWORD-1]}} in
{}  esac
  case $command in
{}    *) reply -W '{}' ;;
  esac
}}
complete -F _kvevict kvevict
)",
                     names, values, words, top.substr(1));
}

std::string Page(const std::vector<std::string>& arguments) {
  CLI::App app;
  Action action;
  AddCommands(app, action);
  if (arguments == std::vector<std::string>{"bash"}) return Completion(app);
  if (arguments.size() == 2 && arguments[0] == "man") {
    std::string page = ReadFile(arguments[1]);
    FillIn(page, "@VERSION@", kvevict_version());
    FillIn(page, "@COMMANDS@\n", Manual(app));
    return page;
  }
  throw std::invalid_argument("usage: kvevict_pages man TEMPLATE | bash");
}

}  // namespace
}  // namespace kvevict::tools

int main(int argc, char** argv) {
  try {
    kvevict::tools::WriteOutput(kvevict::tools::Page({argv + 1, argv + argc}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvevict_pages: %s\n", error.what());
    return 1;
  }
}
