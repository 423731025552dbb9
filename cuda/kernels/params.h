// Arguments of the kernels: one struct each, passed by value, at most 4,096
// bytes. Both the host compiler and NVRTC read this file. Addresses are device
// addresses.
//
// Layers of a model share a launch: what they have in common (strides, head
// counts) is stored once, and what differs in an array with one entry per
// layer. If an array has no room for more layers, or layouts differ, there is
// another launch.
#ifndef KVEVICT_CUDA_KERNELS_PARAMS_H_
#define KVEVICT_CUDA_KERNELS_PARAMS_H_

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;
#else
#include <cstdint>
#endif

namespace kvevict::cuda {

// The numbers of kvevict_dtype.
#define KVEVICT_DTYPE(Name, text, id, ...) constexpr int k##Name = id;
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE

// The floating-point dtypes, a bit for each.
enum : uint32_t {
  kPlainDTypes = 0
#define KVEVICT_DTYPE(Name, text, id, bytes, ...) | (bytes > 1 ? 1u << id : 0)
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
};

constexpr bool IsNibbles(int dtype) {
  return dtype == kU4 || dtype == kU4Halves || dtype == kQ4_0;
}
// The elements in 16 bytes of a row, if elements are contiguous and in order.
constexpr uint32_t PerLoad(int dtype) {
  if (dtype == kF32) return 4;
  if ((kPlainDTypes >> dtype & 1) != 0) return 8;
  return dtype == kU4 ? 32 : 16;
}

// The layout of a plane's rows. Slot s, head h, element e is at
//   contiguous  base + s * row_stride + h * head_stride + e * element_stride
//   paged       base + table[s / block_size] * block_stride
//                    + (s % block_size) * row_stride + ...
// In groups element e is at (e / group_elems) * group_stride
//                    + (e % group_elems) * element_stride of its row.
// Far rows are paged. With addresses `base` is the address of the table of
// block addresses, and block_stride is the offset of slot 0, head 0 in a block.
constexpr uint32_t kFar = 1, kFarIds = 2, kFarAddresses = 4;
struct RowLayout {
  int64_t row_stride;
  int64_t head_stride;
  int64_t element_stride;
  int64_t block_stride;
  uint32_t block_size;  // 0: contiguous
  // head h's table is table + h * this; 0: all share one
  uint32_t table_head_stride;
  int64_t group_stride;
  uint32_t group_elems;  // 0: one group
  // kFar, with kFarIds if there is a block table and kFarAddresses if
  // blocks have addresses; 0: as above.
  uint32_t far;
  // Far rows: slot s is row (s + ring_first) % ring_slots; 0: row s.
  uint32_t ring_slots;
  uint32_t ring_first;
};
static_assert(sizeof(RowLayout) == 64);

// Scales or minima: a number for each row of codes, in the rows' blocks, or one
// for a head or for all. With groups there are rows of packed numbers, one for
// each element, which groups of rows share.
struct RowNumbers {
  uint64_t base;  // slot 0, head 0; 0: none
  int64_t row_stride;
  int64_t head_stride;
  int64_t block_stride;  // as in RowLayout
  uint32_t far;
  uint32_t is_constant;  // at base + head * head_stride
  uint32_t dtype;        // floating-point
  // Slots of a group; 0: one number per row, or constant.
  uint32_t group_tokens;
};
static_assert(sizeof(RowNumbers) == 48);

// The last rows of a cache, packed and in no blocks. The rows before them are
// quantized.
struct RecentRows {
  uint64_t base;  // slot `first`, head 0; 0: there are none
  int64_t row_stride;
  int64_t head_stride;
  uint32_t first;
  uint32_t dtype;  // floating-point
};
static_assert(sizeof(RecentRows) == 32);

// Rows of keys or values whose elements are read.
struct CacheRows {
  RowLayout layout;
  uint32_t dtype;     // of kvevict_dtype
  uint32_t head_dim;  // elements that are read
  uint32_t lanes;     // threads that share a row: LanesOfRow()
  // Bytes between the 16-byte loads of a row, which are aligned to 16 and
  // filled with elements: 16, or the stride of groups. 0: rows have no such
  // loads.
  uint32_t wide;
  RowNumbers scale;    // of quantized rows: factor of codes
  RowNumbers minimum;  // added to the product
  RecentRows recent;
  uint32_t n_elements;  // elements of a row
  uint32_t reserved;
};
static_assert(sizeof(CacheRows) == 216);

// The number of a warp's threads that share a row: a power of two, enough to
// load it at once.
constexpr uint32_t LanesOfRow(uint32_t loads_per_row) {
  uint32_t lanes = 1;
  while (lanes < 32 && lanes < loads_per_row) lanes *= 2;
  return lanes;
}

// Counts of lists, u32: that of list i of a layer is at base + 4 * (first + i *
// step), where `first` is the layer's own. base 0: the lists of a layer are
// equally long, and the layer has the count.
struct CountTable {
  uint64_t base;
  uint32_t step;
  uint32_t reserved;
};
static_assert(sizeof(CountTable) == 16);

// The positions that the slots of a layer hold: the first n_kept are listed as
// i32 [n_lists, n_kept] at `kept`, and the rest count up from tail_position. If
// lists differ n_kept is the largest, and a CountTable has the counts. Slots
// are counted from first_slot on.
struct SlotPositions {
  uint64_t kept;
  uint32_t n_kept;
  uint32_t tail_position;
  int32_t first_count;
  uint32_t first_slot;
};
static_assert(sizeof(SlotPositions) == 24);

// ---- observe: copies query rows into the rings of layers ----

struct ObserveParams {
  static constexpr uint32_t kMaxLayers = 128;
  uint64_t rings;  // [layers, ring_rows, n_heads, row elements], packed
  // Address of a u32 with the position of row 0, read when the kernel runs; 0:
  // it is first_position.
  uint64_t position_address;
  int64_t from_row_stride;
  int64_t from_head_stride;
  int64_t from_element_stride;
  uint32_t first_position;  // added to what is read
  uint32_t n_rows;          // <= ring_rows
  uint32_t n_heads;
  uint32_t n_elements;  // per row and head
  uint32_t element_bytes;
  uint32_t ring_rows;  // position p goes to row p % ring_rows
  uint32_t unit;       // bytes moved at a time: ObserveUnit()
  uint32_t n_layers;
  uint64_t from[kMaxLayers];  // row 0 of those to copy, head 0
};
static_assert(sizeof(ObserveParams) <= 4096);

// ---- attention_sums: adds attention of a chunk to sums of layers ----

struct AddSumsLayer {
  uint64_t from;  // f32 of the chunk, a row per head
  uint64_t sums;  // f32 [rows of sums, AddSumsParams::stride]
  // If not 0 sums are a ring: address of a u32, modulo sums_ring the row to
  // write, read when the kernel runs.
  uint64_t turn;
  uint32_t n_before;    // slots before the chunk's, if there is no table
  int32_t first_count;  // index in AddSumsParams::tokens
  uint32_t begins;      // slots before the chunk's begin at 0 too
  uint32_t first_from;  // if `from` is a ring: the first of the terms
};
static_assert(sizeof(AddSumsLayer) == 40);

struct AddSumsParams {
  static constexpr uint32_t kMaxLayers = 99;
  uint64_t head_stride;  // of the chunk's rows; elements
  CountTable tokens;     // slots before the chunk's, per list
  uint32_t more;         // added to the table's
  uint32_t stride;       // elements; no list has more slots
  uint32_t n_lists;      // 1, or each list has rows_per_list rows
  uint32_t rows_per_list;
  uint32_t n_terms;    // rows of the chunk that a row of sums stands for
  uint32_t n_new;      // slots of the chunk, whose sums begin at 0
  uint32_t pool;       // slots whose maximum is added
  uint32_t is_max;     // reduces terms to their maximum
  float scale;         // else factor of their sum
  uint32_t clears;     // slots after the chunk's become 0
  uint32_t from_ring;  // rows of the ring `from`; 0: it is no ring
  uint32_t sums_ring;
  AddSumsLayer layers[kMaxLayers];
};
static_assert(sizeof(AddSumsParams) <= 4096);

// ---- window_attention ----

struct ScoreLayer {
  uint64_t queries;      // ring or caller's plane, head 0, row 0
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  // Natural log-sum-exps, f32, of the rows' scaled logits, [n_q_heads, window]
  // with the strides below, rows in ring order; 0: the first pass computes
  // them. With KV_SINKS, which always computes them: f32 [n_q_heads], natural
  // logits that are part of them.
  uint64_t row_lse;
  uint64_t scores;      // out: f32 [n_kv_heads or n_q_heads, n_tokens]
  uint32_t n_tokens;    // >= window; the longest head
  int32_t first_count;  // index in ScoreParams::tokens
};
static_assert(sizeof(ScoreLayer) == 48);

struct ScoreParams {
  static constexpr uint32_t kMaxLayers = 78;
  RowLayout keys;
  RowNumbers scale;  // of quantized keys, as in CacheRows
  RowNumbers minimum;
  RecentRows recent;
  int64_t query_row_stride;
  int64_t query_head_stride;
  int64_t query_element_stride;
  int64_t lse_row_stride;  // bytes
  int64_t lse_head_stride;
  // f32 [n_layers, n_kv_heads, n_splits, rows]: base-2 log-sum-exp of a row
  // over the keys of one split. Written by the first pass, read by the second.
  uint64_t partial_lse;
  float scale_log2e;   // softmax scale * log2(e); KV_SOFTCAP: cap * log2(e)
  float weight_scale;  // factor of the summed weights: 1 / window for a mean
  uint32_t n_kv_heads;
  uint32_t n_splits;        // the most of any layer; grid.x
  uint32_t keys_per_split;  // a multiple of KV_TILE_KEYS; KV_CHUNKS: a chunk
  // Window row w is stored row (first_row + w) % ring_rows, or row first_row +
  // w of the chunk.
  uint32_t first_row;
  uint32_t ring_rows;
  // KV_PART: the window's rows are those of the tokens before the last n_after.
  // The first n_absent of them are missing. With KV_PART and KV_CHUNKS, `adds`
  // says whether sums are added to the present scores.
  uint32_t n_after;
  uint32_t n_absent;
  uint32_t adds;
  // KV_MEASURE: measures the first n_first and the last n_last slots before the
  // window.
  uint32_t n_first;
  uint32_t n_last;
  float spread;        // KV_SPREAD: factor of the rows' variance
  float scale_by_cap;  // KV_SOFTCAP: softmax scale / the cap
  // KV_MEASURE: f32 [n_layers, n_kv_heads, n_splits, 2], the blocks' measures.
  uint64_t measures;
  CountTable tokens;  // with KV_RAGGED, per KV head
  ScoreLayer layers[kMaxLayers];
};
static_assert(sizeof(ScoreParams) <= 4096);

// ---- add_measures: adds up the measures of a layer's blocks ----

struct AddMeasuresParams {
  static constexpr uint32_t kMaxLayers = ScoreParams::kMaxLayers;
  uint64_t parts;            // f32 [n_layers, n_parts, 2]
  uint32_t n_parts;          // per layer
  float scale;               // factor of the first of two
  uint64_t out[kMaxLayers];  // f32 [2]
};
static_assert(sizeof(AddMeasuresParams) <= 4096);

// ---- attention: of queries over caches ----

struct AttendLayer {
  uint64_t queries;      // query 0, query head 0
  uint64_t keys;         // slot 0, head 0
  uint64_t values;       // likewise
  uint64_t block_table;  // i32; paged rows only
  uint64_t sinks;        // f32 [n_q_heads]; 0: none
  uint64_t out;          // query 0, query head 0
  uint64_t lse;          // f32, likewise; 0: none
  uint64_t sums;         // f32, slot 0, head 0; 0: none
  uint32_t n_tokens;
  int32_t first_count;  // index in AttendParams::tokens
};
static_assert(sizeof(AttendLayer) == 72);

struct AttendParams {
  static constexpr uint32_t kMaxLayers = 46;
  CacheRows queries;
  CacheRows keys;
  CacheRows values;  // head_dim: elements of a value
  int64_t out_row_stride;
  int64_t out_head_stride;
  int64_t out_element_stride;
  int64_t lse_row_stride;
  int64_t lse_head_stride;
  int64_t sum_slot_stride;
  int64_t sum_head_stride;
  // f32 [n_layers, n_kv_heads, n_blocks, n_splits, kAttendRows, 2 +
  // values.head_dim]: a row's reference, its sum, and weighted values.
  uint64_t states;
  CountTable tokens;  // per KV head
  uint32_t out_dtype;
  uint32_t n_queries;
  uint32_t group;
  uint32_t first_block;  // of kAttendRows rows of a head
  uint32_t n_blocks;     // from there on
  uint32_t n_splits;
  uint32_t slots_per_split;  // a multiple of kAttendSlots
  uint32_t window;           // 0: none
  uint32_t non_causal;
  uint32_t sums_are_shared;  // query heads of a KV head are added up
  // factor of products that gives logits in base 2, or those to cap
  float query_scale;
  float cap;  // 0: none; in base 2
  AttendLayer layers[kMaxLayers];
};
static_assert(sizeof(AttendParams) <= 4096);

// ---- requantize: stores rows as another dtype ----

struct RequantizePlane {
  uint64_t from;  // slot 0, head 0
  uint64_t to;
  uint64_t from_table;  // of blocks; paged rows only
  uint64_t to_table;
  uint64_t keep;        // i32 [n_lists, keep stride]; 0: 0, 1, ...
  uint64_t from_scale;  // of quantized rows, as RowNumbers::base
  uint64_t from_minimum;
  uint64_t to_scale;
  uint64_t to_minimum;
  uint64_t from_recent;  // as RecentRows::base
  uint64_t to_recent;
  uint32_t n_keep;      // of the longest list
  int32_t first_count;  // index in RequantizeParams::counts
  uint32_t first_slot;  // where the first kept row goes
  uint32_t reserved;
};
static_assert(sizeof(RequantizePlane) == 104);

struct RequantizeParams {
  static constexpr uint32_t kMaxPlanes = 34;
  // head_dim, lanes, wide, and the addresses of scales, minima and recent rows
  // are not read.
  CacheRows from;
  CacheRows to;
  CountTable counts;     // per list
  uint32_t n_lists;      // 1 or n_kv_heads
  uint32_t keep_stride;  // elements from list to list; 0: the plane's n_keep
  uint32_t in_place;     // regroup: rows move down or stay
  uint32_t groups_per_block;
  RequantizePlane planes[kMaxPlanes];
};
static_assert(sizeof(RequantizeParams) <= 4096);

// ---- pool1d: shapes the scores of a row in place ----

struct PoolLayer {
  uint64_t rows;  // f32 [n_rows, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in PoolParams::tokens
};
static_assert(sizeof(PoolLayer) == 16);

struct PoolParams {
  static constexpr uint32_t kMaxLayers = 240;
  uint32_t n_rows;  // per layer; grid.x
  uint32_t kernel;  // odd, <= 1023; 1: no pooling
  uint32_t is_max;
  uint32_t edge_shrinks;  // average: divide by the terms inside
  uint32_t n_unpooled;    // the last ones become +infinity
  uint32_t n_terms;  // rows r * n_terms to (r + 1) * n_terms belong to list r
  CountTable tokens;
  PoolLayer layers[kMaxLayers];
};
static_assert(sizeof(PoolParams) <= 4096);

// ---- reduce_rows: several rows of scores to one ----

struct ReduceLayer {
  uint64_t in;   // f32 [n_out_rows, n_terms, n_tokens]
  uint64_t out;  // f32 [n_out_rows, n_tokens]; may be `in` if n_out_rows is 1
  uint32_t n_tokens;
  int32_t first_count;  // index in ReduceParams::tokens
};
static_assert(sizeof(ReduceLayer) == 24);

struct ReduceParams {
  static constexpr uint32_t kMaxLayers = 160;
  uint32_t n_out_rows;
  uint32_t n_terms;
  uint32_t is_max;
  float scale;          // factor of a sum: 1 / n_terms for a mean
  uint32_t n_unpooled;  // the last ones of `out` become +infinity
  uint32_t reserved;
  CountTable tokens;  // per out row
  ReduceLayer layers[kMaxLayers];
};
static_assert(sizeof(ReduceParams) <= 4096);

// ---- topk: scores to ascending keep lists ----

struct SelectLayer {
  uint64_t scores;  // f32 [n_lists, n_tokens], or u32 keys; not read if neither
  uint64_t keep;    // out: i32 [n_lists, keep stride]
  uint32_t n_tokens;
  uint32_t n_keep;
  int32_t first_token_count;  // index in SelectLists::tokens
  int32_t first_keep_count;
};
static_assert(sizeof(SelectLayer) == 32);

// What the lists of a launch have in common.
struct SelectLists {
  CountTable tokens;
  CountTable keep;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  uint32_t n_lists;
  uint32_t higher_wins;  // of equal keys at the cut
  uint32_t n_sink;       // forced slots at the ends; not for keys
  uint32_t n_recent;
  uint32_t block;  // make_keys: slots with one key; 1: each slot has its own
  uint32_t first_slot;  // first slot of the tokens, as in lists
  uint32_t reserved;
};
static_assert(sizeof(SelectLists) == 64);

enum SelectInput : uint32_t {
  kSelectScores = 0,
  kSelectKeys = 1,    // made by make_keys, pinned already
  kSelectNothing = 2  // every token ranks alike
};

struct SelectParams {
  static constexpr uint32_t kMaxLayers = 120;
  SelectLists lists;
  uint32_t input;     // SelectInput
  uint32_t round;     // long lists only: the digit, 0 to 2
  uint32_t n_chunks;  // long lists only: LongChunks() of the longest
  uint32_t reserved;
  uint64_t scratch;  // long lists only: see topk.h
  SelectLayer layers[kMaxLayers];
};
static_assert(sizeof(SelectParams) <= 4096);

// make_keys takes SelectParams and turns scores into u32 keys at `keep`,
// [n_lists, n_tokens], which may be the scores' memory.

// pin_positions: gives the blocks of protected positions the forced key.
struct PinLayer {
  uint64_t keys;  // u32 [n_lists, n_tokens]
  SlotPositions slots;
  uint32_t n_tokens;
  int32_t first_token_count;
};
static_assert(sizeof(PinLayer) == 40);

struct PinParams {
  static constexpr uint32_t kMaxLayers = 48;
  static constexpr uint32_t kMaxPositions = 500;
  uint32_t n_lists;
  uint32_t n_positions;
  uint32_t block;  // slots that are pinned together
  uint32_t reserved;
  CountTable tokens;
  CountTable kept;  // of the slots
  PinLayer layers[kMaxLayers];
  int32_t positions[kMaxPositions];  // those not held are ignored
};
static_assert(sizeof(PinParams) <= 4096);

// ---- head_split: how many each list of a layer keeps ----

enum HeadSplitKind : uint32_t {
  kHeadsAdaptive = 1,
  kHeadsBlend = 2,
  kHeadsThreshold = 3
};

struct HeadSplitLayer {
  SelectLayer select;
  uint32_t budget;  // of each list, if all kept the same
  uint32_t n_own;   // slots that a list keeps whatever others have
};
static_assert(sizeof(HeadSplitLayer) == 40);

struct HeadSplitParams {
  static constexpr uint32_t kMaxLayers = 100;
  SelectLists lists;  // `keep` is written
  uint32_t input;     // SelectInput
  uint32_t kind;      // HeadSplitKind
  float won_part;     // of a blend
  float threshold;
  HeadSplitLayer layers[kMaxLayers];
};
static_assert(sizeof(HeadSplitParams) <= 4096);

// ---- rank_keys: keys by rank and then by score ----

struct RankRange {
  uint32_t first;  // position
  uint32_t end;
  int32_t rank;
};

struct RankLayer {
  SelectLayer select;  // `scores` are keys, in place
  SlotPositions slots;
  uint32_t n_least;  // with a share: the fewest that are selected
  uint32_t reserved;
};
static_assert(sizeof(RankLayer) == 64);

struct RankParams {
  static constexpr uint32_t kMaxLayers = 48;
  static constexpr uint32_t kMaxRanges = 64;
  SelectLists lists;
  CountTable kept;  // of the slots
  float share;      // part of what a list keeps that is selected; negative: all
  uint32_t n_ranges;
  RankLayer layers[kMaxLayers];
  RankRange ranges[kMaxRanges];  // ascending
};
static_assert(sizeof(RankParams) <= 4096);

// ---- mass: the mass of scores that keep lists have ----

struct MassLayer {
  SelectLayer select;
  uint64_t masses;  // f32 [n_lists, 3]: all, kept, the largest evicted
};
static_assert(sizeof(MassLayer) == 40);

struct MassParams {
  static constexpr uint32_t kMaxLayers = 96;
  SelectLists lists;
  uint32_t adds;  // adds to the present values
  uint32_t reserved;
  MassLayer layers[kMaxLayers];
};
static_assert(sizeof(MassParams) <= 4096);

// ---- best_scores: changes scores depending on which are the best ----

struct BestLayer {
  SelectLayer select;  // `keep` is not used
  uint64_t scores;     // f32 [n_lists, n_tokens]: normalize reads them
  // output, likewise; for normalize may be scores or select.scores
  uint64_t out;
  uint32_t n_best;  // normalize: after what must stay; secure: at least
  uint32_t reserved;
};
static_assert(sizeof(BestLayer) == 56);

struct BestParams {
  static constexpr uint32_t kMaxLayers = 70;
  SelectLists lists;
  uint32_t input;  // SelectInput: scores or keys
  float share;     // secure: part of what a list keeps
  BestLayer layers[kMaxLayers];
};
static_assert(sizeof(BestParams) <= 4096);

// ---- rescue: blocks that stay in addition to the best ----

enum AnchorKind : uint32_t {  // the numbers of Anchor
  kAnchorMean = 0,
  kAnchorZeros = 1,
  kAnchorOnes = 2,
  kAnchorAlternating = 3,
  kAnchorRandom = 4
};

struct RescueLayer {
  uint64_t scores;  // f32 [n_lists, n_tokens], out
  uint64_t marks;   // f32, strides below; may be the scores
  uint64_t keep;  // i32 [n_lists, keep stride], ascending: the other survivors
  uint64_t scratch;       // u32 [n_lists, n_tokens]
  uint64_t marks_stride;  // elements from list to list
  uint32_t n_tokens;
  uint32_t n_keep;
  uint32_t n_blocks;  // blocks to rescue in each list; 0: nothing is done
  uint32_t layer;
  uint32_t n_seen;
  uint32_t reserved;
};
static_assert(sizeof(RescueLayer) == 64);

struct RescueParams {
  static constexpr uint32_t kMaxLayers = 62;
  uint64_t seed;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t block;   // slots of a block
  uint32_t anchor;  // AnchorKind
  uint32_t reserved;
  RescueLayer layers[kMaxLayers];
};
static_assert(sizeof(RescueParams) <= 4096);

// ---- pool_select: pools scores and selects ascending keep lists ----

struct PoolSelectParams {
  static constexpr uint32_t kMaxLayers = SelectParams::kMaxLayers;
  SelectLists lists;
  uint32_t kernel;  // as in PoolParams, at most kMostSelectPoolKernel
  uint32_t is_max;
  uint32_t edge_shrinks;
  uint32_t n_unpooled;  // the last ones count as +infinity
  SelectLayer layers[kMaxLayers];
};
static_assert(sizeof(PoolSelectParams) <= 4096);

// ---- fill_scores: scores that need no key ----

struct FillScoresLayer {
  uint64_t scores;  // out: f32 [n_kv_heads, n_tokens]
  uint64_t rows;    // caller, sums: f32, head stride below
  SlotPositions slots;
  uint32_t n_tokens;
  uint32_t layer;  // random: the layer that draws
  int32_t first_token_count;
  // sums: tokens so far; each slot saw those from its position on
  uint32_t n_seen;
};
static_assert(sizeof(FillScoresLayer) == 56);

struct FillScoresParams {
  static constexpr uint32_t kMaxLayers = 70;
  uint64_t seed;
  uint64_t head_stride;  // of rows; elements
  CountTable tokens;     // per KV head
  CountTable kept;       // of the slots
  uint32_t n_kv_heads;
  uint32_t n_lists;  // of positions: 1 or n_kv_heads
  // sums: rows of sums and of scores per KV head, 1 or one for each query head.
  // 0 rows of sums: one row is for all KV heads.
  uint32_t n_sum_rows;
  uint32_t n_score_rows;
  uint32_t is_max;   // rows of sums are reduced to their maximum
  float scale;       // else factor of their sum
  uint32_t divides;  // divides by the number of queries that saw a slot
  // sums: if not 0, sums are of the last n_query_rows queries, each of which
  // saw the slots up to its own. n_seen and positions do not matter then.
  uint32_t n_query_rows;
  uint32_t n_summed;  // sums are of at most this many last queries
  uint32_t reserved;
  FillScoresLayer layers[kMaxLayers];
};
static_assert(sizeof(FillScoresParams) <= 4096);

// ---- row_norm: scores from the norms of rows, or weighed by them ----

struct RowNormLayer {
  uint64_t rows;         // slot 0, head 0
  uint64_t block_table;  // i32; paged rows only
  uint64_t scores;       // f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in RowNormParams::tokens
};
static_assert(sizeof(RowNormLayer) == 32);

struct RowNormParams {
  static constexpr uint32_t kMaxLayers = 120;
  CacheRows rows;
  CountTable tokens;  // per KV head
  uint32_t n_kv_heads;
  uint32_t weighs;  // multiplies present scores; else negates norms
  float epsilon;    // added to scores before they are weighed
  uint32_t reserved;
  RowNormLayer layers[kMaxLayers];
};
static_assert(sizeof(RowNormParams) <= 4096);

// ---- weigh: scores by the caller's weights ----

struct WeighLayer {
  uint64_t scores;   // f32 [n_kv_heads, n_tokens], in place
  uint64_t weights;  // f32, head stride below
  uint32_t n_tokens;
  int32_t first_count;  // index in WeighParams::tokens
};
static_assert(sizeof(WeighLayer) == 24);

struct WeighParams {
  static constexpr uint32_t kMaxLayers = 160;
  uint64_t weight_head_stride;  // elements
  CountTable tokens;            // per KV head
  uint32_t n_kv_heads;
  float epsilon;
  WeighLayer layers[kMaxLayers];
};
static_assert(sizeof(WeighParams) <= 4096);

// ---- expected_attention ----

struct ExpectedLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t mean;         // f32 [n_q_heads, head_dim], head stride below
  // f32 [n_q_heads, head_dim, head_dim], likewise; 0: none
  uint64_t covariance;
  uint64_t rows;  // out: f32 [n_q_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in ExpectedParams::tokens
};
static_assert(sizeof(ExpectedLayer) == 48);

