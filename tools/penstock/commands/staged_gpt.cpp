// The built-in GPT over ranks. Each rank has the key-value cache of its blocks, so that only the hidden state
// of new tokens is sent.
#include "base/text.h"
#include "commands/language_model.h"
#include "models/context_window.h"
#include "train/model/gpt_parts.h"

#include <penstock/base/error.h>
#include <penstock/train/model.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

namespace penstock::tool {
namespace {

std::vector<models::GptPart> parts_of(const TrainedGpt& gpt, int ranks) {
  return train::gpt_parts(gpt.options, train::gpt_model(gpt.options, /*seed=*/0)->split(ranks));
}

class StagedGpt : public LanguageModel {
 public:
  StagedGpt(const TrainedGpt& gpt, const comm::World& world)
      : group_(world.group()),
        device_(world.device()),
        window_(gpt.options.context, gpt.separator),
        model_(gpt.load(parts_of(gpt, world.size())[static_cast<std::size_t>(group_.rank())])) {
    model_->to(device_);
    model_->eval();
  }

  at::Tensor next_logits(const Tokens& text) override {
    const at::NoGradGuard no_grad;
    const models::ContextWindow::Tokens tokens = window_.next(text);
    if (tokens.restarts) cache_ = {};
    const at::Tensor output = model_->forward(input_of(tokens.fresh), cache_);
    if (model_->part().has_head) return output[0][-1];
    group_.send(output.contiguous(), group_.rank() + 1);
    return {};
  }

 private:
  at::Tensor input_of(const Tokens& fresh) const {
    if (model_->part().has_embedding) return at::tensor(fresh, at::kLong).unsqueeze(0).to(device_);
    const at::Tensor hidden = at::empty({1, static_cast<std::int64_t>(fresh.size()), model_->options().width},
                                        at::TensorOptions(at::kFloat).device(device_));
    group_.recv(hidden, group_.rank() - 1);
    return hidden;
  }

  comm::Group group_;
  at::Device device_;
  models::ContextWindow window_;
  models::Gpt model_;
  models::KeyValueCache cache_;
};

}  // namespace

std::unique_ptr<LanguageModel> staged_gpt(const TrainedGpt& gpt, const comm::World& world) {
  return std::make_unique<StagedGpt>(gpt, world);
}

void check_staged_gpt(const TrainedGpt& gpt, int ranks, const Tokens& prompt) {
  parts_of(gpt, ranks);
  const std::int64_t vocabulary = gpt.options.vocabulary;
  for (const std::int64_t token : prompt)
    if (token >= vocabulary)
      throw UsageError(str_cat("the token ", token, " is not in the vocabulary of ", vocabulary, " tokens"),
                       {}, "use smaller numbers, or a text: --prompt TEXT");
}

void generate(LanguageModel& model, Tokens text, const models::SampleOptions& options,
              const comm::World& world, const std::function<void(std::int64_t)>& on_token) {
  const comm::Group group = world.group();
  const int last = group.size() - 1;
  at::Generator generator = models::sample_generator(options);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const at::Tensor logits = model.next_logits(text);
    std::int64_t token = group.rank() == last ? choose_token(logits, options, generator) : 0;
    if (group.size() > 1) token = group.broadcast_object(c10::IValue(token), last).toInt();
    text.push_back(token);
    on_token(token);
  }
}

}  // namespace penstock::tool
