// The files of page/ as text; CMake makes the definitions.
#pragma once

#include <string_view>

namespace penstock {

extern const std::string_view page_html;
extern const std::string_view page_css;
extern const std::string_view page_js;

}  // namespace penstock