struct ExpectedParams {
  static constexpr uint32_t kMaxLayers = 79;
  CacheRows keys;
  CountTable tokens;           // per KV head
  uint64_t mean_stride;        // elements
  uint64_t covariance_stride;  // elements
  uint32_t group;
  uint32_t n_sink;  // not in the softmax; score 0
  float scale;
  float half_square;  // scale^2 / 2
  ExpectedLayer layers[kMaxLayers];
};
static_assert(sizeof(ExpectedParams) <= 4096);

// ---- lag ----

// Keys, or values.
struct LagRows {
  CacheRows rows;      // `wide` and `lanes` are not used
  float mean_scale;    // 1 / head_dim
  float spread_scale;  // log2(e)^2 / (head_dim - 1), or 0
};
static_assert(sizeof(LagRows) == 224);

struct LagLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t values;       // likewise
  uint64_t block_table;  // i32; paged rows only
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in LagParams::tokens
};
static_assert(sizeof(LagLayer) == 40);

struct LagParams {
  static constexpr uint32_t kMaxLayers = 90;
  LagRows keys;
  LagRows values;
  CountTable tokens;  // per KV head
  // f32 [LagScratchRows(), n_layers, n_kv_heads, scratch_stride]
  uint64_t scratch;
  uint32_t scratch_stride;  // tokens of the longest layer
  uint32_t n_layers;
  uint32_t n_kv_heads;
  uint32_t n_sink;
  uint32_t partition;
  float rank_scale;  // 1 / partition; 0: scores are the means, not the ranks
  LagLayer layers[kMaxLayers];
};
static_assert(sizeof(LagParams) <= 4096);

