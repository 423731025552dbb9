// Helpers that calls of a sequence share.
#ifndef KVEVICT_CAPI_SEQUENCE_H_
#define KVEVICT_CAPI_SEQUENCE_H_

#include <cstddef>
#include <cstdint>

#include "capi/guard.h"
#include "core/sequence/sequence.h"

namespace kvevict::capi {

// Runs a call's body with the sequence on the call's stream. The sequence stays
// on it if the call succeeds.
template <typename Body>
Status OnStream(Sequence& sequence, kvevict_stream stream, const Body& body) {
  const Stream last = sequence.stream();
  sequence.set_stream(stream);
  const Status status = body();
  if (!status.ok()) sequence.set_stream(last);
  return status;
}

// Copies the structs of layers with a full cache from an array with one per
// layer.
template <typename T, typename Copy>
Status CopyLayers(const Plan& plan, const char* name, const T* array,
                  size_t len, const Copy& copy) {
  if (len != plan.n_model_layers()) {
    return InvalidArgument("%s_len %zu is not n_layers %u", name, len,
                           plan.n_model_layers());
  }
  KV_RETURN_IF_ERROR(CheckNotNull(name, array));
  return ForEachStruct(name, array, len, [&](size_t l, const T* in) {
    const int32_t place = plan.Find(static_cast<uint32_t>(l));
    return place < 0 ? Status() : copy(in, static_cast<uint32_t>(place));
  });
}

// Copies the observations of layers with a full cache to the first *out_n
// inputs of the sequence's call.
Status CopyObservations(const Sequence& sequence,
                        const kvevict_observation* observations, size_t n,
                        size_t* out_n);

// Copies a view per layer to the sequence's call.
Status CopyViews(const Sequence& sequence, const kvevict_view* views,
                 size_t views_len);

// Copies the arguments of an eviction: views, destinations, inputs and ranges
// to the sequence's call, and the options to *out, which has its defaults.
Status CopyEviction(const Sequence& sequence, const kvevict_view* views,
                    size_t views_len, const kvevict_evict_options* options,
                    kvevict_evict_options* out);
// The same if the call has its views already.
Status CopyOptions(const Sequence& sequence,
                   const kvevict_evict_options* options,
                   kvevict_evict_options* out);

// The same for a paged cache, whose rows are the views.
Status CopyPagedEviction(const PagedSequence& cached, const Sequence& sequence,
                         const kvevict_evict_options* options,
                         kvevict_evict_options* out);

// Checks that a sequence of positions can belong to a paged cache's rows.
Status CheckGoesWith(const PagedSequence& cached, const Sequence& sequence);
// Also checks that each layer has the rows that the sequence stores.
Status CheckStoredIn(const PagedSequence& cached, const Sequence& sequence);
// Shrinks the paged rows to what a sequence stores, head by head.
void FitRows(PagedSequence& cached, const Sequence& sequence);

}  // namespace kvevict::capi

#endif  // KVEVICT_CAPI_SEQUENCE_H_
