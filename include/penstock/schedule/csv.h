// Schedules as CSV: one row per rank, one field per slot; the field of an idle slot is empty. The format is
// the same as torch.distributed's, so files are interchangeable.
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

namespace penstock::schedule {

//! Rows end in LF; idle slots at the end of a row are omitted.
void write_csv(std::ostream& out, const std::vector<ActionList>& ranks);
void write_csv(std::ostream& out, const Schedule& schedule);
void write_csv(std::ostream& out, const Draft& draft);
std::string to_csv(const Schedule& schedule);
std::string to_csv(const Draft& draft);

//! Information that a schedule file does not contain.
struct CsvOptions {
  std::optional<int> microbatches{};  //!< default: one more than the highest microbatch in the file
  std::vector<StageEdge> skips{};     //!< in addition to those implied by the file's transfers
};

//! The content of a file. A stage is placed on the first rank whose row names it. The level is `Lowered` if
//! any field is not a computation.
struct ScheduleFile {
  ProgramLevel level = ProgramLevel::Compute;
  Placement placement;
  Wiring wiring;
  int microbatches = 0;
  std::vector<ActionList> ranks;  //!< idle slots included, so that step k is field k + 1

  //! The table without the wiring; use it if the level is `Compute`.
  Schedule schedule() const;
  //! The lists with the wiring.
  Draft draft() const;
  //! Validates the schedule or the draft, depending on `level`; locations are rows and columns.
  Verdict validate(ValidateOptions options = {}) const;
};

//! Reads rows that end in LF or CRLF. Adds every unreadable field to `problems` with its row and column
//! (field number), both from 1, and returns the readable fields. Does not throw on malformed input.
ScheduleFile read_csv(std::istream& in, Diagnostics& problems, const CsvOptions& options = {});

//! Like the above, but throws a ParseError that lists all problems.
ScheduleFile read_csv(std::istream& in, const CsvOptions& options = {});

//! Reads a file. Errors name the file; throws a StorageError if it cannot be opened.
ScheduleFile read_csv(const std::filesystem::path& file, const CsvOptions& options = {});

}  // namespace penstock::schedule
