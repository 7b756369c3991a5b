// The page of `--dashboard`, compiled into the program.
#pragma once

#include <string_view>

namespace penstock::tool {

extern const std::string_view kDashboardPage;

}  // namespace penstock::tool
