// Saves and loads sequences in files and in memory.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "adapter.h"
#include "error.h"
#include "kvevict/batch.h"

using kvevict::llama::Bytes;
using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::LayerShape;
using kvevict::llama::Sequence;

namespace {

namespace fs = std::filesystem;

// Little-endian, as llama.cpp's own states are on the machines that it runs on.
struct Header {
  char magic[8] = {'K', 'V', 'E', 'L', 'L', 'A', 'M', 'A'};
  uint32_t version = 1;
  uint32_t rope_factors = 0;
  uint32_t next = 0;
  uint32_t evicted_at = 0;
  uint32_t n_cells = 0;
  uint32_t n_layers = 0;
  uint32_t layer_bytes = sizeof(LayerShape);
  uint32_t n_sinks = 0;
  uint64_t n_tokens = 0;
  uint64_t saved_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t checksum = 0;  // of all bytes, with this field as 0
};
static_assert(sizeof(Header) == 72);
static_assert(sizeof(LayerShape) == 80);

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// FNV-1a, eight bytes at a time.
class Checksum {
 public:
  void Add(std::span<const uint8_t> bytes) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i,
                  std::min<size_t>(8, bytes.size() - i));
      sum_ = (sum_ ^ word) * 0x100000001b3;
    }
  }
  uint64_t sum() const { return sum_; }

 private:
  uint64_t sum_ = 0xcbf29ce484222325;
};

template <typename T>
std::span<const uint8_t> AsBytes(std::span<const T> items) {
  return {reinterpret_cast<const uint8_t*>(items.data()), items.size_bytes()};
}

[[noreturn]] void FailSystem(const std::string& path) {
  Fail(KVEVICT_ERROR_UNAVAILABLE, path, ": ", std::strerror(errno));
}

// Follows a path's links, whether or not a file exists at their end. A path to
// a device or a pipe is not followed: links in /proc lead to no path.
fs::path Destination(fs::path path) {
  std::error_code error;
  if (fs::is_other(path, error)) return path;
  constexpr int kMostLinks = 40;
  for (int i = 0; fs::is_symlink(path, error); ++i) {
    if (i == kMostLinks) {
      errno = ELOOP;
      FailSystem(path.string());
    }
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

}  // namespace

// The parts of a session, in this order.
struct kvevict_llama::Session {
  Header header;
  std::vector<uint8_t> saved;
  Bytes memory;
  std::array<std::span<const uint8_t>, 6> parts;  // the header first
};

void kvevict_llama::Pack(llama_seq_id seq, std::span<const llama_token> tokens,
                         Session& out) {
  Sequence& s = Verify(seq);
  CheckRowsAreThere(seq);
  size_t n_saved = 0;
  Check(kvevict_sequence_save(s.handle.get(), nullptr, 0, &n_saved));
  out.saved.resize(n_saved);
  Check(kvevict_sequence_save(s.handle.get(), out.saved.data(), n_saved,
                              &n_saved));
  const std::span<const uint8_t> state = state_.Fetch(seq, out.memory);

  Header& header = out.header;
  header.next = s.next;
  header.evicted_at = s.evicted_at;
  header.n_cells = s.n_cells;
  header.n_layers = static_cast<uint32_t>(shapes_.size());
  header.n_sinks = static_cast<uint32_t>(sinks_.size());
  header.rope_factors = static_cast<uint32_t>(rope_factors_);
  header.n_tokens = tokens.size();
  header.saved_bytes = n_saved;
  header.state_bytes = state.size();
  out.parts = {AsBytes(std::span<const Header>(&header, 1)),
               AsBytes(std::span<const LayerShape>(shapes_)),
               AsBytes(std::span<const float>(sinks_)),
               AsBytes(tokens),
               out.saved,
               state};
  Checksum checksum;
  for (const auto& part : out.parts) checksum.Add(part);
  header.checksum = checksum.sum();
}

void kvevict_llama::Save(llama_seq_id seq, const char* path,
                         std::span<const llama_token> tokens) {
  Session session;
  Pack(seq, tokens, session);
  const fs::path at = Destination(path);
  std::error_code error;
  const bool is_file = !fs::exists(at, error) || fs::is_regular_file(at, error);
  const std::string unfinished = at.string() + (is_file ? ".part" : "");
  File file(std::fopen(unfinished.c_str(), "wb"));
  if (file == nullptr) FailSystem(unfinished);
  bool written = true;
  for (const auto& part : session.parts) {
    written = written && std::fwrite(part.data(), 1, part.size(), file.get()) ==
                             part.size();
  }
  if (std::fclose(file.release()) == 0 && written &&
      (!is_file || std::rename(unfinished.c_str(), at.string().c_str()) == 0)) {
    return;
  }
  const int reason = errno;
  if (is_file) std::remove(unfinished.c_str());
  errno = reason;
  FailSystem(path);
}

size_t kvevict_llama::SaveData(llama_seq_id seq,
                               std::span<const llama_token> tokens,
                               std::span<uint8_t> data) {
  Session session;
  Pack(seq, tokens, session);
  size_t n_bytes = 0;
  for (const auto& part : session.parts) n_bytes += part.size();
  if (data.data() == nullptr) return n_bytes;
  if (data.size() < n_bytes) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "capacity ", data.size(), " < ",
         n_bytes, " bytes of the session");
  }
  uint8_t* out = data.data();
  for (const auto& part : session.parts) {
    out = std::copy(part.begin(), part.end(), out);
  }
  return n_bytes;
}

