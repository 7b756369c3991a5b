// Splits the batch: arguments for the first stage, keyword arguments for the stages that take them, targets
// for the last stage.
#include "runtime/step/split_batch.h"

#include "base/text.h"
#include "runtime/setup/signature.h"
#include "value/chunk_rules.h"

#include <penstock/base/error.h>

#include <map>
#include <optional>
#include <set>
#include <string>

namespace penstock::runtime {
namespace {

using Keywords = std::optional<std::set<std::string>>;  // nullopt: any name is accepted

bool takes(const Keywords& keywords, const std::string& name) {
  return !keywords || keywords->contains(name);
}

void check_takers(const PipelineSetup& setup, const value::Kwargs& kwargs) {
  for (const auto& [name, value] : kwargs) {
    if (takes(setup.keywords, name)) continue;
    throw UsageError("no stage takes the keyword argument " + quote(name), {.rank = setup.rank},
                     detail::keywords_hint());
  }
}

void add_kwargs(const Keywords& taken, const std::vector<value::Kwargs>& chunks,
                std::vector<value::Kwargs>& to) {
  if (to.empty()) to.resize(chunks.size());
  for (std::size_t m = 0; m < chunks.size(); ++m) {
    for (const auto& [name, value] : chunks[m]) {
      if (takes(taken, name)) to[m][name] = value;
    }
  }
}

// Gives every stage of this rank the common keyword arguments that it takes, and its own, by microbatch.
void assign_kwargs(const PipelineSetup& setup, const std::vector<value::Kwargs>& shared,
                   const std::map<StageId, std::vector<value::Kwargs>>& stage_kwargs, StepBatch& batch) {
  batch.kwargs.resize(static_cast<std::size_t>(setup.program.num_stages()));
  for (const PipelineStage& stage : setup.stages) {
    const Keywords taken = stage.module().keywords();
    std::vector<value::Kwargs>& to = batch.kwargs[stage.index().index()];
    if (!shared.empty()) add_kwargs(taken, shared, to);
    const auto found = stage_kwargs.find(stage.index());
    if (found == stage_kwargs.end()) continue;
    for (const value::Kwargs& kwargs : found->second) {
      for (const auto& [name, value] : kwargs) {
        if (!takes(taken, name))
          throw UsageError("the stage does not take the keyword argument " + quote(name),
                           {.stage = stage.index()}, detail::keywords_hint());
      }
    }
    add_kwargs(taken, found->second, to);
  }
}

bool wants_target(const PipelineSetup& setup, bool given, bool train) {
  if (!setup.local(setup.last_stage()) || !setup.options.loss) return false;
  if (given) return true;
  if (!train || !setup.options.loss_needs_target) return false;
  throw UsageError("the rank of the last stage needs the target of the loss",
                   {.rank = setup.rank, .stage = setup.last_stage()},
                   "pass the target as the second argument of step, or set Microbatches::targets");
}

void check_given(const PipelineSetup& setup, bool any) {
  if (!setup.local(StageId(0)) || any) return;
  throw UsageError("the rank of the first stage was given no arguments",
                   {.rank = setup.rank, .stage = StageId(0)}, "pass the inputs of the model on this rank");
}

std::uint64_t signature_of(const StepBatch& batch, std::size_t microbatch) {
  Signature signature;
  if (!batch.args.empty()) {
    for (const c10::IValue& arg : batch.args[microbatch]) signature.add(arg);
  }
  for (const std::vector<value::Kwargs>& chunks : batch.kwargs) {
    signature.add(chunks.size());
    if (chunks.empty()) continue;
    for (const auto& [name, value] : chunks[microbatch]) signature.add(std::string_view(name)).add(value);
  }
  return signature.value();
}

void add_signatures(SplitBatch& split) {
  for (std::size_t m = 0; m < split.rows.size(); ++m)
    split.signatures.push_back(signature_of(split.batch, m));
}

// The row order of all values that this rank splits. Throws ShapeError if microbatches would pair other rows.
class CommonOrder {
 public:
  explicit CommonOrder(const PipelineSetup& setup) : setup_(setup) {}

  void add(const value::RowOrder& order, const std::string& what) {
    if (order.empty()) return;
    if (order_.empty()) {
      order_ = order;
      first_ = what;
    }
    if (order == order_) return;
    throw ShapeError("the rows of " + what + " are " + value::order_text(order) + " and those of " + first_ +
                         " " + value::order_text(order_) + ", so microbatches would pair different rows",
                     {.rank = setup_.rank, .tensor = what}, value::row_order_hint());
  }
  //! Empty if nothing is split.
  const value::RowOrder& value() const { return order_; }

