// How RoPE rotated the keys of a model, and how far future queries will be from
// them.
#ifndef KVEVICT_CORE_VIEW_ROPE_H_
#define KVEVICT_CORE_VIEW_ROPE_H_

#include <cstdint>
#include <span>

#include "core/complex.h"
#include "core/context.h"
#include "core/status.h"

namespace kvevict {

// The limit on every backend, since a kernel's argument has one number per
// frequency.
inline constexpr uint32_t kMaxRopeFrequencies = 256;

// Checks the RoPE fields of a geometry.
Status CheckRope(const kvevict_geometry& geometry);

// Frequencies may have either sign and are in radians per position.
inline constexpr double kMaxFrequency = 65536.0;

// The part of a turn by which RoPE rotates a pair of this frequency per
// position, in 2^-64 turns, rounded down. n positions are n times as much,
// modulo 2^64.
uint64_t TurnsOf(float inv_freq);

class Rope {
 public:
  explicit Rope(const Context& context)
      : frequencies_(context), turns_(context) {}

  // `geometry` has been checked.
  Status Copy(const kvevict_geometry& geometry);

  // 0 if the caller gave none.
  uint32_t n_frequencies() const {
    return static_cast<uint32_t>(frequencies_.size());
  }
  bool is_interleaved() const { return is_interleaved_; }
  // TurnsOf() for every frequency.
  std::span<const uint64_t> turns() const {
    return {turns_.data(), turns_.size()};
  }

  // e^(i w position) for pair f.
  Complex TurnOf(uint32_t f, double position) const;

  // turns[f] = the mean of e^(i w (position + o)) over the distances o = 1, 2,
  // 4 .. 65536, with the frequency w of pair f.
  void TurnsAt(uint32_t position, Complex* turns) const;

 private:
  struct Frequency {
    double w;
    Complex mean;  // mean of e^(i w o)
  };

  Array<Frequency> frequencies_;
  Array<uint64_t> turns_;
  bool is_interleaved_ = false;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_ROPE_H_
