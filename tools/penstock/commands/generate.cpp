// `penstock generate`: continues a prompt with the built-in GPT or with an exported causal model, in one
// process.
#include "base/json.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "commands/commands.h"
#include "commands/trained_gpt.h"
#include "commands/trained_weights.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/graph/graph_module.h>
#include <penstock/models/sampling.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>

namespace penstock::tool {
namespace {

using Tokens = std::vector<std::int64_t>;

struct GenerateJob {
  std::string model, checkpoint, prompt = "\n";
  std::vector<std::string> prompt_tokens;
  bool greedy = false;
  models::SampleOptions options;
  std::int64_t seed = 0;
  std::optional<double> temperature;
};

void resolve(GenerateJob& job) {
  if (job.greedy && (job.temperature || job.options.top || job.options.top_p))
    throw UsageError("--greedy always takes the most likely token", {},
                     "leave out --temperature, --top-k and --top-p");
  if (job.greedy) job.options.temperature = 0;
  if (job.temperature) job.options.temperature = *job.temperature;
  job.options.seed = static_cast<std::uint64_t>(job.seed);
  if (job.options.tokens < 0) throw UsageError("--max-tokens must be at least 0", {}, "for example 100");
  if (!(job.options.temperature >= 0))
    throw UsageError("--temperature must be at least 0", {}, "use 0, or --greedy, for the most likely token");
  if (job.options.top && *job.options.top < 1)
    throw UsageError("--top-k must be at least 1", {}, "for example --top-k 40");
  if (job.options.top_p && !(*job.options.top_p > 0 && *job.options.top_p <= 1))
    throw UsageError("--top-p must be greater than 0 and at most 1", {}, "for example --top-p 0.95");
  check(job.options);
}

Tokens read_tokens(const std::vector<std::string>& texts) {
  Tokens tokens;
  for (const std::string& text : texts) {
    std::int64_t token = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), token);
    if (error != std::errc() || end != text.data() + text.size() || token < 0)
      throw UsageError("--prompt-tokens " + quote(text) + " is not a token", {},
                       "give numbers: --prompt-tokens 5,17,2");
    tokens.push_back(token);
  }
  return tokens;
}

//! An exported model that maps tokens [batch, time] to logits [batch, time, vocabulary].
class ExportedLanguageModel {
 public:
  ExportedLanguageModel(const std::string& file, const std::string& checkpoint)
      : archive_(std::make_shared<const graph::Pt2Archive>(open_archive(file))),
        module_(archive_->graph(), tensor_source(archive_, checkpoint)(archive_->graph().slots)) {
    module_.train(false);
    const std::vector<graph::GraphInput>& inputs = archive_->graph().inputs;
    const auto varies = [](const graph::GraphInput& input) { return !input.constant; };
    const auto input = std::find_if(inputs.begin(), inputs.end(), varies);
    const std::string what = "generate needs a model whose only input is a tensor of tokens, [batch, time]";
    if (std::count_if(inputs.begin(), inputs.end(), varies) != 1)
      throw UsageError(what + "; " + quote(file, 200) + " has " +
                           counted(std::count_if(inputs.begin(), inputs.end(), varies), "input"),
                       {}, "export a model that takes only tokens");
    const auto& meta = archive_->graph().value(input->value).meta;
    if (!meta || meta->sizes.size() != 2 || !is_integer(meta->dtype))
      throw UsageError(what, {}, "export a model that takes only tokens");
    input_ = static_cast<std::size_t>(input - inputs.begin());
    dtype_ = meta->dtype;
    batch_ = range_of(meta->sizes[0]).min;
    time_ = range_of(meta->sizes[1]);
    const std::vector<std::string> paths = archive_->graph().output_paths();
    const auto logits = std::find(paths.begin(), paths.end(), "output.logits");
    output_ = logits == paths.end() ? 0 : static_cast<std::size_t>(logits - paths.begin());
  }

