// `--log-json`: one object a line and step, flushed each step. A run that goes on from step k keeps the lines
// up to k.
#pragma once

#include <penstock/train/trainer.h>

#include <fstream>
#include <string>

namespace penstock::train {

class LogFile {
 public:
  //! Nothing if the path is empty. `first` is the step that will be written next.
  LogFile(const std::string& path, std::int64_t first);

  void write(const StepRecord& record);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace penstock::train
