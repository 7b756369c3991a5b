// Implements the model interface for exported models.
#include "base/text.h"
#include "train/model/tensor_parallel.h"

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>
#include <penstock/parallel/find_parallel_plan.h>
#include <penstock/train/model.h>
#include <penstock/value/tree.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/mse_loss.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

namespace penstock::train {
namespace {

// Returns the index of the output that the loss reads: the named one, else `logits`, else the first.
std::size_t loss_leaf(const graph::Graph& graph, const std::string& wanted) {
  const std::vector<std::string> paths = graph.output_paths();
  const auto place = [&](const std::string& name) {
    const auto it = std::find_if(paths.begin(), paths.end(), [&](const std::string& path) {
      return path == name || path == "output." + name;
    });
    return static_cast<std::size_t>(it - paths.begin());
  };
  if (!wanted.empty()) {
    if (place(wanted) < paths.size()) return place(wanted);
    throw UsageError("the model has no output " + quote(wanted), {}, "its outputs are " + join(paths, ", "));
  }
  return place("logits") < paths.size() ? place("logits") : 0;
}

class ArchivedModel : public Model {
 public:
  explicit ArchivedModel(const ArchiveOptions& options) : options_(options) { load(1); }

  std::string measured_cuts(int stages, const Batch& microbatch) override {
    if (options_.balance != BalanceKind::Time || !options_.split.empty() || stages == 1) return {};
    const std::vector<c10::IValue> example = flatten_inputs(graph(), microbatch.args, microbatch.kwargs);
    const pipe::Pipe measured = load_pt2(options_.file, pipe::Balanced{stages, pipe::BalanceBy::MeasuredTime},
                                         pipe::PipeOptions{}, example);
    std::vector<std::string> places;
    for (const std::size_t place : measured.split_positions()) places.push_back(std::to_string(place));
    return join(places, " ");
  }

  void use_cuts(const std::string& cuts) override {
    measured_.clear();
    std::istringstream places(cuts);
    for (std::size_t place = 0; places >> place;) measured_.push_back(place);
  }

  void cut(int stages) override {
    if (!options_.split.empty() && pipe_->num_stages() != stages)
      throw UsageError("the split points make " + std::to_string(pipe_->num_stages()) +
                           " stages, but the schedule needs " + std::to_string(stages),
                       {},
                       "give " + std::to_string(stages - 1) +
                           (stages == 2 ? " split point" : " split points") +
                           ", or none to balance the stages automatically");
    if (options_.split.empty()) load(stages);
    given_.clear();
  }

  void check_tensor_ranks(int ranks) const override {
    parallel::check_paths(pipe_->graph(), options_.tensor_plan);
    const parallel::ParallelPlan plan =
        options_.tensor_plan.empty() ? found_plan(ranks).plan : options_.tensor_plan;
    check_not_shared(pipe_->graph(), plan, shared());
  }

  void spread(const comm::Group& tensors) override {
    check_tensor_ranks(tensors.size());
    tensors_ = tensors;
    remarks_.clear();
    plan_ = options_.tensor_plan;
    if (!plan_.empty()) return;
    parallel::FoundPlan found = found_plan(tensors.size());
    for (const std::string& pair : found.pairs)
      remarks_.push_back("sharded over tensor-parallel ranks: " + pair);
    for (const std::string& layer : found.not_sharded)
      remarks_.push_back("replicated on every rank: " + layer);
    plan_ = std::move(found.plan);
  }
  std::vector<std::string> remarks() const override { return remarks_; }

  std::shared_ptr<runtime::StageModule> stage(int stage) override {
    given_.push_back(pipe_->get_stage_module(StageId(stage)));
    if (tensors_) cut_graph_stage(*given_.back(), plan_, shared(), *tensors_);
    return pipe_->stage_module(StageId(stage));
  }

