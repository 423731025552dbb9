// Reads Python pickles of dictionaries, lists, numbers, texts and tensors as
// torch.save() writes them. Nothing in a pickle is ever run: a call of anything
// else is an error.
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
    kStorage,  // items: its type, the entry's name
    kTensor    // items: storage, offset, sizes, strides
  };
  Kind kind = Kind::kNone;
  int64_t number = 0;
  double real = 0.0;
  std::string text;
  std::vector<const PickleValue*> items;
  std::vector<std::pair<const PickleValue*, const PickleValue*>> pairs;

  // The value of a dictionary's key; nullptr if there is no such key.
  const PickleValue* Find(std::string_view key) const;
};

// The content of a pickle, valid as long as this object. Its memory is linear
// in the pickle: values used again are pointed to, not copied.
class Pickle {
 public:
  // Throws std::runtime_error that names the file, the place and the error.
  Pickle(const std::string& path, std::span<const uint8_t> bytes);

  const PickleValue& root() const { return *root_; }

 private:
  // All values, so that none owns another, however deep they are nested.
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;

  friend class Unpickler;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_CALIBRATION_PICKLE_H_