size_t kvevict_llama::Load(llama_seq_id seq, const char* path,
                           std::span<llama_token> tokens) {
  const File file(std::fopen(path, "rb"));
  if (file == nullptr) FailSystem(path);
  std::error_code error;
  const uint64_t n_bytes = std::filesystem::file_size(path, error);
  if (error) {
    Fail(KVEVICT_ERROR_UNAVAILABLE, path, ": ", error.message());
  }
  Bytes memory;
  memory.Reserve(n_bytes);
  if (std::fread(memory.data(), 1, n_bytes, file.get()) != n_bytes) {
    FailSystem(path);
  }
  return LoadData(seq, path, {memory.data(), n_bytes}, tokens);
}

size_t kvevict_llama::LoadData(llama_seq_id seq, const char* name,
                               std::span<const uint8_t> data,
                               std::span<llama_token> tokens) {
  const auto refuse = [&](const char* why) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, name, ": ", why);
  };
  Header header;
  const Header expected;
  if (data.size() < sizeof header) refuse("is no session of kvevict-llama");
  std::memcpy(&header, data.data(), sizeof header);
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0) {
    refuse("is no session of kvevict-llama");
  }
  if (header.version != expected.version ||
      header.layer_bytes != expected.layer_bytes) {
    refuse("is of another version");
  }
  // The sum of damaged sizes must not overflow.
  const uint64_t n_bytes = data.size();
  const uint64_t layers_bytes = uint64_t{header.n_layers} * sizeof(LayerShape);
  const uint64_t sinks_bytes = uint64_t{header.n_sinks} * sizeof(float);
  if (header.n_layers == 0 || header.n_tokens > n_bytes / 4 ||
      header.saved_bytes > n_bytes || header.state_bytes > n_bytes ||
      sizeof header + layers_bytes + sinks_bytes + header.n_tokens * 4 +
              header.saved_bytes + header.state_bytes !=
          n_bytes) {
    refuse("is cut off or damaged: its length is not the one it states");
  }
  size_t at = sizeof header;
  const auto take = [&](uint64_t n) {
    const auto part = data.subspan(at, n);
    at += n;
    return part;
  };
  const auto layer_bytes = take(layers_bytes);
  const auto sink_bytes = take(sinks_bytes);
  const auto token_bytes = take(header.n_tokens * 4);
  const auto saved = take(header.saved_bytes);
  const auto state = take(header.state_bytes);
  const uint64_t written = std::exchange(header.checksum, 0);
  Checksum checksum;
  checksum.Add(AsBytes(std::span<const Header>(&header, 1)));
  for (const auto& part :
       {layer_bytes, sink_bytes, token_bytes, saved, state}) {
    checksum.Add(part);
  }
  if (checksum.sum() != written) refuse("is damaged");
  if (!tokens.empty() && tokens.size() < header.n_tokens) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, name, ": tokens_capacity ",
         tokens.size(), " < ", header.n_tokens, " saved tokens");
  }

  std::vector<LayerShape> shapes(header.n_layers);
  std::memcpy(shapes.data(), layer_bytes.data(), layers_bytes);
  std::vector<float> sinks(header.n_sinks);
  if (!sinks.empty()) std::memcpy(sinks.data(), sink_bytes.data(), sinks_bytes);
  Receive(seq, {.shapes = shapes,
                .sinks = sinks,
                .saved = saved,
                .state = state,
                .next = header.next,
                .evicted_at = header.evicted_at,
                .n_cells = header.n_cells,
                .rope_factors = static_cast<RopeFactors>(header.rope_factors)});
  if (!tokens.empty()) {
    std::memcpy(tokens.data(), token_bytes.data(), token_bytes.size());
  }
  return header.n_tokens;
}
