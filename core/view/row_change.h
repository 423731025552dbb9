// Rows that differ on both sides of a copy: by dtype, or by the kind of scale
// and minimum.
#ifndef KVEVICT_CORE_VIEW_ROW_CHANGE_H_
#define KVEVICT_CORE_VIEW_ROW_CHANGE_H_

#include <cstdint>

#include "core/evict/keep_lists.h"
#include "core/status.h"

namespace kvevict {

// Which rows are read as floats and stored anew. The others move byte for byte.
struct RowChange {
  bool k = false;
  bool v = false;

  bool any() const { return k || v; }
  // Whether a companion is not moved: it is computed with rows that change, or
  // its rows stay where they are.
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
        return true;  // recent planes never move
      case KVEVICT_ROLE_BIAS:
      case KVEVICT_ROLE_NONE:
        break;
    }
    return false;
  }
};

// The change of rows that go from one valid view to another.
RowChange ChangeOf(const kvevict_view& view, const kvevict_view& destination);

// The companion of `destination` to which companion i of `view` moves. It is
// preceded by as many that move. n_companions of `destination` if there is
// none.
uint32_t PartnerOf(const kvevict_view& view, const kvevict_view& destination,
                   const RowChange& change, uint32_t i);

// Checks that rows of one valid view can go to another: it has the same heads
// and planes, rows that move are alike, and rows that change can be stored.
Status MatchRows(const kvevict_view& view, const kvevict_view& destination,
                 const RowChange& change);

// Checks that rows of a valid view can go to the slots of another from
// first_slot on, which are `written`. Messages begin with the name of the wrong
// view.
Status CheckDestination(const kvevict_view& view,
                        const kvevict_view& destination,
                        const ListCounts& written, uint32_t first_slot,
                        bool on_host);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_ROW_CHANGE_H_
