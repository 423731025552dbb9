// kvevict_prefill(): a prompt in chunks, through the caller's model.
#include <algorithm>

#include "capi/sequence.h"
#include "core/evict/evict.h"
#include "core/view/view.h"
#include "kvevict/prefill.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

class Prefill {
 public:
  Prefill(kvevict_sequence* sequence, const kvevict_prefill_options& options,
          kvevict_stream stream)
      : handle_(sequence),
        sequence_(Core(sequence)),
        options_(options),
        stream_(stream) {}

  Status Check() const {
    if (options_.chunk < 1) return InvalidArgument("chunk 0 < 1");
    if (options_.evict_each_chunk > 1) {
      return InvalidArgument("evict_each_chunk %u is not 0 or 1",
                             options_.evict_each_chunk);
    }
    if (options_.forward == nullptr) {
      return InvalidArgument("forward is NULL");
    }
    if ((options_.views == nullptr) == (options_.cached == nullptr)) {
      return InvalidArgument(
          "views and cached are %s: give exactly one of them",
          options_.views == nullptr ? "both NULL" : "both given");
    }
    const size_t n_views =
        options_.views == nullptr ? 0 : plan().n_model_layers();
    if (options_.views_len != n_views) {
      return InvalidArgument("views_len %zu is not %zu", options_.views_len,
                             n_views);
    }
    if (sequence_.prompt().has_ended()) {
      return InvalidArgument("sequence: its prompt has ended already");
    }
    if (options_.cached != nullptr) {
      Status status = CheckStoredIn(Core(options_.cached), sequence_);
      if (!status.ok()) return Prefixed(status, "cached: ");
    }
    return CheckFirstEviction();
  }

  // Makes room for a chunk.
  Status Begin(uint32_t n) {
    KV_RETURN_IF_ERROR(sequence_.CheckAppend(n));
    if (options_.cached == nullptr) return Status();
    return Core(options_.cached).Append(n, stream_);
  }

  // Removes the room of a chunk that was not processed.
  Status GiveUp() {
    if (options_.cached == nullptr) return Status();
    FitRows(Core(options_.cached), sequence_);
    return Status();
  }

  Status End(uint32_t n) {
    KV_RETURN_IF_ERROR(
        OnStream(sequence_, stream_, [&] { return sequence_.Append(n); }));
    ++report.n_chunks;
    for (uint32_t l = 0; l < plan().n_layers(); ++l) {
      report.peak_tokens =
          std::max(report.peak_tokens, sequence_.slots()[l].stored);
    }
    uint64_t bytes = 0;
    KV_RETURN_IF_ERROR(FindBytes(&bytes));
    report.peak_bytes = std::max(report.peak_bytes, bytes);
    return Status();
  }

  Status EndPrompt() { return sequence_.EndPrompt(); }

  kvevict_status Evict() {
    kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
    kvevict_status status = Guard([&] { return CopyForNow(&evict); });
    if (status != KVEVICT_OK) return status;
    if (options_.cached == nullptr) {
      status = kvevict_sequence_evict(
          handle_, options_.views, options_.views_len, &evict,
          options_.workspace, options_.workspace_bytes, stream_);
    } else {
      kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
      item.cached = options_.cached;
      item.sequence = handle_;
      item.options = &evict;
      status = kvevict_paged_evict(&item, 1, options_.workspace,
                                   options_.workspace_bytes, stream_);
    }
    if (status == KVEVICT_OK && sequence_.report().evicted != 0) {
      ++report.n_evictions;
    }
    return status;
  }

  Status Finish() { return FindBytes(&report.end_bytes); }

  kvevict_prefill_report report{};

 private:
  const Plan& plan() const { return sequence_.plan(); }

  Status CopyGiven(kvevict_evict_options* out) const {
    if (options_.evict == nullptr) return Status();
    return CopyIn("evict", options_.evict, out);
  }

  // Leaves out protected positions that are not stored yet.
  Status CopyForNow(kvevict_evict_options* out) const {
    KV_RETURN_IF_ERROR(CopyGiven(out));
    const int32_t* const begin = out->protected_positions;
    if (begin == nullptr) return Status();
    out->protected_positions_len =
        std::lower_bound(begin, begin + out->protected_positions_len,
                         int64_t{sequence_.logical_length()}) -
        begin;
    return Status();
  }

