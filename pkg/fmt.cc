// What fmt's own static library has. Debian has no such library, and our programs must not
// need the shared one. Compiled from headers alone, fmt adds three seconds to every source
// that formats.
#include <fmt/format-inl.h>

namespace fmt::detail {
template FMT_API auto thousands_sep_impl(locale_ref)
    -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
#if FMT_VERSION >= 100000 && FMT_VERSION < 110000  // only there it is extern
template FMT_API void vformat_to(buffer<char>&, string_view, format_args,
                                 locale_ref);
#endif
}  // namespace fmt::detail
