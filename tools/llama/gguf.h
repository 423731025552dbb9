// The GGUF container: metadata and tensors.
#ifndef KVEVICT_TOOLS_LLAMA_GGUF_H_
#define KVEVICT_TOOLS_LLAMA_GGUF_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tools/llama/ggml_type.h"
#include "tools/llama/mapped_file.h"

namespace kvevict::tools {

// A metadata value. All integers widen to 64 bits and all floats to double, so
// callers need not care how a writer sized them.
using GgufValue =
    std::variant<uint64_t, int64_t, double, bool, std::string_view,
                 std::vector<uint64_t>, std::vector<int64_t>,
                 std::vector<double>, std::vector<bool>,
                 std::vector<std::string_view>>;

struct GgufTensor {
  std::string_view name;
  std::vector<uint64_t> dims;  // Innermost first, as the file has them.
  GgmlType type;
  std::span<const uint8_t> data;

  uint64_t n_elems() const;
};

// A GGUF file, version 2 or 3, little-endian. The whole directory is read and
// checked on opening: afterwards every tensor is known to lie in the file.
// Views point into the mapping and live as long as this object.
class GgufFile {
 public:
  // Throws std::runtime_error naming file, place and reason.
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return file_.path(); }

  // NULL if absent.
  const GgufValue* Find(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;
  const std::map<std::string_view, GgufTensor>& tensors() const {
    return tensors_;
  }

  // The value of `key` as a T, one of GgufValue's alternatives; throws if it is
  // absent or of another kind. A non-negative int64_t passes as uint64_t.
  template <typename T>
  T Get(std::string_view key) const;
  template <typename T>
  T GetOr(std::string_view key, T fallback) const {
    return Find(key) == nullptr ? fallback : Get<T>(key);
  }

  [[noreturn]] void Fail(const std::string& message) const;

 private:
  MappedFile file_;
  std::map<std::string_view, GgufValue> metadata_;
  std::map<std::string_view, GgufTensor> tensors_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_GGUF_H_
