// Calibration files: which are read, written and refused.
#include <criterion/criterion.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/expect_part.h"
#include "tests/tools/allocation_limit.h"
#include "tools/calibration/pickle.h"
#include "tools/calibration/query_centers.h"
#include "tools/calibration/tria.h"
#include "tools/calibration/zip.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kLayers = 3, kHeads = 2, kPairs = 4;

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A file of its own for a test.
class TempFile {
 public:
  explicit TempFile(const std::string& content)
      : path_(std::filesystem::temp_directory_path() /
              ("kvevict_calibration_" + std::to_string(getpid()))) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// The error of reading it; "" if there is none.
std::string Refusal(const std::string& content) {
  const TempFile file(content);
  try {
    ReadQueryCenters(file.path());
    return "";
  } catch (const std::runtime_error& error) {
    cr_expect(std::string(error.what()).starts_with(file.path() + ": "), "%s",
              error.what());
    return error.what();
  }
}

void ExpectRefused(const std::string& content, const std::string& why) {
  tests::ExpectPart(Refusal(content), why);
}

// ---- A .pt as torch.save() writes it ----

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

using Entries = std::vector<std::pair<std::string, std::string>>;

std::string Zip(const Entries& entries, uint16_t method = 0) {
  std::string out, directory;
  for (const auto& [name, content] : entries) {
    const auto offset = static_cast<uint32_t>(out.size());
    const auto n = static_cast<uint32_t>(content.size());
    const std::string middle = Raw<uint16_t>(0x808) + Raw(method) +
                               Raw<uint32_t>(0) + Raw(Crc32(Bytes(content))) +
                               Raw(n) + Raw(n) +
                               Raw(static_cast<uint16_t>(name.size()));
    // PyTorch pads local headers to align contents.
    out += "PK\3\4" + Raw<uint16_t>(0) + middle + Raw<uint16_t>(6) + name +
           "FB" + Raw<uint16_t>(2) + "ZZ" + content;
    directory += "PK\1\2" + Raw<uint32_t>(0) + middle + Raw<uint32_t>(0) +
                 Raw<uint64_t>(0) + Raw(offset) + name;
  }
  const auto n = static_cast<uint16_t>(entries.size());
  return out + directory + "PK\5\6" + Raw<uint32_t>(0) + Raw(n) + Raw(n) +
         Raw(static_cast<uint32_t>(directory.size())) +
         Raw(static_cast<uint32_t>(out.size())) + Raw<uint16_t>(0);
}

std::string Text(const std::string& text) {
  return "X" + Raw(static_cast<uint32_t>(text.size())) + text;
}
std::string Byte(uint8_t n) { return "K" + Raw(n); }

std::string Tensor(const std::string& entry, uint8_t n,
                   const std::string& type = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + Text("storage") +
         "ctorch\n" + type + "\n" + Text(entry) + Text("cpu") + Byte(n) + "tQ" +
         Byte(0) + Byte(n) + "\x85" + Byte(1) + "\x85\x89" +
         "ccollections\nOrderedDict\n)RtR";
}

struct Pt {
  uint32_t n_layers = kLayers;
  std::string skipped;  // a head
  std::string style = "half";
  std::string type = "FloatStorage";
  std::string byte_order = "little";
  float first = 0.25f;
  uint8_t n_pairs = kPairs;

  std::string data;  // as the last Write() made it

  // Row r of head h of layer l has r + 10 h + 100 l + f / 8, and lengths are twice that.
  Entries Write() {
    Entries rows;
    std::string stats;
    for (uint32_t l = 0; l < n_layers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        char key[32];
        std::snprintf(key, sizeof(key), "layer%02u_head%02u", l, h);
        if (key == skipped) continue;
        stats += Text(key) + "}(";
        uint32_t r = 0;
        for (const char* name : {"q_mean_real", "q_mean_imag", "q_abs_mean"}) {
          const std::string entry = std::to_string(rows.size());
          std::string row;
          for (uint32_t f = 0; f < n_pairs; ++f) {
            row += Raw(l + h + r + f == 0 ? first : Value(l, h, r, f));
          }
          rows.emplace_back("any name/data/" + entry, row);
          stats += Text(name) + Tensor(entry, n_pairs, type);
          ++r;
        }
        stats += "u";
      }
    }
    data = "\x80\x02}q" + Raw<uint8_t>(0) + "(" + Text("metadata") + "}(" +
           Text("head_dim") + Byte(2 * kPairs) + Text("rope_style") +
           Text(style) + Text("traces") + "](\x88NG" + std::string(8, '\0') +
           "\x8a\x01\xff" + "e" + Text("dtype") + "\x8c\x04" + "bf16u" +
           Text("stats") + "}(" + stats + "uu.";
    Entries all = {{"any name/data.pkl", data},
                   {"any name/byteorder", byte_order}};
    all.insert(all.end(), rows.begin(), rows.end());
    all.emplace_back("any name/version", "3\n");
    return all;
  }

