// Files of dumped tensors: which are read, and which are refused.
#include <criterion/criterion.h>

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

#include "tests/expect_part.h"
#include "tests/tools/allocation_limit.h"
#include "tools/replay/npy.h"
#include "tools/replay/safetensors.h"

namespace kvevict::tools {
namespace {

using tests::ExpectPart;

constexpr size_t kMostBytes = 1 << 20;  // of one allocation

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Refusal(const std::function<void()>& read) {
  try {
    read();
    return "";
  } catch (const std::runtime_error& error) {
    cr_expect(std::string(error.what()).starts_with("a file: "), "%s",
              error.what());
    return error.what();
  }
}

std::string NpyRefusal(const std::string& file) {
  return Refusal([&] { ReadNpy("a file", Bytes(file)); });
}
std::string SafetensorsRefusal(const std::string& file) {
  return Refusal([&] { ReadSafetensors("a file", Bytes(file)); });
}

std::string Npy(const std::string& dictionary, const std::string& data,
                char version = 1) {
  const auto n = static_cast<uint16_t>(dictionary.size());
  std::string file = "\x93NUMPY";
  file += {version, '\0', char(n & 255), char(n >> 8)};
  if (version > 1) file += std::string(2, '\0');
  return file + dictionary + data;
}

std::string Dictionary(const std::string& type, const std::string& shape,
                       const std::string& fortran = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran +
         ", 'shape': " + shape + ", }\n";
}

std::string Safetensors(const std::string& json, const std::string& data) {
  const uint64_t n = json.size();
  return std::string(reinterpret_cast<const char*>(&n), sizeof(n)) + json +
         data;
}

std::string Entry(const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return R"({"k":{"dtype":")" + dtype + R"(","shape":)" + shape +
         R"(,"data_offsets":)" + offsets + "}}";
}

TestSuite(replay_files);

Test(replay_files, npy_is_read_as_numpy_writes_it) {
  const std::string data(2 * 3 * 4, 'x');
  for (const char version : {1, 2, 3}) {
    const std::string file = Npy(Dictionary("<f4", "(2, 3)"), data, version);
    const Tensor tensor = ReadNpy("a file", Bytes(file));
    cr_expect(tensor.shape == std::vector<uint64_t>({2, 3}));
    cr_expect(tensor.dtype() == KVEVICT_DTYPE_F32);
    cr_expect(tensor.bytes.size() == data.size() && tensor.bytes[0] == 'x');
  }
  // One axis and none, in Python's forms; and types that no policy reads.
  const std::string one = Npy(Dictionary("<i8", "(1,)"), std::string(8, 'x'));
  cr_expect(ReadNpy("a file", Bytes(one)).shape.size() == 1);
  cr_expect(!ReadNpy("a file", Bytes(one)).dtype());
  const std::string none = Npy(Dictionary("<f2", "()"), "xx");
  cr_expect(ReadNpy("a file", Bytes(none)).shape.empty());
}

Test(replay_files, npy_gives_back_what_was_written) {
  for (const char* type : {"<f4", "<f2", "<V2", "<i4"}) {
    const std::string header = NpyHeader(type, std::vector<uint64_t>{3, 5});
    cr_expect(header.size() % 64 == 0);
    const std::string file =
        header + std::string(15 * (type[2] == '4' ? 4 : 2), 'x');
    const Tensor tensor = ReadNpy("a file", Bytes(file));
    cr_expect(tensor.type == type &&
              tensor.shape == std::vector<uint64_t>({3, 5}));
  }
}

Test(replay_files, npy_with_a_lying_header_is_refused) {
  LimitAllocations(kMostBytes);
  const std::string data(24, 'x');
  ExpectPart(NpyRefusal(""), "truncated");
  ExpectPart(NpyRefusal("PK\3\4 an .npz, which is a zip"), "magic number");
  ExpectPart(NpyRefusal(Npy(Dictionary("<f4", "(2, 3)"), data, 4)),
             "version 4 is not in [1, 3]");
  ExpectPart(NpyRefusal(Npy(Dictionary("<f4", "(2, 4)"), data)),
             "[2, 4] of <f4 has 32 bytes, but the file has 24");
  ExpectPart(
      NpyRefusal(Npy(Dictionary("<f4", "(4294967296, 4294967296)"), data)),
      "2^64 or more");
  ExpectPart(
      NpyRefusal(Npy(Dictionary("<f4", "(99999999999999999999,)"), data)),
      "damaged");
  ExpectPart(NpyRefusal(Npy(Dictionary("<f4", "(-6,)"), data)), "damaged");
  ExpectPart(NpyRefusal(Npy(Dictionary("<f4", "(2, 3)", "True"), data)),
             "Fortran order");
  ExpectPart(NpyRefusal(Npy(Dictionary("f", "(2, 3)"), data)), "descr 'f'");
  ExpectPart(NpyRefusal(Npy("{'descr': [('a', '<f4')], }\n", data)),
             "not the name of one type");
  ExpectPart(NpyRefusal(Npy("{'descr': '<f4', }\n", data)), "lacks");
  ExpectPart(NpyRefusal(Npy("{'order': '<f4', }\n", data)),
             "unknown key 'order'");
  std::string axes = "(";
  for (int i = 0; i < 33; ++i) axes += "1, ";
  ExpectPart(NpyRefusal(Npy(Dictionary("<f4", axes + ")"), data)), "32 axes");
  std::string longer = Npy(Dictionary("<f4", "(2, 3)"), data);
  longer[9] = '\x7f';
  ExpectPart(NpyRefusal(longer), "truncated");
}

Test(replay_files, safetensors_is_read) {
  const std::string file = Safetensors(
      R"({"__metadata__":{"a":"b"},)"
      R"("q":{"dtype":"I64","shape":[9],"data_offsets":[0,72]},)"
      R"("k":{"dtype":"BF16","shape":[2,3],"data_offsets":[72,84]}}  )",
      std::string(84, 'x'));
  const auto tensors = ReadSafetensors("a file", Bytes(file));
  cr_assert(tensors.size() == 2);
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "q") {
      cr_expect(!tensor.dtype());
      continue;
    }
    cr_expect(tensor.name == "k" && tensor.dtype() == KVEVICT_DTYPE_BF16 &&
              tensor.shape == std::vector<uint64_t>({2, 3}) &&
              tensor.bytes.size() == 12);
  }
  const std::string again = SafetensorsHeader(tensors);
  cr_expect(again.size() % 8 == 0);
  const auto same =
      ReadSafetensors("a file", Bytes(again + std::string(84, 'x')));
  cr_assert(same.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    cr_expect(same[i].name == tensors[i].name &&
              same[i].shape == tensors[i].shape);
  }
}