  //! The logits of the token that follows the last ones that fit into the model.
  at::Tensor next_logits(const Tokens& tokens) {
    const auto kept = static_cast<std::ptrdiff_t>(
        std::min(tokens.size(), static_cast<std::size_t>(std::max<std::int64_t>(time_.max, 1))));
    Tokens window(tokens.end() - kept, tokens.end());
    const std::size_t last = window.size() - 1;
    const bool padded = static_cast<std::int64_t>(window.size()) < time_.min;
    if (padded) window.resize(static_cast<std::size_t>(time_.min), window.back());
    const at::Tensor logits = run(window)[0][static_cast<std::int64_t>(last)];
    if (padded && !checked_) check_causal(window, last, logits);
    return logits;
  }

 private:
  struct Range {
    std::int64_t min = 1, max = std::numeric_limits<std::int64_t>::max();
  };

  Range range_of(const graph::Dim& dim) const {
    if (dim.expression.empty()) return {dim.size, dim.size};
    Range range;
    for (const graph::SymbolRange& symbol : archive_->graph().symbols) {
      if (symbol.symbol != dim.expression) continue;
      range.min = std::max(range.min, symbol.min.value_or(1));
      range.max = symbol.max.value_or(range.max);
    }
    return range;
  }

  at::Tensor run(const Tokens& window) {
    const at::NoGradGuard no_grad;
    std::vector<c10::IValue> leaves;
    for (const graph::GraphInput& input : archive_->graph().inputs)
      leaves.push_back(input.constant.value_or(c10::IValue()));
    leaves[input_] = at::tensor(window, at::kLong).to(dtype_).unsqueeze(0).repeat({batch_, 1});
    check_tokens(archive_->graph(), leaves);
    check_inputs(archive_->graph(), leaves);
    const std::vector<c10::IValue> outputs = module_.run(std::move(leaves));
    const at::Tensor logits = outputs.at(output_).isTensor() ? outputs[output_].toTensor() : at::Tensor();
    if (!logits.defined() || logits.dim() != 3 || logits.size(1) != static_cast<std::int64_t>(window.size()))
      throw UsageError("the output " + quote(archive_->graph().output_paths()[output_]) +
                           " does not have the shape [batch, time, vocabulary] of logits",
                       {}, "export a model with such an output, first or named logits");
    return logits;
  }

  //! Padding after the last token must not change its logits.
  void check_causal(Tokens window, std::size_t last, const at::Tensor& logits) {
    checked_ = true;
    for (std::size_t i = last + 1; i < window.size(); ++i) window[i] = window[i] == 0 ? 1 : 0;
    if (at::allclose(run(window)[0][static_cast<std::int64_t>(last)], logits, 1e-4, 1e-5)) return;
    throw UsageError("the model is not causal: its logits depend on later tokens", {},
                     "export a causal model, or one with a dynamic time dim");
  }

  std::shared_ptr<const graph::Pt2Archive> archive_;
  graph::GraphModule module_;
  std::size_t input_ = 0, output_ = 0;
  at::ScalarType dtype_ = at::kLong;
  std::int64_t batch_ = 1;
  Range time_;
  bool checked_ = false;
};

//! Prompt and continuation, as tokens and, if the model has a vocabulary, as text.
struct Generated {
  Tokens tokens;
  std::optional<std::string> text{};
};

Generated generate_exported(const GenerateJob& job) {
  if (job.prompt_tokens.empty())
    throw UsageError("an exported model needs a prompt of tokens", {},
                     "give them with --prompt-tokens 5,17,2");
  ExportedLanguageModel model(job.model, job.checkpoint);
  Generated generated{read_tokens(job.prompt_tokens)};
  at::Generator generator = models::sample_generator(job.options);
  for (std::int64_t i = 0; i < job.options.tokens; ++i)
    generated.tokens.push_back(choose_token(model.next_logits(generated.tokens), job.options, generator));
  return generated;
}

