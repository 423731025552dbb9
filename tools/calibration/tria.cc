#include "tools/calibration/tria.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/engine/byte_reader.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kMagic = 0x54524941;
constexpr size_t kHeaderBytes = 64;

void Append(std::string& out, const void* bytes, size_t n) {
  out.append(static_cast<const char*>(bytes), n);
}

}  // namespace

bool IsTria(std::span<const uint8_t> bytes) {
  return bytes.size() >= sizeof(kMagic) &&
         std::memcmp(bytes.data(), &kMagic, sizeof(kMagic)) == 0;
}

QueryCenters ReadTria(const std::string& path, std::span<const uint8_t> bytes) {
  ByteReader reader(path, bytes);
  reader.Take(sizeof(kMagic), "magic");
  const auto version = reader.Read<uint32_t>("version");
  if (version != 1 && version != 2) {
    reader.Fail("version " + std::to_string(version) + " is not 1 or 2");
  }
  QueryCenters c;
  c.n_layers = reader.Read<uint32_t>("layers");
  c.n_q_heads = reader.Read<uint32_t>("query heads");
  c.n_kv_heads = reader.Read<uint32_t>("KV heads");
  c.head_dim = reader.Read<uint32_t>("head_dim");
  c.n_pairs = reader.Read<uint32_t>("pairs");
  c.theta = reader.Read<float>("theta");
  c.attn_scale = reader.Read<float>("attention scale");
  // Checked before anything is read that depends on them.
  if (const std::string problem = Problem(c); !problem.empty()) {
    reader.Fail(problem);
  }
  const auto zeros = reader.Take(kHeaderBytes - reader.offset(), "header");
  if (std::any_of(zeros.begin(), zeros.end(), [](uint8_t b) { return b; })) {
    reader.Fail("bytes of the header that are not 0");
  }
  if (version == 2) reader.Take(sizeof(float) * c.n_layers, "layer budgets");
  const size_t row = sizeof(float) * c.n_pairs;
  const uint64_t n_heads = uint64_t{c.n_layers} * c.n_q_heads;
  if (reader.remaining() != n_heads * 4 * row) {
    reader.Fail("the table has " + std::to_string(reader.remaining()) +
                " bytes, not " + std::to_string(n_heads * 4 * row));
  }
  c.values.resize(n_heads * 3 * c.n_pairs);
  for (uint64_t i = 0; i < n_heads; ++i) {
    std::memcpy(c.values.data() + i * 3 * c.n_pairs,
                reader.Take(4 * row, "centers").data(), 3 * row);
  }
  if (const std::string problem = Problem(c); !problem.empty()) {
    throw std::runtime_error(path + ": " + problem);
  }
  return c;
}

size_t TriaTableOffset(const QueryCenters& c) {
  return kHeaderBytes + sizeof(float) * c.n_layers;
}

std::string WriteTria(const QueryCenters& c) {
  std::string out;
  const uint32_t numbers[] = {kMagic,       2,          c.n_layers, c.n_q_heads,
                              c.n_kv_heads, c.head_dim, c.n_pairs};
  const float scales[] = {c.theta, c.attn_scale};
  Append(out, numbers, sizeof(numbers));
  Append(out, scales, sizeof(scales));
  out.resize(kHeaderBytes);
  const std::vector<float> budgets(c.n_layers, 1.0f);
  Append(out, budgets.data(), budgets.size() * sizeof(float));
  std::vector<float> parts(c.n_pairs);
  for (uint32_t l = 0; l < c.n_layers; ++l) {
    for (uint32_t h = 0; h < c.n_q_heads; ++h) {
      const float* const head = c.Head(l, h);
      for (uint32_t f = 0; f < c.n_pairs; ++f) {
        const float length = head[2 * c.n_pairs + f];
        const float mean = std::sqrt(head[f] * head[f] +
                                     head[c.n_pairs + f] * head[c.n_pairs + f]);
        parts[f] = length > 0.0f ? mean / length : 0.0f;
      }
      Append(out, head, 3 * c.n_pairs * sizeof(float));
      Append(out, parts.data(), c.n_pairs * sizeof(float));
    }
  }
  return out;
}

}  // namespace kvevict::tools
