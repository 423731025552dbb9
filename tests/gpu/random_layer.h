// One layer's cache on the host and on the GPU in some random layout that views
// can describe.
#ifndef KVEVICT_TESTS_GPU_RANDOM_LAYER_H_
#define KVEVICT_TESTS_GPU_RANDOM_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/random_case.h"

namespace kvevict::gpu {

class RandomLayer {
 public:
  // `groups`: tokens share scales of keys and maybe of values, and the last rows
  // may be recent.
  // table_block: the size of its blocks, whose tables may lose entries; 0: any cache.
  // wide: rows of keys and values can be loaded by 16 bytes, if they have so many.
  RandomLayer(const Gpu& gpu, Random* random,
              const kvevict_layer_geometry& geometry, uint32_t n_slots,
              bool groups = false, uint32_t table_block = 0,
              bool table_by_head = false, bool wide = false);

  const kvevict_view& host_view() const { return host_view_; }
  const kvevict_view& device_view() const { return device_view_; }

  // Writes new rows for a head's slot in every plane on the host. Upload()
  // makes both sides alike.
  void WriteRows(Random* random, uint32_t head, uint32_t slot, bool special);
  void Upload() const;
  // Takes the bytes of the GPU.
  void Fetch();
  // A number of a row of keys or values on the host, or a row of codes.
  uint8_t* ElementAt(bool of_values, uint32_t head, uint32_t slot,
                     uint32_t element);
  // A slot's bias on the host; NULL if it has none.
  float* BiasAt(uint32_t head, uint32_t slot);
  // Takes tables that evictions have changed, on the GPU as on the host: "" or what
  // differs.
  std::string TakeTables();
  // "" or what differs between the sides, except for the rows of each head's
  // slots from n_tokens on. Bytes between the rows count.
  std::string Compare(const std::vector<uint32_t>& n_tokens) const;
  std::string Compare(uint32_t n_tokens) const {
    return Compare(std::vector<uint32_t>(n_kv_heads_, n_tokens));
  }

 private:
  uint64_t Offset(const kvevict_plane& plane, uint32_t slot, uint32_t head,
                  uint32_t element) const;
  // Calls visit(plane, offset, n_bytes) for the pieces of a slot's rows.
  template <typename Visit>
  void ForEachPiece(uint32_t head, uint32_t slot, const Visit& visit) const;
  // `tables` are the planes' tables of addresses, if they have any.
  void View(uint64_t base, const std::vector<uint64_t>& tables,
            kvevict_view* view, std::vector<kvevict_plane>* companions) const;

  void DrawTables(const Gpu& gpu, Random* random, bool by_head);
  // Adds a plane after the others.
  void AddPlane(RandomPlane drawn, kvevict_role role);
  void AddNumbers(Random* random, kvevict_role role);
  // Adds packed rows of elements: scales of groups, or recent rows.
  void AddPacked(Random* random, kvevict_role role, uint32_t head_dim);
  uint32_t RowsOfBlock() const;  // of all rows without blocks
  uint32_t BlockAlign() const { return has_addresses_ ? 16 : 1; }
  void WriteNumber(Random* random, const kvevict_plane& plane, uint64_t offset);
  // The addresses of a plane's blocks in memory from `base` on, by id or in the order of
  // entries.
  std::vector<uint64_t> AddressesOf(const kvevict_plane& plane,
                                    uint64_t base) const;

  uint32_t n_kv_heads_;
  uint32_t n_slots_;
  uint32_t block_size_ = 0;
  uint32_t n_blocks_ = 1;
  std::vector<int32_t> block_table_;  // one, or one for each head
  uint32_t table_head_stride_ = 0;
  bool has_addresses_ = false;
  bool has_ids_ = true;  // otherwise only addresses find blocks
  uint32_t ring_slots_ = 0;
  uint32_t ring_first_ = 0;
  uint32_t group_tokens_ = 0;
  uint32_t first_recent_ = UINT32_MAX;
  uint64_t n_bytes_ = 0;
  std::vector<kvevict_plane> planes_;  // K, V, companions; offsets
  std::vector<uint8_t> host_;
  std::unique_ptr<Buffer> device_;
  uint64_t device_base_ = 0;  // not always aligned
  std::unique_ptr<Buffer> device_table_;
  kvevict_view host_view_ = KVEVICT_VIEW_INIT;
  kvevict_view device_view_ = KVEVICT_VIEW_INIT;
  std::vector<kvevict_plane> host_companions_;
  std::vector<kvevict_plane> device_companions_;
  std::vector<std::vector<uint64_t>> host_addresses_;  // one table per plane
  std::vector<Buffer> device_addresses_;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_LAYER_H_
