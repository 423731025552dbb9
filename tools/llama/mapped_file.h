// A file in memory.
#ifndef KVEVICT_TOOLS_LLAMA_MAPPED_FILE_H_
#define KVEVICT_TOOLS_LLAMA_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvevict::tools {

// A file mapped read-only for the life of the object. An empty file is a valid
// mapping of zero bytes.
class MappedFile {
 public:
  // Throws std::runtime_error naming the path and the reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_MAPPED_FILE_H_
