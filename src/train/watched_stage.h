// A stage of the model as the trainer runs it: in the run's precision, and watched: for the first value that
// is not finite, and for the bytes that a forward gives and keeps.
#pragma once

#include <penstock/runtime/pipeline.h>
#include <penstock/runtime/stage_module.h>
#include <penstock/train/options.h>

#include <optional>
#include <string>

namespace penstock::train {

//! A value that is not finite, where a forward first meets one.
struct NotFinite {
  enum class Kind { Argument, Keyword, Parameter, Output, Target, Loss };

  Kind kind = Kind::Output;
  int microbatch = 0;
  std::string name{};    //!< of a keyword or parameter; the number of an argument
  std::string value{};   //!< `nan`, `inf` or `-inf`
  std::int64_t row = 0;  //!< of the microbatch, the first that holds it
  std::string op{};      //!< that read it first, or gave it; empty where that is not known
  bool hidden = false;   //!< an input or parameter, while the output is finite: a gradient may not be
};

//! What the stages of a rank, and its loss, are asked to look at.
struct Watch {
  Precision precision = Precision::Float32;
  bool finite = false;   //!< look for values that are not finite
  bool measure = false;  //!< count bytes

  int losses = 0;  //!< computed since the search began
  std::optional<NotFinite> loss{};
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
  //! Of the first forward whose output is not finite, else of the first with such an input or parameter.
  const std::optional<NotFinite>& first_bad() const { return first_bad_ ? first_bad_ : hidden_bad_; }
  std::uint64_t output_bytes() const { return output_bytes_; }
  std::uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  StageResult searched_forward(const Args& args, const Kwargs& kwargs);

  std::shared_ptr<StageModule> inner_;
  std::shared_ptr<Watch> watch_;
  int forwards_ = 0;
  std::optional<NotFinite> first_bad_, hidden_bad_;
  std::uint64_t output_bytes_ = 0, kept_bytes_ = 0;
};

//! The loss, watched as the stages are. A microbatch without weight may have a loss that is not finite.
LossFunction watched_loss(LossFunction loss, LossReduction reduction, std::shared_ptr<Watch> watch);

}  // namespace penstock::train