  // Checks all except the inputs, which the model computes.
  Status CheckFirstEviction() const {
    kvevict_evict_options given = KVEVICT_EVICT_OPTIONS_INIT;
    KV_RETURN_IF_ERROR(CopyGiven(&given));
    if (given.destinations != nullptr) {
      return InvalidArgument(
          "evict.destinations is not NULL: prefill evicts the prompt's rows in "
          "place");
    }
    given.inputs = nullptr;
    given.inputs_len = 0;
    kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
    KV_RETURN_IF_ERROR(options_.cached == nullptr
                           ? CopyEviction(sequence_, options_.views,
                                          options_.views_len, &given, &evict)
                           : CopyPagedEviction(Core(options_.cached), sequence_,
                                               &given, &evict));
    const uint32_t n = options_.evict_each_chunk != 0
                           ? std::min(options_.chunk, options_.n_tokens)
                           : options_.n_tokens;
    KV_RETURN_IF_ERROR(sequence_.CheckAppend(n));
    const uint32_t length = sequence_.logical_length();
    if (options_.n_tokens > INT32_MAX - length) {
      return InvalidArgument("n_tokens %u + logical length %u > %d",
                             options_.n_tokens, length, INT32_MAX);
    }
    KV_RETURN_IF_ERROR(
        CheckEvictAhead(sequence_.call(), evict, options_.workspace,
                        options_.workspace_bytes, n, options_.n_tokens));
    return CheckApartFromPool();
  }

  // Checks that the workspace does not overlap the pool, because later chunks
  // may be in any of its blocks.
  Status CheckApartFromPool() const {
    if (options_.cached == nullptr || options_.workspace == nullptr) {
      return Status();
    }
    const PagedCache& cache = Core(options_.cached).cache();
    const auto pool = reinterpret_cast<uintptr_t>(cache.memory());
    const auto workspace = reinterpret_cast<uintptr_t>(options_.workspace);
    if (workspace >= pool + cache.n_bytes() ||
        pool >= workspace + options_.workspace_bytes) {
      return Status();
    }
    return InvalidArgument("workspace %p overlaps the blocks of cached",
                           options_.workspace);
  }

  // Finds the bytes of the stored rows.
  Status FindBytes(uint64_t* out) const {
    *out = 0;
    for (uint32_t l = 0; l < plan().n_layers(); ++l) {
      kvevict_view view = KVEVICT_VIEW_INIT;
      if (options_.cached != nullptr) {
        view = Core(options_.cached).View(l);
      } else {
        const auto address =
            reinterpret_cast<uintptr_t>(options_.views) +
            size_t{plan().layer(l).number} * options_.views->struct_size;
        KV_RETURN_IF_ERROR(CopyIn(
            "views", reinterpret_cast<const kvevict_view*>(address), &view));
      }
      const uint32_t n_tokens = sequence_.slots()[l].stored;
      *out +=
          view.n_kv_heads * HeadBytes(view, n_tokens, RecentOf(view, n_tokens));
    }
    return Status();
  }

  kvevict_sequence* const handle_;
  Sequence& sequence_;
  const kvevict_prefill_options& options_;
  const kvevict_stream stream_;
};

// Runs chunk after chunk. The caller's function runs outside of Guard(), in the
// caller's own floating-point mode.
kvevict_status Run(Prefill& prefill, Sequence& sequence,
                   const kvevict_prefill_options& options) {
  for (uint32_t done = 0; done < options.n_tokens;) {
    const uint32_t n = std::min(options.chunk, options.n_tokens - done);
    kvevict_status status = Guard([&] { return prefill.Begin(n); });
    if (status != KVEVICT_OK) return status;
    status = options.forward(sequence.logical_length(), n, options.user_data);
    if (status != KVEVICT_OK) {
      (void)prefill.GiveUp();
      return status;
    }
    status = Guard([&] { return prefill.End(n); });
    if (status != KVEVICT_OK) return status;
    done += n;
    if (options.evict_each_chunk == 0 || done == options.n_tokens) continue;
    status = prefill.Evict();
    if (status != KVEVICT_OK) return status;
  }
  kvevict_status status = Guard([&] { return prefill.EndPrompt(); });
  if (status != KVEVICT_OK) return status;
  status = prefill.Evict();
  if (status != KVEVICT_OK) sequence.ReopenPrompt();
  return status;
}

}  // namespace

extern "C" {

kvevict_status kvevict_sequence_prefill(kvevict_sequence* sequence,
                                        const kvevict_prefill_options* options,
                                        kvevict_prefill_report* out_report,
                                        kvevict_stream stream) noexcept {
  kvevict_prefill_options o = KVEVICT_PREFILL_OPTIONS_INIT;
  const kvevict_status checked = Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("sequence", sequence));
    KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    if (out_report != nullptr) {
      KV_RETURN_IF_ERROR(CheckOut("out_report", out_report));
    }
    return Prefill(sequence, o, stream).Check();
  });
  if (checked != KVEVICT_OK) return checked;
  Prefill prefill(sequence, o, stream);
  const kvevict_status status = Run(prefill, Core(sequence), o);
  (void)prefill.Finish();
  if (out_report != nullptr) CopyOut(prefill.report, out_report);
  return status;
}

}  // extern "C"
