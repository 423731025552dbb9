#include "tools/calibration/zip.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tools/engine/byte_reader.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kLocal = 0x04034b50;
constexpr uint32_t kCentral = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr size_t kEndBytes = 22;
constexpr size_t kMostComment = 65535;

uint32_t At(std::span<const uint8_t> bytes, size_t offset) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// The offset of the last record, which a comment may follow.
size_t FindEnd(const ByteReader& reader, std::span<const uint8_t> bytes) {
  for (size_t back = kEndBytes; back <= bytes.size(); ++back) {
    if (back > kEndBytes + kMostComment) break;
    if (At(bytes, bytes.size() - back) == kEnd) return bytes.size() - back;
  }
  reader.Fail("the archive has no end: it is truncated");
}

struct Entry {
  std::string name;
  uint32_t checksum;
  uint32_t size;
  uint32_t offset;  // of the header before it
};

std::string Name(ByteReader& reader, size_t n) {
  const auto bytes = reader.Take(n, "an entry's name");
  return {bytes.begin(), bytes.end()};
}

// Reads an entry of the archive's directory.
Entry ReadEntry(ByteReader& reader) {
  if (reader.Read<uint32_t>("an entry") != kCentral) {
    reader.Fail("the archive's directory is damaged");
  }
  reader.Take(6, "an entry");  // versions, flags
  const auto method = reader.Read<uint16_t>("an entry");
  reader.Take(4, "an entry");  // time
  Entry entry;
  entry.checksum = reader.Read<uint32_t>("an entry");
  entry.size = reader.Read<uint32_t>("an entry");
  const auto full_size = reader.Read<uint32_t>("an entry");
  const auto n_name = reader.Read<uint16_t>("an entry");
  const auto n_extra = reader.Read<uint16_t>("an entry");
  const auto n_comment = reader.Read<uint16_t>("an entry");
  reader.Take(8, "an entry");  // disk, attributes
  entry.offset = reader.Read<uint32_t>("an entry");
  entry.name = Name(reader, n_name);
  reader.Take(size_t{n_extra} + n_comment, "an entry");
  if (entry.size == UINT32_MAX || entry.offset == UINT32_MAX) {
    reader.Fail(entry.name + " is beyond 4 GiB");
  }
  if (method != 0 || entry.size != full_size) {
    reader.Fail(entry.name + " is compressed, as PyTorch never does");
  }
  return entry;
}

// The bytes of an entry.
std::span<const uint8_t> Content(const std::string& path,
                                 std::span<const uint8_t> bytes,
                                 const Entry& entry) {
  ByteReader reader(path, bytes);
  reader.Take(entry.offset, entry.name);
  if (reader.Read<uint32_t>(entry.name) != kLocal) {
    reader.Fail(entry.name + " is not where the directory says");
  }
  reader.Take(22, entry.name);
  const auto n_name = reader.Read<uint16_t>(entry.name);
  const auto n_extra = reader.Read<uint16_t>(entry.name);
  reader.Take(size_t{n_name} + n_extra, entry.name);
  return reader.Take(entry.size, entry.name);
}

// Checks that entries share no byte, so that reading all of them takes time
// linear in the file.
void CheckApart(const ByteReader& reader,
                std::vector<std::span<const uint8_t>> contents) {
  std::sort(contents.begin(), contents.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  const uint8_t* end = nullptr;
  for (const auto& content : contents) {
    if (content.empty()) continue;
    if (end != nullptr && content.data() < end) {
      reader.Fail("the archive's entries overlap");
    }
    end = content.data() + content.size();
  }
}

}  // namespace

bool IsZip(std::span<const uint8_t> bytes) {
  return bytes.size() >= kEndBytes && At(bytes, 0) == kLocal;
}

std::map<std::string, std::span<const uint8_t>> ReadZip(
    const std::string& path, std::span<const uint8_t> bytes) {
  ByteReader end(path, bytes);
  end.Take(FindEnd(end, bytes) + 10, "the archive's end");
  const auto n_entries = end.Read<uint16_t>("the archive's end");
  end.Take(4, "the archive's end");
  const auto directory = end.Read<uint32_t>("the archive's end");
  ByteReader reader(path, bytes);
  reader.Take(directory, "the archive's directory");
  std::map<std::string, std::span<const uint8_t>> entries;
  std::vector<Entry> listed;
  std::vector<std::span<const uint8_t>> contents;
  for (uint32_t i = 0; i < n_entries; ++i) {
    listed.push_back(ReadEntry(reader));
    contents.push_back(Content(path, bytes, listed.back()));
    if (!entries.emplace(listed.back().name, contents.back()).second) {
      reader.Fail(listed.back().name + " is there twice");
    }
  }
  CheckApart(reader, contents);
  for (const Entry& entry : listed) {
    if (Crc32(entries[entry.name]) == entry.checksum) continue;
    reader.Fail(entry.name + " is damaged: its checksum is another");
  }
  return entries;
}

uint32_t Crc32(std::span<const uint8_t> bytes) {
  uint32_t crc = UINT32_MAX;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
    }
  }
  return ~crc;
}

}  // namespace kvevict::tools