  void set_training(bool on) override {
    for (const auto& module : given_) module->train(on);
  }
  std::vector<runtime::SkipValue> skips() const override { return pipe_->skips(); }
  std::vector<runtime::SharedParameter> shared() const override { return pipe_->shared(); }

  ModelState state() const override {
    std::set<std::string> held;
    for (int s = 0; s < pipe_->num_stages(); ++s)
      for (const graph::Slot& slot : pipe_->stage_graph(StageId(s)).slots)
        held.insert(slot.names.begin(), slot.names.end());
    ModelState state;
    std::vector<graph::Slot> idle;
    for (const graph::Slot& slot : pipe_->graph().slots) {
      if (slot.kind == graph::Slot::Kind::Constant) continue;
      if (slot.kind == graph::Slot::Kind::Buffer && !slot.persistent) {
        state.transient.insert(slot.names.begin(), slot.names.end());
        continue;
      }
      if (slot.names.size() > 1) state.aliases[slot.names[0]] = {slot.names.begin() + 1, slot.names.end()};
      if (!held.contains(slot.names[0])) idle.push_back(slot);
    }
    const std::vector<at::Tensor> tensors = graph::Pt2Archive(options_.file).load(idle);
    for (std::size_t i = 0; i < idle.size(); ++i) {
      const bool parameter = idle[i].kind == graph::Slot::Kind::Parameter;
      state.idle.push_back(
          full_piece(idle[i].names[0], tensors[i].detach(),
                     parameter ? checkpoint::PieceKind::Parameter : checkpoint::PieceKind::Buffer));
    }
    return state;
  }

  std::vector<checkpoint::Piece> whole_state() const override {
    std::vector<checkpoint::Piece> pieces;
    for (const graph::Slot& slot : pipe_->graph().slots) {
      if (slot.kind == graph::Slot::Kind::Constant ||
          (slot.kind == graph::Slot::Kind::Buffer && !slot.persistent))
        continue;
      const auto& meta = pipe_->graph().value(slot.value).meta;
      if (!meta) return {};
      std::vector<std::int64_t> sizes;
      for (const graph::Dim& dim : meta->sizes) sizes.push_back(dim.size);
      const bool parameter = slot.kind == graph::Slot::Kind::Parameter;
      const at::Tensor tensor = at::empty(sizes, at::TensorOptions(meta->dtype).device(at::kMeta));
      pieces.push_back(
          full_piece(slot.names[0], tensor.set_requires_grad(parameter && slot.requires_grad),
                     parameter ? checkpoint::PieceKind::Parameter : checkpoint::PieceKind::Buffer));
      pieces.back().aliases = {slot.names.begin() + 1, slot.names.end()};
    }
    return pieces;
  }

  runtime::LossFunction loss() const override {
    const std::size_t leaf = loss_leaf(pipe_->graph(), options_.loss_output);
    return [leaf, kind = options_.loss](const c10::IValue& output, const c10::IValue& target,
                                        const value::Kwargs&) {
      const at::Tensor values = value::flatten(output).leaves.at(leaf).toTensor();
      switch (kind) {
        case LossKind::Mse:
          return at::mse_loss(values, target.toTensor());
        case LossKind::CrossEntropy:
          return torch::nn::functional::cross_entropy(values.to(at::kFloat).flatten(0, -2),
                                                      target.toTensor().flatten());
      }
      return at::Tensor();
    };
  }

  runtime::LossReduction reduction() const override {
    return options_.loss == LossKind::CrossEntropy ? runtime::LossReduction::mean_over_valid_labels()
                                                   : runtime::LossReduction::mean();
  }

  std::string describe() const override {
    std::int64_t count = 0;
    for (const graph::Slot& slot : pipe_->graph().slots) {
      const auto& meta = pipe_->graph().value(slot.value).meta;
      if (slot.kind == graph::Slot::Kind::Parameter && meta) count += meta->numel();
    }
    return std::filesystem::path(options_.file).filename().string() + ", " +
           std::to_string(pipe_->graph().nodes.size()) + " operators, " + std::to_string(count) +
           " parameters";
  }