// The vocabulary of the characters of a text does not have all of them.
void report_dropped(const TrainedGpt& trained, const std::string& prompt, const Tokens& tokens) {
  if (trained.decode(tokens) == prompt) return;
  std::string dropped;
  for (const char c : prompt)
    if (dropped.find(c) == std::string::npos && trained.encode(std::string(1, c)).empty()) dropped += c;
  std::fprintf(stderr, "warning: the vocabulary of the model lacks these characters of --prompt: %s\n",
               quote(dropped).c_str());
}

Generated generate_gpt(const GenerateJob& job) {
  if (job.checkpoint.empty())
    throw UsageError("generate needs a model", {},
                     "give an exported model, or a checkpoint of the built-in GPT with --checkpoint DIR");
  TrainedGpt trained = load_trained_gpt(job.checkpoint);
  Tokens prompt = read_tokens(job.prompt_tokens);
  if (prompt.empty() && !trained.encode)
    throw UsageError("the model was trained on tokens, and its checkpoint names no tokenizer", {},
                     "give tokens: --prompt-tokens 5,17,2");
  const bool is_text = prompt.empty();
  if (is_text) prompt = trained.encode(job.prompt);
  if (prompt.empty())
    throw UsageError("no character of the prompt is in the vocabulary of the model", {},
                     "use characters of the text that it was trained on");
  if (is_text) report_dropped(trained, job.prompt, prompt);
  const std::int64_t vocabulary = trained.model->options().vocabulary;
  for (const std::int64_t token : prompt)
    if (token >= vocabulary)
      throw UsageError(str_cat("the token ", token, " is not in the vocabulary of ", vocabulary, " tokens"),
                       {}, "use smaller numbers, or a text: --prompt TEXT");
  const Tokens tokens = models::sample(*trained.model, prompt, job.options);
  return {tokens, trained.decode ? std::optional(trained.decode(tokens)) : std::nullopt};
}

}  // namespace

int generate_command(Arguments& arguments) {
  GenerateJob job;
  arguments.positional("MODEL.pt2", job.model,
                       "an exported causal model: tokens [batch, time] to logits [the built-in GPT]",
                       Arguments::Need::Optional);
  arguments.option("--checkpoint", job.checkpoint,
                   "the trained weights: a checkpoint, or a directory of checkpoints (the newest)");
  arguments.option("--prompt", job.prompt, "the text that the GPT continues");
  arguments.option("--prompt-tokens", job.prompt_tokens, "the tokens that the model continues: 5,17,2");
  arguments.option("--max-tokens", job.options.tokens, "number of tokens to generate");
  arguments.option("--temperature", job.temperature, "divides the logits; 0: the most likely token [0.8]");
  arguments.option("--top-k", job.options.top, "sample only from the most likely tokens, this many");
  arguments.option("--top-p", job.options.top_p,
                   "sample only from the most likely tokens whose probabilities reach this sum");
  arguments.flag("--greedy", job.greedy, "always take the most likely token");
  arguments.option("--seed", job.seed, "seed of the random numbers");
  arguments.parse();
  if (arguments.given("--prompt") && arguments.given("--prompt-tokens"))
    throw UsageError("--prompt and --prompt-tokens are both given", {}, "give one of the two");
  resolve(job);
  if (!job.model.empty() && arguments.given("--prompt"))
    throw UsageError("--prompt is for the built-in GPT: an exported model has no vocabulary", {},
                     "give tokens: --prompt-tokens 5,17,2");
  at::set_num_threads(1);
  const Generated generated =
      as_usage([&] { return job.model.empty() ? generate_gpt(job) : generate_exported(job); });
  if (arguments.json()) {
    JsonWriter json;
    json.begin_object().key("tokens").begin_array();
    for (const std::int64_t token : generated.tokens) json.value(token);
    json.end_array();
    if (generated.text) json.field("text", *generated.text);
    print(json.end_object().text() + "\n");
    return 0;
  }
  print((generated.text ? *generated.text : join(generated.tokens, " ")) + "\n");
  return 0;
}

}  // namespace penstock::tool
