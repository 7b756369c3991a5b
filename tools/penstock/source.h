// What a command works on: a schedule by name and counts, or a file of one; and how its pictures are written.
#pragma once

#include "arguments.h"
#include "cost_file.h"

#include <penstock/plan/simulate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/schedule.h>
#include <penstock/view/drawing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

//! The options that `schedule` and `simulate` share.
struct ShapeOptions {
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> stages_per_rank;
  std::optional<std::int64_t> microbatches;
  std::string costs_path;
  std::string memory_cap;

  void declare(Arguments& arguments);
  //! The file's costs, or units without one.
  CostFile costs() const;
  std::optional<std::uint64_t> cap() const;
};

//! Whether the word names a file: `-`, or anything that ends in `.csv`.
bool is_file(const std::string& word);

//! A named schedule, or `Auto` for the costs and the cap.
Schedule named_schedule(const std::string& name, const ShapeOptions& options, const CostFile& file,
                        SendMode mode);

//! A file's or a name's program, proven for the mode; transfers along the costs' skip edges included.
Program program_of(const std::string& word, const ShapeOptions& options, const CostFile& file, SendMode mode);

//! The skip edges that a cost file speaks of.
std::vector<StageEdge> skips_of(const CostFile& file);

enum class Picture { Grid, Svg, Html, Trace };

//! Writes a picture to a file or to standard output; the grid has colours where that is a terminal.
void write_picture(const Drawing& drawing, Picture picture, const std::string& path);

//! `12.5 ms` where times are seconds, else a plain number.
std::string show_time(double time, bool seconds);
//! Bytes, or without real costs activations of a stage.
std::string show_memory(std::uint64_t bytes, bool seconds);
//! `27.3%`
std::string show_share(double share);

//! Columns of words, aligned; the first line is the heading. Cells that begin with a digit are right-aligned.
std::string show_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace penstock::tool
