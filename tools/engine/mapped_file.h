// A file in memory.
#ifndef KVEVICT_TOOLS_ENGINE_MAPPED_FILE_H_
#define KVEVICT_TOOLS_ENGINE_MAPPED_FILE_H_

#include <cstdint>
#include <span>
#include <string>

#include "tools/engine/platform.h"

namespace kvevict::tools {

// A file mapped read-only for the life of the object. An empty file is a valid
// mapping of zero bytes.
class MappedFile {
 public:
  // Throws std::runtime_error naming the path and the reason.
  explicit MappedFile(const std::string& path)
      : path_(path), mapping_(MapFile(path)) {}
  ~MappedFile() { UnmapFile(mapping_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const {
    return {mapping_.data, mapping_.size};
  }

 private:
  std::string path_;
  Mapping mapping_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_MAPPED_FILE_H_
