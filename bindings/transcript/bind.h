// Calls of C functions, made from their types.
#ifndef KVEVICT_BINDINGS_TRANSCRIPT_BIND_H_
#define KVEVICT_BINDINGS_TRANSCRIPT_BIND_H_

#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "bindings/transcript/calls.h"

namespace transcript {

/// Makes arguments in the order of the parameters, and results of what a call has put into
/// them.
class Arguments {
 public:
  Arguments(Line& line, Objects& objects, const std::string& keys)
      : line_(line), objects_(objects), keys_(Split(keys, ' ')) {}

  /// An argument of type T, whose neighbour to the right is a U.
  template <class T, class U>
  T Next() {
    if constexpr (std::is_same_v<T, std::size_t>) {
      return length_;  // of what the parameter before it points to
    } else if constexpr (!std::is_pointer_v<T>) {
      return line_.Number<T>(Key());
    } else if constexpr (std::is_same_v<T, kvevict_stream> &&
                         !std::is_same_v<U, std::size_t>) {
      return nullptr;
    } else {
      return PointerTo<std::remove_pointer_t<T>>();
    }
  }

  void AddResults(Results& out) {
    for (const auto& add : results_) add(out);
  }
  /// The struct that the call has written.
  const void* written() const { return written_; }

 private:
  std::string Key() { return keys_.at(next_++); }

  template <class T>
  T* PointerTo() {
    using Pointee = std::remove_const_t<T>;
    if constexpr (std::is_pointer_v<T>) {  // a new handle
      T* const made = objects_.Keep(1, T());
      results_.push_back([this, made](Results&) {
        using Object = std::remove_pointer_t<T>;
        objects_.all<Object>().Put(line_.Text("name"), *made);
      });
      return made;
    } else if constexpr (std::is_same_v<Pointee, char>) {
      const std::string key = Key();
      const std::string text = line_.Text(key);
      return line_.Has(key) ? objects_.Keep(1, text)->c_str() : nullptr;
    } else if constexpr (std::is_void_v<T>) {
      return Memory(Key());
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      T* const number = objects_.Keep(1, T());
      results_.push_back(
          [key = Key(), number](Results& out) { out.Add(key, +*number); });
      return number;
    } else if constexpr (Objects::IsHandle<Pointee>()) {
      const std::string name = line_.Text(Key());
      return name.empty() ? nullptr : objects_.all<Pointee>().Get(name);
    } else if constexpr (std::is_const_v<T>) {  // structs
      const std::vector<std::string> names = line_.List(Key());
      length_ = names.size();
      return objects_.All<Pointee>(KindOf<Pointee>(), names);
    } else {
      T value = {};
      value.struct_size = sizeof(T);
      T* const written = objects_.Keep(1, value);
      written_ = written;
      return written;
    }
  }

  void* Memory(const std::string& key) {
    if (key == "workspace") {
      scratch_ = MakeScratch(line_.Count(key));
      length_ = scratch_.bytes;
      return scratch_.data;
    }
    const std::string name = line_.Text(key);
    length_ = objects_.Length(name);
    return objects_.Data<void>(name);
  }

  /// "view" for kvevict_view. Compilers add digits before a struct's name.
  template <class T>
  static std::string KindOf() {
    const std::string name = typeid(T).name();
    return name.substr(name.find("kvevict_") + sizeof("kvevict_") - 1);
  }

  Line& line_;
  Objects& objects_;
  const std::vector<std::string> keys_;
  std::size_t next_ = 0, length_ = 0;
  Scratch scratch_;
  void* written_ = nullptr;
  std::vector<std::function<void(Results&)>> results_;
};

template <class... P, std::size_t... I>
std::tuple<P...> ArgumentsOf(Arguments& from, std::index_sequence<I...>) {
  using Types = std::tuple<P..., void*>;
  return {from.Next<P, std::tuple_element_t<I + 1, Types>>()...};
}

struct NoResults {
  void operator()(const void*, Results&) const {}
};

/// A call whose parameters have these keys in a line: sizes and streams have none, and a
/// new handle is called by `name`. A number that is written is a result under its key, and
/// of a struct that is written `add` makes results.
template <class Written = void, class Add = NoResults, class... P>
Call Bind(kvevict_status (*function)(P...), const std::string& keys,
          Add add = {}) {
  return [=](Line& line, Objects& objects, Results& out) {
    Arguments from(line, objects, keys);
    const std::tuple<P...> arguments =
        ArgumentsOf<P...>(from, std::index_sequence_for<P...>());
    const kvevict_status status = std::apply(function, arguments);
    line.Text("name");
    if (status != KVEVICT_OK) return status;
    from.AddResults(out);
    if constexpr (!std::is_void_v<Written>) {
      add(*static_cast<const Written*>(from.written()), out);
    }
    return status;
  };
}

/// A call that tells the size of a workspace.
template <class... P>
Call BindSize(kvevict_status (*function)(P...), const std::string& keys) {
  return Bind<kvevict_workspace>(
      function, keys, [](const kvevict_workspace& w, Results& out) {
        out.AddAll("workspace", w.alignment, w.least_bytes, w.best_bytes);
      });
}

/// A buffer with what a handle saves.
template <class T>
Call SaveAs(kvevict_status (*save)(const T*, void*, std::size_t, std::size_t*),
            const std::string& key) {
  return [=](Line& line, Objects& objects, Results&) {
    const T* handle = objects.all<T>().Get(line.Text(key));
    std::size_t length = 0;
    save(handle, nullptr, 0, &length);
    auto saved = std::make_unique<Buffer>("u8", length);
    const auto status = save(handle, saved->at<void>(), length, nullptr);
    objects.Put(line.Text("name"), std::move(saved));
    return status;
  };
}

/// Destroys what a key names.
template <class T>
Call End(const std::string& key) {
  return [=](Line& line, Objects& objects, Results&) {
    objects.all<T>().End(line.Text(key));
    return KVEVICT_OK;
  };
}

}  // namespace transcript

#endif  // KVEVICT_BINDINGS_TRANSCRIPT_BIND_H_