  void check_rows(const std::vector<std::int64_t>& rows) const override {
    const graph::Graph& graph = pipe_->graph();
    for (const graph::GraphInput& input : graph.inputs) {
      const graph::Value& value = graph.value(input.value);
      if (!value.meta || value.meta->sizes.empty() || !value.meta->sizes[0].expression.empty()) continue;
      const std::int64_t fixed = value.meta->sizes[0].size;
      for (const std::int64_t count : rows) {
        if (count == fixed) continue;
        throw UsageError("the model was exported with a fixed batch of " + std::to_string(fixed) +
                             " (input " + quote(value.name) + "), but the run has microbatches of " +
                             std::to_string(count) + " examples",
                         {},
                         "choose batch and microbatches so that each microbatch has exactly " +
                             std::to_string(fixed) + " examples, or export with a dynamic batch dim");
      }
    }
  }

  const graph::Graph& graph() const { return pipe_->graph(); }

 private:
  parallel::FoundPlan found_plan(int ranks) const {
    return parallel::require_parallel_plan(pipe_->graph(), ranks,
                                           "use 1 tensor-parallel rank, or give a tensor-parallel plan");
  }

  void load(int stages) {
    // Measured times differ between ranks. Without split positions that all ranks share, use estimated costs.
    const pipe::BalanceBy by =
        options_.balance == BalanceKind::Parameters ? pipe::BalanceBy::Parameters : pipe::BalanceBy::Flops;
    const pipe::SplitPolicy whole = [](const graph::Graph&) { return graph::SplitPositions{}; };
    if (!options_.split.empty()) {
      pipe_.emplace(pipe::load_pt2(options_.file, options_.split));
    } else if (stages == 1) {
      pipe_.emplace(pipe::load_pt2(options_.file, whole));
    } else if (measured_.size() + 1 == static_cast<std::size_t>(stages)) {
      pipe_.emplace(pipe::load_pt2(options_.file,
                                   pipe::SplitPolicy([this](const graph::Graph&) { return measured_; })));
    } else {
      pipe_.emplace(load_pt2(options_.file, pipe::Balanced{stages, by}));
    }
  }

  ArchiveOptions options_;
  graph::SplitPositions measured_;
  std::optional<pipe::Pipe> pipe_;
  std::optional<comm::Group> tensors_;
  parallel::ParallelPlan plan_;  // tensor-parallel plan, given or derived from the graph
  std::vector<std::string> remarks_;
  std::vector<std::shared_ptr<graph::GraphModule>> given_;
};

// Only tensors at the top level of the arguments have names; tensors in trees do not.
void check_flat(const value::Structure& structure) {
  for (const value::Structure& child : structure.children) {
    if (child.num_leaves() != 1 || !child.children.empty())
      throw UsageError("the model takes trees of tensors as arguments, which a data file cannot contain", {},
                       "export a model whose arguments are tensors");
  }
}

}  // namespace

ArchiveModel archive_model(const ArchiveOptions& options) {
  auto model = std::make_unique<ArchivedModel>(options);
  ArchiveModel result;
  const graph::Graph& graph = model->graph();
  std::size_t positional = graph.inputs.size();
  if (graph.input_structure.children.size() == 2) {
    check_flat(graph.input_structure.children[0]);
    check_flat(graph.input_structure.children[1]);
    positional = graph.input_structure.children[0].num_leaves();
  }
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const std::string& name = graph.value(graph.inputs[i].value).name;
    if (const auto& meta = graph.value(graph.inputs[i].value).meta) result.dtypes[name] = meta->dtype;
    (i < positional ? result.positional : result.keywords).push_back(name);
  }
  result.loss_output = graph.output_paths()[loss_leaf(graph, options.loss_output)];
  result.model = std::move(model);
  return result;
}

}  // namespace penstock::train
