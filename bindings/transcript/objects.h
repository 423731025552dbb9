// What lines name: buffers, structs and handles.
#ifndef KVEVICT_BINDINGS_TRANSCRIPT_OBJECTS_H_
#define KVEVICT_BINDINGS_TRANSCRIPT_OBJECTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/transcript/line.h"
#include "bindings/transcript/structs.h"
#include "kvevict/all.h"

namespace transcript {

/// Memory that calls read or write. It begins at a multiple of 256 bytes.
class Buffer {
 public:
  Buffer(const std::string& type, std::size_t length);

  template <class T>
  T* at() const {
    return reinterpret_cast<T*>(data_);
  }
  /// Draws elements by a counter; see README.md of this folder.
  void Draw(uint32_t seed);
  /// FNV-1a of its bytes; addresses do not count.
  uint64_t Hash() const;

  std::string type;
  std::size_t length;
  std::size_t bytes;
  uint64_t seen = 0;  // hash after the last call

 private:
  std::unique_ptr<uint8_t[]> memory_;
  uint8_t* data_;
};

inline void Destroy(kvevict_context* p) { kvevict_context_destroy(p); }
inline void Destroy(kvevict_policy* p) { kvevict_policy_destroy(p); }
inline void Destroy(kvevict_plan* p) { kvevict_plan_destroy(p); }
inline void Destroy(kvevict_sequence* p) { kvevict_sequence_destroy(p); }
inline void Destroy(kvevict_calibration* p) { kvevict_calibration_destroy(p); }
inline void Destroy(kvevict_paged_cache* p) { kvevict_paged_cache_destroy(p); }
inline void Destroy(kvevict_paged_sequence* p) {
  kvevict_paged_sequence_destroy(p);
}

/// Handles of one kind by name, destroyed at the end.
template <class T>
class Handles {
 public:
  ~Handles() {
    for (auto& [name, handle] : handles_) Destroy(handle);
  }
  void Put(const std::string& name, T* handle) { handles_[name] = handle; }
  T* Get(const std::string& name) const { return handles_.at(name); }
  void End(const std::string& name) {
    Destroy(handles_.at(name));
    handles_.erase(name);
  }

 private:
  std::map<std::string, T*> handles_;
};

/// A workspace: any content, aligned, not part of what is recorded.
struct Scratch {
  std::unique_ptr<uint8_t[]> memory;
  void* data = nullptr;
  std::size_t bytes = 0;
};
Scratch MakeScratch(std::size_t bytes);

class Objects {
  // Before the handles: it outlives them.
  std::map<std::string, std::unique_ptr<Buffer>> buffers_;
  std::tuple<Handles<kvevict_context>, Handles<kvevict_policy>,
             Handles<kvevict_plan>, Handles<kvevict_sequence>,
             Handles<kvevict_calibration>, Handles<kvevict_paged_cache>,
             Handles<kvevict_paged_sequence>>
      handles_;

 public:
  explicit Objects(const Structs& structs) : structs_(structs) {}

  /// Remembers a struct, or makes a buffer.
  void Define(const Line& line);
  /// The names and hashes of buffers that have changed since the last call.
  std::vector<std::pair<std::string, uint64_t>> Changed();
  /// Frees what the structs of the last call point to.
  void Forget() { kept_.clear(); }
  /// Throws if a key of a struct has not been read by any call.
  void CheckUsed() const {
    for (const auto& [name, line] : lines_) line.CheckUsed();
  }
  void Put(const std::string& name, std::unique_ptr<Buffer> buffer) {
    buffers_[name] = std::move(buffer);
  }

  Buffer& BufferOf(const std::string& name) const;
  template <class T>
  T* Data(const std::string& name) const {
    return name.empty() ? nullptr : BufferOf(name).at<T>();
  }
  std::size_t Length(const std::string& name) const {
    return name.empty() ? 0 : BufferOf(name).length;
  }

  /// Structs of names, one after another, from lines of that kind. They live until
  /// Forget(). NULL without names; "-" is a struct with only its size.
  void* Build(const std::string& kind, const std::vector<std::string>& names);
  template <class T>
  const T* All(const std::string& kind, const std::vector<std::string>& names) {
    return static_cast<const T*>(Build("kvevict_" + kind, names));
  }
  template <class T>
  const T* One(const std::string& kind, const std::string& name) {
    return name.empty() ? nullptr : All<T>(kind, {name});
  }
  Line& LineOf(const std::string& kind, const std::string& name);

  /// Memory for the structs of one call.
  template <class T>
  T* Keep(std::size_t n, const T& value) {
    auto memory = std::make_shared<std::vector<T>>(n, value);
    kept_.push_back(memory);
    return memory->data();
  }

  template <class T>
  Handles<T>& all() {
    return std::get<Handles<T>>(handles_);
  }
  template <class T>
  static constexpr bool IsHandle() {
    return requires(T * handle) { Destroy(handle); };
  }
  std::map<std::string, kvevict_view> cached_views;

 private:
  void PutField(const Struct& type, const Field& field, Line& line,
                uint8_t* at);
  const void* PointerTo(const std::string& type, Line& line,
                        const std::string& key, std::size_t* length);
  const uint8_t* BuildOne(const std::string& kind, const std::string& name);
  kvevict_position_lists PositionLists(Line& line);

  Structs structs_;
  std::map<std::string, Line> lines_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace transcript

#endif  // KVEVICT_BINDINGS_TRANSCRIPT_OBJECTS_H_
