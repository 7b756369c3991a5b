// Samples text from a GPT, token by token.
#include "models/context_window.h"

#include <penstock/base/error.h>
#include <penstock/models/gpt.h>

#include <torch/torch.h>

namespace penstock::models {
namespace {

// Sets evaluation mode; restores the previous mode on destruction.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module) : module_(module), was_(module.is_training()) {
    module_.eval();
  }
  ~EvalMode() { module_.train(was_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_;
};

}  // namespace

std::vector<std::int64_t> sample(GptImpl& model, const std::vector<std::int64_t>& prompt,
                                 const SampleOptions& options) {
  if (prompt.empty()) throw UsageError("the prompt must have at least one token");
  check(options);
  const torch::NoGradGuard no_grad;
  const EvalMode eval(model);
  at::Generator generator = sample_generator(options);
  std::vector<std::int64_t> text = prompt;
  const at::Device device = model.token->weight.device();
  ContextWindow window(model.options().context, options.separator);
  KeyValueCache cache;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const ContextWindow::Tokens tokens = window.next(text);
    if (tokens.restarts) cache = {};
    const at::Tensor logits = model.forward(torch::tensor(tokens.fresh).unsqueeze(0).to(device), cache);
    text.push_back(choose_token(logits[0][-1], options, generator));
  }
  return text;
}

}  // namespace penstock::models
