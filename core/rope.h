// How RoPE turned the keys of a model, and how far queries to come will be from them.
#ifndef KVEVICT_CORE_ROPE_H_
#define KVEVICT_CORE_ROPE_H_

#include <cstdint>

#include "core/complex.h"
#include "core/context.h"
#include "core/status.h"

namespace kvevict {

// Of every backend: they pass one number per frequency in a kernel's argument.
inline constexpr uint32_t kMaxRopeFrequencies = 256;

// What a caller says of it.
Status CheckRope(const kvevict_geometry& geometry);

class Rope {
 public:
  explicit Rope(const Context& context) : frequencies_(context) {}

  // Of a geometry that has been checked.
  Status Copy(const kvevict_geometry& geometry);

  // 0 where no signal needs to know.
  uint32_t n_frequencies() const {
    return static_cast<uint32_t>(frequencies_.size());
  }
  bool is_interleaved() const { return is_interleaved_; }

  // turns[f] = the mean of e^(i w (n_seen + o)) over the distances o = 1, 2, 4 ..
  // 65536, with the frequency w of pair f.
  void TurnsAt(uint32_t n_seen, Complex* turns) const;

 private:
  struct Frequency {
    double w;
    Complex mean;  // of e^(i w o)
  };

  Array<Frequency> frequencies_;
  bool is_interleaved_ = false;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_ROPE_H_
