// The part of fmt that is no template, compiled once, as fmt's own static library has it.
// Debian has only the shared library, which our programs are not to need, and the headers,
// with which every source that formats takes three seconds more to compile.
#include <fmt/format-inl.h>

namespace fmt::detail {
template FMT_API auto thousands_sep_impl(locale_ref)
    -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
#if FMT_VERSION >= 100000 && FMT_VERSION < 110000
template FMT_API void vformat_to(buffer<char>&, string_view, format_args,
                                 locale_ref);
#endif
}  // namespace fmt::detail
