// The structs of the header, from the table that pkg/abi/table.sh makes of it: a new
// field needs nothing here.
#ifndef KVEVICT_BINDINGS_TRANSCRIPT_STRUCTS_H_
#define KVEVICT_BINDINGS_TRANSCRIPT_STRUCTS_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace transcript {

struct Field {
  std::string name;
  std::size_t offset;
  std::size_t size;
  std::string type;  // "uint32_t", "kvevict_view*"
};

struct Struct {
  std::size_t size = 0;
  std::vector<Field> fields;

  /// The field of a name; NULL if there is none.
  const Field* Find(const std::string& name) const;
};

/// Structs by name: "kvevict_move".
using Structs = std::map<std::string, Struct>;

Structs ReadStructs(const std::string& file);

}  // namespace transcript

#endif  // KVEVICT_BINDINGS_TRANSCRIPT_STRUCTS_H_