 private:
  const PipelineSetup& setup_;
  value::RowOrder order_;
  std::string first_;
};

value::RowOrder order_of(const PipelineSetup& setup, const UnsplitBatch& input, bool target) {
  const int chunks = setup.program.microbatches();
  CommonOrder common(setup);
  if (setup.local(StageId(0)))
    common.add(row_order(c10::ivalue::Tuple::create(input.args), chunks, "args", setup.options.args_spec),
               "the batch");
  if (!input.kwargs.empty())
    common.add(row_order(input.kwargs, chunks, "kwargs", setup.options.kwargs_spec), "the keyword arguments");
  // The ids in `stage_kwargs` come from the caller and may exceed the number of stages.
  for (const PipelineStage& stage : setup.stages) {
    const auto found = input.stage_kwargs.find(stage.index());
    if (found != input.stage_kwargs.end())
      common.add(value::row_order(found->second, chunks, "kwargs"), "a stage's keyword arguments");
  }
  if (!target) return common.value();
  common.add(row_order(input.target, chunks, "target", setup.options.target_spec), "the target");
  common.add(value::row_order(input.loss_kwargs, chunks, "loss_kwargs"), "the loss's arguments");
  return common.value();
}

template <class Item>
const std::vector<Item>& checked(const PipelineSetup& setup, const std::vector<Item>& list,
                                 const char* what) {
  const auto microbatches = static_cast<std::size_t>(setup.program.microbatches());
  if (list.empty() || list.size() == microbatches) return list;
  throw UsageError(
      str_cat("the ", what, " of ", list.size(), " microbatches were given to a schedule of ", microbatches),
      {.rank = setup.rank}, "pass one entry per microbatch of the schedule");
}

}  // namespace

SplitBatch split_batch(const PipelineSetup& setup, const UnsplitBatch& input, bool train) {
  const int microbatches = setup.program.microbatches();
  const bool first = setup.local(StageId(0));
  SplitBatch split;
  check_takers(setup, input.kwargs);
  check_given(setup, !input.args.empty() || !input.kwargs.empty() || input.stage_kwargs.contains(StageId(0)));
  value::Chunks chunks;
  if (first || !input.kwargs.empty()) {
    chunks = split_args_kwargs_into_chunks(first ? input.args : value::Args(), input.kwargs, microbatches,
                                           first ? setup.options.args_spec : std::nullopt,
                                           setup.options.kwargs_spec);
  }
  if (first) split.batch.args = std::move(chunks.args);
  split.rows.assign(static_cast<std::size_t>(microbatches), 0);
  // In a batch with only replicated values, every microbatch counts as one row.
  if (first) split.rows = chunks.rows.empty() ? std::vector<std::int64_t>(split.rows.size(), 1) : chunks.rows;
  if (input.kwargs.empty()) chunks.kwargs.clear();
  std::map<StageId, std::vector<value::Kwargs>> stage_kwargs;
  for (const PipelineStage& stage : setup.stages) {
    const auto found = input.stage_kwargs.find(stage.index());
    if (found != input.stage_kwargs.end())
      stage_kwargs[stage.index()] =
          value::split_args_kwargs_into_chunks({}, found->second, microbatches).kwargs;
  }
  assign_kwargs(setup, chunks.kwargs, stage_kwargs, split.batch);
  const bool target = wants_target(setup, !input.target.isNone(), train);
  split.row_order = order_of(setup, input, target);
  if (target) {
    split.batch.targets = split_tree(input.target, microbatches, "target", setup.options.target_spec);
    if (!input.loss_kwargs.empty())
      split.batch.loss_kwargs =
          value::split_args_kwargs_into_chunks({}, input.loss_kwargs, microbatches).kwargs;
  }
  add_signatures(split);
  return split;
}

SplitBatch split_batch(const PipelineSetup& setup, const Microbatches& input, bool train) {
  const auto microbatches = static_cast<std::size_t>(setup.program.microbatches());
  const bool first = setup.local(StageId(0));
  SplitBatch split;
  checked(setup, input.kwargs, "keyword arguments");
  for (const value::Kwargs& kwargs : input.kwargs) check_takers(setup, kwargs);
  check_given(setup, !input.args.empty() || !input.kwargs.empty() || input.stage_kwargs.contains(StageId(0)));
  split.rows.assign(microbatches, 0);
  if (first) {
    split.batch.args = checked(setup, input.args, "arguments");
    split.batch.args.resize(microbatches);
    for (std::size_t m = 0; m < microbatches; ++m) {
      split.rows[m] =
          count_rows(split.batch.args[m], input.kwargs.empty() ? value::Kwargs() : input.kwargs[m],
                     setup.options.args_spec, setup.options.kwargs_spec)
              .value_or(1);
    }
  }
  for (const auto& [stage, kwargs] : input.stage_kwargs) checked(setup, kwargs, "keyword arguments");
  assign_kwargs(setup, input.kwargs, input.stage_kwargs, split.batch);
  if (wants_target(setup, !input.targets.empty(), train)) {
    split.batch.targets = checked(setup, input.targets, "targets");
    split.batch.loss_kwargs = checked(setup, input.loss_kwargs, "loss arguments");
  }
  add_signatures(split);
  return split;
}

}  // namespace penstock::runtime
