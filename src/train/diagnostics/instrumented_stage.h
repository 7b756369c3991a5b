// The trainer's stage wrapper: applies the precision of the run, finds the first non-finite value, and
// measures the bytes that a forward pass returns and keeps.
#pragma once

#include <penstock/runtime/pipeline.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/train/options.h>

#include <optional>
#include <string>

namespace penstock::train {

//! The first value that is not finite in a forward pass.
struct NotFinite {
  enum class Kind { Argument, Keyword, Parameter, Output, Target, Loss };

  Kind kind = Kind::Output;
  int microbatch = 0;
  std::string name{};    //!< name of a keyword or parameter; index of an argument
  std::string value{};   //!< `nan`, `inf` or `-inf`
  std::int64_t row = 0;  //!< first row of the microbatch that contains it
  std::string op{};      //!< first operator that read or produced it; empty if unknown
  bool hidden = false;   //!< in an input or parameter although the output is finite; a gradient may not be
};

//! Settings shared by the stages of a rank and its loss.
struct StageObserver {
  Precision precision = Precision::Float32;
  at::Device device = at::kCPU;  //!< of the rank
  bool finite = false;           //!< look for values that are not finite
  bool measure = false;          //!< count bytes

  int losses = 0;  //!< losses computed since the search began
  std::optional<NotFinite> loss{};
};

class InstrumentedStage : public runtime::StageModule {
 public:
  InstrumentedStage(std::shared_ptr<runtime::StageModule> inner, std::shared_ptr<StageObserver> observer)
      : inner_(std::move(inner)), observer_(std::move(observer)) {}

  runtime::StageResult forward(const value::Args& args, const value::Kwargs& kwargs) override;
  std::vector<value::NamedTensor> parameters() const override { return inner_->parameters(); }
  std::vector<value::NamedTensor> buffers() const override { return inner_->buffers(); }
  void to(at::Device device) override { inner_->to(device); }
  void train(bool on) override { inner_->train(on); }
  bool is_training() const override { return inner_->is_training(); }
  std::function<void()> enter_eval() override { return inner_->enter_eval(); }
  std::optional<std::set<std::string>> keywords() const override { return inner_->keywords(); }
  bool accumulates_repeatedly() const override { return inner_->accumulates_repeatedly(); }

  //! Resets the count of forward passes and the findings.
  void reset();
  //! Finding of the first forward pass whose output is not finite, else of the first whose input or parameter
  //! is not.
  const std::optional<NotFinite>& first_bad() const { return first_bad_ ? first_bad_ : hidden_bad_; }
  std::uint64_t output_bytes() const { return output_bytes_; }
  std::uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  runtime::StageResult searched_forward(const value::Args& args, const value::Kwargs& kwargs);

  std::shared_ptr<runtime::StageModule> inner_;
  std::shared_ptr<StageObserver> observer_;
  int forwards_ = 0;
  std::optional<NotFinite> first_bad_, hidden_bad_;
  std::uint64_t output_bytes_ = 0, kept_bytes_ = 0;
};

//! Wraps the loss with the same checks. The loss of a microbatch without weight need not be finite.
runtime::LossFunction observed_loss(runtime::LossFunction loss, runtime::LossReduction reduction,
                                    std::shared_ptr<StageObserver> observer);

}  // namespace penstock::train
