#include "tools/replay/safetensors.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/engine/byte_reader.h"

namespace kvevict::tools {
namespace {

using nlohmann::json;

// Headers of the largest models have 1 MiB. Parsed, a header takes up to some
// 30 times its size.
constexpr uint64_t kMostHeaderBytes = 16 << 20;

// Bytes of an element, or 0 for types that are never read.
uint64_t ElementBytes(const Tensor& tensor) {
  const auto dtype = tensor.dtype();
  return dtype ? static_cast<uint64_t>(kvevict_row_bytes(*dtype, 1)) : 0;
}

std::vector<uint64_t> Counts(const json& entry, const char* key,
                             const ByteReader& reader,
                             const std::string& name) {
  std::vector<uint64_t> counts;
  const auto list = entry.find(key);
  if (list == entry.end() || !list->is_array()) {
    reader.Fail("tensor " + name + " lacks " + key);
  }
  for (const json& n : *list) {
    if (!n.is_number_unsigned()) {
      reader.Fail("tensor " + name + ": " + key + " has " + n.dump() +
                  ", which is no count");
    }
    counts.push_back(n.get<uint64_t>());
  }
  return counts;
}

Tensor ReadEntry(const ByteReader& reader, const std::string& path,
                 const std::string& name, const json& entry,
                 std::span<const uint8_t> data) {
  const std::string what = "'" + name + "'";
  if (!entry.is_object() || !entry.contains("dtype") ||
      !entry["dtype"].is_string()) {
    reader.Fail("tensor " + what + " lacks dtype");
  }
  Tensor tensor{
      name, path, entry["dtype"], Counts(entry, "shape", reader, what), {}};
  const auto offsets = Counts(entry, "data_offsets", reader, what);
  if (offsets.size() != 2 || offsets[0] > offsets[1] ||
      offsets[1] > data.size()) {
    reader.Fail(fmt::format(
        "tensor {}: data_offsets {} are not a range of the {} bytes of data",
        what, ShapeText(offsets), data.size()));
  }
  tensor.bytes = data.subspan(offsets[0], offsets[1] - offsets[0]);
  const uint64_t element_bytes = ElementBytes(tensor);
  if (element_bytes == 0) return tensor;
  const auto n_bytes = ArrayBytes(tensor.shape, element_bytes);
  if (!n_bytes || *n_bytes != tensor.bytes.size()) {
    reader.Fail(fmt::format(
        "tensor {}: {} of {} has {} bytes, but its data_offsets have {}", what,
        ShapeText(tensor.shape), tensor.type,
        n_bytes ? std::to_string(*n_bytes) : "2^64 or more",
        tensor.bytes.size()));
  }
  return tensor;
}

}  // namespace

std::vector<Tensor> ReadSafetensors(const std::string& path,
                                    std::span<const uint8_t> bytes) {
  ByteReader reader(path, bytes);
  const auto n_header = reader.Read<uint64_t>("the header's length");
  if (n_header > kMostHeaderBytes) {
    reader.Fail(fmt::format("a header of {} bytes is longer than {}", n_header,
                            kMostHeaderBytes));
  }
  const auto header = reader.Take(n_header, "the header");
  const auto data = bytes.subspan(reader.offset());
  const json document =
      json::parse(header.begin(), header.end(), nullptr, false);
  if (!document.is_object()) reader.Fail("the header is no JSON object");
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : document.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(ReadEntry(reader, path, name, entry, data));
  }
  return tensors;
}

std::string SafetensorsHeader(std::span<const Tensor> tensors) {
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    document[tensor.name] = {
        {"dtype", tensor.type},
        {"shape", tensor.shape},
        {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = document.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t n_text = text.size();
  return std::string(reinterpret_cast<const char*>(&n_text), sizeof(n_text)) +
         text;
}

}  // namespace kvevict::tools
