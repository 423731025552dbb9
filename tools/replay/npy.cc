#include "tools/replay/npy.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <string_view>

#include "tools/engine/byte_reader.h"

namespace kvevict::tools {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlignment = 64;
constexpr size_t kMostAxes = 32;  // NumPy's

// Reads a dictionary of Python in the few forms in which NumPy writes it.
class HeaderText {
 public:
  HeaderText(ByteReader& reader, std::string_view text)
      : reader_(reader), text_(text) {}

  void Read(Tensor* tensor) {
    Expect('{');
    bool has_type = false, has_order = false, has_shape = false;
    while (!Next('}')) {
      const std::string_view key = Quoted();
      Expect(':');
      if (key == "descr") {
        if (Peek() != '\'' && Peek() != '"') {
          reader_.Fail("the header's descr is not the name of one type");
        }
        tensor->type = Quoted();
        has_type = true;
      } else if (key == "fortran_order") {
        if (Word() != "False") {
          reader_.Fail("the array is in Fortran order, not in C order");
        }
        has_order = true;
      } else if (key == "shape") {
        tensor->shape = Numbers();
        has_shape = true;
      } else {
        reader_.Fail("the header has the unknown key '" + std::string(key) +
                     "'");
      }
      if (!Next(',') && Peek() != '}') Damaged();
    }
    if (!has_type || !has_order || !has_shape) {
      reader_.Fail("the header lacks descr, fortran_order or shape");
    }
  }

 private:
  [[noreturn]] void Damaged() {
    reader_.Fail(fmt::format("the header is damaged at its character {}", at_));
  }
  // The next character that is no space; '\0' at the end.
  char Peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool Next(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  void Expect(char c) {
    if (!Next(c)) Damaged();
  }
  std::string_view Quoted() {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') Damaged();
    const size_t begin = at_ + 1, end = text_.find(quote, begin);
    if (end == std::string_view::npos) Damaged();
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  std::string_view Word() {
    (void)Peek();
    const size_t begin = at_;
    while (at_ < text_.size() && std::isalpha(uint8_t(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::vector<uint64_t> Numbers() {
    std::vector<uint64_t> numbers;
    Expect('(');
    while (!Next(')')) {
      (void)Peek();
      uint64_t n = 0;
      const char* const begin = text_.data() + at_;
      const auto [stop, error] =
          std::from_chars(begin, text_.data() + text_.size(), n);
      if (error != std::errc()) Damaged();
      at_ += static_cast<size_t>(stop - begin);
      numbers.push_back(n);
      if (numbers.size() > kMostAxes) reader_.Fail("more than 32 axes");
      if (!Next(',') && Peek() != ')') Damaged();
    }
    return numbers;
  }

  ByteReader& reader_;
  std::string_view text_;
  size_t at_ = 0;
};

// Bytes of an element: the number behind the letter of "<f4".
uint64_t ElementBytes(const ByteReader& reader, const std::string& type) {
  uint64_t n = 0;
  const char* const end = type.data() + type.size();
  if (type.size() >= 3) {
    const auto [stop, error] = std::from_chars(type.data() + 2, end, n);
    if (error == std::errc() && stop == end) return n;
  }
  reader.Fail("descr '" + type + "' is not a type such as '<f4'");
}

}  // namespace

Tensor ReadNpy(const std::string& path, std::span<const uint8_t> bytes) {
  ByteReader reader(path, bytes);
  const auto magic = reader.Take(kMagic.size(), "the magic number");
  if (!std::equal(magic.begin(), magic.end(), kMagic.begin(),
                  [](uint8_t a, char b) { return a == uint8_t(b); })) {
    reader.Fail("the magic number is not that of .npy");
  }
  const auto major = reader.Read<uint8_t>("the version");
  reader.Read<uint8_t>("the version");
  if (major < 1 || major > 3) {
    reader.Fail(fmt::format("version {} is not in [1, 3]", major));
  }
  const uint64_t n_header = major == 1
                                ? reader.Read<uint16_t>("the header's length")
                                : reader.Read<uint32_t>("the header's length");
  const auto header = reader.Take(n_header, "the header");
  Tensor tensor;
  tensor.file = path;
  HeaderText(reader, {reinterpret_cast<const char*>(header.data()), n_header})
      .Read(&tensor);
  const auto n_bytes =
      ArrayBytes(tensor.shape, ElementBytes(reader, tensor.type));
  if (!n_bytes || *n_bytes != reader.remaining()) {
    reader.Fail(fmt::format(
        "an array {} of {} has {} bytes, but the file has {} for it",
        ShapeText(tensor.shape), tensor.type,
        n_bytes ? std::to_string(*n_bytes) : "2^64 or more",
        reader.remaining()));
  }
  tensor.bytes = reader.Take(*n_bytes, "the array");
  return tensor;
}

std::string NpyHeader(const std::string& type,
                      std::span<const uint64_t> shape) {
  std::string axes;
  for (const uint64_t n : shape) axes += std::to_string(n) + ", ";
  std::string text = "{'descr': '" + type +
                     "', 'fortran_order': False, 'shape': (" + axes + "), }";
  const size_t n_before = kMagic.size() + 4;
  const size_t n_all =
      (n_before + text.size() + kAlignment) / kAlignment * kAlignment;
  text.append(n_all - n_before - text.size() - 1, ' ');
  text += '\n';
  const auto n_text = static_cast<uint16_t>(text.size());
  std::string header(kMagic);
  header += {'\x01', '\0', char(n_text & 255), char(n_text >> 8)};
  return header + text;
}

}  // namespace kvevict::tools