// ---- cur ----

struct CurLayer {
  uint64_t scores;  // f32 [n_kv_heads, n_tokens]: norms of keys, then scores
  uint64_t value_norms;  // f32, likewise
  uint64_t sums;         // f32 [n_kv_heads, CurBlocks()]
  uint32_t n_tokens;
  int32_t first_count;  // index in CurParams::tokens
};
static_assert(sizeof(CurLayer) == 32);

struct CurParams {
  static constexpr uint32_t kMaxLayers = RowNormParams::kMaxLayers;
  CountTable tokens;  // per KV head
  uint32_t window;
  uint32_t n_sink;
  CurLayer layers[kMaxLayers];
};
static_assert(sizeof(CurParams) <= 4096);

// ---- key_diff ----

struct KeyDiffLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in KeyDiffParams::tokens
};
static_assert(sizeof(KeyDiffLayer) == 32);

struct KeyDiffParams {
  static constexpr uint32_t kMaxLayers = 120;
  CacheRows keys;
  CountTable tokens;  // per KV head
  // f32 [n_layers, n_kv_heads, n_chunks, head_dim], 16-byte aligned: the sum of
  // the directions of a chunk's keys.
  uint64_t sums;
  uint32_t n_kv_heads;
  uint32_t n_chunks;  // KeyDiffChunks() of the longest layer
  KeyDiffLayer layers[kMaxLayers];
};
static_assert(sizeof(KeyDiffParams) <= 4096);

