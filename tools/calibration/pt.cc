#include "tools/calibration/pt.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "tools/calibration/pickle.h"
#include "tools/calibration/zip.h"

namespace kvevict::tools {
namespace {

using Kind = PickleValue::Kind;
using Entries = std::map<std::string, std::span<const uint8_t>>;

constexpr const char* kRows[] = {"q_mean_real", "q_mean_imag", "q_abs_mean"};

class PtReader {
 public:
  PtReader(const std::string& path, std::span<const uint8_t> bytes)
      : path_(path), n_bytes_(bytes.size()), entries_(ReadZip(path, bytes)) {}

  QueryCenters Read();

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    throw std::runtime_error(path_ + ": " + message);
  }
  std::span<const uint8_t> Entry(const std::string& name) const {
    const auto at = entries_.find(folder_ + name);
    if (at == entries_.end()) Fail("there is no " + folder_ + name + " in it");
    return at->second;
  }
  void CheckIsDict(const PickleValue* value, const std::string& key) const {
    if (value != nullptr && value->kind == Kind::kDict) return;
    Fail("there is no dictionary \"" + key + "\" in it");
  }
  void FindFolder();
  void ReadMetadata(const PickleValue& root, QueryCenters* out) const;
  // Reads [pairs] contiguous floats.
  std::vector<float> Row(const std::string& head, const PickleValue& stats,
                         const char* name) const;

  const std::string& path_;
  const size_t n_bytes_;
  const Entries entries_;
  std::string folder_;  // the folder of all entries
};

void PtReader::FindFolder() {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& [name, content] : entries_) {
    if (!name.ends_with(kPickle)) continue;
    folder_ = name.substr(0, name.size() - kPickle.size() + 1);
    return;
  }
  Fail("there is no data.pkl in it: torch.save() did not write it");
}

void PtReader::ReadMetadata(const PickleValue& root, QueryCenters* out) const {
  const PickleValue* const metadata = root.Find("metadata");
  if (metadata == nullptr) return;
  if (const PickleValue* const dim = metadata->Find("head_dim");
      dim != nullptr && dim->kind == Kind::kInt) {
    if (dim->number < 2 || dim->number > 65536) {
      Fail("head_dim " + std::to_string(dim->number) + " is not in [2, 65536]");
    }
    out->head_dim = static_cast<uint32_t>(dim->number);
  }
  const PickleValue* const style = metadata->Find("rope_style");
  if (style != nullptr && style->kind == Kind::kText && style->text != "half") {
    Fail("rope_style \"" + style->text + "\" is not \"half\"");
  }
}

std::vector<float> PtReader::Row(const std::string& head,
                                 const PickleValue& stats,
                                 const char* name) const {
  const std::string what = head + "." + name;
  const PickleValue* const tensor = stats.Find(name);
  if (tensor == nullptr || tensor->kind != Kind::kTensor) {
    Fail("there is no tensor " + what);
  }
  const PickleValue& storage = *tensor->items[0];
  const PickleValue& sizes = *tensor->items[2];
  const PickleValue& strides = *tensor->items[3];
  const std::string& type = storage.items[0]->text;
  if (type != "torch FloatStorage") {
    Fail(what + " is of " + type + ", not of f32");
  }
  if (sizes.items.size() != 1 || strides.items.size() != 1 ||
      (strides.items[0]->number != 1 && sizes.items[0]->number != 1)) {
    Fail(what + " is not one row of numbers, end to end");
  }
  const auto content = Entry("data/" + storage.items[1]->text);
  const int64_t first = tensor->items[1]->number;
  const int64_t n = sizes.items[0]->number;
  const auto n_held = static_cast<int64_t>(content.size() / sizeof(float));
  if (first < 0 || n < 1 || first > n_held || n > n_held - first) {
    Fail(what + " lies outside of its storage");
  }
  std::vector<float> row(static_cast<size_t>(n));
  std::memcpy(row.data(), content.data() + first * int64_t{sizeof(float)},
              row.size() * sizeof(float));
  return row;
}

QueryCenters PtReader::Read() {
  FindFolder();
  if (const auto order = entries_.find(folder_ + "byteorder");
      order != entries_.end() &&
      std::string(order->second.begin(), order->second.end()) != "little") {
    Fail("its numbers are not little-endian");
  }
  const Pickle pickle(path_, Entry("data.pkl"));
  const PickleValue* const stats = pickle.root().Find("stats");
  CheckIsDict(stats, "stats");
  QueryCenters c;
  ReadMetadata(pickle.root(), &c);
  struct Head {
    const PickleValue* key;
    const PickleValue* stats;
  };
  std::map<std::pair<uint32_t, uint32_t>, Head> heads;
  for (const auto& [key, value] : stats->pairs) {
    uint32_t layer = 0, head = 0;
    int n_read = 0;
    if (std::sscanf(key->text.c_str(), "layer%5u_head%5u%n", &layer, &head,
                    &n_read) != 2 ||
        static_cast<size_t>(n_read) != key->text.size()) {
      Fail("\"" + key->text + "\" names no layer and head");
    }
    CheckIsDict(value, key->text);
    heads[{layer, head}] = {key, value};
    c.n_layers = std::max(c.n_layers, layer + 1);
    c.n_q_heads = std::max(c.n_q_heads, head + 1);
  }
  if (heads.size() != uint64_t{c.n_layers} * c.n_q_heads) {
    Fail("it has " + std::to_string(heads.size()) + " heads, not " +
         std::to_string(c.n_q_heads) + " in each of " +
         std::to_string(c.n_layers) + " layers");
  }
  for (const auto& [place, head] : heads) {
    const std::string& key = head.key->text;
    for (const char* name : kRows) {
      const std::vector<float> row = Row(key, *head.stats, name);
      if ((c.values.size() + row.size()) * sizeof(float) > n_bytes_) {
        Fail("heads up to " + key + " have more numbers than the file");
      }
      if (c.n_pairs == 0) c.n_pairs = static_cast<uint32_t>(row.size());
      if (row.size() != c.n_pairs) {
        Fail(key + "." + name + " has " + std::to_string(row.size()) +
             " elements, others " + std::to_string(c.n_pairs));
      }
      c.values.insert(c.values.end(), row.begin(), row.end());
    }
  }
  if (c.head_dim == 0) c.head_dim = 2 * c.n_pairs;
  if (const std::string problem = Problem(c); !problem.empty()) Fail(problem);
  return c;
}

}  // namespace

QueryCenters ReadPt(const std::string& path, std::span<const uint8_t> bytes) {
  return PtReader(path, bytes).Read();
}

}  // namespace kvevict::tools
