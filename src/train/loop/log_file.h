// The `log_json` and `log_csv` files: one line per logged step, flushed after each step. A run that resumes
// from step k keeps the lines up to k.
#pragma once

#include <penstock/train/trainer.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace penstock::train {

enum class LogFormat {
  Json,  //!< JSON Lines: an object per step
  Csv,   //!< a heading, then a row per step
};

//! The heading of a CSV log, and the row of a step. The memory of all ranks is one field, with spaces between
//! them, so that the columns do not depend on the number of ranks.
std::string csv_heading();
std::string to_csv(const StepRecord& record);

class LogFile {
 public:
  //! Writes nothing without a path. `first` is the next step to be written.
  LogFile(const std::optional<std::filesystem::path>& path, LogFormat format, std::int64_t first);

  void write(const StepRecord& record);

 private:
  std::optional<std::filesystem::path> path_;
  LogFormat format_;
  std::ofstream file_;
};

}  // namespace penstock::train
