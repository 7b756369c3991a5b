// The files in page/ as text. CMake generates the definitions.
#pragma once

#include <string_view>

namespace penstock::view {

extern const std::string_view kPageHtml;
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;

}  // namespace penstock::view