  static float Value(uint32_t l, uint32_t h, uint32_t r, uint32_t f) {
    return static_cast<float>(100 * l + 10 * h + r) * (r == 2 ? 2.0f : 1.0f) +
           static_cast<float>(f) / 8.0f;
  }
};

void ExpectCenters(const QueryCenters& c) {
  cr_assert(c.n_layers == kLayers && c.n_q_heads == kHeads &&
            c.n_pairs == kPairs && c.head_dim == 2 * kPairs);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t i = 0; i < 3 * kPairs; ++i) {
        const float value =
            l + h + i == 0 ? 0.25f : Pt::Value(l, h, i / kPairs, i % kPairs);
        cr_assert_eq(c.Head(l, h)[i], value, "layer %u, head %u, %u", l, h, i);
      }
    }
  }
}

TestSuite(calibration);

Test(calibration, pt_is_read) {
  const TempFile file(Zip(Pt().Write()));
  ExpectCenters(ReadQueryCenters(file.path()));
}

Test(calibration, tria_gives_back_what_was_written) {
  QueryCenters c;
  {
    const TempFile file(Zip(Pt().Write()));
    c = ReadQueryCenters(file.path());
  }
  c.n_kv_heads = 1;
  c.theta = 10000.0f;
  c.attn_scale = 1.25f;
  const std::string tria = WriteTria(c);
  const TempFile file(tria);
  const QueryCenters again = ReadQueryCenters(file.path());
  ExpectCenters(again);
  cr_expect(again.n_kv_heads == 1 && again.theta == 10000.0f &&
            again.attn_scale == 1.25f);
  // docs/policies.md describes this for engines that map the file.
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      const size_t at = 64 + 4 * kLayers + (l * kHeads + h) * 16 * kPairs;
      cr_expect(at >= TriaTableOffset(c));
      cr_expect(std::memcmp(tria.data() + at, c.Head(l, h), 12 * kPairs) == 0);
    }
  }
  // Version 1 has no budgets.
  std::string first = tria;
  first[4] = 1;
  first.erase(64, 4 * kLayers);
  const TempFile older(first);
  ExpectCenters(ReadQueryCenters(older.path()));
}

Test(calibration, concentrations_are_parts_of_the_mean_length) {
  QueryCenters c;
  c.n_layers = c.n_q_heads = 1;
  c.n_pairs = 3;
  c.values = {3, 0, 1, 4, 0, 0, 10, 0, 1};
  const std::vector<float> parts = Concentrations(c);
  cr_assert(parts == std::vector<float>({0.0f, 0.5f, 1.0f}));
}

Test(calibration, what_is_no_calibration_is_refused) {
  ExpectRefused("", "neither a .pt");
  ExpectRefused("some text that is longer than a header", "neither a .pt");
  ExpectRefused(Zip({{"a/readme", "text"}}), "no data.pkl");
  const Entries good = Pt().Write();
  ExpectRefused(Zip(good, 8), "compressed");
  Entries entries = good;
  entries.erase(entries.begin() + 4);
  ExpectRefused(Zip(entries), "no any name/data/2");
  entries = good;
  entries.push_back(good[3]);
  ExpectRefused(Zip(entries), "twice");
  entries = good;
  entries[2].second.resize(4 * kPairs - 1);
  ExpectRefused(Zip(entries), "outside of its storage");
  std::string damaged = Zip(good);
  damaged[damaged.find("q_mean_real")] = 'Q';
  ExpectRefused(damaged, "checksum");
  const auto with = [](const std::function<void(Pt*)>& change) {
    Pt pt;
    change(&pt);
    return Zip(pt.Write());
  };
  ExpectRefused(with([](Pt* pt) { pt->skipped = "layer01_head01"; }),
                "5 heads, not 2 in each of 3 layers");
  ExpectRefused(with([](Pt* pt) { pt->style = "interleaved"; }),
                "rope_style \"interleaved\"");
  ExpectRefused(with([](Pt* pt) { pt->type = "HalfStorage"; }), "not of f32");
  ExpectRefused(with([](Pt* pt) { pt->byte_order = "big"; }), "little-endian");
  ExpectRefused(with([](Pt* pt) { pt->first = NAN; }), "is no number");
  ExpectRefused(with([](Pt* pt) { pt->n_pairs = kPairs + 1; }),
                "pairs 5 is not in [1, 4]");
  ExpectRefused(with([](Pt* pt) { pt->n_layers = 0; }), "layers 0");
}

