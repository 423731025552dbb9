#include "tools/calibration/pickle.h"

#include <bit>
#include <map>

#include "tools/engine/byte_reader.h"

namespace kvevict::tools {

using Kind = PickleValue::Kind;

const PickleValue* PickleValue::Find(std::string_view key) const {
  for (const auto& [name, value] : pairs) {
    if (name->kind == Kind::kText && name->text == key) return value;
  }
  return nullptr;
}

// A stack machine: opcodes push values, and collect those above a mark.
class Unpickler {
 public:
  Unpickler(const std::string& path, std::span<const uint8_t> bytes,
            Pickle* pickle)
      : reader_(path + ": data.pkl", bytes), pickle_(*pickle) {}

  void Run() {
    while (true) {
      const char code = static_cast<char>(reader_.Read<uint8_t>("an opcode"));
      if (code == '.') break;
      Do(code);
    }
    pickle_.root_ = Pop();
  }

 private:
  void Do(char code);
  void Reduce();
  void SetItems(size_t begin);

  PickleValue* New(Kind kind) {
    pickle_.values_.emplace_back();
    pickle_.values_.back().kind = kind;
    return &pickle_.values_.back();
  }
  PickleValue* Push(Kind kind) {
    stack_.push_back(New(kind));
    return stack_.back();
  }
  void PushNumber(Kind kind, int64_t number) { Push(kind)->number = number; }
  void PushText(size_t n) { Push(Kind::kText)->text = Text(n); }
  std::string Text(size_t n) {
    const auto bytes = reader_.Take(n, "a text");
    return {bytes.begin(), bytes.end()};
  }
  std::string Line() {
    std::string line;
    for (char c;
         (c = static_cast<char>(reader_.Read<uint8_t>("a name"))) != '\n';) {
      line += c;
    }
    return line;
  }
  PickleValue* Pop() {
    Need(1);
    PickleValue* const top = stack_.back();
    stack_.pop_back();
    return top;
  }
  void Need(size_t n) const {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + n) reader_.Fail("the stack is empty");
  }
  size_t PopMark() {
    if (marks_.empty()) reader_.Fail("there is no mark");
    const size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }
  // Replaces the values from `begin` on by a list of them.
  void Gather(size_t begin) {
    PickleValue* const list = New(Kind::kList);
    list->items.assign(stack_.begin() + static_cast<ptrdiff_t>(begin),
                       stack_.end());
    stack_.resize(begin);
    stack_.push_back(list);
  }
  void GatherLast(size_t n) {
    Need(n);
    Gather(stack_.size() - n);
  }
  void Extend(size_t begin) {
    if (begin == 0 || stack_[begin - 1]->kind != Kind::kList) {
      reader_.Fail("only lists are appended to");
    }
    PickleValue* const list = stack_[begin - 1];
    list->items.insert(list->items.end(),
                       stack_.begin() + static_cast<ptrdiff_t>(begin),
                       stack_.end());
    stack_.resize(begin);
  }
  void Get(uint32_t place) {
    const auto at = memo_.find(place);
    if (at == memo_.end()) reader_.Fail("nothing was stored there");
    stack_.push_back(at->second);
  }
  void Put(uint32_t place) {
    Need(1);
    memo_[place] = stack_.back();
  }

  ByteReader reader_;
  Pickle& pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::map<uint32_t, PickleValue*> memo_;
};

void Unpickler::SetItems(size_t begin) {
  if (begin == 0 || stack_[begin - 1]->kind != Kind::kDict ||
      (stack_.size() - begin) % 2 != 0) {
    reader_.Fail("only dictionaries have keys, and each key a value");
  }
  for (size_t i = begin; i < stack_.size(); i += 2) {
    stack_[begin - 1]->pairs.emplace_back(stack_[i], stack_[i + 1]);
  }
  stack_.resize(begin);
}

