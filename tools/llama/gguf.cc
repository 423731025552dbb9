#include "tools/llama/gguf.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "tools/llama/byte_reader.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr size_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;

// The type tags of metadata values.
enum ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

std::string Quote(std::string_view name) {
  std::string quoted(1, '\'');
  return quoted.append(name.substr(0, 64)) += '\'';
}

std::string_view ReadString(ByteReader& in, std::string_view what) {
  const auto n_bytes = in.Read<uint64_t>(what);
  const auto bytes = in.Take(n_bytes, what);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Reads a count of things with at least `min_bytes` each. It is checked against
// the rest of the file before anything is allocated for it.
uint64_t ReadCount(ByteReader& in, size_t min_bytes, std::string_view what) {
  const auto count = in.Read<uint64_t>(what);
  if (count > in.remaining() / min_bytes) {
    in.Fail("file is truncated or damaged: " + std::string(what) + " is " +
            std::to_string(count) + ", but only " +
            std::to_string(in.remaining()) + " bytes remain");
  }
  return count;
}

template <typename Wide, typename Stored>
std::vector<Wide> ReadNumbers(ByteReader& in, std::string_view what) {
  const uint64_t count = ReadCount(in, sizeof(Stored), what);
  std::vector<Wide> numbers;
  numbers.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<Wide>(in.Read<Stored>(what)));
  }
  return numbers;
}

std::vector<std::string_view> ReadStrings(ByteReader& in,
                                          std::string_view what) {
  const uint64_t count = ReadCount(in, sizeof(uint64_t), what);
  std::vector<std::string_view> strings;
  strings.reserve(count);
  for (uint64_t i = 0; i < count; ++i) strings.push_back(ReadString(in, what));
  return strings;
}

GgufValue ReadArray(ByteReader& in, std::string_view what) {
  const auto type = in.Read<uint32_t>(what);
  switch (type) {
    case kU8:
      return ReadNumbers<uint64_t, uint8_t>(in, what);
    case kI8:
      return ReadNumbers<int64_t, int8_t>(in, what);
    case kU16:
      return ReadNumbers<uint64_t, uint16_t>(in, what);
    case kI16:
      return ReadNumbers<int64_t, int16_t>(in, what);
    case kU32:
      return ReadNumbers<uint64_t, uint32_t>(in, what);
    case kI32:
      return ReadNumbers<int64_t, int32_t>(in, what);
    case kF32:
      return ReadNumbers<double, float>(in, what);
    case kBool:
      return ReadNumbers<bool, uint8_t>(in, what);
    case kString:
      return ReadStrings(in, what);
    case kU64:
      return ReadNumbers<uint64_t, uint64_t>(in, what);
    case kI64:
      return ReadNumbers<int64_t, int64_t>(in, what);
    case kF64:
      return ReadNumbers<double, double>(in, what);
  }
  in.Fail(std::string(what) + " is an array of unsupported value type " +
          std::to_string(type));
}

GgufValue ReadValue(ByteReader& in, std::string_view what) {
  const auto type = in.Read<uint32_t>(what);
  switch (type) {
    case kU8:
      return uint64_t{in.Read<uint8_t>(what)};
    case kI8:
      return int64_t{in.Read<int8_t>(what)};
    case kU16:
      return uint64_t{in.Read<uint16_t>(what)};
    case kI16:
      return int64_t{in.Read<int16_t>(what)};
    case kU32:
      return uint64_t{in.Read<uint32_t>(what)};
    case kI32:
      return int64_t{in.Read<int32_t>(what)};
    case kF32:
      return double{in.Read<float>(what)};
    case kBool:
      return in.Read<uint8_t>(what) != 0;
    case kString:
      return ReadString(in, what);
    case kArray:
      return ReadArray(in, what);
    case kU64:
      return in.Read<uint64_t>(what);
    case kI64:
      return in.Read<int64_t>(what);
    case kF64:
      return in.Read<double>(what);
  }
  in.Fail(std::string(what) + " has unknown value type " +
          std::to_string(type));
}

void CheckHeader(ByteReader& in) {
  if (in.Read<uint32_t>("the magic number") != kMagic) {
    in.Fail("not a GGUF file (the magic number differs)");
  }
  const auto version = in.Read<uint32_t>("the version");
  if (version != 2 && version != 3) {
    const bool big_endian = (version & 0xffffu) == 0;
    in.Fail("GGUF version " + std::to_string(version) +
            (big_endian ? " (a big-endian file)" : "") +
            " is unsupported; versions 2 and 3 are read");
  }
}

// Bytes of a tensor's data, or a failure naming the tensor.
uint64_t TensorBytes(const ByteReader& in, const GgufTensor& tensor,
                     const GgmlTypeInfo& type) {
  uint64_t n_blocks = 1;
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    uint64_t dim = tensor.dims[i];
    if (i == 0) {  // Blocks lie along the innermost dimension.
      if (dim % type.block_elems != 0) {
        in.Fail("tensor " + Quote(tensor.name) + ": row length " +
                std::to_string(dim) + " is not a multiple of " + type.name +
                "'s block of " + std::to_string(type.block_elems));
      }
      dim /= type.block_elems;
    }
    if (dim == 0 || __builtin_mul_overflow(n_blocks, dim, &n_blocks)) {
      in.Fail("tensor " + Quote(tensor.name) + " has a zero or absurd size");
    }
  }
  uint64_t n_bytes = 0;
  if (__builtin_mul_overflow(n_blocks, type.block_bytes, &n_bytes)) {
    in.Fail("tensor " + Quote(tensor.name) + " has an absurd size");
  }
  return n_bytes;
}

// A tensor's directory entry; its data is placed once the directory has ended.
struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset;
  uint64_t n_bytes;
};