// ---- key_diff_blocks ----

struct KeyDiffBlocksLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in KeyDiffBlocksParams::tokens
  uint32_t n_keep;
  int32_t first_keep_count;  // index in KeyDiffBlocksParams::keep
};
static_assert(sizeof(KeyDiffBlocksLayer) == 40);

struct KeyDiffBlocksParams {
  static constexpr uint32_t kMaxLayers = 16;  // each layer has scratch
  CacheRows keys;
  CountTable tokens;  // per KV head
  CountTable keep;
  // [n_layers, n_kv_heads] of KeyDiffBlocksBytes(), 16-byte aligned
  uint64_t scratch;
  uint32_t n_kv_heads;
  uint32_t n_most;  // tokens of the longest layer
  uint32_t block;
  uint32_t higher_wins;  // of equal scores
  KeyDiffBlocksLayer layers[kMaxLayers];
};
static_assert(sizeof(KeyDiffBlocksParams) <= 4096);

// ---- redundancy ----

struct RedundancyLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // f32 [n_kv_heads, n_tokens], in place
  uint32_t n_tokens;
  int32_t first_count;  // index in RedundancyParams::tokens
};
static_assert(sizeof(RedundancyLayer) == 32);

struct RedundancyParams {
  static constexpr uint32_t kMaxLayers = 119;
  CacheRows keys;
  CountTable tokens;  // per KV head
  // f32 [n_layers, n_kv_heads, n_chunks, head_dim]: the sum of the directions
  // of a chunk's keys.
  uint64_t sums;
  // [n_layers, n_kv_heads, 3, stride]: f32 scales of the keys, replaced by sums
  // of columns; u32 columns that rows leave out; f32 entries there.
  uint64_t rows;
  uint32_t stride;  // tokens of the longest layer
  uint32_t n_kv_heads;
  uint32_t n_chunks;  // RedundancyChunks() of the longest layer
  float threshold;
  float score_weight;
  float weight;
  RedundancyLayer layers[kMaxLayers];
};
static_assert(sizeof(RedundancyParams) <= 4096);

