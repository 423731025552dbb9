// record TABLE SCRIPT...: makes the calls of scripts through the C API and prints
// them with what came out. The table is that of pkg/abi/table.sh. README.md of this folder has the format.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <set>

#include "bindings/transcript/calls.h"

namespace transcript {
namespace {

class Recorder {
 public:
  explicit Recorder(const Structs& structs) : objects_(structs) {
    AddTables(&calls_);
    AddSequences(&calls_);
    AddPaged(&calls_);
  }

  /// A line of a script. One that begins with "! " is a call that has to fail.
  void Run(std::string text) {
    const bool has_to_fail = text.rfind("! ", 0) == 0;
    if (has_to_fail) text = text.substr(2);
    Line line(text);
    std::cout << text << "\n";
    const auto call = calls_.find(line.name());
    if (call == calls_.end()) {
      objects_.Define(line);
      return;
    }
    Results results;
    const kvevict_status status = call->second(line, objects_, results);
    line.CheckUsed();
    const std::string message = kvevict_last_error_message();
    if ((status != KVEVICT_OK) != has_to_fail) {
      line.Fail(has_to_fail ? "it succeeds" : message);
    }
    if (has_to_fail) {
      results = Results();
      results.Add("status", status);
      results.Add("message", message);
    }
    for (const auto& [name, hash] : objects_.Changed()) {
      if (has_to_fail) line.Fail(name + " has changed");
      results.Add("@" + name, hash);
    }
    std::cout << (has_to_fail ? "!" : "=") << results.text() << "\n";
    objects_.Forget();
  }

  void Finish() { objects_.CheckUsed(); }

 private:
  Calls calls_;
  Objects objects_;
};

}  // namespace
}  // namespace transcript

int main(int argc, char** argv) {
  int number = 0;
  std::string file;
  try {
    if (argc < 2) throw std::runtime_error("record TABLE SCRIPT...");
    const transcript::Structs structs = transcript::ReadStructs(argv[1]);
    for (int i = 2; i < argc; ++i) {
      file = argv[i];
      number = 0;
      std::ifstream in(file);
      if (!in) throw std::runtime_error("cannot be read");
      transcript::Recorder recorder(structs);  // names are those of one script
      std::cout << "script name=" << file.substr(file.rfind('/') + 1) << "\n";
      for (std::string text; std::getline(in, text);) {
        ++number;
        if (text.empty() || text[0] == '#') continue;
        recorder.Run(text);
      }
      recorder.Finish();
    }
  } catch (const std::exception& error) {
    std::cerr << file << ":" << number << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}
