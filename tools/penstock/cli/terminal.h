// What standard output is connected to. The only place that decides about colors and progress bars.
#pragma once

#include <optional>

namespace penstock::tool {

//! Whether standard output is a terminal that can move its cursor.
bool on_terminal();

//! Whether to color the output: on a terminal, unless the environment variable NO_COLOR is set and not empty
//! (https://no-color.org).
bool wants_color();

//! The number of columns of the terminal; nullopt if it is not known.
std::optional<int> terminal_width();

}  // namespace penstock::tool
