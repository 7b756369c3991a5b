// Reads and writes schedules as CSV.
#include "base/io/storage_error.h"
#include "base/text.h"
#include "schedule/action_text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <istream>
#include <ostream>
#include <set>
#include <string_view>
#include <utility>

namespace penstock::schedule {
namespace {

// Far above any real schedule. These limits reject malformed input before it exhausts memory.
constexpr std::size_t kMaxRowBytes = std::size_t{8} << 20U;
constexpr std::size_t kMaxRows = kMaxStages;
constexpr std::size_t kMaxProblems = 1000;

class CsvReader {
 public:
  CsvReader(std::istream& in, Diagnostics& problems) : in_(in), problems_(problems) {}

  std::vector<ActionList> rows() {
    std::vector<ActionList> ranks;
    std::string line;
    while (next_line(line)) {
      if (ranks.size() == kMaxRows) {
        problem(ranks.size() + 1, 1, "there are more rows than the supported number of ranks");
        break;
      }
      ranks.push_back(row(line, ranks.size() + 1));
    }
    if (total_ > kMaxProblems) {
      problems_.push_back({Severity::Error, "", str_cat("and ", total_ - kMaxProblems, " more")});
    }
    return ranks;
  }

 private:
  void problem(std::size_t row, std::size_t column, std::string message) {
    if (++total_ > kMaxProblems) return;
    problems_.push_back({Severity::Error, str_cat("row ", row, ", column ", column), std::move(message)});
  }

  // Reads a line without its line break, truncated to kMaxRowBytes. False at the end of the file.
  bool next_line(std::string& line) {
    line.clear();
    too_long_ = false;
    std::streambuf* buffer = in_.rdbuf();
    constexpr int end = std::char_traits<char>::eof();
    int c = buffer->sbumpc();
    if (c == end) return false;
    for (; c != end && c != '\n'; c = buffer->sbumpc()) {
      if (line.size() < kMaxRowBytes) {
        line += static_cast<char>(c);
      } else {
        too_long_ = true;
      }
    }
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return true;
  }

  ActionList row(std::string_view line, std::size_t number) {
    ActionList list;
    if (too_long_) {
      problem(number, 1, "the row is longer than " + format_bytes(kMaxRowBytes));
      return list;
    }
    if (line.empty()) return list;
    while (true) {
      const std::size_t comma = line.find(',');
      list.push_back(field(line.substr(0, comma), number, list.size() + 1));
      if (comma == std::string_view::npos) return list;
      line.remove_prefix(comma + 1);
    }
  }

  Action field(std::string_view text, std::size_t row, std::size_t column) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    if (text.empty()) return {};
    const auto result = try_parse_action(text);
    if (const auto* found = std::get_if<ActionProblem>(&result)) {
      problem(row, column,
              str_cat(quote(text), " is not a valid action: character ", found->column, ": ", found->reason));
      return {};
    }
    return std::get<Action>(result);
  }

  std::istream& in_;
  Diagnostics& problems_;
  std::size_t total_ = 0;
  bool too_long_ = false;
};

// Infers stages, ranks, microbatches and skip edges from the actions.
class Inference {
 public:
  explicit Inference(const std::vector<ActionList>& ranks) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const Action& action : ranks[rank]) {
        if (!action.is_idle()) see(action, static_cast<int>(rank));
      }
    }
  }

  bool lowered = false;
  int microbatches = 0;
  std::vector<int> stage_to_rank;
  std::set<StageEdge> skips;

 private:
  void see(const Action& action, int rank) {
    lowered = lowered || !action.is_compute();
    for_each_part(action, [&](const Action& part) {
      const auto stage = part.stage().index();
      if (stage >= stage_to_rank.size()) stage_to_rank.resize(stage + 1, -1);
      if (stage_to_rank[stage] < 0) stage_to_rank[stage] = rank;
      microbatches = std::max(microbatches, part.microbatch().value + 1);
    });
    if (!action.is_transfer()) return;
    const StageEdge edge{std::min(action.stage(), action.peer()), std::max(action.stage(), action.peer())};
    if (edge.to.value > edge.from.value + 1) skips.insert(edge);
  }
};