// A call. Only two functions are known.
void Unpickler::Reduce() {
  const PickleValue* const arguments = Pop();
  const PickleValue* const function = Pop();
  if (function->kind == Kind::kGlobal &&
      function->text == "collections OrderedDict") {
    Push(Kind::kDict);
    return;
  }
  if (function->kind != Kind::kGlobal ||
      function->text != "torch._utils _rebuild_tensor_v2") {
    reader_.Fail("it calls " + function->text + ", which this reader does not");
  }
  if (arguments->items.size() < 4 ||
      arguments->items[0]->kind != Kind::kStorage) {
    reader_.Fail("a tensor without storage, offset, sizes and strides");
  }
  Push(Kind::kTensor)
      ->items.assign(arguments->items.begin(), arguments->items.begin() + 4);
}

void Unpickler::Do(char code) {
  switch (code) {
    case '\x80':  // protocol
      if (reader_.Read<uint8_t>("the protocol") > 4) {
        reader_.Fail("a protocol above 4");
      }
      return;
    case '(':
      marks_.push_back(stack_.size());
      return;
    case 'N':
      Push(Kind::kNone);
      return;
    case '\x88':
    case '\x89':
      return PushNumber(Kind::kBool, code == '\x88');
    case 'K':
      return PushNumber(Kind::kInt, reader_.Read<uint8_t>("a number"));
    case 'M':
      return PushNumber(Kind::kInt, reader_.Read<uint16_t>("a number"));
    case 'J':
      return PushNumber(Kind::kInt, reader_.Read<int32_t>("a number"));
    case '\x8a': {  // a number with its count of bytes
      const auto n = reader_.Read<uint8_t>("a number");
      if (n > 8) reader_.Fail("a number of more than 64 bits");
      const auto bytes = reader_.Take(n, "a number");
      uint64_t number = n > 0 && bytes[n - 1] >= 128 ? ~uint64_t{0} : 0;
      for (size_t i = n; i-- > 0;) number = number << 8 | bytes[i];
      return PushNumber(Kind::kInt, static_cast<int64_t>(number));
    }
    case 'G': {  // big-endian
      uint64_t bits = 0;
      for (const uint8_t byte : reader_.Take(8, "a number")) {
        bits = bits << 8 | byte;
      }
      Push(Kind::kFloat)->real = std::bit_cast<double>(bits);
      return;
    }
    case 'X':
      return PushText(reader_.Read<uint32_t>("a text"));
    case '\x8c':
      return PushText(reader_.Read<uint8_t>("a text"));
    case '}':
      Push(Kind::kDict);
      return;
    case ']':
    case ')':
      Push(Kind::kList);
      return;
    case 't':
      return Gather(PopMark());
    case '\x85':
      return GatherLast(1);
    case '\x86':
      return GatherLast(2);
    case '\x87':
      return GatherLast(3);
    case 'a':
      Need(2);
      return Extend(stack_.size() - 1);
    case 'e':
      return Extend(PopMark());
    case 's':
      Need(3);
      return SetItems(stack_.size() - 2);
    case 'u':
      return SetItems(PopMark());
    case 'c': {  // a global, by module and name
      const std::string module = Line();
      Push(Kind::kGlobal)->text = module + " " + Line();
      return;
    }
    case 'Q': {  // ('storage', type, entry, device, elements)
      const PickleValue* const id = Pop();
      if (id->items.size() != 5 || id->items[0]->text != "storage" ||
          id->items[1]->kind != Kind::kGlobal) {
        reader_.Fail("something outside that is no storage");
      }
      Push(Kind::kStorage)->items = {id->items[1], id->items[2]};
      return;
    }
    case 'R':
      return Reduce();
    case 'q':
      return Put(reader_.Read<uint8_t>("a place"));
    case 'r':
      return Put(reader_.Read<uint32_t>("a place"));
    case 'h':
      return Get(reader_.Read<uint8_t>("a place"));
    case 'j':
      return Get(reader_.Read<uint32_t>("a place"));
  }
  reader_.Fail("opcode " + std::to_string(static_cast<uint8_t>(code)) +
               ", which torch.save() does not write of such a file");
}

Pickle::Pickle(const std::string& path, std::span<const uint8_t> bytes) {
  Unpickler(path, bytes, this).Run();
}

}  // namespace kvevict::tools