// ---- similarity ----

struct SimilarityLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // f32 [n_lists, n_tokens], in place
  // u32 [n_lists, n_tokens]: the key of each slot's block
  uint64_t select_keys;
  uint32_t n_tokens;
  uint32_t n_keep;
};
static_assert(sizeof(SimilarityLayer) == 40);

struct SimilarityParams {
  static constexpr uint32_t kMaxLayers = 95;
  CacheRows keys;
  // Scratch: [n_layers, n_kv_heads] each.
  // i64 [stride]: sums of rows of blocks that were not taken
  uint64_t row_sums;
  uint64_t totals;   // i64 [stride / block]: sums of such blocks of a list
  uint64_t sums;     // f32 [n_chunks, head_dim]: sums of directions
  uint64_t scales;   // f32 [stride], of keys
  uint64_t words;    // u32 [SimilarityWords(stride / block)] per list
  uint32_t n_lists;  // 1, or n_kv_heads
  uint32_t n_kv_heads;
  uint32_t stride;    // tokens of the longest layer
  uint32_t n_chunks;  // chunks of the longest layer
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t block;        // slots of a block
  uint32_t higher_wins;  // of equal blocks
  float mass;
  uint32_t reserved;
  SimilarityLayer layers[kMaxLayers];
};
static_assert(sizeof(SimilarityParams) <= 4096);

