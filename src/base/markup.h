// Text inside HTML and SVG.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

//! Replaces `&`, `<`, `>` and `"` with character references.
std::string escape_markup(std::string_view text);

}  // namespace penstock
