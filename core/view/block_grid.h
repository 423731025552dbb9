// The bytes of a plane's rows, block by block, and whether two planes share some.
#ifndef KVEVICT_CORE_VIEW_BLOCK_GRID_H_
#define KVEVICT_CORE_VIEW_BLOCK_GRID_H_

#include <cstdint>
#include <utility>

#include "core/view/block_numbers.h"
#include "core/view/extent.h"
#include "core/view/overlap.h"

namespace kvevict {

// The number of steps that a comparison may still take.
class Effort {
 public:
  explicit Effort(uint32_t most = 1 << 16) : left_(most) {}
  bool Spend() { return left_ > 0 && left_-- > 0; }
  void GiveUp() { left_ = 0; }
  bool spent() const { return left_ == 0; }

 private:
  uint32_t left_;
};

// The same grid in some blocks. Block `number` is number * block_stride further
// on.
struct BlockGrid : Grid {
  uint64_t block_stride = 0;  // 0: there is one block
  BlockNumbers blocks;

  BlockGrid(const LayerCache& cache, const kvevict_plane& plane);
  explicit BlockGrid(const Grid& rows) : Grid(rows) {}

  // The numbers of blocks that may have bytes in `near`, in use or not.
  std::pair<Wide, Wide> NumbersNear(const Extent& near) const;
  // The rows in one of the blocks.
  BlockGrid InBlock(int64_t number) const {
    BlockGrid grid{static_cast<const Grid&>(*this)};
    grid.extent.Move(number * Wide{block_stride});
    return grid;
  }
};

// Whether two grids have a byte in common; also true if that takes too much effort to
// tell. Without `layers` the numbers of their blocks may differ by anything but 0.
bool Meet(const BlockGrid& a, const BlockGrid& b, Effort* effort,
          LayersOfBlocks* layers);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_BLOCK_GRID_H_