// ---- key_filter ----

struct KeyFilterLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t filter;       // f32 [n_kv_heads, head_dim], head stride below
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in KeyFilterParams::tokens
};
static_assert(sizeof(KeyFilterLayer) == 40);

struct KeyFilterParams {
  static constexpr uint32_t kMaxLayers = 96;
  CacheRows keys;
  CountTable tokens;            // per KV head
  uint64_t filter_head_stride;  // elements
  uint32_t n_kv_heads;
  uint32_t reserved;
  KeyFilterLayer layers[kMaxLayers];
};
static_assert(sizeof(KeyFilterParams) <= 4096);

// ---- query_centers ----

struct CentersLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t centers;      // f32 [n_q_heads, 3, n_pairs], head stride below
  uint64_t rows;         // out: f32 [n_q_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in CentersParams::tokens
};
static_assert(sizeof(CentersLayer) == 40);

// The factor of a pair's center.
struct CentersTurn {
  float re;
  float im;
};

struct CentersParams {
  static constexpr uint32_t kMaxLayers = 44;
  static constexpr uint32_t kMaxPairs = 256;
  CacheRows keys;          // PairRows(); head_dim is not read
  CountTable tokens;       // per KV head
  uint64_t center_stride;  // elements
  uint32_t group;
  uint32_t n_sink;  // first tokens, which score 0
  uint32_t n_pairs;
  uint32_t is_interleaved;  // 2f and 2f + 1 are one, else f and f + n_pairs
  CentersTurn turns[kMaxPairs];
  CentersLayer layers[kMaxLayers];
};
static_assert(sizeof(CentersParams) <= 4096);

