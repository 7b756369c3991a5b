// The `log_json` file: one line with a JSON object per step, flushed after each step. A run that resumes from
// step k keeps the lines up to k.
#pragma once

#include <penstock/train/trainer.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace penstock::train {

class LogFile {
 public:
  //! Writes nothing without a path. `first` is the next step to be written.
  LogFile(const std::optional<std::filesystem::path>& path, std::int64_t first);

  void write(const StepRecord& record);

 private:
  std::optional<std::filesystem::path> path_;
  std::ofstream file_;
};

}  // namespace penstock::train
