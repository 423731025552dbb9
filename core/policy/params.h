// A policy: its kind, and a field for each row of params.inc.
#ifndef KVEVICT_CORE_POLICY_PARAMS_H_
#define KVEVICT_CORE_POLICY_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/status.h"
#include "kvevict/experimental.h"

namespace kvevict {

enum class PolicyKind : int32_t {
#define KVEVICT_POLICY(Kind, text, signal, summary, defaults, trigger, paper) \
  k##Kind,
#include "core/policy/policies.inc"
#undef KVEVICT_POLICY
};

// ---- Types of parameters, other than numbers, bool and the C API's enums ----

enum class PoolKind : int32_t { kNone, kAvg, kMax };
enum class PoolEdge : int32_t { kPad, kShrink, kMass };
enum class RowWeight : int32_t { kNone, kPast };
enum class SoftmaxKeys : int32_t { kCausal, kPast };
enum class ShapingOrder : int32_t {
  kReducePool,
  kPoolReduce,
  kReduceLogits,
  kWeighPool,
  kPoolRows
};
enum class LayerSplit : int32_t {
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) k##Name,
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
};
enum class FirstStageBias : int32_t { kNone, kPast };
enum class ValueMeasure : int32_t { kRange, kNorm, kVariance };
enum class WeightShare : int32_t { kNone, kHeads };
enum class LeverageScale : int32_t { kNone, kEvicted };
enum class Ends : int32_t { kIn, kOut };
enum class Prior : int32_t { kNone, kMean };
enum class BudgetBase : int32_t { kContext, kPartition };
enum class ValueWeight : int32_t { kNone, kNorm, kGiven };
enum class Fit : int32_t { kNone, kValues, kBiasValues };
enum class HeadRule : int32_t { kEqual, kAdaptive, kAdaptiveBlend, kThreshold };
enum class Rounding : int32_t { kHead, kTogether };
enum class PromptRule : int32_t {
  kInside,
  kBeside,
  kPinned,
  kPinnedBeside,
  kAtEnd
};
enum class SumRows : int32_t { kHead, kQuery, kLayer };
enum class Anchor : int32_t { kMean, kZeros, kOnes, kAlternating, kRandom };

struct Pooling {
  PoolKind kind = PoolKind::kNone;
  uint32_t width = 1;

  bool operator==(const Pooling&) const = default;
};

// A count of tokens or, if share is above 0, that share of the budget.
struct CountOrShare {
  uint32_t count = 0;
  double share = 0.0;

  bool IsZero() const { return count == 0 && share == 0.0; }
  bool operator==(const CountOrShare&) const = default;
};

// ---- A policy ----

// Every field is within its row's range. ValidatePolicy() checks whether they
// go together.
struct Policy {
  PolicyKind kind = PolicyKind::kNone;
#define KVEVICT_PARAM(key, Type, value, range, has, words, doc) \
  Type key = Type(value);
#include "core/policy/params.inc"
#undef KVEVICT_PARAM
};

inline constexpr uint32_t kMaxTokens = INT32_MAX;
inline constexpr uint32_t kMaxPoolWidth = 1023;  // on every backend
inline constexpr uint32_t kMaxSumLast = 64;

struct PolicyInfo;

// The numbers that a parameter may have.
struct Range {
  double least = 0.0;
  double most = 0.0;
  bool is_open = false;  // least itself is outside
  bool takes_0 = false;  // in addition to [least, most]

  bool Has(double value) const;
};

// The longest text of a value, with its terminator.
inline constexpr size_t kMaxValueText = 40;

// A row of params.inc at run time.
struct Param {
  const char* key;
  kvevict_parameter_type type;
  size_t offset;
  bool (*is_of)(const PolicyInfo& policy);
  Range range;
  // names of values 0, 1, ... separated by '|'; "" for numbers
  const char* words;
  const char* doc;
};

std::span<const Param> Params();

// nullptr if the policy has no such parameter.
const Param* FindParam(const PolicyInfo& policy, std::string_view key);

// Reads a value in the syntax of a policy text. The message of a failure begins
// with the parameter's key.
Status ReadParam(const Param& param, std::string_view text, Policy* policy);

// Sets a parameter that is a number; false is 0.
Status SetParam(const Param& param, double value, Policy* policy);

// Fails if the parameter is a word, or the number does not fit a double.
Status GetParam(const Param& param, const Policy& policy, double* out);

// Writes the value as ReadParam() reads it, zero-terminated; returns its
// length.
size_t WriteParam(const Param& param, const Policy& policy,
                  std::span<char, kMaxValueText> text);

// Whether two policies have different values.
bool ParamDiffers(const Param& param, const Policy& a, const Policy& b);

// Writes what a value may be, for messages: "a count in [1, 65536]".
size_t WriteExpected(const Param& param, std::span<char> text);

// The word of an enumerator.
const char* WordOf(LayerSplit split);
const char* WordOf(PromptRule prompt);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_PARAMS_H_
