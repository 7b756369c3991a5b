// `penstock validate`: reports every error of a schedule file and the send modes in which it is safe.
#include "base/option_ranges.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "config/source.h"
#include "report/results_json.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>

#include <sstream>

namespace penstock::tool {
namespace {

std::string to_json(const schedule::ScheduleFile& file, const Diagnostics& problems,
                    const schedule::Verdict* verdict, bool fine) {
  JsonWriter out;
  write_validation(out, file, problems, verdict, fine);
  return out.text() + "\n";
}

std::string to_text(const std::string& path, const schedule::ScheduleFile& file,
                    const schedule::Verdict& verdict, bool fine) {
  std::string text = penstock::to_string(verdict.findings);
  text += path + ": " + (fine ? "valid" : "not valid") + ": " +
          (file.level == schedule::ProgramLevel::Lowered ? "lowered, " : "compute only, ");
  text += str_cat(file.ranks.size(), " ranks, ", file.placement.num_stages(), " stages, ", file.microbatches,
                  " microbatches\n");
  if (!verdict.valid()) return text;
  for (const schedule::SendMode mode : schedule::kSendModes) {
    text +=
        "  " + std::string(to_string(mode)) + " sends: " + (verdict.safe(mode) ? "safe" : "not safe") + "\n";
    const std::string why = penstock::to_string(verdict.of(mode));
    if (!why.empty()) text += why;
  }
  return text;
}

}  // namespace

int validate_command(Arguments& arguments) {
  std::string path;
  std::optional<std::int64_t> microbatches;
  schedule::SendMode mode = schedule::SendMode::Buffered;
  arguments.positional("FILE.csv", path, "a schedule file, compute-only or lowered; - reads standard input");
  arguments.option("--microbatches", microbatches,
                   "expected number of microbatches (default: as many as the file contains)");
  arguments.choice("--send-mode", mode, send_mode_choices(), "the send mode that decides the exit code");
  arguments.parse();
  schedule::CsvOptions options;
  if (microbatches)
    options.microbatches = count_option(*microbatches, "--microbatches", schedule::kMaxMicrobatches);
  std::istringstream text(read_input(path));
  Diagnostics problems;
  const schedule::ScheduleFile file = read_csv(text, problems, options);
  if (has_errors(problems)) {
    print(arguments.json() ? to_json(file, problems, nullptr, false)
                           : penstock::to_string(problems) + path + ": not valid\n");
    return 1;
  }
  const schedule::Verdict verdict = file.validate();
  const bool fine = verdict.safe(mode);
  print(arguments.json() ? to_json(file, problems, &verdict, fine) : to_text(path, file, verdict, fine));
  return fine ? 0 : 1;
}

}  // namespace penstock::tool
