// A drawing as numbers, which the page draws on a canvas: text would be slow for hundreds of thousands of
// boxes.
#pragma once

#include "base/json.h"

#include <penstock/view/drawing.h>

#include <vector>

namespace penstock::playground {

//! Numbers per box: kind, stage, microbatch (-1 if it has none), start, duration, and flags: the part of the
//! row (0 full, 1 top half, 2 bottom half), + 4 if it is on the critical path, + 8 per lane of communication.
inline constexpr int kFieldsPerBox = 6;

//! Writes the number of boxes and memory samples of each rank, and appends the boxes of computations, the
//! boxes of communication and the samples (time, bytes), each rank after rank.
void write_boxes(JsonWriter& out, const view::Drawing& drawing, std::vector<double>& numbers);

}  // namespace penstock::playground