// ---- merge: merges evicted rows into rows that stay, in place ----

struct MergeLayer {
  uint64_t keys;              // slot 0, head 0
  uint64_t values;            // likewise; 0: none
  uint64_t block_table;       // i32; paged rows only
  uint64_t keep;              // i32 [n_lists, keep stride]
  uint32_t n_tokens;          // of the longest head
  uint32_t n_keep;            // of the longest list
  int32_t first_token_count;  // index in MergeParams::tokens
  int32_t first_keep_count;   // index in MergeParams::counts
};
static_assert(sizeof(MergeLayer) == 48);

struct MergeParams {
  static constexpr uint32_t kMaxLayers = 74;
  CacheRows keys;
  CacheRows values;
  CountTable tokens;  // per KV head
  CountTable counts;  // per list
  // [n_layers, n_kv_heads, 4, stride]: f32 scales of keys, 0 for tokens that
  // take no part; f32 norms of values; f32 similarities; u32 targets, as
  // indices among those that stay.
  uint64_t rows;
  uint64_t cutoffs;  // f32 [n_layers, n_kv_heads]
  uint32_t stride;   // tokens of the longest layer
  uint32_t n_kv_heads;
  uint32_t n_lists;      // 1 or n_kv_heads
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  uint32_t rule;         // of kvevict_merge
  float threshold;       // rule values
  float quantile;        // rule values; 0: there are no cutoffs
  uint32_t reserved;
  MergeLayer layers[kMaxLayers];
};
static_assert(sizeof(MergeParams) <= 4096);

// ---- rotate_rows ----

struct RotateLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t offsets;      // i32 [n_lists, n_tokens]: positions, or slots
  uint32_t n_tokens;
  int32_t first_count;  // index in RotateParams::tokens
};
static_assert(sizeof(RotateLayer) == 32);

struct RotateParams {
  static constexpr uint32_t kMaxLayers = 56;
  static constexpr uint32_t kMaxPairs = 256;
  CacheRows keys;     // head_dim, lanes and wide are not read
  CountTable tokens;  // per KV head
  uint32_t n_lists;   // 1 or n_kv_heads
  uint32_t n_pairs;
  uint32_t is_interleaved;    // 2f and 2f + 1 are one, else f and f + n_pairs
  uint32_t from_slots;        // offsets are the slots in which keys were
  uint64_t turns[kMaxPairs];  // 2^-64 turns per position
  RotateLayer layers[kMaxLayers];
};
static_assert(sizeof(RotateParams) <= 4096);

