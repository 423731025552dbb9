#include "tests/cuda/gates/cubin.h"

#include <elf.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace kvevict::cuda {
namespace {

constexpr std::string_view kText = ".text.";
constexpr std::string_view kInfo = ".nv.info.";

[[noreturn]] void Malformed(const std::string& what) {
  throw std::runtime_error("not a cubin: " + what);
}

// A value at an offset of the file.
template <typename T>
T At(std::string_view bytes, size_t offset) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) {
    Malformed("it ends early");
  }
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

struct Section {
  std::string_view name;
  std::string_view bytes;
};

std::vector<Section> ReadSections(std::string_view image) {
  const auto header = At<Elf64_Ehdr>(image, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) Malformed("no ELF");
  if (header.e_ident[EI_CLASS] != ELFCLASS64) Malformed("not 64 bits");
  if (header.e_shentsize != sizeof(Elf64_Shdr)) Malformed("section headers");

  std::vector<Elf64_Shdr> headers;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    headers.push_back(
        At<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr)));
  }
  if (header.e_shstrndx >= headers.size()) Malformed("no section names");
  const auto bytes_of = [&](const Elf64_Shdr& h) {
    if (h.sh_type == SHT_NOBITS) return std::string_view();
    if (h.sh_offset > image.size() || h.sh_size > image.size() - h.sh_offset) {
      Malformed("a section beyond the end");
    }
    return image.substr(h.sh_offset, h.sh_size);
  };
  const std::string_view names = bytes_of(headers[header.e_shstrndx]);
  std::vector<Section> sections;
  for (const Elf64_Shdr& h : headers) {
    const std::string_view rest = names.substr(h.sh_name);
    sections.push_back({rest.substr(0, rest.find('\0')), bytes_of(h)});
  }
  return sections;
}

// A kernel's attributes are a list of {format, attribute, u16}; with format 4
// the u16 is the length of a value that follows.
uint32_t MaxThreads(std::string_view info) {
  constexpr uint8_t kSizedValue = 4;
  constexpr uint8_t kMaxThreads = 5;
  size_t at = 0;
  while (at < info.size()) {
    const auto format = At<uint8_t>(info, at);
    const auto attribute = At<uint8_t>(info, at + 1);
    const auto n_bytes = At<uint16_t>(info, at + 2);
    if (format == kSizedValue && attribute == kMaxThreads) {
      return At<uint32_t>(info, at + 4) * At<uint32_t>(info, at + 8) *
             At<uint32_t>(info, at + 12);
    }
    at += 4 + (format == kSizedValue ? n_bytes : 0);
  }
  return 0;
}

}  // namespace

size_t CubinKernel::Count(Opcode opcode) const {
  return std::count_if(
      instructions.begin(), instructions.end(),
      [&](const SassInstruction& i) { return i.opcode() == opcode; });
}

size_t CubinKernel::Count(Opcode opcode, int n_bits) const {
  const unsigned width = std::countr_zero(static_cast<unsigned>(n_bits)) - 1;
  return std::count_if(instructions.begin(), instructions.end(),
                       [&](const SassInstruction& i) {
                         return i.opcode() == opcode && i.width() == width;
                       });
}

std::vector<CubinKernel> ReadCubin(const std::string& image) {
  const std::vector<Section> sections = ReadSections(image);
  std::vector<CubinKernel> kernels;
  for (const Section& section : sections) {
    if (!section.name.starts_with(kText)) continue;
    CubinKernel kernel;
    kernel.name = section.name.substr(kText.size());
    if (section.bytes.size() % 16 != 0) Malformed("half an instruction");
    for (size_t at = 0; at < section.bytes.size(); at += 16) {
      kernel.instructions.push_back({At<uint64_t>(section.bytes, at),
                                     At<uint64_t>(section.bytes, at + 8)});
    }
    for (const Section& info : sections) {
      if (info.name == std::string(kInfo) + kernel.name) {
        kernel.max_threads = MaxThreads(info.bytes);
      }
    }
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace kvevict::cuda
