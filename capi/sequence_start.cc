// Entry points that start a sequence: from given positions, another sequence,
// or a saved one.
#include "capi/sequence.h"
#include "core/sequence/layer_positions.h"
#include "core/sequence/saved_sequence.h"
#include "kvevict/batch.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

Status CheckLists(const kvevict_position_lists& in, size_t n_lists) {
  if (in.reserved != 0) {
    return InvalidArgument("reserved %u is not 0", in.reserved);
  }
  if (in.n_lists != 1 && in.n_lists != n_lists) {
    return InvalidArgument("n_lists %u is not 1 or the layer's %zu", in.n_lists,
                           n_lists);
  }
  if (in.list_stride != 0 && in.list_stride < in.count) {
    return InvalidArgument("list_stride %llu < count %u",
                           static_cast<unsigned long long>(in.list_stride),
                           in.count);
  }
  const uint64_t stride = in.list_stride == 0 ? in.count : in.list_stride;
  const CheckedSize end =
      CheckedSize(in.n_lists - 1) * CheckedSize(stride) + CheckedSize(in.count);
  if (!end.ok() || end.value() > in.positions_len) {
    return InvalidArgument(
        "positions_len %zu < %zu: %u lists of up to %u positions begin %llu "
        "apart",
        in.positions_len, end.value(), in.n_lists, in.count,
        static_cast<unsigned long long>(stride));
  }
  if (in.positions == nullptr && in.count > 0) {
    return InvalidArgument("positions is NULL, but count is %u", in.count);
  }
  for (uint32_t i = 0; in.counts != nullptr && i < in.n_lists; ++i) {
    if (in.counts[i] <= in.count) continue;
    return InvalidArgument("counts[%u] %u > count %u", i, in.counts[i],
                           in.count);
  }
  return Status();
}

Status CopyLists(const kvevict_position_lists* in, const LayerPositions& out) {
  kvevict_position_lists lists = KVEVICT_POSITION_LISTS_INIT;
  KV_RETURN_IF_ERROR(CopyIn("lists", in, &lists));
  KV_RETURN_IF_ERROR(CheckLists(lists, out.lists.size()));
  const uint64_t stride =
      lists.list_stride == 0 ? lists.count : lists.list_stride;
  for (uint32_t i = 0; i < out.lists.size(); ++i) {
    const uint32_t from = lists.n_lists == 1 ? 0 : i;
    out.lists[i] = {lists.positions + from * stride,
                    lists.counts == nullptr ? lists.count : lists.counts[from]};
  }
  return Status();
}

Status Start(Sequence& sequence, const kvevict_position_lists* layers,
             size_t layers_len, uint32_t n_tokens) {
  if (layers == nullptr) {
    KV_RETURN_IF_ERROR(CheckArray("layers", layers, layers_len));
    return sequence.Start(n_tokens);
  }
  Positions positions(sequence.plan().context());
  KV_RETURN_IF_ERROR(positions.Allocate(sequence.plan()));
  KV_RETURN_IF_ERROR(
      CopyLayers(sequence.plan(), "layers", layers, layers_len,
                 [&](const kvevict_position_lists* in, uint32_t l) {
                   return CopyLists(in, positions.layers()[l]);
                 }));
  return sequence.Start(positions.layers(), n_tokens);
}

}  // namespace

extern "C" {

kvevict_status kvevict_sequence_start(kvevict_sequence* sequence,
                                      const kvevict_position_lists* layers,
                                      size_t layers_len, uint32_t n_tokens,
                                      kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    return OnStream(Core(sequence), stream, [&] {
      return Start(Core(sequence), layers, layers_len, n_tokens);
    });
  });
}

kvevict_status kvevict_sequence_fork(const kvevict_sequence* sequence,
                                     const kvevict_fork_options* options,
                                     kvevict_sequence** out_sequence,
                                     kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("out_sequence", out_sequence));
    kvevict_fork_options o = KVEVICT_FORK_OPTIONS_INIT;
    if (options != nullptr) KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    KV_RETURN_IF_ERROR(CheckReserved("options", o.reserved));
    const Plan& plan = o.plan == nullptr ? Core(sequence).plan() : Core(o.plan);
    Sequence* fork = nullptr;
    KV_RETURN_IF_ERROR(Sequence::Fork(Core(sequence), plan, o.memory,
                                      o.memory_bytes, stream, &fork));
    *out_sequence = reinterpret_cast<kvevict_sequence*>(fork);
    return Status();
  });
}

kvevict_status kvevict_sequence_save(const kvevict_sequence* sequence,
                                     void* data, size_t data_capacity,
                                     size_t* out_data_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    const size_t length = SavedBytes(Core(sequence));
    if (data_capacity > 0) {
      KV_RETURN_IF_ERROR(CheckNotNull("data", data));
      if (data_capacity < length) {
        return InvalidArgument("data_capacity %zu < length %zu", data_capacity,
                               length);
      }
      KV_RETURN_IF_ERROR(
          SaveSequence(Core(sequence), {static_cast<uint8_t*>(data), length}));
    }
    if (out_data_len != nullptr) *out_data_len = length;
    return Status();
  });
}

kvevict_status kvevict_sequence_load(kvevict_sequence* sequence,
                                     const void* data, size_t data_len,
                                     kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CheckNotNull("data", data));
    return OnStream(Core(sequence), stream, [&] {
      return LoadSequence(&Core(sequence),
                          {static_cast<const uint8_t*>(data), data_len});
    });
  });
}

}  // extern "C"
