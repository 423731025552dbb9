// Handlers of common shapes: Op::Run on values of one type.
#ifndef KVEVICT_TESTS_RIG_PTX_LANEWISE_H_
#define KVEVICT_TESTS_RIG_PTX_LANEWISE_H_

#include "tests/rig/ptx/instruction.h"
#include "tests/rig/ptx/lane.h"
#include "tests/rig/ptx/types.h"

namespace kvevict::ptx {

template <class T, class Op>
void RunUnary(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0], Op::Run(lane.Get<T>(i.slots[1])));
}

template <class T, class Op>
void RunBinary(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0],
           Op::Run(lane.Get<T>(i.slots[1]), lane.Get<T>(i.slots[2])));
}

template <class T, class Op>
void RunTernary(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0], Op::Run(lane.Get<T>(i.slots[1]), lane.Get<T>(i.slots[2]),
                               lane.Get<T>(i.slots[3])));
}

template <class Op>
Handler UnaryOf(Type type) {
  return ForInteger(type, [](auto tag) -> Handler {
    return &RunUnary<typename decltype(tag)::type, Op>;
  });
}

template <class Op>
Handler BinaryOf(Type type) {
  return ForInteger(type, [](auto tag) -> Handler {
    return &RunBinary<typename decltype(tag)::type, Op>;
  });
}

template <class Op>
Handler TernaryOf(Type type) {
  return ForInteger(type, [](auto tag) -> Handler {
    return &RunTernary<typename decltype(tag)::type, Op>;
  });
}

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_LANEWISE_H_