// ---- gather_rows, reorder_rows, copy_rows: row keep[i] goes to row
// first_slot + i, in place or in another plane; restore_rows: reverts it ----

// Lists and tables are i32. Offsets count elements from those of the first
// plane.
struct GatherPlane {
  uint64_t base;        // slot 0, head 0
  uint64_t to;          // plane that rows go to; in place the same
  int32_t keep;         // [n_lists, keep stride]
  uint32_t n_keep;      // of the longest list
  int32_t first_count;  // index in GatherParams::counts
  uint32_t first_slot;  // where the first kept row goes
  int32_t table;        // of blocks; paged only
  int32_t to_table;
};
static_assert(sizeof(GatherPlane) == 40);

struct GatherParams {
  static constexpr uint32_t kMaxPlanes = 96;
  RowLayout rows;      // row_bytes are contiguous in a row and head
  RowLayout to;        // layout of `to`; in place the same
  uint32_t row_bytes;  // of one piece
  uint32_t n_pieces;   // element_stride apart; 1 for packed rows
  uint32_t n_heads;
  uint32_t n_lists;  // 1 or n_heads
  uint32_t n_planes;
  uint32_t keep_stride;  // elements from list to list; 0: the plane's n_keep
  // By chunks only: see DealChunks().
  uint32_t columns_per_block;
  uint32_t n_groups;      // blocks that share the columns of a plane and head
  uint32_t rows_at_once;  // rows of a block
  uint32_t reserved;
  CountTable counts;                 // per list
  uint64_t keep, tables, to_tables;  // of the first plane
  // gather_chunks: u32 [ChunkTickets()], zero before; reorder_*: packed rows,
  // [n_planes, n_heads, n_keep], with the same n_keep for all planes.
  uint64_t scratch;
  GatherPlane planes[kMaxPlanes];
};
static_assert(sizeof(GatherParams) <= 4096);

// ---- list_evicted: the slots that lists do not keep ----

struct EvictedLayer {
  uint64_t keep;    // i32 [n_lists, keep stride]
  uint64_t slots;   // out: i32 [n_lists, stride]
  uint64_t counts;  // out: u32 [n_lists]; 0: not wanted
  uint32_t n_tokens;
  uint32_t n_keep;
  int32_t first_token_count;  // index in EvictedParams::tokens
  int32_t first_keep_count;   // index in EvictedParams::keep
  uint32_t stride;            // above the number that any list loses
  uint32_t reserved;
};
static_assert(sizeof(EvictedLayer) == 48);

struct EvictedParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint32_t n_lists;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  CountTable tokens;     // per list
  CountTable keep;
  EvictedLayer layers[kMaxLayers];
};
static_assert(sizeof(EvictedParams) <= 4096);

// ---- drop_blocks: block tables, first the blocks that stay ----

struct TableLayer {
  uint64_t entries;  // u32 or u64 [n_tables, stride]
  uint64_t keep;     // i32 [n_lists, keep stride]: slots of whole blocks
  uint64_t stride;
  uint32_t n_tables;  // 0: none is touched
  uint32_t block_size;
  uint32_t n_tokens;
  uint32_t n_keep;
  int32_t first_token_count;  // index in DropBlocksParams::tokens
  int32_t first_keep_count;   // index in DropBlocksParams::keep
};
static_assert(sizeof(TableLayer) == 48);

struct DropBlocksParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint32_t n_lists;      // 1, or one for each table
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  CountTable tokens;     // per table
  CountTable keep;       // per list
  TableLayer layers[kMaxLayers];
};
static_assert(sizeof(DropBlocksParams) <= 4096);

// ---- positions: positions of slots after an eviction ----

struct PositionsLayer {
  uint64_t keep;  // i32 [n_lists, keep stride] slots; 0: keep the first ones
  uint64_t out;   // i32 [n_lists, n_keep]
  SlotPositions slots;  // before the eviction
  uint32_t n_keep;      // of the longest list
  int32_t first_count;  // index in PositionsParams::counts
};
static_assert(sizeof(PositionsLayer) == 48);

struct PositionsParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint32_t n_lists;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  CountTable counts;
  CountTable kept;  // of the slots before
  PositionsLayer layers[kMaxLayers];
};
static_assert(sizeof(PositionsParams) <= 4096);

// ---- check_keep: counts the slots that are wrong ----

struct CheckKeepParams {
  uint64_t keep;     // i32 [n_lists, keep_stride]
  uint64_t n_wrong;  // u32, zero before
  CountTable counts;
  uint32_t n_tokens;
  uint32_t n_keep;
  uint32_t any_order;  // slots need not ascend
  uint32_t keep_stride;
  uint32_t first_slot;  // no slot is below it
  uint32_t reserved;
};
static_assert(sizeof(CheckKeepParams) == 56);

// ---- lengths: {stored, logical} of every list in device memory; counts ----

struct LengthsParams {
  static constexpr uint32_t kMaxLists = 1000;
  uint64_t lengths;  // u32 [n_lists, 2]; for counts [n_lists]
  uint32_t first_list;
  uint32_t n_lists;
  uint32_t logical;            // set_lengths
  uint32_t more;               // advance_counts: added to each
  uint32_t values[kMaxLists];  // set_lengths: stored; set_counts
};
static_assert(sizeof(LengthsParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_PARAMS_H_
