// The jobs of one operation, one per layer, read from the records that contain
// them.
#ifndef KVEVICT_CORE_JOBS_H_
#define KVEVICT_CORE_JOBS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvevict {

// A span whose elements are a stride apart: an array of T, or a member of every
// record in an array.
template <typename T>
class Jobs {
 public:
  Jobs() = default;
  // NOLINTNEXTLINE: an array of jobs converts implicitly
  Jobs(std::span<const T> jobs) : Jobs(jobs.data(), jobs.size(), sizeof(T)) {}
  explicit Jobs(const T& job) : Jobs(&job, 1, sizeof(T)) {}
  template <typename Record, typename Owner>
  Jobs(std::span<Record> records, T Owner::*member)
      : Jobs(records.empty() ? nullptr : &(records.front().*member),
             records.size(), sizeof(Record)) {}

  size_t size() const { return n_; }
  bool empty() const { return n_ == 0; }
  const T& operator[](size_t i) const {
    return *reinterpret_cast<const T*>(
        reinterpret_cast<const uint8_t*>(first_) + i * stride_);
  }
  const T& front() const { return *first_; }
  Jobs first(size_t n) const { return Jobs(first_, n, stride_); }
  Jobs subspan(size_t i) const {
    return i == n_ ? Jobs() : Jobs(&(*this)[i], n_ - i, stride_);
  }

  class Iterator {
   public:
    Iterator(const Jobs& jobs, size_t i) : jobs_(jobs), i_(i) {}
    const T& operator*() const { return jobs_[i_]; }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return i_ != other.i_; }

   private:
    const Jobs& jobs_;
    size_t i_;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, n_}; }

 private:
  Jobs(const T* first, size_t n, size_t stride)
      : first_(first), n_(n), stride_(stride) {}

  const T* first_ = nullptr;
  size_t n_ = 0;
  size_t stride_ = sizeof(T);
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_JOBS_H_
