// The files in page/ as text. CMake generates the definitions.
#pragma once

#include <string_view>

namespace penstock::view {

extern const std::string_view page_html;
extern const std::string_view page_css;
extern const std::string_view page_js;

}  // namespace penstock::view