Test(calibration, pickles_that_call_anything_are_refused) {
  const auto refusal = [](const std::string& pickle) -> std::string {
    try {
      Pickle("file", Bytes(pickle));
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  };
  const auto expect = [&](const std::string& pickle, const char* why) {
    tests::ExpectPart(refusal(pickle), why);
  };
  cr_expect_eq(refusal("\x80\x02}."), "");
  expect("cposix\nsystem\n(" + Text("ls") + "tR.", "it calls posix system");
  expect("ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor without storage");
  expect("(i__main__\nx\n.", "opcode 105");
  expect(".", "stack is empty");
  expect("R.", "stack is empty");
  expect("t.", "no mark");
  expect("(a.", "stack is empty");
  expect("}K", "truncated");
  expect("}(K\x01u.", "each key a value");
  expect("K\x01(K\x01K\x02u.", "only dictionaries");
  expect(
      "K\x01K\x02"
      "a.",
      "only lists");
  expect("K\x01Q.", "no storage");
  expect("h\x05.", "nothing was stored");
  expect("\x80\x05}.", "protocol");
  expect(std::string("X\xff\xff\xff\x7f", 5) + ".", "truncated");
  // This nests very deep.
  std::string deep;
  for (int i = 0; i < 1000000; ++i) deep += "]";
  for (int i = 1; i < 1000000; ++i) deep += "a";
  cr_expect_eq(refusal(deep + "."), "");
}

// The second entry of the archive lies where the first one does.
Test(calibration, entries_that_overlap_are_refused) {
  std::string archive = Zip({{"a", "same"}, {"b", "same"}});
  const size_t second = archive.rfind("PK\1\2");
  archive.replace(second + 42, 4, Raw<uint32_t>(0));
  ExpectRefused(archive, "overlap");
}

// Objects that a pickle uses again and again take no memory each time.
Test(calibration, memory_is_linear_in_the_file) {
  constexpr int kTimes = 4000;
  const auto allocated = [](const auto& act) {
    const size_t before = AllocatedBytes();
    act();
    return AllocatedBytes() - before;
  };
  const auto repeated = [](const std::string& text) {
    std::string out;
    for (int i = 0; i < kTimes; ++i) out += text;
    return out;
  };
  const auto expect_linear = [&](const std::string& pickle) {
    const size_t n = allocated([&] { Pickle("file", Bytes(pickle)); });
    cr_expect(n < 500 * pickle.size(), "%zu bytes of a pickle of %zu", n,
              pickle.size());
  };
  const std::string put_0 = "q" + Raw<uint8_t>(0),
                    get_0 = "h" + Raw<uint8_t>(0);
  const std::string put_1 = "q" + Raw<uint8_t>(1),
                    get_1 = "h" + Raw<uint8_t>(1);
  const std::string storage = "(" + Text("storage") + "ctorch\nFloatStorage\n";
  // A tensor has too many arguments.
  expect_linear("ctorch._utils\n_rebuild_tensor_v2\n" + put_0 + "(" + storage +
                Text("0") + Text("cpu") + Byte(1) + "tQ" + repeated(")") + "t" +
                put_1 + repeated(get_0 + get_1 + "R") + ".");
  // A storage has a long name.
  expect_linear(storage + Text(std::string(100000, 'n')) + Text("cpu") +
                Byte(1) + "t" + put_0 + repeated(get_0 + "Q") + ".");
  // All heads have the same rows.
  const std::string row(4 * 255, '\0');
  std::string heads;
  for (int h = 0; h < kTimes; ++h) {
    heads += Text("layer0_head" + std::to_string(h)) + get_0;
  }
  const std::string rows = Tensor("0", 255) + put_1;
  const std::string file =
      Zip({{"a/data.pkl", "}(" + Text("stats") + "}(" + Text("layer0_head0") +
                              "}" + put_0 + "(" + Text("q_mean_real") + rows +
                              Text("q_mean_imag") + get_1 + Text("q_abs_mean") +
                              get_1 + "u" + heads + "uu."},
           {"a/data/0", row}});
  const size_t n =
      allocated([&] { ExpectRefused(file, "more numbers than the file"); });
  cr_expect(n < 500 * file.size(), "%zu bytes of a file of %zu", n,
            file.size());
}

Test(calibration, damaged_files_are_errors_and_nothing_else) {
  std::mt19937 random(7);
  Pt pt;
  const std::string good_pt = Zip(pt.Write());
  QueryCenters c;
  {
    const TempFile file(good_pt);
    c = ReadQueryCenters(file.path());
  }
  const std::string tria = WriteTria(c);
  for (size_t n = 0; n < tria.size(); ++n) {
    cr_assert(!Refusal(tria.substr(0, n)).empty(), "%zu bytes of TRIA", n);
  }
  cr_assert(!Refusal(tria + "x").empty());
  for (int i = 0; i < 300; ++i) {
    cr_assert(!Refusal(good_pt.substr(0, random() % good_pt.size())).empty());
  }
  // Any byte may say anything; the pickle has no checksum.
  for (int i = 0; i < 20000; ++i) {
    std::string pickle = pt.data;
    pickle[random() % pickle.size()] = static_cast<char>(random());
    try {
      Pickle("file", Bytes(pickle));
    } catch (const std::runtime_error&) {
    }
  }
  for (int i = 0; i < 500; ++i) {
    std::string content = i % 2 == 0 ? tria : good_pt;
    content[random() % content.size()] = static_cast<char>(random());
    Refusal(content);
  }
}

}  // namespace
}  // namespace kvevict::tools
