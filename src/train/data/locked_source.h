// A data source for several threads of a rank, of which one calls it at a time.
#pragma once

#include <penstock/train/data.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace penstock::train {

//! The checkpoint note with the position in the data, `DataSource::position_after`.
inline constexpr const char* kPositionNote = "position";

//! Forwards every call to a source under a lock, so that the source need not be thread-safe.
class LockedSource : public DataSource {
 public:
  //! `source` must outlive this object.
  explicit LockedSource(const DataSource& source) : source_(&source) {}

  Batch training(std::int64_t step, std::int64_t batch, Rows rows) const override {
    const std::lock_guard lock(mutex_);
    return source_->training(step, batch, rows);
  }
  std::int64_t training_rows(std::int64_t step, std::int64_t batch) const override {
    const std::lock_guard lock(mutex_);
    return source_->training_rows(step, batch);
  }
  c10::IValue training_target(std::int64_t step, std::int64_t batch) const override {
    const std::lock_guard lock(mutex_);
    return source_->training_target(step, batch);
  }
  std::optional<std::int64_t> steps_of(std::int64_t epochs, std::int64_t batch) const override {
    const std::lock_guard lock(mutex_);
    return source_->steps_of(epochs, batch);
  }
  std::string position_after(std::int64_t step, std::int64_t batch) const override {
    const std::lock_guard lock(mutex_);
    return source_->position_after(step, batch);
  }
  //! Continues at a position of the source, if it has positions.
  void continue_at(std::int64_t step, const std::string& position) {
    const std::lock_guard lock(mutex_);
    continued_ = source_->continued(step, position);
    if (continued_) source_ = continued_.get();
  }
  std::int64_t validation_rows() const override {
    const std::lock_guard lock(mutex_);
    return source_->validation_rows();
  }
  Batch validation(Rows rows) const override {
    const std::lock_guard lock(mutex_);
    return source_->validation(rows);
  }
  bool has_fixed_shapes() const override {
    const std::lock_guard lock(mutex_);
    return source_->has_fixed_shapes();
  }

 private:
  const DataSource* source_;
  std::unique_ptr<const DataSource> continued_;
  mutable std::mutex mutex_;
};

}  // namespace penstock::train
