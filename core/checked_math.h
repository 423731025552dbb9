// Sizes that cannot wrap around. After an overflow ok() stays false.
#ifndef KVEVICT_CORE_CHECKED_MATH_H_
#define KVEVICT_CORE_CHECKED_MATH_H_

#include <cstddef>
#include <cstdint>

namespace kvevict {

class CheckedSize {
 public:
  // Implicit, so that plain sizes convert.
  constexpr CheckedSize(size_t value)  // NOLINT(google-explicit-constructor)
      : value_(value) {}

  constexpr bool ok() const { return ok_; }
  constexpr size_t value() const { return value_; }

  friend constexpr CheckedSize operator+(CheckedSize a, CheckedSize b) {
    CheckedSize r(0);
    r.ok_ = !__builtin_add_overflow(a.value_, b.value_, &r.value_) && a.ok_ &&
            b.ok_;
    return r;
  }
  friend constexpr CheckedSize operator*(CheckedSize a, CheckedSize b) {
    CheckedSize r(0);
    r.ok_ = !__builtin_mul_overflow(a.value_, b.value_, &r.value_) && a.ok_ &&
            b.ok_;
    return r;
  }
  // Rounds up to a multiple of a power of two.
  constexpr CheckedSize AlignUp(size_t alignment) const {
    CheckedSize r = *this + CheckedSize(alignment - 1);
    r.value_ &= ~(alignment - 1);
    return r;
  }

 private:
  size_t value_;
  bool ok_ = true;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_CHECKED_MATH_H_
