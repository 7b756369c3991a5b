// Writes step records as JSON Lines.
#include "train/loop/log_file.h"

#include "base/json.h"
#include "base/text.h"

#include <penstock/base/error.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace penstock::train {
namespace {

// Returns the step of a line written by this class: {"step":7,…
std::int64_t step_of(const std::string& line) {
  constexpr std::string_view start = "{\"step\":";
  return line.starts_with(start) && line.ends_with("}") ? std::atoll(line.c_str() + start.size()) : 0;
}

std::string lines_before(const std::string& path, std::int64_t first) {
  // A file that is not regular (a FIFO, /dev/stdout) is only written, never read.
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream file(path);
  std::string kept;
  for (std::string line; first > 1 && std::getline(file, line);) {
    const std::int64_t step = step_of(line);
    if (step > 0 && step < first) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string StepRecord::json() const {
  JsonWriter json;
  json.begin_object().field("step", step).field("loss", loss).field("grad_norm", grad_norm).field("lr", rate);
  json.field("seconds", seconds);
  if (tokens_per_second) json.field("tokens_per_second", *tokens_per_second);
  if (!tokens_per_second) json.field("examples_per_second", examples_per_second);
  json.field("bubble", bubble).key("peak_memory").begin_array();
  for (const std::uint64_t bytes : peak_memory) json.value(bytes);
  json.end_array();
  if (skipped) json.field("skipped", true);
  return json.end_object().text();
}

LogFile::LogFile(const std::string& path, std::int64_t first) : path_(path) {
  if (path.empty()) return;
  const std::string kept = lines_before(path, first);
  file_.open(path, std::ios::trunc);
  file_ << kept << std::flush;
  if (!file_) throw UsageError("cannot write " + quote(path, 200) + ": " + std::strerror(errno));
}

void LogFile::write(const StepRecord& record) {
  if (path_.empty()) return;
  file_ << record.json() << '\n' << std::flush;
  if (!file_) throw Error("cannot write " + quote(path_, 200) + ": " + std::strerror(errno));
}

}  // namespace penstock::train
