// The border between C callers and the C++ core: outcomes become status codes,
// versioned structs are completed, and handles become objects.
#ifndef KVEVICT_CAPI_GUARD_H_
#define KVEVICT_CAPI_GUARD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/calibration/calibration.h"
#include "core/context.h"
#include "core/float_mode.h"
#include "core/paged/paged_sequence.h"
#include "core/plan/plan.h"
#include "core/sequence/sequence.h"
#include "core/status.h"
#include "kvevict/all.h"

namespace kvevict::capi {

// Runs the body of an entry point in the default floating-point mode. This is
// the only catch (...) in the library.
template <typename Body>
kvevict_status Guard(const Body& body) noexcept {
  const DefaultFloatMode mode;
#ifdef __cpp_exceptions
  try {
    return body().code();
  } catch (...) {
    return Internal("an exception reached the C interface").code();
  }
#else
  return body().code();
#endif
}

// ---- Pointers ----

inline Status CheckNotNull(const char* name, const void* pointer) {
  if (pointer != nullptr) return Status();
  return InvalidArgument("%s is NULL", name);
}

inline Status CheckReserved(const char* name, uint32_t reserved) {
  if (reserved == 0) return Status();
  return InvalidArgument("%s.reserved %u is not 0", name, reserved);
}

// Checks an array given as pointer and length.
inline Status CheckArray(const char* name, const void* pointer, size_t length) {
  if (pointer != nullptr || length == 0) return Status();
  return InvalidArgument("%s is NULL, but %s_len is %zu", name, name, length);
}

// ---- Versioned structs ----
//
// Structs grow only at their end. A caller's may be shorter, down to the size
// of its first release: what it lacks gets its default. It may be longer: what
// this library does not know must be zero. So structs are copied and not read
// in place.

// A test defines KVEVICT_STRUCTS as a list in which this release is not the
// first.
#ifndef KVEVICT_STRUCTS
#define KVEVICT_STRUCTS "capi/structs.inc"
#endif
constexpr size_t FirstSize(size_t with_64_bits, size_t now) {
  // The one package with a 32-bit library has its caller in it.
  return sizeof(void*) == 8 ? with_64_bits : now;
}
template <typename T>
inline constexpr size_t kFirstSize = 0;
#define KVEVICT_STRUCT(name, first_size)     \
  template <>                                \
  inline constexpr size_t kFirstSize<name> = \
      FirstSize(first_size, sizeof(name));
#include KVEVICT_STRUCTS
#undef KVEVICT_STRUCT

template <typename T>
Status CheckStructSize(const char* name, size_t struct_size) {
  static_assert(kFirstSize<T> > 0 && kFirstSize<T> <= sizeof(T));
  if (struct_size >= kFirstSize<T>) return Status();
  return InvalidArgument("%s.struct_size %zu < %zu", name, struct_size,
                         kFirstSize<T>);
}

template <typename T>
Status CheckStruct(const char* name, const T* in) {
  KV_RETURN_IF_ERROR(CheckNotNull(name, in));
  KV_RETURN_IF_ERROR(CheckStructSize<T>(name, in->struct_size));
  const auto* bytes = reinterpret_cast<const uint8_t*>(in);
  for (size_t i = sizeof(T); i < in->struct_size; ++i) {
    if (bytes[i] == 0) continue;
    return InvalidArgument(
        "%s.struct_size %u: byte %zu, beyond the %zu this library knows, is "
        "not 0",
        name, in->struct_size, i, sizeof(T));
  }
  return Status();
}

// Copies the caller's struct over the defaults in *out.
template <typename T>
Status CopyIn(const char* name, const T* in, T* out) {
  KV_RETURN_IF_ERROR(CheckStruct(name, in));
  std::memcpy(out, in, std::min<size_t>(in->struct_size, sizeof(T)));
  out->struct_size = sizeof(T);
  return Status();
}

// Calls visit(i, struct) for an array of structs. Their distance is the size
// that the first one has.
template <typename T, typename Visit>
Status ForEachStruct(const char* name, T* first, size_t n, const Visit& visit) {
  if (n == 0) return Status();
  const size_t stride = first->struct_size;
  constexpr size_t kUnit = std::max(alignof(T), sizeof(void*));
  if (stride % kUnit != 0) {
    return InvalidArgument("%s[0].struct_size %zu is not a multiple of %zu",
                           name, stride, kUnit);
  }
  const auto address = reinterpret_cast<uintptr_t>(first);
  for (size_t i = 0; i < n; ++i) {
    T* const one = reinterpret_cast<T*>(address + i * stride);
    if (one->struct_size != stride) {
      return InvalidArgument("%s[%zu].struct_size %u is not %s[0]'s %zu", name,
                             i, one->struct_size, name, stride);
    }
    if (Status status = visit(i, one); !status.ok()) {
      return Prefixed(status, "%s[%zu]: ", name, i);
    }
  }
  return Status();
}

template <typename T>
Status CheckOut(const char* name, const T* out) {
  KV_RETURN_IF_ERROR(CheckNotNull(name, out));
  return CheckStructSize<T>(name, out->struct_size);
}

// Fills a checked output struct as far as the caller knows it. Its struct_size
// stays, and so do fields that this library does not know.
template <typename T>
void CopyOut(const T& value, T* out) {
  const uint32_t struct_size = out->struct_size;
  std::memcpy(out, &value, std::min<size_t>(struct_size, sizeof(T)));
  out->struct_size = struct_size;
}

// A struct that other calls take as input must not lose values that differ from
// the defaults because an older caller's struct is shorter.
template <typename T>
Status CheckRoom(const char* name, const T& value, const T& defaults,
                 const T& out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  const auto* plain = reinterpret_cast<const uint8_t*>(&defaults);
  for (size_t i = out.struct_size; i < sizeof(T); ++i) {
    if (bytes[i] == plain[i]) continue;
    return InvalidArgument(
        "%s.struct_size %u: no room for byte %zu, which is not at its default",
        name, out.struct_size, i);
  }
  return Status();
}

template <typename T>
Status CopyOutWhole(const char* name, const T& value, const T& defaults,
                    T* out) {
  KV_RETURN_IF_ERROR(CheckRoom(name, value, defaults, *out));
  CopyOut(value, out);
  return Status();
}

// Checks that a layer is one of the model.
inline Status CheckLayer(const Plan& plan, uint32_t number) {
  if (number < plan.n_model_layers()) return Status();
  return InvalidArgument("layer %u >= n_layers %u", number,
                         plan.n_model_layers());
}

// Finds one of a plan's layers by its number in the model.
inline Status FindLayer(const Plan& plan, uint32_t number, uint32_t* out) {
  KV_RETURN_IF_ERROR(CheckLayer(plan, number));
  const int32_t place = plan.Find(number);
  if (place < 0) {
    return InvalidArgument("layer %u has no full cache", number);
  }
  *out = static_cast<uint32_t>(place);
  return Status();
}

// Writes the workspace sizes of a call.
inline Status CopyOut(const Context& context, const WorkspaceNeeds& needs,
                      kvevict_workspace* out) {
  if (!needs.ok()) {
    return InvalidArgument("workspace: more bytes than size_t holds");
  }
  kvevict_workspace workspace{};
  workspace.alignment =
      static_cast<uint32_t>(context.backend().workspace_alignment);
  workspace.least_bytes = needs.least.value();
  workspace.best_bytes = needs.best.value();
  CopyOut(workspace, out);
  return Status();
}

// Copies a caller's inputs of a layer in addition to keys.
inline Status CopyIn(const kvevict_signal_inputs* in, LayerInputs* out) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  KV_RETURN_IF_ERROR(CopyIn("inputs", in, &inputs));
  out->n_query_rows = inputs.n_query_rows;
  out->n_sum_heads = inputs.n_sum_heads;
  out->queries = inputs.queries;
  out->row_lse = inputs.row_lse;
  out->scores = inputs.scores;
  out->attention_sums = inputs.attention_sums;
  out->query_mean = inputs.query_mean;
  out->query_covariance = inputs.query_covariance;
  out->key_filter = inputs.key_filter;
  out->token_weights = inputs.token_weights;
  out->query_centers = inputs.query_centers;
  out->n_reference_rows = inputs.n_reference_rows;
  out->reference_queries = inputs.reference_queries;
  out->reference_positions = inputs.reference_positions;
  return Status();
}

