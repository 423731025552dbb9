// Complex numbers with the layout of C.
#ifndef KVEVICT_CORE_COMPLEX_H_
#define KVEVICT_CORE_COMPLEX_H_

namespace kvevict {

struct Complex {
  double re;
  double im;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_COMPLEX_H_
