// Module paths with wildcards.
#pragma once

#include <string_view>

namespace penstock::parallel {

//! Whether a dotted path matches a pattern with as many components. `*` and `?` do not match dots.
bool path_fits(std::string_view pattern, std::string_view path);

}  // namespace penstock::parallel
