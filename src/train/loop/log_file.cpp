// Writes step records as JSON Lines.
#include "train/loop/log_file.h"

#include "base/io/storage_error.h"
#include "base/json.h"

#include <cerrno>

namespace penstock::train {
namespace {

// Returns the step of a line written by this class: {"step":7,…
std::int64_t step_of(const std::string& line) {
  constexpr std::string_view start = "{\"step\":";
  return line.starts_with(start) && line.ends_with("}") ? std::atoll(line.c_str() + start.size()) : 0;
}

std::string lines_before(const std::filesystem::path& path, std::int64_t first) {
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

std::string to_json(const StepRecord& record) {
  JsonWriter json;
  json.begin_object().field("step", record.step).field("loss", record.loss);
  json.field("grad_norm", record.grad_norm).field("lr", record.rate).field("seconds", record.seconds);
  if (record.tokens_per_second) {
    json.field("tokens_per_second", *record.tokens_per_second);
  } else {
    json.field("examples_per_second", record.examples_per_second);
  }
  json.field("bubble", record.bubble).key("peak_memory").begin_array();
  for (const std::uint64_t bytes : record.peak_memory) json.value(bytes);
  json.end_array();
  if (record.skipped) json.field("skipped", true);
  return json.end_object().text();
}

LogFile::LogFile(const std::optional<std::filesystem::path>& path, std::int64_t first) : path_(path) {
  if (!path) return;
  const std::string kept = lines_before(*path, first);
  file_.open(*path, std::ios::trunc);
  file_ << kept << std::flush;
  if (!file_) throw_storage_error("write", *path, errno);
}

void LogFile::write(const StepRecord& record) {
  if (!path_) return;
  file_ << to_json(record) << '\n' << std::flush;
  if (!file_) throw_storage_error("write", *path_, errno);
}

}  // namespace penstock::train
