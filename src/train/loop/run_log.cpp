// Writes each record to all logs.
#include "train/loop/run_log.h"

#include "base/text.h"

namespace penstock::train {

std::vector<Scalar> scalars_of(const StepRecord& record) {
  std::vector<Scalar> scalars{{"loss", record.loss},
                              {"grad_norm", record.grad_norm},
                              {"lr", record.rate},
                              {"seconds", record.seconds}};
  if (record.tokens_per_second) {
    scalars.emplace_back("tokens_per_second", *record.tokens_per_second);
  } else {
    scalars.emplace_back("examples_per_second", record.examples_per_second);
  }
  scalars.emplace_back("bubble", record.bubble);
  if (record.loss_scale) scalars.emplace_back("loss_scale", *record.loss_scale);
  if (record.validation_loss) scalars.emplace_back("validation_loss", *record.validation_loss);
  for (std::size_t rank = 0; rank < record.peak_memory.size(); ++rank)
    scalars.emplace_back(str_cat("peak_memory/rank_", rank), static_cast<double>(record.peak_memory[rank]));
  return scalars;
}

RunLog::RunLog(const RunOptions& options, bool writes, std::int64_t first)
    : json_(writes ? options.log_json : std::nullopt, LogFormat::Json, first),
      csv_(writes ? options.log_csv : std::nullopt, LogFormat::Csv, first) {
  if (writes && options.tensorboard) events_.emplace(*options.tensorboard, first);
}

void RunLog::write(const StepRecord& record) {
  json_.write(record);
  csv_.write(record);
  if (events_) events_->write(record.step, scalars_of(record));
}

}  // namespace penstock::train
