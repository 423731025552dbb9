// What calls of a sequence share.
#ifndef KVEVICT_CAPI_SEQUENCE_H_
#define KVEVICT_CAPI_SEQUENCE_H_

#include <cstddef>
#include <cstdint>

#include "capi/guard.h"
#include "core/sequence/sequence.h"

namespace kvevict::capi {

// Runs a call's body with the sequence on its stream, where it stays if it succeeds.
template <typename Body>
Status OnStream(Sequence& sequence, kvevict_stream stream, const Body& body) {
  const Stream last = sequence.stream();
  sequence.set_stream(stream);
  const Status status = body();
  if (!status.ok()) sequence.set_stream(last);
  return status;
}

// Of an array with a struct per layer, those of layers with a full cache.
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

// What is shown of layers with a full cache, in *out_n places of its call's inputs.
Status CopyObservations(const Sequence& sequence,
                        const kvevict_observation* observations, size_t n,
                        size_t* out_n);

// What an eviction is given: views, destinations, inputs and ranges of the sequence's
// call, and *out, which has its defaults.
Status CopyEviction(const Sequence& sequence, const kvevict_view* views,
                    size_t views_len, const kvevict_evict_options* options,
                    kvevict_evict_options* out);
// The same where the call's views are there.
Status CopyOptions(const Sequence& sequence,
                   const kvevict_evict_options* options,
                   kvevict_evict_options* out);

// The same of a paged cache's rows, which are the views.
Status CopyPagedEviction(const PagedSequence& cached, const Sequence& sequence,
                         const kvevict_evict_options* options,
                         kvevict_evict_options* out);

// That a sequence of positions can be one of a paged cache's rows.
Status CheckGoesWith(const PagedSequence& cached, const Sequence& sequence);
// And that each layer has the rows that it stores.
Status CheckStoredIn(const PagedSequence& cached, const Sequence& sequence);

}  // namespace kvevict::capi

#endif  // KVEVICT_CAPI_SEQUENCE_H_
