// The text of times and bytes in the unit of a drawing.
#pragma once

#include <penstock/view/drawing.h>

#include <cstdint>
#include <string>

namespace penstock::view {

//! `12.5 ms` if times are in seconds, else a plain number.
std::string format_time(double time, TimeUnit unit);
//! Bytes. Without measured costs, the unit is the activation of one microbatch in one stage.
std::string format_memory(std::uint64_t bytes, TimeUnit unit);

}  // namespace penstock::view
