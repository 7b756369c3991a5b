// A stage of the model as the trainer runs it: in the run's precision, and watched: for the first output that
// is not finite, and for the bytes that a forward gives and keeps.
#pragma once

#include <penstock/runtime/stage_module.h>
#include <penstock/train/options.h>

#include <optional>

namespace penstock::train {

//! What the stages of a rank are asked to look at.
struct Watch {
  Precision precision = Precision::Float32;
  bool finite = false;   //!< look for outputs that are not finite
  bool measure = false;  //!< count bytes
};

class WatchedStage : public StageModule {
 public:
  WatchedStage(std::shared_ptr<StageModule> inner, std::shared_ptr<Watch> watch)
      : inner_(std::move(inner)), watch_(std::move(watch)) {}

  StageResult forward(const Args& args, const Kwargs& kwargs) override;
  std::vector<NamedTensor> parameters() const override { return inner_->parameters(); }
  std::vector<NamedTensor> buffers() const override { return inner_->buffers(); }
  void to(at::Device device) override { inner_->to(device); }
  void train(bool on) override { inner_->train(on); }
  bool is_training() const override { return inner_->is_training(); }
  std::function<void()> enter_eval() override { return inner_->enter_eval(); }
  std::optional<std::set<std::string>> keywords() const override { return inner_->keywords(); }

  //! Begins to count forwards anew.
  void forget();
  //! The forward, counted from 0, whose output was not finite while all its inputs were.
  std::optional<int> first_bad() const { return first_bad_; }
  std::uint64_t output_bytes() const { return output_bytes_; }
  std::uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  std::shared_ptr<StageModule> inner_;
  std::shared_ptr<Watch> watch_;
  int forwards_ = 0;
  std::optional<int> first_bad_;
  std::uint64_t output_bytes_ = 0, kept_bytes_ = 0;
};

}  // namespace penstock::train
