// Schedules as text: a row for each rank, a field for each slot, an empty field for an idle one. The fields
// are the reference's, so that its files and ours are the same.
#pragma once

#include <penstock/base/diagnostic.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/schedule.h>
#include <penstock/schedule/validate.h>

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

//! Rows end in LF; idle slots at the end of a row are left out.
void write_csv(std::ostream& out, const std::vector<ActionList>& ranks);
void write_csv(std::ostream& out, const Schedule& schedule);
void write_csv(std::ostream& out, const Draft& draft);
std::string to_csv(const Schedule& schedule);
std::string to_csv(const Draft& draft);

struct CsvOptions {
  std::optional<int> microbatches;  //!< else one more than the highest that the file names
  std::vector<StageEdge> skips;     //!< besides those that the file's transfers show
};

//! What a file holds. Stages are on the rank that first names them. The form is lowered if any field is no
//! computation.
struct ScheduleFile {
  Form form = Form::Compute;
  Placement placement;
  Wiring wiring;
  int microbatches = 0;
  std::vector<ActionList> ranks;  //!< idle slots included, so that step k is field k + 1

  Schedule schedule() const;
  Draft draft() const;
  //! By the form; places are rows and columns.
  Verdict validate(ValidateOptions options = {}) const;
};

//! Reads rows that end in LF or CRLF. What cannot be read is added to `problems` with row and column (fields,
//! from 1); then the result holds what could be. Never throws for any bytes.
ScheduleFile read_csv(std::istream& in, Diagnostics& problems, const CsvOptions& options = {});

//! The same; a ParseError holds all problems.
ScheduleFile read_csv(std::istream& in, const CsvOptions& options = {});

//! The same from a file, which the errors name. UsageError if it cannot be read.
ScheduleFile read_csv(const std::filesystem::path& file, const CsvOptions& options = {});

}  // namespace penstock
