// `penstock generate`: continues a prompt with the built-in GPT or with an exported causal model, over one or
// more pipeline ranks. With several, the command starts itself once per rank; the last rank writes the
// tokens.
#include "base/json.h"
#include "base/number_text.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/verbosity.h"
#include "commands/changed_weights.h"
#include "commands/commands.h"
#include "commands/language_model.h"
#include "commands/launching.h"
#include "commands/trained_weights.h"
#include "config/device.h"
#include "config/rank_counts.h"
#include "train/display/failure_report.h"
#include "train/preflight/model_checks.h"
#include "train/preflight/token_data.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>

#include <ATen/Parallel.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>

namespace penstock::tool {
namespace {

// Starts a line with which a rank passes a token to the command.
constexpr std::string_view kTokenLine = "generated token ";

struct GenerateJob {
  std::string model, checkpoint, tokenizer, prompt = "\n";
  std::vector<std::string> prompt_tokens, renames;
  bool greedy = false;
  models::SampleOptions options;
  std::int64_t seed = 0;
  std::optional<double> temperature;
  RankRequest rank_request;
  int ranks = 1;
  std::string backend = "auto";
  DeviceChoice device = DeviceChoice::Auto;
  Verbosity verbosity;

  bool built_in() const { return model.empty(); }
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
  job.ranks = job.rank_request.counts().pp;
  job.device = resolve_device(job.device, job.ranks).choice;
  job.backend = resolve_backend(job.backend, job.device);
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

//! A prompt and what continues it.
struct Generated {
  Tokens tokens;
  std::function<std::string(const Tokens&)> decode{};  //!< unset if tokens have no text
};

//! Checks files and options once, before ranks start. Returns the prompt.
Generated prepare_export(const GenerateJob& job) {
  if (job.prompt_tokens.empty() && job.tokenizer.empty())
    throw UsageError(
        "an exported model needs a prompt of tokens", {},
        "give them with --prompt-tokens 5,17,2, or name its tokenizer with --tokenizer FILE.json");
  Generated prompt{read_tokens(job.prompt_tokens)};
  if (!job.tokenizer.empty()) {
    const train::Tokenizer tokenizer = open_tokenizer(job.tokenizer);
    prompt.decode = [tokenizer](const Tokens& tokens) { return tokenizer.decode(tokens); };
    if (prompt.tokens.empty()) {
      const std::vector<std::uint32_t> tokens = tokenizer.encode(job.prompt);
      prompt.tokens.assign(tokens.begin(), tokens.end());
    }
  }
  if (prompt.tokens.empty()) throw UsageError("the prompt is empty", {}, "give at least one character");
  check_staged_export(job.model, job.checkpoint, read_renames(job.renames), job.ranks, prompt.tokens);
  return prompt;
}

// The vocabulary of the characters of a text may lack some. A tokenizer drops none, but decoding its tokens
// may change white space.
void report_dropped(const TrainedGpt& trained, const std::string& prompt, const Tokens& tokens) {
  if (!trained.by_character || trained.decode(tokens) == prompt) return;
  std::string dropped;
  for (const char c : prompt)
    if (dropped.find(c) == std::string::npos && trained.encode(std::string(1, c)).empty()) dropped += c;
  std::fprintf(stderr, "warning: the vocabulary of the model lacks these characters of --prompt: %s\n",
               quote(dropped).c_str());
}

Generated prepare_gpt(const GenerateJob& job) {
  if (job.checkpoint.empty())
    throw UsageError("generate needs a model", {},
                     "give an exported model, or a checkpoint of the built-in GPT with --checkpoint DIR");
  const TrainedGpt trained = open_trained_gpt(job.checkpoint);
  Generated prompt{read_tokens(job.prompt_tokens), trained.decode};
  if (prompt.tokens.empty() && !trained.encode)
    throw UsageError("the model was trained on tokens, and its checkpoint names no tokenizer", {},
                     "give tokens: --prompt-tokens 5,17,2");
  const bool is_text = prompt.tokens.empty();
  if (is_text) prompt.tokens = trained.encode(job.prompt);
  if (prompt.tokens.empty())
    throw UsageError("no character of the prompt is in the vocabulary of the model", {},
                     "use characters of the text that it was trained on");
  if (is_text) report_dropped(trained, job.prompt, prompt.tokens);
  check_staged_gpt(trained, job.ranks, prompt.tokens);
  return prompt;
}

comm::InitOptions init_options(const GenerateJob& job) {
  return {.backend = comm::parse_backend(job.backend), .device = device_of(job.device)};
}

void run_rank(const GenerateJob& job, const comm::World& world, const Tokens& prompt,
              const std::function<void(std::int64_t)>& on_token) {
  const auto model = job.built_in()
                         ? staged_gpt(open_trained_gpt(job.checkpoint), world)
                         : staged_export(job.model, job.checkpoint, read_renames(job.renames), world);
  generate(*model, prompt, job.options, world, on_token);
}

//! The command line of a rank, with the prompt as tokens.
std::vector<std::string> command_line_of(const GenerateJob& job, const Tokens& prompt) {
  std::vector<std::string> args;
  if (!job.built_in()) args.push_back(job.model);
  const auto add = [&](const char* option, const std::string& value) {
    args.insert(args.end(), {option, value});
  };
  if (!job.checkpoint.empty()) add("--checkpoint", job.checkpoint);
  if (!job.renames.empty()) add("--rename", join(job.renames, ","));
  add("--prompt-tokens", join(prompt, ","));
  add("--max-tokens", std::to_string(job.options.tokens));
  add("--temperature", decimal_text(job.options.temperature));
  if (job.options.top) add("--top-k", std::to_string(*job.options.top));
  if (job.options.top_p) add("--top-p", decimal_text(*job.options.top_p));
  add("--seed", std::to_string(job.seed));
  add("--pp", std::to_string(job.ranks));
  add("--backend", job.backend);
  add("--device", job.device == DeviceChoice::Cuda ? "cuda" : "cpu");
  return args;
}

//! Runs this process as a rank.
int run_as_rank(const GenerateJob& job) {
  const comm::World world = comm::init(init_options(job));
  const bool last = world.rank().value == world.size() - 1;
  run_rank(job, world, read_tokens(job.prompt_tokens), [&](std::int64_t token) {
    if (last) print(str_cat(kTokenLine, token, "\n"));
  });
  return 0;
}

//! Starts the ranks and collects the tokens. Returns the exit code.
int start_ranks(const GenerateJob& job, Tokens& tokens) {
  refuse_as_rank("generate");
  comm::LaunchOptions options = ranks_of("generate", job.ranks, command_line_of(job, tokens));
  FailureReport failures({.ranks = job.ranks});
  failures.attach(options);
  job.verbosity.pass_to(options.environment);
  options.on_line = [&](Rank rank, comm::OutputStream stream, std::string_view line) {
    if (failures.take(rank, stream, line)) return;
    if (stream == comm::OutputStream::Out && line.starts_with(kTokenLine))
      tokens.push_back(std::atoll(std::string(line.substr(kTokenLine.size())).c_str()));
    else
      std::fprintf(stderr, "%s\n", std::string(line).c_str());
  };
  return failures.finish(launch(options));
}

void print_result(const Generated& generated, bool as_json) {
  const std::optional<std::string> text =
      generated.decode ? std::optional(generated.decode(generated.tokens)) : std::nullopt;
  if (!as_json) return print((text ? *text : join(generated.tokens, " ")) + "\n");
  JsonWriter json;
  json.begin_object().key("tokens").begin_array();
  for (const std::int64_t token : generated.tokens) json.value(token);
  json.end_array();
  if (text) json.field("text", *text);
  print(json.end_object().text() + "\n");
}

}  // namespace

int generate_command(Arguments& arguments) {
  GenerateJob job;
  arguments.positional("MODEL.pt2", job.model,
                       "an exported causal model: tokens [batch, time] to logits [the built-in GPT]",
                       Arguments::Need::Optional);
  arguments.option("--checkpoint", job.checkpoint,
                   "the trained weights: a checkpoint, or a directory of checkpoints (the newest)");
  arguments.option("--rename", job.renames, kRenameHelp);
  arguments.option("--prompt", job.prompt, "the text that the model continues");
  arguments.option("--prompt-tokens", job.prompt_tokens, "the tokens that the model continues: 5,17,2");
  arguments.option(
      "--tokenizer", job.tokenizer,
      "how text becomes tokens of an exported model: bytes, or a tokenizer.json of Hugging Face");
  arguments.option("--max-tokens", job.options.tokens, "number of tokens to generate");
  arguments.option("--temperature", job.temperature,
                   "the logits are divided by this number; 0: always the most likely token [0.8]");
  arguments.option("--top-k", job.options.top, "sample only from this many of the most likely tokens");
  arguments.option("--top-p", job.options.top_p,
                   "sample only from the most likely tokens that together reach this probability");
  arguments.flag("--greedy", job.greedy, "always take the most likely token");
  arguments.option("--seed", job.seed, "seed of the random numbers");
  arguments.option("--ranks", job.rank_request.ranks, "number of ranks (processes); the same as --pp [1]");
  arguments.option("--pp", job.rank_request.pp, "pipeline-parallel ranks; each has a stage of the model [1]");
  arguments.option("--backend", job.backend, kBackendHelp);
  arguments.choice<DeviceChoice>("--device", job.device, kDeviceChoices, kDeviceHelp);
  job.verbosity.declare(arguments);
  arguments.parse();
  job.verbosity.apply();
  if (arguments.given("--prompt") && arguments.given("--prompt-tokens"))
    throw UsageError("--prompt and --prompt-tokens are both given", {}, "give one of the two");
  resolve(job);
  if (!job.built_in() && job.tokenizer.empty() && arguments.given("--prompt"))
    throw UsageError("--prompt needs --tokenizer: an exported model has no vocabulary", {},
                     "name its tokenizer with --tokenizer FILE.json, or give tokens: --prompt-tokens 5,17,2");
  if (job.built_in() && !job.renames.empty())
    throw UsageError("--rename is for exported models: the names of a GPT are those of its checkpoint", {},
                     "leave it out, or give the exported model");
  if (job.built_in() && !job.tokenizer.empty())
    throw UsageError("--tokenizer is for exported models: the checkpoint of a GPT names its own", {},
                     "leave it out, or give the exported model");
  at::set_num_threads(1);
  if (is_rank_of("generate")) return run_as_rank(job);
  Generated generated = as_usage([&] { return job.built_in() ? prepare_gpt(job) : prepare_export(job); });
  if (job.ranks > 1) {
    if (const int code = start_ranks(job, generated.tokens); code != 0) return code;
  } else {
    const Tokens prompt = generated.tokens;
    const auto add = [&](std::int64_t token) { generated.tokens.push_back(token); };
    as_usage([&] {
      comm::run_thread_ranks(
          1, [&](comm::World& world) { run_rank(job, world, prompt, add); }, init_options(job));
    });
  }
  print_result(generated, arguments.json());
  return 0;
}

}  // namespace penstock::tool