TensorEntry ReadTensorEntry(ByteReader& in, uint64_t index) {
  const std::string what = "entry of tensor " + std::to_string(index);
  TensorEntry entry;
  GgufTensor& tensor = entry.tensor;
  tensor.name = ReadString(in, what);
  const auto n_dims = in.Read<uint32_t>(what);
  if (n_dims == 0 || n_dims > kMaxDims) {
    in.Fail("tensor " + Quote(tensor.name) + " has " + std::to_string(n_dims) +
            " dimensions; 1 to 4 are possible");
  }
  for (uint32_t i = 0; i < n_dims; ++i) {
    tensor.dims.push_back(in.Read<uint64_t>(what));
  }
  const auto type = in.Read<uint32_t>(what);
  const GgmlTypeInfo* info = FindGgmlType(type);
  if (info == nullptr) {
    in.Fail("tensor " + Quote(tensor.name) + " is " + GgmlTypeName(type) +
            "; this engine reads f32, f16, bf16 and q8_0");
  }
  tensor.type = info->type;
  entry.offset = in.Read<uint64_t>(what);
  entry.n_bytes = TensorBytes(in, tensor, *info);
  return entry;
}

void PlaceTensor(const ByteReader& in, std::span<const uint8_t> file,
                 uint64_t data_begin, uint64_t alignment, TensorEntry& entry) {
  const std::string name = Quote(entry.tensor.name);
  if (entry.offset % alignment != 0) {
    in.Fail("tensor " + name + ": offset " + std::to_string(entry.offset) +
            " is not a multiple of the alignment " + std::to_string(alignment));
  }
  const uint64_t data_bytes =
      file.size() > data_begin ? file.size() - data_begin : 0;
  if (entry.offset > data_bytes || entry.n_bytes > data_bytes - entry.offset) {
    in.Fail("file is truncated: tensor " + name + " needs " +
            std::to_string(entry.n_bytes) + " bytes at offset " +
            std::to_string(entry.offset) + " of the tensor data, which has " +
            std::to_string(data_bytes));
  }
  entry.tensor.data = file.subspan(data_begin + entry.offset, entry.n_bytes);
}

// Tensors that share bytes would let a small file stand for a model of any
// size.
void CheckApart(const ByteReader& in, const std::vector<TensorEntry>& entries) {
  std::vector<const TensorEntry*> by_offset;
  by_offset.reserve(entries.size());
  for (const TensorEntry& entry : entries) by_offset.push_back(&entry);
  std::sort(by_offset.begin(), by_offset.end(),
            [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorEntry& before = *by_offset[i - 1];
    if (before.n_bytes <= by_offset[i]->offset - before.offset) continue;
    in.Fail("tensors " + Quote(before.tensor.name) + " and " +
            Quote(by_offset[i]->tensor.name) + " overlap");
  }
}

}  // namespace

uint64_t GgufTensor::n_elems() const {
  uint64_t product = 1;  // Cannot overflow: the reader has checked it.
  for (const uint64_t dim : dims) product *= dim;
  return product;
}

GgufFile::GgufFile(const std::string& path) : file_(path) {
  ByteReader in(path, file_.bytes());
  CheckHeader(in);
  // The smallest entries: an empty name, one dimension; an empty key, one byte.
  const uint64_t n_tensors = ReadCount(in, 32, "the tensor count");
  const uint64_t n_metadata = ReadCount(in, 13, "the metadata count");
  for (uint64_t i = 0; i < n_metadata; ++i) {
    const std::string_view key =
        ReadString(in, "key of metadata " + std::to_string(i));
    GgufValue value = ReadValue(in, "metadata " + Quote(key));
    if (!metadata_.emplace(key, std::move(value)).second) {
      in.Fail("metadata " + Quote(key) + " occurs twice");
    }
  }

  std::vector<TensorEntry> entries;
  for (uint64_t i = 0; i < n_tensors; ++i) {
    entries.push_back(ReadTensorEntry(in, i));
  }
  const auto alignment =
      GetOr<uint64_t>("general.alignment", kDefaultAlignment);
  if (!std::has_single_bit(alignment) || alignment > (1u << 20)) {
    in.Fail("general.alignment " + std::to_string(alignment) +
            " is not a power of two up to 2^20");
  }
  CheckApart(in, entries);
  const uint64_t data_begin =
      (in.offset() + alignment - 1) / alignment * alignment;
  for (TensorEntry& entry : entries) {
    PlaceTensor(in, file_.bytes(), data_begin, alignment, entry);
    const std::string_view name = entry.tensor.name;
    if (!tensors_.emplace(name, std::move(entry.tensor)).second) {
      in.Fail("tensor " + Quote(name) + " occurs twice");
    }
  }
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

template <typename T>
T GgufFile::Get(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) Fail("metadata " + Quote(key) + " is missing");
  if (const T* exact = std::get_if<T>(value)) return *exact;
  if constexpr (std::is_same_v<T, uint64_t>) {
    const auto* number = std::get_if<int64_t>(value);
    if (number != nullptr && *number >= 0) {
      return static_cast<uint64_t>(*number);
    }
  }
  Fail("metadata " + Quote(key) + " has an unexpected type");
}

template uint64_t GgufFile::Get(std::string_view) const;
template double GgufFile::Get(std::string_view) const;
template bool GgufFile::Get(std::string_view) const;
template std::string_view GgufFile::Get(std::string_view) const;
template std::vector<int64_t> GgufFile::Get(std::string_view) const;
template std::vector<double> GgufFile::Get(std::string_view) const;
template std::vector<std::string_view> GgufFile::Get(std::string_view) const;

void GgufFile::Fail(const std::string& message) const {
  throw std::runtime_error(path() + ": " + message);
}

}  // namespace kvevict::tools
