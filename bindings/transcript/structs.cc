#include "bindings/transcript/structs.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "bindings/transcript/objects.h"

namespace transcript {

const Field* Struct::Find(const std::string& name) const {
  for (const Field& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

Structs ReadStructs(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + " cannot be read");
  Structs structs;
  Struct* last = nullptr;
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> row = Split(line, '\t');
    if (row[0] == "struct") {
      last = &structs[row[1]];
      last->size = std::stoul(row[2]);
    } else if (row[0] == "field") {
      last->fields.push_back(
          {row[1], std::stoul(row[2]), std::stoul(row[3]), row[4]});
    }
  }
  return structs;
}

namespace {

/// Numbers and pointers of a struct in memory.
template <class T>
void Store(uint8_t* at, std::size_t size, T value) {
  std::memcpy(at, &value, std::min(size, sizeof(value)));
}

bool IsNumber(const std::string& text) {
  return text.find_first_of("0123456789") == 0 || text[0] == '-';
}

}  // namespace

void Objects::PutField(const Struct& type, const Field& field, Line& line,
                       uint8_t* at) {
  uint8_t* to = at + field.offset;
  const std::string text = line.Text(field.name);
  if (field.type == "float") {
    Store(to, 4, std::strtof(text.c_str(), nullptr));
  } else if (field.type == "double") {
    Store(to, 8, std::strtod(text.c_str(), nullptr));
  } else if (structs_.count(field.type) != 0) {
    std::memcpy(to, BuildOne(field.type, text), field.size);
  } else if (field.type.back() != '*' && IsNumber(text)) {
    Store(to, field.size, line.Number<int64_t>(field.name));
  } else {  // a pointer, or an address that is a number in C
    std::size_t length = 0;
    Store(to, 8, PointerTo(field.type, line, field.name, &length));
    for (const std::string& name :
         {field.name + "_len", field.name + "_bytes", "n_" + field.name}) {
      const Field* count = type.Find(name);
      if (count != nullptr && !line.Has(name)) {
        Store(at + count->offset, count->size, length);
      }
    }
  }
}

const void* Objects::PointerTo(const std::string& type, Line& line,
                               const std::string& key, std::size_t* length) {
  const std::string text = line.Text(key);
  const std::vector<std::string> parts = line.List(key);
  const std::string pointee = type.substr(0, type.size() - 1);
  *length = parts.size();
  if (structs_.count(pointee) != 0) return Build(pointee, parts);
  if (pointee == "kvevict_sequence") return all<kvevict_sequence>().Get(text);
  if (pointee == "kvevict_plan") return all<kvevict_plan>().Get(text);
  if (pointee == "kvevict_paged_sequence")
    return all<kvevict_paged_sequence>().Get(text);
  if (pointee == "char") return Keep(1, text)->c_str();
  if (!IsNumber(text)) {
    *length = Length(text);
    return Data<void>(text);
  }
  if (pointee == "double") {
    double* numbers = Keep(parts.size(), 0.0);
    for (const std::string& part : parts) *numbers++ = std::stod(part);
    return numbers - parts.size();
  }
  int32_t* numbers = Keep(parts.size(), int32_t());
  for (const std::string& part : parts) *numbers++ = std::stoi(part);
  return numbers - parts.size();
}

const uint8_t* Objects::BuildOne(const std::string& kind,
                                 const std::string& name) {
  return static_cast<const uint8_t*>(Build(kind, {name}));
}

void* Objects::Build(const std::string& kind,
                     const std::vector<std::string>& names) {
  if (names.empty()) return nullptr;
  const Struct& type = structs_.at(kind);
  uint8_t* all = Keep(type.size * names.size(), uint8_t());
  for (std::size_t i = 0; i < names.size(); ++i) {
    uint8_t* at = all + i * type.size;
    if (const auto lent = cached_views.find(names[i]);
        lent != cached_views.end()) {
      std::memcpy(at, &lent->second, type.size);
      continue;
    }
    if (type.Find("struct_size") != nullptr) {
      Store(at, 4, static_cast<uint32_t>(type.size));
    }
    if (names[i] == "-") continue;
    Line& line = LineOf(kind.substr(sizeof("kvevict_") - 1), names[i]);
    if (kind == "kvevict_position_lists") {
      *reinterpret_cast<kvevict_position_lists*>(at) = PositionLists(line);
      continue;
    }
    for (const Field& field : type.fields) {
      if (line.Has(field.name)) PutField(type, field, line, at);
    }
    if (line.Has("offset")) {
      reinterpret_cast<kvevict_plane*>(at)->data +=
          line.Number<uint64_t>("offset");
    }
  }
  return all;
}

/// Lists are written one after another, as in 1,2/3: the longest decides count
/// and stride.
kvevict_position_lists Objects::PositionLists(Line& line) {
  kvevict_position_lists all = KVEVICT_POSITION_LISTS_INIT;
  const std::vector<std::string> lists = line.List("positions", '/');
  uint32_t* counts = Keep(lists.size(), 0u);
  for (std::size_t i = 0; i < lists.size(); ++i) {
    counts[i] = static_cast<uint32_t>(Split(lists[i], ',').size());
    all.count = std::max(all.count, counts[i]);
  }
  int32_t* positions = Keep(lists.size() * all.count, int32_t());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    int32_t* next = positions + i * all.count;
    for (const std::string& part : Split(lists[i], ',')) {
      *next++ = std::stoi(part);
    }
  }
  all.n_lists = static_cast<uint32_t>(lists.size());
  all.positions = positions;
  all.positions_len = lists.size() * all.count;
  all.counts = counts;
  return all;
}

}  // namespace transcript
