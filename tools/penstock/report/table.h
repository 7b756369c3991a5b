// Text of numbers and tables in reports.
#pragma once

#include <penstock/view/drawing.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::tool {

//! `12.5 ms` if times are in seconds, else a plain number.
std::string show_time(double time, view::TimeUnit unit);
//! Bytes, or a number of activations without real costs.
std::string show_memory(std::uint64_t bytes, view::TimeUnit unit);
//! `27.3%`
std::string show_share(double share);
//! `1 row`, `2 rows`
std::string counted(std::int64_t count, const std::string& what);

//! Formats aligned columns. The first row is the heading. Columns whose cells begin with a digit are
//! right-aligned.
std::string show_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace penstock::tool
