// Bounds-checked reading of a file's bytes.
#ifndef KVEVICT_TOOLS_ENGINE_BYTE_READER_H_
#define KVEVICT_TOOLS_ENGINE_BYTE_READER_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvevict::tools {

static_assert(std::endian::native == std::endian::little,
              "model files are little-endian and read as they lie");

// Reads a file's bytes from front to back. Every read is checked against the
// end; every error names the file, the offset and what was being read.
class ByteReader {
 public:
  ByteReader(std::string file_name, std::span<const uint8_t> bytes)
      : file_name_(std::move(file_name)), bytes_(bytes) {}

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }

  // The next `n` bytes; `what` completes the sentence "... reading <what>".
  std::span<const uint8_t> Take(uint64_t n, std::string_view what) {
    if (n > remaining()) {
      Fail("file is truncated: reading " + std::string(what) + " needs " +
           std::to_string(n) + " bytes, " + std::to_string(remaining()) +
           " remain");
    }
    const auto taken = bytes_.subspan(offset_, n);
    offset_ += n;
    return taken;
  }

  template <typename T>
  T Read(std::string_view what) {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, Take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  [[noreturn]] void Fail(const std::string& message) const {
    throw std::runtime_error(file_name_ + ": at byte " +
                             std::to_string(offset_) + ": " + message);
  }

 private:
  std::string file_name_;
  std::span<const uint8_t> bytes_;
  size_t offset_ = 0;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_BYTE_READER_H_
