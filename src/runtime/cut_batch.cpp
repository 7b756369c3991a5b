// Cutting: arguments for the first stage, keyword arguments for whoever takes them, targets for the last.
#include "runtime/cut_batch.h"

#include "runtime/signature.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <optional>
#include <set>
#include <string>

namespace penstock {
namespace {

using Keywords = std::optional<std::set<std::string>>;  // nothing: all names are taken

bool takes(const Keywords& keywords, const std::string& name) {
  return !keywords || keywords->contains(name);
}

void check_takers(const PipelineSetup& setup, const Kwargs& kwargs) {
  for (const auto& [name, value] : kwargs) {
    if (takes(setup.keywords, name)) continue;
    throw UsageError("no stage takes the keyword argument " + quote(name), {.rank = setup.rank},
                     "a module takes keyword arguments with forward(const Args&, const Kwargs&)");
  }
}

void add_kwargs(const Keywords& taken, const std::vector<Kwargs>& chunks, std::vector<Kwargs>& to) {
  if (to.empty()) to.resize(chunks.size());
  for (std::size_t m = 0; m < chunks.size(); ++m) {
    for (const auto& [name, value] : chunks[m]) {
      if (takes(taken, name)) to[m][name] = value;
    }
  }
}

void cut_kwargs(const PipelineSetup& setup, const StepInput& input, const std::vector<Kwargs>& shared,
                StepBatch& batch) {
  batch.kwargs.resize(static_cast<std::size_t>(setup.program.stages()));
  for (const PipelineStage& stage : setup.stages) {
    const Keywords taken = stage.module().keywords();
    std::vector<Kwargs>& to = batch.kwargs[static_cast<std::size_t>(stage.index().value)];
    if (!input.kwargs.empty()) add_kwargs(taken, shared, to);
    const auto own = input.stage_kwargs.find(stage.index());
    if (own == input.stage_kwargs.end()) continue;
    for (const auto& [name, value] : own->second) {
      if (!takes(taken, name))
        throw UsageError("the stage takes no keyword argument " + quote(name), {.stage = stage.index()});
    }
    add_kwargs(taken, split_args_kwargs_into_chunks({}, own->second, setup.program.microbatches()).kwargs,
               to);
  }
}

void cut_target(const PipelineSetup& setup, const StepInput& input, bool train, StepBatch& batch) {
  if (!setup.local(setup.last_stage()) || !setup.options.loss) return;
  if (input.target.isNone()) {
    if (!train || !setup.options.loss_needs_target) return;
    throw UsageError("the rank of the last stage needs the target of the loss",
                     {.rank = setup.rank, .stage = setup.last_stage()}, "give it as StepInput::target");
  }
  const int microbatches = setup.program.microbatches();
  batch.targets = split_tree(input.target, microbatches, "target", setup.options.target_spec);
  if (!input.loss_kwargs.empty())
    batch.loss_kwargs = split_args_kwargs_into_chunks({}, input.loss_kwargs, microbatches).kwargs;
}

std::uint64_t signature_of(const StepBatch& batch, std::size_t microbatch, bool train) {
  Signature signature;
  signature.add(train ? std::uint64_t{1} : std::uint64_t{0});
  if (!batch.args.empty()) {
    for (const c10::IValue& arg : batch.args[microbatch]) signature.add(arg);
  }
  for (const std::vector<Kwargs>& chunks : batch.kwargs) {
    signature.add(chunks.size());
    if (chunks.empty()) continue;
    for (const auto& [name, value] : chunks[microbatch]) signature.add(std::string_view(name)).add(value);
  }
  return signature.value();
}

}  // namespace

CutBatch cut_batch(const PipelineSetup& setup, const StepInput& input, bool train) {
  const int microbatches = setup.program.microbatches();
  const bool first = setup.local(StageId(0));
  CutBatch cut;
  check_takers(setup, input.kwargs);
  if (first && input.args.empty() && input.kwargs.empty() && !input.stage_kwargs.contains(StageId(0))) {
    throw UsageError("the rank of the first stage was given no arguments",
                     {.rank = setup.rank, .stage = StageId(0)});
  }
  Chunks chunks;
  if (first || !input.kwargs.empty()) {
    chunks = split_args_kwargs_into_chunks(first ? input.args : Args(), input.kwargs, microbatches,
                                           first ? setup.options.args_spec : std::nullopt,
                                           setup.options.kwargs_spec);
  }
  if (first) cut.batch.args = std::move(chunks.args);
  cut.rows.assign(static_cast<std::size_t>(microbatches), 0);
  // A batch that is only replicated counts one row a microbatch.
  if (first) cut.rows = chunks.rows.empty() ? std::vector<std::int64_t>(cut.rows.size(), 1) : chunks.rows;
  cut_kwargs(setup, input, chunks.kwargs, cut.batch);
  cut_target(setup, input, train, cut.batch);
  for (std::size_t m = 0; m < cut.rows.size(); ++m)
    cut.signatures.push_back(signature_of(cut.batch, m, train));
  return cut;
}

}  // namespace penstock
