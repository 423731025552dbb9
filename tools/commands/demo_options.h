// The options of `kvevict demo`.
#ifndef KVEVICT_TOOLS_COMMANDS_DEMO_OPTIONS_H_
#define KVEVICT_TOOLS_COMMANDS_DEMO_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/engine/kv_cache.h"
#include "tools/engine/policies.h"

namespace kvevict::tools {

// Policies of the demo unless --policy names others.
inline const std::vector<NamedPolicy> kDefaultDemoPolicies = {
    {"none", "none"},
    {"streaming-llm", "streaming-llm"},
    {"snapkv", "snapkv"},
    {"pyramidkv", "pyramidkv"},
    {"tova", "tova"},
    {"h2o", "h2o"},
    {"knorm", "knorm"},
    {"keydiff", "keydiff"},
    {"random", "random:recent=32"},
};

// The same if evictions continue while it decodes: policies whose signal exists
// then.
inline const std::vector<NamedPolicy> kDecodingDemoPolicies = {
    {"none", "none"},
    {"streaming-llm", "streaming-llm"},
    {"tova", "tova"},
    {"h2o", "h2o"},
    {"snapkv", "snapkv:margin=31"},
    {"r-kv", "r-kv:margin=31"},
    {"knorm", "knorm:margin=31"},
    {"keydiff", "keydiff:margin=31"},
};

inline const std::vector<std::string> kDemoCaches = {"contiguous", "paged",
                                                     "int8", "int4", "kivi"};

struct DemoOptions {
  std::optional<uint32_t>
      tokens;                    // of the prompt; the default is the demo's own
  std::optional<double> budget;  // for policies whose text names none
  // The tokens after the prompt that are decoded, each followed by an eviction;
  // none: the cache grows.
  std::optional<uint32_t> decode;
  // The mass for which budgets are found by each policy's scores.
  std::optional<double> mass;
  std::vector<NamedPolicy> policies = kDefaultDemoPolicies;
  uint64_t seed = 1;
  kvevict_dtype dtype = KVEVICT_DTYPE_F32;  // of the cache
  std::string cache = "contiguous";         // or one of kDemoCaches
  uint32_t threads = 0;                     // 0: one per CPU
  std::string simd;  // of the library; empty: the best one
  bool json = false;

  KvLayout layout() const {
    if (cache == "paged") return {.block_size = 16};
    if (cache == "kivi") return {.group_tokens = 32, .recent_tokens = 128};
    return {};
  }
  bool is_quantized() const {
    return dtype == KVEVICT_DTYPE_U8 || dtype == KVEVICT_DTYPE_U4;
  }
  const char* simd_target() const {
    return simd.empty() ? nullptr : simd.c_str();
  }
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_DEMO_OPTIONS_H_
