// Text of tables in reports.
#pragma once

#include <string>
#include <vector>

namespace penstock::tool {

//! Formats aligned columns. The first row is the heading. Columns whose cells begin with a digit are
//! right-aligned.
std::string show_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace penstock::tool
