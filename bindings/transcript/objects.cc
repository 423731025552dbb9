#include "bindings/transcript/objects.h"

#include <cstring>

namespace transcript {
namespace {

std::size_t ElementBytes(const std::string& type) {
  if (type == "u8") return 1;
  if (type == "f16" || type == "bf16") return 2;
  return type == "u64" ? 8 : 4;
}

/// A well-mixed hash of a number, the same in every language.
uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace

Buffer::Buffer(const std::string& type, std::size_t length)
    : type(type), length(length), bytes(length * ElementBytes(type)) {
  memory_ = std::make_unique<uint8_t[]>(bytes + 256);
  data_ = memory_.get() + (-reinterpret_cast<uintptr_t>(memory_.get()) & 255);
}

void Buffer::Draw(uint32_t seed) {
  for (std::size_t i = 0; i < length; ++i) {
    const uint32_t x = Mix(seed * 0x9e3779b9u + static_cast<uint32_t>(i));
    const float real = static_cast<float>(x >> 8) / 8388608.0f - 1.0f;
    if (type == "u8") {
      at<uint8_t>()[i] = static_cast<uint8_t>(x);
    } else if (type == "f16") {  // 0.5 .. 1 with either sign
      at<uint16_t>()[i] = static_cast<uint16_t>(0x3800 | (x & 0x83ff));
    } else if (type == "bf16") {
      uint32_t bits;
      std::memcpy(&bits, &real, 4);
      at<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);
    } else {
      at<float>()[i] = real;
    }
  }
}

uint64_t Buffer::Hash() const {
  uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < bytes && type != "u64"; ++i) {
    hash = (hash ^ data_[i]) * 0x100000001b3u;
  }
  return hash;
}

Scratch MakeScratch(std::size_t bytes) {
  Scratch scratch;
  if (bytes == 0) return scratch;
  scratch.bytes = bytes;
  scratch.memory = std::make_unique<uint8_t[]>(bytes + 256);
  uint8_t* data = scratch.memory.get();
  scratch.data = data + (-reinterpret_cast<uintptr_t>(data) & 255);
  return scratch;
}

void Objects::Define(const Line& given) {
  Line line = given;
  const std::string name = line.Text("name");
  if (line.name() != "buffer") {
    if (!lines_.emplace(name, line).second) line.Fail("a second " + name);
    return;
  }
  const std::vector<std::string> values = line.List("values");
  const std::vector<std::string> addresses = line.List("addresses");
  std::size_t length = line.Count("length");
  if (!values.empty()) length = values.size();
  if (!addresses.empty()) length = addresses.size();
  auto buffer = std::make_unique<Buffer>(line.Text("type"), length);
  if (line.Has("seed")) buffer->Draw(line.Count("seed"));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (buffer->type == "f32") {
      buffer->at<float>()[i] = std::strtof(values[i].c_str(), nullptr);
    } else {
      buffer->at<int32_t>()[i] = static_cast<int32_t>(std::stoll(values[i]));
    }
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    buffer->at<uint64_t>()[i] =
        reinterpret_cast<uintptr_t>(Data<uint8_t>(addresses[i]));
  }
  buffer->seen = buffer->Hash();
  line.CheckUsed();
  buffers_[name] = std::move(buffer);
}

std::vector<std::pair<std::string, uint64_t>> Objects::Changed() {
  std::vector<std::pair<std::string, uint64_t>> changed;
  for (auto& [name, buffer] : buffers_) {
    const uint64_t hash = buffer->Hash();
    if (hash != buffer->seen) changed.emplace_back(name, hash);
    buffer->seen = hash;
  }
  return changed;
}

Buffer& Objects::BufferOf(const std::string& name) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end()) throw std::runtime_error("no buffer " + name);
  return *found->second;
}

Line& Objects::LineOf(const std::string& kind, const std::string& name) {
  const auto found = lines_.find(name);
  if (found == lines_.end() || found->second.name() != kind) {
    throw std::runtime_error("no " + kind + " " + name);
  }
  return found->second;
}

}  // namespace transcript
