// Python's pickles, as far as torch.save() writes them of dictionaries, lists, numbers,
// texts and tensors. Nothing of a pickle is ever run: what else one calls is an error.
#ifndef KVEVICT_TOOLS_CALIBRATION_PICKLE_H_
#define KVEVICT_TOOLS_CALIBRATION_PICKLE_H_

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvevict::tools {

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,  // and tuples
    kDict,
    kGlobal,   // text: "module name"
    kStorage,  // items: what it is of, the entry's name
    kTensor    // items: storage, offset, sizes, strides
  };
  Kind kind = Kind::kNone;
  int64_t number = 0;
  double real = 0.0;
  std::string text;
  std::vector<const PickleValue*> items;
  std::vector<std::pair<const PickleValue*, const PickleValue*>> pairs;

  // Of a dictionary; nullptr if there is no such key.
  const PickleValue* Find(std::string_view key) const;
};

// What a pickle holds, for as long as this is there. Its memory is linear in the
// pickle: what is used again is pointed to, not copied.
class Pickle {
 public:
  // Throws std::runtime_error that names the file, the place and what is wrong.
  Pickle(const std::string& path, std::span<const uint8_t> bytes);

  const PickleValue& root() const { return *root_; }

 private:
  // All of them, so that none owns another however deep they lie.
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;

  friend class Unpickler;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_CALIBRATION_PICKLE_H_