Placement make_placement(const std::vector<int>& stage_to_rank, std::size_t ranks, Diagnostics& problems) {
  std::vector<Rank> rank_of_stage;
  std::vector<std::string> absent;
  for (std::size_t stage = 0; stage < stage_to_rank.size(); ++stage) {
    if (stage_to_rank[stage] < 0) absent.push_back(std::to_string(stage));
    rank_of_stage.emplace_back(std::max(stage_to_rank[stage], 0));
  }
  if (!absent.empty()) {
    const std::size_t count = absent.size();
    if (count > 5) absent.resize(5);
    problems.push_back({Severity::Error, "",
                        str_cat("no rank has stage ", join(absent, ", "),
                                (count > 5 ? str_cat(" and ", count - 5, " more") : ""),
                                ", but there is a stage ", stage_to_rank.size() - 1)});
  }
  return {static_cast<int>(ranks), std::move(rank_of_stage)};
}

void append_row(std::string& text, const ActionList& list) {
  std::size_t size = list.size();
  while (size > 0 && list[size - 1].is_idle()) --size;
  for (std::size_t i = 0; i < size; ++i) {
    if (i > 0) text += ',';
    append_text(text, list[i]);
  }
  text += '\n';
}

// Does not use a string stream, which drops text instead of throwing if memory runs out.
std::string csv_text(const std::vector<ActionList>& ranks) {
  std::string text;
  for (const ActionList& list : ranks) append_row(text, list);
  return text;
}

}  // namespace

void write_csv(std::ostream& out, const std::vector<ActionList>& ranks) {
  std::string line;
  for (const ActionList& list : ranks) {
    line.clear();
    append_row(line, list);
    out << line;
  }
}
void write_csv(std::ostream& out, const Schedule& schedule) {
  write_csv(out, schedule.ranks);
}
void write_csv(std::ostream& out, const Draft& draft) {
  write_csv(out, draft.ranks);
}

std::string to_csv(const Schedule& schedule) {
  return csv_text(schedule.ranks);
}

std::string to_csv(const Draft& draft) {
  return csv_text(draft.ranks);
}

Schedule ScheduleFile::schedule() const {
  return {"", placement, microbatches, ranks};
}
Draft ScheduleFile::draft() const {
  return {"", placement, wiring, microbatches, ranks};
}

Verdict ScheduleFile::validate(ValidateOptions options) const {
  options.locations = LocationStyle::RowAndColumn;
  if (level == ProgramLevel::Lowered) return penstock::schedule::validate(draft(), options);
  return penstock::schedule::validate(schedule(), wiring, options);
}

ScheduleFile read_csv(std::istream& in, Diagnostics& problems, const CsvOptions& options) {
  ScheduleFile file;
  const std::size_t before = problems.size();
  file.ranks = CsvReader(in, problems).rows();
  if (file.ranks.empty()) problems.push_back({Severity::Error, "", "the file is empty"});
  Inference inference(file.ranks);
  if (inference.stage_to_rank.empty() && problems.size() == before) {
    problems.push_back({Severity::Error, "", "the file has no actions"});
  }
  file.level = inference.lowered ? ProgramLevel::Lowered : ProgramLevel::Compute;
  file.microbatches = options.microbatches.value_or(inference.microbatches);
  // An unreadable field may have been the only one of its stage, so the stage is not reported as missing.
  Diagnostics ignored;
  file.placement = make_placement(inference.stage_to_rank, file.ranks.size(),
                                  problems.size() == before ? problems : ignored);
  for (const StageEdge& edge : options.skips) inference.skips.insert(edge);
  const auto beyond = [&](const StageEdge& edge) { return edge.to.value >= file.placement.num_stages(); };
  if (std::any_of(inference.skips.begin(), inference.skips.end(), beyond)) {
    problems.push_back({Severity::Error, "", "a transfer or skip edge refers to a stage that no rank runs"});
    std::erase_if(inference.skips, beyond);
  }
  file.wiring = Wiring(file.placement.num_stages(), {inference.skips.begin(), inference.skips.end()});
  return file;
}

ScheduleFile read_csv(std::istream& in, const CsvOptions& options) {
  Diagnostics problems;
  ScheduleFile file = read_csv(in, problems, options);
  if (has_errors(problems)) throw ParseError("not a valid schedule:\n" + to_string(problems));
  return file;
}

ScheduleFile read_csv(const std::filesystem::path& file, const CsvOptions& options) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::is_regular_file(status)) {
    const bool exists = std::filesystem::exists(status);
    throw StorageError(quote(file.string(), 200) + (exists ? " is not a regular file" : " does not exist"),
                       exists ? EINVAL : ENOENT);
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) throw_storage_error("open", file.string(), errno);
  Diagnostics problems;
  ScheduleFile table = read_csv(in, problems, options);
  if (has_errors(problems))
    throw ParseError(quote(file.string(), 200) + " is not a valid schedule:\n" + to_string(problems));
  return table;
}

}  // namespace penstock::schedule