// Copies a caller's ranked ranges.
inline Status CopyIn(const kvevict_token_range* in, size_t n,
                     TokenRanges* out) {
  KV_RETURN_IF_ERROR(CheckArray("ranges", in, n));
  return ForEachStruct("ranges", in, n,
                       [&](size_t, const kvevict_token_range* one) {
                         kvevict_token_range range = KVEVICT_TOKEN_RANGE_INIT;
                         KV_RETURN_IF_ERROR(CopyIn("range", one, &range));
                         return out->Add({range.first, range.end, range.rank});
                       });
}

// ---- Handles ----

inline const Context& Core(const kvevict_context* handle) {
  return *reinterpret_cast<const Context*>(handle);
}
inline const Policy& Core(const kvevict_policy* handle) {
  return *reinterpret_cast<const Policy*>(handle);
}
inline Policy& Core(kvevict_policy* handle) {
  return *reinterpret_cast<Policy*>(handle);
}
inline const Plan& Core(const kvevict_plan* handle) {
  return *reinterpret_cast<const Plan*>(handle);
}
inline Sequence& Core(kvevict_sequence* handle) {
  return *reinterpret_cast<Sequence*>(handle);
}
inline const Sequence& Core(const kvevict_sequence* handle) {
  return *reinterpret_cast<const Sequence*>(handle);
}
inline Calibration& Core(kvevict_calibration* handle) {
  return *reinterpret_cast<Calibration*>(handle);
}
inline const Calibration& Core(const kvevict_calibration* handle) {
  return *reinterpret_cast<const Calibration*>(handle);
}
inline const PagedCache& Core(const kvevict_paged_cache* handle) {
  return *reinterpret_cast<const PagedCache*>(handle);
}
inline PagedSequence& Core(kvevict_paged_sequence* handle) {
  return *reinterpret_cast<PagedSequence*>(handle);
}
inline const PagedSequence& Core(const kvevict_paged_sequence* handle) {
  return *reinterpret_cast<const PagedSequence*>(handle);
}

}  // namespace kvevict::capi

#endif  // KVEVICT_CAPI_GUARD_H_
