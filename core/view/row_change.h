// Rows that are not the same on both sides of a copy: of another dtype, or with numbers
// of another kind.
#ifndef KVEVICT_CORE_VIEW_ROW_CHANGE_H_
#define KVEVICT_CORE_VIEW_ROW_CHANGE_H_

#include <cstdint>

#include "core/evict/keep_lists.h"
#include "core/status.h"

namespace kvevict {

// What is read as floats and stored anew; the rest moves byte for byte.
struct RowChange {
  bool k = false;
  bool v = false;

  bool any() const { return k || v; }
  // Whether a companion is a number of rows that change, which is made, not moved; or
  // has rows that stay.
  bool Covers(const kvevict_plane& companion) const {
    switch (companion.role) {
      case KVEVICT_ROLE_KEY_SCALE:
      case KVEVICT_ROLE_KEY_MINIMUM:
        return k;
      case KVEVICT_ROLE_VALUE_SCALE:
      case KVEVICT_ROLE_VALUE_MINIMUM:
        return v;
      case KVEVICT_ROLE_KEY_RECENT:
      case KVEVICT_ROLE_VALUE_RECENT:
        return true;  // never
      case KVEVICT_ROLE_NONE:
        break;
    }
    return false;
  }
};

// Of rows of one valid view that go to another.
RowChange ChangeOf(const kvevict_view& view, const kvevict_view& destination);

// The companion of `destination` to which companion i of `view` moves: as many that
// move are before it. n_companions of `destination` if there is none.
uint32_t PartnerOf(const kvevict_view& view, const kvevict_view& destination,
                   const RowChange& change, uint32_t i);

// Checks that rows of one valid view can go to another: that it has the same heads and
// planes, that those that move are alike, and that those that change can be stored.
Status MatchRows(const kvevict_view& view, const kvevict_view& destination,
                 const RowChange& change);

// Checks that rows of a valid view can go to the slots of another one from first_slot
// on, which are `written`; messages begin with the name of the one that is wrong.
Status CheckDestination(const kvevict_view& view,
                        const kvevict_view& destination,
                        const ListCounts& written, uint32_t first_slot,
                        bool on_host);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_ROW_CHANGE_H_
