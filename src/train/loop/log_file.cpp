// Writes step records as JSON Lines or CSV.
#include "train/loop/log_file.h"

#include "base/io/storage_error.h"
#include "base/json.h"
#include "base/number_text.h"
#include "base/text.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace penstock::train {
namespace {

std::int64_t commas_in(const std::string& text) {
  return std::count(text.begin(), text.end(), ',');
}

// Returns the step of a line written by this class: {"step":7,… or 7,…; 0 for a heading or an incomplete
// line. A row of a CSV file has as many commas as its heading.
std::int64_t step_of(const std::string& line, LogFormat format, std::int64_t commas) {
  if (format == LogFormat::Csv) return commas_in(line) == commas ? std::atoll(line.c_str()) : 0;
  constexpr std::string_view start = "{\"step\":";
  return line.starts_with(start) && line.ends_with("}") ? std::atoll(line.c_str() + start.size()) : 0;
}

std::string lines_before(const std::filesystem::path& path, LogFormat format, std::int64_t first) {
  // A file that is not regular (a FIFO, /dev/stdout) is only written, never read.
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream file(path);
  std::string kept, heading, missing;
  if (format == LogFormat::Csv) {
    // The heading of an earlier version is the start of ours.
    if (!std::getline(file, heading) || !csv_heading().starts_with(heading)) return {};
    missing.resize(static_cast<std::size_t>(commas_in(csv_heading()) - commas_in(heading)), ',');
  }
  for (std::string line; first > 1 && std::getline(file, line);) {
    const std::int64_t step = step_of(line, format, commas_in(heading));
    if (step > 0 && step < first) kept += line + missing + "\n";
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
  if (record.loss_scale) json.field("loss_scale", *record.loss_scale);
  if (record.validation_loss) json.field("validation_loss", *record.validation_loss);
  return json.end_object().text();
}

std::string csv_heading() {
  return "step,loss,grad_norm,lr,seconds,tokens_per_second,examples_per_second,bubble,peak_memory,skipped,"
         "loss_scale,validation_loss";
}

std::string to_csv(const StepRecord& record) {
  std::string row = std::to_string(record.step);
  const auto add = [&](double number) { row += "," + decimal_text(number); };
  for (const double number : {record.loss, record.grad_norm, record.rate, record.seconds}) add(number);
  const auto add_if = [&](std::optional<double> number) {
    row += "," + (number ? decimal_text(*number) : "");
  };
  add_if(record.tokens_per_second);
  add(record.examples_per_second);
  add(record.bubble);
  std::vector<std::string> memory;
  for (const std::uint64_t bytes : record.peak_memory) memory.push_back(std::to_string(bytes));
  row += "," + join(memory, " ") + "," + (record.skipped ? "1" : "0");
  add_if(record.loss_scale);
  add_if(record.validation_loss);
  return row;
}

LogFile::LogFile(const std::optional<std::filesystem::path>& path, LogFormat format, std::int64_t first)
    : path_(path), format_(format) {
  if (!path) return;
  const std::string kept = lines_before(*path, format, first);
  file_.open(*path, std::ios::trunc);
  if (format == LogFormat::Csv) file_ << csv_heading() << '\n';
  file_ << kept << std::flush;
  if (!file_) throw_storage_error("write", *path, errno);
}

void LogFile::write(const StepRecord& record) {
  if (!path_) return;
  file_ << (format_ == LogFormat::Csv ? to_csv(record) : to_json(record)) << '\n' << std::flush;
  if (!file_) throw_storage_error("write", *path_, errno);
}

}  // namespace penstock::train