Test(replay_files, safetensors_with_a_lying_header_is_refused) {
  LimitAllocations(kMostBytes);
  const std::string data(24, 'x');
  const auto refusal = [&](const std::string& json) {
    return SafetensorsRefusal(Safetensors(json, data));
  };
  ExpectPart(SafetensorsRefusal(""), "truncated");
  ExpectPart(SafetensorsRefusal(std::string(8, '\xff')),
             "header of 18446744073709551615 bytes is longer than 16777216");
  ExpectPart(SafetensorsRefusal(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
             "truncated");
  ExpectPart(refusal("[]"), "no JSON object");
  ExpectPart(refusal("{"), "no JSON object");
  ExpectPart(refusal(std::string(100000, '[')), "no JSON object");
  ExpectPart(refusal(R"({"k":3})"), "'k' lacks dtype");
  ExpectPart(refusal(R"({"k":{"dtype":"F32"}})"), "'k' lacks shape");
  ExpectPart(refusal(Entry("F32", "[2,3]", "[0]")),
             "not a range of the 24 bytes");
  ExpectPart(refusal(Entry("F32", "[2,3]", "[8,0]")), "not a range");
  ExpectPart(refusal(Entry("F32", "[2,4]", "[0,32]")), "not a range");
  ExpectPart(refusal(Entry("F32", "[2,4]", "[0,24]")),
             "[2, 4] of F32 has 32 bytes, but its data_offsets have 24");
  ExpectPart(refusal(Entry("F32", "[4294967296,4294967296]", "[0,24]")),
             "2^64 or more");
  ExpectPart(refusal(Entry("F32", "[-2,-3]", "[0,24]")),
             "-2, which is no count");
  ExpectPart(refusal(Entry("F32", "[2,3]", "[0.5,24]")),
             "0.5, which is no count");
}

// Whatever stands in a file, reading ends with tensors or with an error, and
// the tensors lie in the file.
void ExpectNoCrash(const std::string& file,
                   const std::function<void(const std::string&)>& read) {
  LimitAllocations(kMostBytes);
  for (size_t n = 0; n < file.size(); ++n) {
    // The copy has its own size, so that a sanitizer sees reads beyond it.
    cr_expect(!Refusal([&] { read(std::string(file, 0, n)); }).empty(),
              "%zu bytes are enough", n);
  }
  for (size_t at = 0; at < file.size(); ++at) {
    for (const char byte : {'\0', '\x7f', '\xff', '0', '9', '\'', '"', '{', '}',
                            '(', ')', '[', ']', ',', ':', '-'}) {
      std::string damaged = file;
      damaged[at] = byte;
      Refusal([&] { read(damaged); });
    }
  }
}

void ExpectInside(const std::string& file, const Tensor& tensor) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(file.data());
  cr_expect(tensor.bytes.data() >= begin &&
            tensor.bytes.data() + tensor.bytes.size() <= begin + file.size());
}

Test(replay_files, damaged_npy_does_no_harm) {
  ExpectNoCrash(Npy(Dictionary("<f4", "(2, 3)"), std::string(24, 'x')),
                [](const std::string& file) {
                  ExpectInside(file, ReadNpy("a file", Bytes(file)));
                });
}

Test(replay_files, damaged_safetensors_do_no_harm) {
  ExpectNoCrash(
      Safetensors(Entry("F32", "[2,3]", "[0,24]"), std::string(24, 'x')),
      [](const std::string& file) {
        for (const Tensor& t : ReadSafetensors("a file", Bytes(file))) {
          ExpectInside(file, t);
        }
      });
}

}  // namespace
}  // namespace kvevict::tools
