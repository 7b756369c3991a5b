// The playground's page as part of the program.
#pragma once

#include <string_view>

namespace penstock::tool {

//! The page that CMake's option PENSTOCK_PLAYGROUND names; empty if this program was built without it. CMake
//! generates the definition.
extern const std::string_view kEmbeddedPage;

}  // namespace penstock::tool
