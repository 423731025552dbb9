// Shapes, then selects.
#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

Status RunShapeAndSelect(const Context& context, Stream stream,
                         const ShapeAndSelectArgs& args) {
  if (!args.shape.shaping.IsIdentity()) {
    KV_RETURN_IF_ERROR(kOp_shape(context, stream, args.shape));
  }
  return kOp_select(context, stream, args.select);
}

}  // namespace

const Op<ShapeAndSelectArgs> kOp_shape_and_select = {RunShapeAndSelect};

}  // namespace kvevict::cpu
