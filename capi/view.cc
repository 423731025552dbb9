#include "core/view/view.h"

#include "capi/guard.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

extern "C" {

kvevict_status kvevict_view_validate(const kvevict_view* view,
                                     uint32_t n_tokens) noexcept {
  return Guard([&] {
    kvevict_view v = KVEVICT_VIEW_INIT;
    KV_RETURN_IF_ERROR(CopyIn("view", view, &v));
    if (n_tokens > INT32_MAX) {
      return InvalidArgument("n_tokens %u > %d", n_tokens, INT32_MAX);
    }
    return ValidateView(v, n_tokens, /*on_host=*/true);
  });
}

}  // extern "C"
