// Paths of modules with wildcards.
#pragma once

#include <string_view>

namespace penstock {

//! Whether a path of names between dots fits a pattern of as many parts, in which `*` and `?` stand for text
//! without dots.
bool path_fits(std::string_view pattern, std::string_view path);

}  // namespace penstock
