// The schedule that a command works on, given by name and counts or as a file, and the output of pictures.
#pragma once

#include "cli/arguments.h"
#include "config/cost_file.h"
#include "report/text_table.h"

#include <penstock/plan/simulate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/schedule.h>
#include <penstock/view/drawing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

//! Options shared by `schedule` and `simulate`.
struct ShapeOptions {
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> stages_per_rank;
  std::optional<std::int64_t> microbatches;
  std::string costs_path;
  std::string memory_cap;

  void declare(Arguments& arguments);
  //! All options but `--microbatches`.
  void declare_shared(Arguments& arguments);
  //! The costs of the file, or unit costs without one.
  CostFile costs() const;
  std::optional<std::uint64_t> cap() const;
};

//! Returns a count that a named schedule cannot do without. Throws UsageError if it was not given.
std::int64_t required(const std::optional<std::int64_t>& given, const std::string& option);

//! The choices of `--send-mode`.
std::vector<std::pair<std::string, schedule::SendMode>> send_mode_choices();

//! Whether the text is a file name: `-`, or anything that ends in `.csv`.
bool is_file(const std::string& name_or_file);

//! Generates a named schedule, or `Auto` for the costs and the memory cap.
schedule::Schedule named_schedule(const std::string& name, const ShapeOptions& options, const CostFile& file,
                                  schedule::SendMode mode);

//! Returns the program of a schedule name or file, validated for the send mode. Includes transfers along the
//! skip edges of the costs.
schedule::Program program_of(const std::string& name_or_file, const ShapeOptions& options,
                             const CostFile& file, schedule::SendMode mode);

//! The skip edges listed in a cost file.
std::vector<schedule::StageEdge> skips_of(const CostFile& file);

enum class Picture { Grid, Svg, Html, Trace };

//! Writes a picture to a file or to standard output. The grid is colored on a terminal.
void write_picture(const view::Drawing& drawing, Picture picture, const std::string& path);

}  // namespace penstock::tool
