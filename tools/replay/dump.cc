#include "tools/replay/dump.h"

#include <fmt/format.h>

#include <stdexcept>

namespace kvevict::tools {
namespace {

constexpr size_t kRowAxes = 3;  // heads, tokens, elements, in some order
constexpr uint64_t kMostHeads = 65535, kMostElements = 65536;
constexpr size_t kMostLayers = 4096;
constexpr const char* kLayer = "{}";

std::string NameOf(const std::string& pattern, size_t layer) {
  std::string name = pattern;
  name.replace(name.find(kLayer), 2, std::to_string(layer));
  return name;
}

// One tensor per layer, which may have an axis of length 1 before: a batch.
std::vector<Tensor> Numbered(const TensorFiles& files,
                             const std::string& pattern, size_t n_axes) {
  std::vector<Tensor> layers;
  while (layers.size() < kMostLayers) {
    const Tensor* tensor = files.Find(NameOf(pattern, layers.size()));
    if (tensor == nullptr) break;
    layers.push_back(*tensor);
    auto& shape = layers.back().shape;
    if (shape.size() == n_axes + 1 && shape[0] == 1) shape.erase(shape.begin());
    if (shape.size() != n_axes) {
      tensor->Fail(
          fmt::format("a layer has {} axes, before them at most one "
                      "of length 1",
                      n_axes));
    }
  }
  return layers;
}

std::vector<Tensor> Split(const Tensor& tensor, size_t n_axes) {
  if (tensor.shape.size() == n_axes) return {tensor};
  if (tensor.shape.size() != n_axes + 1) {
    tensor.Fail(fmt::format("it has {} axes, not {}, or {} with the layers",
                            tensor.shape.size(), n_axes, n_axes + 1));
  }
  const uint64_t n_layers = tensor.shape[0];
  if (n_layers == 0 || n_layers > kMostLayers) {
    tensor.Fail(
        fmt::format("layers {} are not in [1, {}]", n_layers, kMostLayers));
  }
  Tensor layer = tensor;
  layer.shape.erase(layer.shape.begin());
  std::vector<Tensor> layers(n_layers, layer);
  const size_t n_bytes = tensor.bytes.size() / n_layers;
  for (size_t i = 0; i < n_layers; ++i) {
    layers[i].bytes = tensor.bytes.subspan(i * n_bytes, n_bytes);
  }
  return layers;
}

uint32_t InRange(const Tensor& tensor, const char* what, uint64_t n,
                 uint64_t most) {
  if (n == 0 || n > most) {
    tensor.Fail(fmt::format("{} {} are not in [1, {}]", what, n, most));
  }
  return static_cast<uint32_t>(n);
}

DumpRows RowsOf(const Tensor& tensor, bool tokens_first) {
  const auto dtype = tensor.dtype();
  if (!dtype) {
    tensor.Fail("its type " + tensor.type + " is not f32, f16 or bf16");
  }
  const auto& shape = tensor.shape;
  DumpRows rows;
  rows.n_heads =
      InRange(tensor, "heads", shape[tokens_first ? 1 : 0], kMostHeads);
  rows.n_tokens =
      InRange(tensor, "tokens", shape[tokens_first ? 0 : 1], INT32_MAX);
  const uint32_t dim =
      InRange(tensor, "elements of a row", shape[2], kMostElements);
  rows.plane = tokens_first
                   ? kvevict_plane_token_major(tensor.bytes.data(), *dtype,
                                               rows.n_heads, dim)
                   : kvevict_plane_head_major(tensor.bytes.data(), *dtype,
                                              rows.n_tokens, dim);
  return rows;
}

// The tensor that an option names, or else the one with the default name.
std::vector<Tensor> Named(const TensorFiles& files, const std::string& name,
                          const char* default_name, bool is_optional) {
  const std::string& wanted = name.empty() ? default_name : name;
  auto layers = TensorsOfLayers(files, wanted, kRowAxes);
  if (!layers.empty() || (name.empty() && is_optional)) return layers;
  const bool numbered = wanted.find(kLayer) != std::string::npos;
  throw std::runtime_error(fmt::format(
      "no tensor '{}'{}; --{} names another. The files have: {}",
      numbered ? NameOf(wanted, 0) : wanted,
      numbered ? "" : " or '" + wanted + ".0'", default_name, files.Names()));
}

void CheckAlike(const Tensor& k, const DumpLayer& layer, const Dump& dump) {
  if (layer.k.n_tokens != dump.n_tokens) {
    k.Fail(fmt::format("tokens {} are not those of layer 0, {}",
                       layer.k.n_tokens, dump.n_tokens));
  }
  if (layer.v.n_heads > 0 && (layer.v.n_heads != layer.k.n_heads ||
                              layer.v.n_tokens != layer.k.n_tokens)) {
    k.Fail(fmt::format("V has {} heads and {} tokens, K {} and {}",
                       layer.v.n_heads, layer.v.n_tokens, layer.k.n_heads,
                       layer.k.n_tokens));
  }
}

void CheckQueries(const Tensor& q, const DumpLayer& layer, const Dump& dump) {
  if (layer.q.n_heads % layer.k.n_heads != 0) {
    q.Fail(fmt::format("query heads {} are no multiple of KV heads {}",
                       layer.q.n_heads, layer.k.n_heads));
  }
  if (layer.q.plane.head_dim != layer.k.plane.head_dim) {
    q.Fail(fmt::format("rows of {} elements, but keys have {}",
                       layer.q.plane.head_dim, layer.k.plane.head_dim));
  }
  if (layer.q.n_tokens > dump.n_tokens) {
    q.Fail(fmt::format("rows {} are more than the tokens, {}", layer.q.n_tokens,
                       dump.n_tokens));
  }
  if (layer.q.n_tokens != dump.n_queries) {
    q.Fail(fmt::format("rows {} are not those of layer 0, {}", layer.q.n_tokens,
                       dump.n_queries));
  }
}

}  // namespace

std::vector<Tensor> TensorsOfLayers(const TensorFiles& files,
                                    const std::string& name, size_t n_axes) {
  if (name.find(kLayer) != std::string::npos) {
    return Numbered(files, name, n_axes);
  }
  if (const Tensor* all = files.Find(name)) return Split(*all, n_axes);
  return Numbered(files, name + "." + kLayer, n_axes);
}

Dump ReadDump(const TensorFiles& files, const DumpOptions& options) {
  const auto k = Named(files, options.k, "k", /*is_optional=*/false);
  const auto v = Named(files, options.v, "v", /*is_optional=*/true);
  const auto q = Named(files, options.q, "q", /*is_optional=*/true);
  for (const auto* other : {&v, &q}) {
    if (!other->empty() && other->size() != k.size()) {
      (*other)[0].Fail(fmt::format("it is there for {} layers, K for {}",
                                   other->size(), k.size()));
    }
  }
  Dump dump;
  for (size_t l = 0; l < k.size(); ++l) {
    DumpLayer layer;
    layer.k = RowsOf(k[l], options.tokens_first);
    if (!v.empty()) layer.v = RowsOf(v[l], options.tokens_first);
    if (l == 0) dump.n_tokens = layer.k.n_tokens;
    CheckAlike(k[l], layer, dump);
    if (!q.empty()) {
      layer.q = RowsOf(q[l], options.tokens_first);
      if (l == 0) dump.n_queries = layer.q.n_tokens;
      CheckQueries(q[l], layer, dump);
    }
    dump.layers.push_back(layer);
  }
  return dump;
}

}  // namespace kvevict::tools
