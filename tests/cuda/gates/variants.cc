#include "tests/cuda/gates/variants.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string_view>

#include "cuda/kernels/attention_mma.h"
#include "cuda/kernels/lag.h"
#include "cuda/kernels/pool_select.h"
#include "cuda/kernels/window_attention.h"
#include "tests/cuda/gates/prediction.h"

namespace kvevict::cuda {
namespace {

using DType = int;
enum Out : uint32_t { kSumOfGroup = 0, kMaxOfGroup = 1, kRowPerHead = 2 };

struct Attention {
  DType q_dtype;
  DType k_dtype;
  uint32_t head_dim;
  uint32_t window;
  uint32_t group;
  bool paged;
  Out out;
  bool ragged = false;
  const char* options = "";  // without KV_, 1 each
  uint32_t logit_heads = 1;
};

// Uses tensor cores whenever they can do it.
const Attention kAttention[] = {
    {kBF16, kBF16, 128, 64, 4, false, kSumOfGroup},
    {kF16, kF16, 128, 32, 8, true, kMaxOfGroup},
    {kBF16, kBF16, 64, 64, 8, false, kRowPerHead},
    {kBF16, kBF16, 128, 64, 16, true, kSumOfGroup},  // several row blocks
    {kBF16, kBF16, 128, 64, 8, false, kSumOfGroup},
    {kBF16, kBF16, 128, 32, 16, false, kSumOfGroup},
    {kF16, kF16, 128, 32, 16, false, kMaxOfGroup, true},
    {kF16, kF16, 96, 16, 1, false, kSumOfGroup},
    {kBF16, kBF16, 256, 32, 4, false, kMaxOfGroup},
    {kF16, kF16, 256, 64, 2, true, kSumOfGroup},
    // These were once short of registers.
    {kBF16, kBF16, 96, 16, 2, true, kMaxOfGroup},
    {kF16, kF16, 112, 32, 7, true, kRowPerHead},
    {kBF16, kBF16, 128, 8, 8, false, kRowPerHead},
    {kBF16, kBF16, 128, 16, 8, true, kRowPerHead},
    {kF16, kF16, 128, 64, 4, true, kRowPerHead},
    {kBF16, kBF16, 128, 256, 3, true, kSumOfGroup},
    {kF16, kF16, 256, 16, 1, true, kSumOfGroup},
    {kF32, kF32, 128, 64, 4, false, kSumOfGroup},
    {kF32, kBF16, 80, 16, 7, true, kMaxOfGroup},
    // f32 queries in two parts; the hybrids' heads.
    {kF32, kBF16, 128, 64, 4, false, kSumOfGroup},
    {kF32, kF16, 128, 64, 8, true, kRowPerHead},
    {kF32, kBF16, 256, 64, 6, false, kSumOfGroup},
    {kF32, kBF16, 256, 64, 8, true, kSumOfGroup},
    {kF32, kF16, 256, 64, 8, true, kRowPerHead, true},
    {kF32, kE4M3, 256, 64, 6, true, kSumOfGroup},
    {kF32, kI8, 192, 33, 8, false, kRowPerHead, true},
    {kBF16, kBF16, 256, 64, 6, false, kSumOfGroup},
    {kBF16, kBF16, 256, 64, 8, true, kSumOfGroup, true},
    {kF16, kF16, 256, 64, 8, false, kRowPerHead},
    {kF32, kF32, 256, 64, 6, true, kSumOfGroup},
    // Codes.
    {kBF16, kE4M3, 128, 64, 4, false, kSumOfGroup},
    {kF16, kE4M3, 128, 32, 8, true, kMaxOfGroup},
    {kBF16, kU8, 256, 32, 4, true, kRowPerHead},
    {kF16, kI8, 96, 16, 2, true, kSumOfGroup, true},
    // Heads have unequal lengths.
    {kBF16, kBF16, 128, 64, 4, false, kSumOfGroup, true},
    {kF16, kF16, 112, 32, 7, true, kRowPerHead, true},
    {kBF16, kBF16, 128, 16, 8, true, kRowPerHead, true},
    {kF32, kBF16, 80, 16, 7, true, kMaxOfGroup, true},
    // The other options of rows, and parts of more rows.
    {kBF16, kBF16, 128, 64, 4, false, kRowPerHead, false, "MAX_OF_ROWS"},
    {kBF16, kBF16, 128, 64, 4, true, kSumOfGroup, true, "MAX_OF_ROWS"},
    {kBF16, kBF16, 128, 64, 4, false, kSumOfGroup, false, "WEIGH_BY_PAST"},
    {kBF16, kBF16, 128, 16, 8, true, kRowPerHead, true,
     "SOFTMAX_PAST WEIGH_BY_PAST"},
    // Logits are capped, and softmax has sinks.
    {kBF16, kBF16, 128, 64, 4, false, kSumOfGroup, false, "SOFTCAP"},
    {kBF16, kBF16, 256, 32, 2, true, kSumOfGroup, true, "SOFTCAP"},
    {kBF16, kBF16, 64, 64, 8, false, kSumOfGroup, false, "SINKS"},
    {kF32, kBF16, 80, 64, 7, true, kSumOfGroup, true, "SOFTCAP SINKS"},
    // Biases of slots.
    {kBF16, kBF16, 128, 64, 4, false, kSumOfGroup, false, "BIAS"},
    {kF32, kBF16, 256, 64, 8, true, kSumOfGroup, true, "BIAS"},
    // Variances of rows, and measures of layers: KV_MEASURE 1.
    {kBF16, kBF16, 128, 32, 4, false, kSumOfGroup, false, "SPREAD"},
    {kBF16, kBF16, 128, 32, 4, false, kSumOfGroup, false, "SPREAD MEASURE"},
    {kBF16, kBF16, 128, 64, 8, true, kMaxOfGroup, true, "SPREAD"},
    {kF16, kF16, 256, 32, 4, true, kRowPerHead, true, "SPREAD MEASURE"},
    {kF32, kBF16, 80, 64, 7, true, kSumOfGroup, true, "MEASURE"},
    {kBF16, kBF16, 128, 256, 4, false, kRowPerHead, false, "PART"},
    {kF16, kF16, 128, 256, 8, true, kRowPerHead, true, "PART"},
    {kBF16, kBF16, 256, 128, 4, true, kRowPerHead, true, "PART"},
    {kF32, kF32, 128, 256, 4, true, kRowPerHead, true, "PART"},
    // Rows of a list.
    {kBF16, kBF16, 128, 128, 4, false, kSumOfGroup, false, "LISTED"},
    {kF32, kBF16, 256, 64, 8, true, kSumOfGroup, true, "LISTED"},
    // Chunks of 256: whole, and long rows in parts.
    {kBF16, kBF16, 128, 256, 4, false, kSumOfGroup, false, "CHUNKS"},
    {kF16, kF16, 128, 256, 8, true, kMaxOfGroup, true, "CHUNKS"},
    {kBF16, kBF16, 64, 256, 8, true, kSumOfGroup, true, "CHUNKS"},
    {kBF16, kBF16, 256, 128, 4, true, kRowPerHead, true, "CHUNKS"},
    {kF32, kF32, 128, 256, 4, true, kSumOfGroup, true, "CHUNKS"},
};

// Tensor cores cannot load these elements or rows.
const Attention kAttentionWithoutMma[] = {
    {kBF16, kBF16, 128, 64, 4, true, kSumOfGroup},
    {kF16, kF16, 256, 32, 1, false, kRowPerHead},
    {kBF16, kU8, 128, 64, 4, true, kSumOfGroup},
    {kF32, kBF16, 256, 64, 8, true, kSumOfGroup},
    {kF16, kQ4_0, 96, 16, 7, true, kRowPerHead, true},
    {kBF16, kU4, 128, 64, 4, true, kSumOfGroup, true, "TOKEN_GROUPS"},
    // The largest logit of a group: R-KV's window, and longer ones.
    {kBF16, kBF16, 128, 8, 1, false, kSumOfGroup, false, "SOFTMAX_PAST", 4},
    {kF16, kF16, 128, 64, 1, true, kSumOfGroup, true, "", 8},
    {kF32, kF32, 80, 256, 1, true, kSumOfGroup, true, "SOFTMAX_PAST", 7},
};

// Few rows: no form of tensor cores.
const Attention kAttentionOfFew[] = {
    {kBF16, kBF16, 128, 1, 4, false, kSumOfGroup},
    {kF32, kF32, 128, 1, 4, false, kSumOfGroup},
    {kF16, kF16, 128, 1, 1, true, kSumOfGroup},
    {kBF16, kBF16, 256, 1, 8, true, kMaxOfGroup, true},
    {kF32, kBF16, 64, 2, 4, true, kRowPerHead, true},
    {kF32, kF32, 256, 4, 4, true, kSumOfGroup, true},
    {kBF16, kF32, 64, 2, 8, false, kMaxOfGroup, true},
    {kF32, kF32, 32, 15, 1, true, kSumOfGroup, true},
    {kBF16, kBF16, 80, 1, 7, true, kSumOfGroup, true, "MAX_OF_ROWS"},
    {kF16, kF16, 96, 4, 2, false, kRowPerHead, false, "WEIGH_BY_PAST"},
    {kF16, kBF16, 128, 2, 8, true, kSumOfGroup, true, "SOFTCAP"},
    {kBF16, kBF16, 128, 1, 4, true, kSumOfGroup, true, "BIAS"},
    {kBF16, kBF16, 64, 1, 8, true, kSumOfGroup, true, "SOFTCAP SINKS"},
};

// Modules that read rows of two dtypes.
struct Reader {
  ModuleId module;
  uint32_t dtypes;            // KV_DTYPES
  bool token_groups = false;  // KV_TOKEN_GROUPS
  bool biases = false;        // KV_BIAS
};
const Reader kReadersOfTwo[] = {
    {ModuleId::lag, 1u << kU8 | 1u << kF16},
    {ModuleId::attention, 1u << kU8 | 1u << kBF16},
    {ModuleId::attention, 1u << kQ4_0 | 1u << kF16},
    {ModuleId::attention, 1u << kU4 | 1u << kF16, true},
    {ModuleId::attention, kPlainDTypes, false, true},
    {ModuleId::attention_few, kPlainDTypes, false, true},
    {ModuleId::expected_attention, kPlainDTypes, false, true},
    {ModuleId::requantize, 1u << kF32 | 1u << kU8},
    {ModuleId::requantize, 1u << kQ4_0 | 1u << kBF16},
    {ModuleId::requantize, 1u << kF32 | 1u << kU4, true},
    {ModuleId::regroup, 1u << kF32 | 1u << kU4, true},
};

// Every module that reads rows, by codes that lie in one way and in another. Rows
// that are merged or rotated have no codes.
std::vector<Reader> Readers() {
  constexpr DType kCodes[] = {kU4, kU8, kQ4_0, kE4M3};
  constexpr DType kGroups[] = {kU4, kU4Halves, kI8, kU8};
  std::vector<Reader> readers(std::begin(kReadersOfTwo),
                              std::end(kReadersOfTwo));
  size_t n = 0;
  for (size_t i = 0; i < kNModules; ++i) {
    const auto module = static_cast<ModuleId>(i);
    const bool reads =
        std::string_view(ProgramText(module)->text)
            .find("#include \"cache_rows.cuh\"") != std::string_view::npos;
    const bool has_codes =
        module != ModuleId::merge && module != ModuleId::rotate_rows;
    if (!reads || !has_codes || module == ModuleId::requantize ||
        module == ModuleId::regroup) {
      continue;
    }
    readers.push_back({module, 1u << kCodes[n % std::size(kCodes)]});
    readers.push_back({module, 1u << kGroups[n % std::size(kGroups)], true});
    ++n;
  }
  return readers;
}

// Attention by tensor cores. Query rows of a KV head: a token's or those of many.
struct TensorAttention {
  DType q_dtype;
  DType k_dtype;
  DType v_dtype;
  uint32_t k_dim;
  uint32_t v_dim;
  uint32_t n_rows;
  bool token_groups = false;
  bool biases = false;
};
const TensorAttention kTensorAttention[] = {
    {kBF16, kBF16, kBF16, 128, 128, 16},
    {kBF16, kBF16, kBF16, 128, 128, 256},
    {kF32, kBF16, kBF16, 128, 128, 256},
    {kF16, kF16, kF16, 64, 64, 256},
    {kF32, kF16, kF16, 128, 128, 64},
    {kBF16, kF16, kBF16, 96, 80, 32},
    {kBF16, kBF16, kBF16, 192, 128, 64},
    // The hybrids' heads, groups of 6 and 8: a token's, and those of more.
    {kBF16, kBF16, kBF16, 256, 256, 8},
    {kBF16, kBF16, kBF16, 256, 256, 64},
    {kF16, kF16, kF16, 256, 256, 24},
    {kF32, kBF16, kBF16, 256, 256, 6},
    {kF32, kF16, kF16, 256, 256, 64},
    // Codes.
    {kBF16, kU8, kU8, 128, 128, 256},
    {kF32, kU4, kU4, 128, 128, 4},
    {kF16, kE4M3, kE4M3, 128, 128, 32},
    {kBF16, kU8, kF16, 64, 256, 64},
    {kF32, kU8, kU8, 256, 256, 8},
    {kBF16, kI8, kI8, 256, 256, 64},
    {kF32, kU4, kU4, 256, 256, 6},
    {kBF16, kE4M3, kE4M3, 256, 256, 8},
    {kF32, kQ8_0, kQ4_0, 256, 256, 64},
    {kBF16, kU4, kU4, 128, 128, 64, true},
    {kF32, kU4, kU4, 256, 256, 8, true},
    {kBF16, kBF16, kBF16, 128, 128, 256, false, true},
    {kF32, kBF16, kBF16, 256, 256, 64, false, true},
};

std::string Define(const char* name, uint32_t value) {
  return std::string("-D") + name + "=" + std::to_string(value);
}

Variant Make(const Attention& a, bool mma, int sm,
             ModuleId module = ModuleId::window_attention) {
  const auto define = Define;
  const uint32_t tile_keys = a.logit_heads > 1 ? LogitTileKeys(a.window)
                                               : TileKeys(mma, a.head_dim, sm);
  Variant variant = {
      .module = module,
      .options = {
          define("KV_Q_DTYPE", a.q_dtype), define("KV_K_DTYPE", a.k_dtype),
          define("KV_HEAD_DIM", a.head_dim), define("KV_WINDOW", a.window),
          define("KV_GROUP", a.group), define("KV_PAGED", a.paged),
          define("KV_RAGGED", a.ragged), define("KV_USE_MMA", mma),
          define("KV_TILE_KEYS", tile_keys), define("KV_OUT", a.out)}};
  std::istringstream options(a.options);
  for (std::string option; options >> option;) {
    variant.options.push_back(define(("KV_" + option).c_str(), 1));
  }
  if (a.logit_heads > 1) {
    variant.options.push_back(define("KV_LOGIT_HEADS", a.logit_heads));
  }
  const auto shape = ShapeWindowAttention(mma, a.q_dtype, a.head_dim, a.window,
                                          a.group, tile_keys);
  variant.uses_mma = mma;
  variant.n_tile_products = 16.0 * shape.tiles_per_block * tile_keys *
                            a.head_dim *
                            (SplitsQueries(mma, a.q_dtype) ? 2 : 1);
  if (mma) {
    variant.n_matrices = a.head_dim / 16;
    // f32 queries have a high part and a low one.
    const size_t n_parts = SplitsQueries(mma, a.q_dtype) ? 2 : 1;
    const size_t n_fragments = n_parts * shape.tiles_per_warp;
    variant.n_query_matrices = n_fragments * variant.n_matrices;
    variant.n_products = 2 * n_fragments;
    variant.n_most_registers = 65536 / (shape.threads * shape.blocks_per_sm);
    // Codes are on their way to shared memory some tiles before. Otherwise a thread
    // has four loads of them on their way, which it waits for.
    variant.has_codes = HasByteCodes(a.k_dtype);
    const uint32_t staged =
        StagedTiles(shape, a.k_dtype, static_cast<uint32_t>(sm));
    if (staged > 0) {
      variant.options.push_back(define("KV_STAGED_TILES", staged));
    }
    const size_t n_elements = size_t{tile_keys} * a.head_dim;
    variant.n_tile_bytes =
        !variant.has_codes ? 2 * n_elements
        : staged > 0       ? staged * n_elements
                     : std::min(n_elements, size_t{4 * 16} * shape.threads);
    variant.dynamic_shared_bytes =
        SharedBytes(shape, staged, tile_keys, a.head_dim);
    // Caps need exponentials of their own, and biases loads.
    const auto has = [&](const char* option) {
      return std::find(variant.options.begin(), variant.options.end(),
                       define(option, 1)) != variant.options.end();
    };
    variant.is_flagship =
        !has("KV_SOFTCAP") && !has("KV_BIAS") && a.q_dtype == kBF16 &&
        !variant.has_codes && a.head_dim == kFlagship.head_dim &&
        a.window == kFlagship.window && a.group == kFlagship.group &&
        !a.paged && !a.ragged && a.out == kSumOfGroup;
    if (!variant.has_codes || staged > 0) {
      const size_t n_of_copy = variant.has_codes ? 16 : 8;
      variant.n_copies = CeilDiv(n_elements / n_of_copy, shape.threads);
    }
  }
  return variant;
}

Variant Make(const TensorAttention& a) {
  const auto define = [](const char* name, uint64_t value) {
    return Define(name, static_cast<uint32_t>(value));
  };
  const uint32_t k_dim = AttendPadded(a.k_dim);
  const uint32_t v_dim = AttendPadded(a.v_dim);
  const uint32_t row_warps =
      AttendRowWarps(a.q_dtype, a.k_dtype, a.v_dtype, k_dim, v_dim, a.n_rows);
  const AttendMmaShape shape =
      ShapeAttendMma(a.q_dtype, a.k_dtype, a.v_dtype, k_dim, v_dim, row_warps);
  Variant variant = {
      .module = ModuleId::attention_mma,
      .options = {
          define("KV_Q_DTYPE", a.q_dtype), define("KV_K_DTYPE", a.k_dtype),
          define("KV_V_DTYPE", a.v_dtype), define("KV_HEAD_DIM", k_dim),
          define("KV_V_DIM", v_dim), define("KV_ROW_WARPS", row_warps)}};
  if (a.token_groups) variant.options.push_back(define("KV_TOKEN_GROUPS", 1));
  if (a.biases) variant.options.push_back(define("KV_BIAS", 1));
  const int element = AttendElement(a.k_dtype);
  const size_t q_parts = AttendParts(a.q_dtype, element);
  const size_t k_parts = AttendParts(a.k_dtype, element);
  const size_t v_parts = AttendParts(a.v_dtype, AttendElement(a.v_dtype));
  const size_t n_chunks = kAttendSlots / 16 / shape.key_groups;
  variant.n_value_matrices = n_chunks * v_dim / 16 * v_parts;
  variant.n_value_products = 2 * kWeightParts * variant.n_value_matrices;
  variant.n_step_matrices = q_parts + n_chunks * k_parts;
  variant.n_step_products = 2 * q_parts * n_chunks * k_parts;
  if (shape.two_tiles) {
    variant.n_copies = kAttendSlots * (k_dim + v_dim) / 8 / kAttendMmaThreads;
  }
  variant.dynamic_shared_bytes = shape.shared_bytes;
  return variant;
}

// The shared memory of a block with the partitions of its launch, which are on
// their way.
void KeepPartitions(Variant* lag) {
  constexpr uint32_t kPartition = 128;
  CacheRows rows{};
  rows.dtype = kBF16;
  rows.head_dim = kFlagship.head_dim;
  rows.wide = 16;
  lag->dynamic_shared_bytes = LagKeptBytes(rows, kPartition, UINT32_MAX);
  lag->dynamic_kernel = "lag_spreads";
  lag->n_tile_bytes = size_t{2} * kPartition * rows.head_dim;
}

}  // namespace

std::string Variant::name() const {
  std::string text = ModuleName(module);
  for (const std::string& option : options) text += " " + option.substr(2);
  return text;
}

std::string Variant::form() const {
  const auto has = [this](const char* option) {
    return std::find(options.begin(), options.end(), Define(option, 1)) !=
           options.end();
  };
  const std::string biases = has("KV_BIAS") ? ", biases" : "";
  const std::string numbers = has("KV_TOKEN_GROUPS") ? ", groups" : "";
  std::string text = ModuleName(module);
  if (module == ModuleId::attention_mma) {
    text += !numbers.empty() ? numbers : n_copies == 0 ? ", codes" : "";
  } else if (module == ModuleId::window_attention) {
    text += n_products > 0 ? ", tensor cores" : ", FMA";
    text += n_products > 0 && has_codes ? ", codes" : "";
    text += numbers;
  } else if (module != ModuleId::window_attention_few) {
    const bool is_plain = options.empty() || !biases.empty();
    text += !numbers.empty() ? numbers : is_plain ? "" : ", codes";
  }
  return text + biases;
}

std::vector<Variant> VariantsFor(int sm) {
  std::vector<Variant> variants;
  for (size_t i = 0; i < kNModules; ++i) {
    const auto module = static_cast<ModuleId>(i);
    if (module == ModuleId::attention_few && sm < 80) continue;
    if (module == ModuleId::regroup) continue;        // only codes
    if (module == ModuleId::attention_mma) continue;  // below
    if (module == ModuleId::window_attention_few) continue;
    if (module != ModuleId::window_attention) {
      variants.push_back({.module = module, .options = {}});
      if (module == ModuleId::pool_select) {
        variants.back().dynamic_shared_bytes =
            MostPoolSelectBytes(static_cast<uint32_t>(sm));
      }
      if (module == ModuleId::lag && sm >= 80) {
        KeepPartitions(&variants.back());
      }
    }
  }
  for (const Reader& reader : Readers()) {
    if (reader.module == ModuleId::attention_few && sm < 80) continue;
    variants.push_back({.module = reader.module,
                        .options = {Define("KV_DTYPES", reader.dtypes)}});
    if (reader.biases) variants.back().options.push_back(Define("KV_BIAS", 1));
    if (!reader.token_groups) continue;
    variants.back().options.push_back(Define("KV_TOKEN_GROUPS", 1));
  }
  for (const Attention& a : kAttention) {
    variants.push_back(
        Make(a, CanUseMma(a.q_dtype, a.k_dtype, a.head_dim, a.window, sm), sm));
  }
  for (const Attention& a : kAttentionWithoutMma) {
    variants.push_back(Make(a, false, sm));
  }
  for (const Attention& a : kAttentionOfFew) {
    variants.push_back(Make(a, false, sm, ModuleId::window_attention_few));
  }
  for (const TensorAttention& a : kTensorAttention) {
    if (sm >= 80) variants.push_back(Make(a));
  }
  return variants;
}

}  // namespace kvevict::cuda
