#include "wording.h"

#include <map>
#include <stdexcept>

#include "arguments.h"

namespace kvevict::llama_cli::eval {
namespace {

using nlohmann::json;

void Replace(std::string& text, const std::string& what,
             const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos;
       at += by.size()) {
    text.replace(at, what.size(), by);
  }
}

bool Has(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

// The reason why a wording cannot work, or "".
std::string Problem(const Wording& w) {
  if (!Has(w.fact, "{number}")) return "\"fact\" has no {number}";
  for (const auto& [name, text] :
       {std::pair("fact", &w.fact), std::pair("question", &w.question),
        std::pair("answer", &w.answer)}) {
    const std::string filled = Fill(*text, "", "", "");
    if (const size_t at = filled.find('{'); at != std::string::npos) {
      return "\"" + std::string(name) + "\" has " +
             filled.substr(at, filled.find('}', at) + 1 - at) +
             "; {adjective}, {noun} and {number} are filled in";
    }
    if (name != std::string("fact") && Has(*text, "{number}")) {
      return "\"" + std::string(name) + "\" gives the {number} away";
    }
  }
  return w.answer.empty() ? "\"answer\" is empty" : "";
}

}  // namespace

Wording ReadWording(const std::string& path) {
  Wording wording;
  const std::map<std::string, std::string*> texts = {
      {"system", &wording.system},
      {"introduction", &wording.introduction},
      {"fact", &wording.fact},
      {"question", &wording.question},
      {"answer", &wording.answer}};
  try {
    const json document = json::parse(ReadText(path));
    for (const auto& [name, value] : document.items()) {
      if (name == "haystack") {
        wording.haystack = value.get<std::vector<std::string>>();
      } else if (const auto text = texts.find(name); text != texts.end()) {
        *text->second = value.get<std::string>();
      } else {
        throw std::runtime_error("no member is called \"" + name + "\"");
      }
    }
    const std::string problem = Problem(wording);
    if (!problem.empty()) throw std::runtime_error(problem);
  } catch (const std::exception& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
  return wording;
}

json Describe(const Wording& w) {
  return {{"system", w.system}, {"introduction", w.introduction},
          {"fact", w.fact},     {"question", w.question},
          {"answer", w.answer}, {"haystack", w.haystack}};
}

std::string Fill(std::string text, const std::string& adjective,
                 const std::string& noun, const std::string& number) {
  Replace(text, "{adjective}", adjective);
  Replace(text, "{noun}", noun);
  Replace(text, "{number}", number);
  return text;
}

}  // namespace kvevict::llama_cli::eval
