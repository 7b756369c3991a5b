// Implements the model interface for exported models.
#include "base/text.h"
#include "graph/passes/passes.h"
#include "parallel/graph/require_parallel_plan.h"
#include "pipe/recomputed_graph.h"
#include "train/lora/graph_adapters.h"
#include "train/model/archive_loss.h"
#include "train/model/own_loss.h"
#include "train/model/recomputed_modules.h"
#include "train/model/tensor_parallel_stage.h"

#include <penstock/base/error.h>
#include <penstock/graph/pt2.h>
#include <penstock/train/model.h>
#include <penstock/value/tree.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::train {
namespace {

// Returns the index of the output that the loss reads: the named one, else `logits` or, if the model computes
// it, `loss`, else the first.
std::size_t loss_leaf(const graph::Graph& graph, const ArchiveOptions& options) {
  const std::optional<std::string>& wanted = options.loss_output;
  const std::vector<std::string> paths = graph.output_paths();
  const auto index_of = [&](const std::string& name) {
    const auto it = std::find_if(paths.begin(), paths.end(), [&](const std::string& path) {
      return path == name || path == "output." + name;
    });
    return static_cast<std::size_t>(it - paths.begin());
  };
  if (wanted) {
    if (index_of(*wanted) < paths.size()) return index_of(*wanted);
    throw UsageError("the model has no output " + quote(*wanted), {}, "its outputs are " + join(paths, ", "));
  }
  const std::size_t usual = index_of(options.computes_loss ? "loss" : "logits");
  return usual < paths.size() ? usual : 0;
}

// What a model and its splits share.
struct Archive {
  ArchiveOptions options;
  std::shared_ptr<const graph::Pt2Archive> file;
  std::shared_ptr<const graph::Graph> original{};  // without adapters, in the dtype of the options
  std::set<at::ScalarType> converts{};             // the dtypes that are converted to it
  std::optional<LabelInput> labels{};              // of a loss that the model computes as a mean over them
  std::shared_ptr<const AdaptedGraph> adapted{};   // null without LoRA

  const graph::Graph& graph() const { return adapted ? adapted->graph : *original; }
  const Lora* lora() const { return adapted ? &adapted->lora : nullptr; }
  bool is_adapter(const std::string& name) const { return adapted && adapted->is_adapter(name); }

  void set_original() {
    original = {file, &file->graph()};
    if (!options.dtype) return;
    converts = reduced_parameter_dtypes(*original);
    converts.erase(*options.dtype);
    for (const at::ScalarType from : converts)
      original = std::make_shared<const graph::Graph>(convert_dtype(*original, from, *options.dtype));
    // The checksum of the base is that of the archive.
    if (options.lora && !converts.empty())
      throw UsageError("the dtype of a model with LoRA cannot be converted", {},
                       "leave the dtype out, or export the model in that dtype");
  }

  // Reads the tensors of the archive.
  std::vector<at::Tensor> read(const std::vector<graph::Slot>& slots) const {
    std::vector<at::Tensor> tensors = file->load(slots);
    for (at::Tensor& tensor : tensors)
      if (converts.contains(tensor.scalar_type()))
        tensor = tensor.detach().to(*options.dtype).set_requires_grad(tensor.requires_grad());
    return tensors;
  }

  // The same, and makes the tensors of adapters.
  std::vector<at::Tensor> load(const std::vector<graph::Slot>& slots) const {
    if (!adapted) return read(slots);
    std::vector<graph::Slot> stored;
    for (const graph::Slot& slot : slots)
      if (!is_adapter(slot.names[0])) stored.push_back(slot);
    std::vector<at::Tensor> base = read(stored), tensors;
    auto next = base.begin();
    for (const graph::Slot& slot : slots)
      tensors.push_back(is_adapter(slot.names[0]) ? adapted->initial_value(slot.names[0])
                                                  : (next++)->set_requires_grad(false));
    return tensors;
  }

  pipe::Pipe pipe(const pipe::SplitSpec& spec, const std::vector<c10::IValue>& example = {}) const {
    const pipe::TensorSource source = [self = *this](const std::vector<graph::Slot>& slots) {
      return self.load(slots);
    };
    return {graph(), source, spec, {}, example};
  }
};

bool is_in_state(const graph::Slot& slot) {
  return slot.kind == graph::Slot::Kind::Parameter ||
         (slot.kind == graph::Slot::Kind::Buffer && slot.persistent);
}

checkpoint::PieceKind piece_kind(const graph::Slot& slot) {
  return slot.kind == graph::Slot::Kind::Parameter ? checkpoint::PieceKind::Parameter
                                                   : checkpoint::PieceKind::Buffer;
}

class StagedArchive : public StagedModel {
 public:
  StagedArchive(std::shared_ptr<const Archive> archive, const ModelSplit& split)
      : archive_(std::move(archive)),
        pipe_(archive_->pipe(pipe::SplitPolicy([&](const graph::Graph&) { return split.positions; }))) {}

  std::shared_ptr<runtime::StageModule> stage(StageId stage,
                                              const std::optional<comm::Group>& tensor_group) override {
    if (!built_.insert(stage).second)
      throw UsageError(str_cat("stage ", stage.value, " was already built"), {},
                       "split the model again to build another copy");
    if (tensor_group) {
      check_tensor_ranks(tensor_group->size());
      shard_graph_stage(*pipe_.stage_module(stage), plan_for(tensor_group->size()), shared(), *tensor_group);
    }
    return pipe_.make_stage_module(stage, recomputed_);
  }

  void recompute_modules(const std::vector<std::string>& patterns) override {
    recomputed_ = recomputed_modules(patterns, module_paths(pipe_.graph()));
    for (int s = 0; s < pipe_.num_stages(); ++s)
      pipe::check_recomputed_pieces(pipe_.stage_graph(StageId(s)), recomputed_);
  }

  void check_tensor_ranks(int ranks) const override {
    parallel::check_paths(pipe_.graph(), archive_->options.tensor_plan);
    check_not_shared(pipe_.graph(), plan_for(ranks), shared());
  }

  std::vector<std::string> sharding_messages(int ranks) const override {
    std::vector<std::string> messages;
    if (ranks == 1 || !archive_->options.tensor_plan.empty()) return messages;
    const parallel::FoundPlan found = find_plan(ranks);
    for (const std::string& pair : found.pairs)
      messages.push_back("sharded over tensor-parallel ranks: " + pair);
    for (const std::string& layer : found.not_sharded)
      messages.push_back("replicated on every rank: " + layer);
    return messages;
  }

  std::vector<runtime::SkipValue> skips() const override { return pipe_.skips(); }
  std::vector<runtime::SharedParameter> shared() const override { return pipe_.shared(); }

  ModelState state() const override {
    std::set<std::string> used;
    for (int s = 0; s < pipe_.num_stages(); ++s)
      for (const graph::Slot& slot : pipe_.stage_graph(StageId(s)).slots)
        used.insert(slot.names.begin(), slot.names.end());
    ModelState state;
    std::vector<graph::Slot> unused;
    for (const graph::Slot& slot : pipe_.graph().slots) {
      if (slot.kind == graph::Slot::Kind::Constant) continue;
      if (!is_in_state(slot)) {
        state.transient.insert(slot.names.begin(), slot.names.end());
        continue;
      }
      if (slot.names.size() > 1) state.aliases[slot.names[0]] = {slot.names.begin() + 1, slot.names.end()};
      if (!used.contains(slot.names[0])) unused.push_back(slot);
    }
    const std::vector<std::string> changing = updated_buffers(pipe_.graph());
    state.changing_buffers.emplace(changing.begin(), changing.end());
    add_adapter_names(state);
    const std::vector<at::Tensor> tensors = archive_->read(unused);
    for (std::size_t i = 0; i < unused.size(); ++i)
      state.unused.push_back(full_piece(unused[i].names[0], tensors[i].detach(), piece_kind(unused[i])));
    return state;
  }

 private:
  // Checkpoints of adapters leave out the base, except buffers that the run changes.
  void add_adapter_names(ModelState& state) const {
    if (archive_->lora() == nullptr) return;
    for (const graph::Slot& slot : pipe_.graph().slots)
      if (is_in_state(slot))
        (archive_->is_adapter(slot.names[0]) ? state.adapters : state.base).insert(slot.names[0]);
    for (const std::string& name : *state.changing_buffers) state.base.erase(name);
  }

  // The layers of the model decide, not their adapters.
  parallel::FoundPlan find_plan(int ranks) const {
    return parallel::require_parallel_plan(archive_->file->graph(), ranks,
                                           "use 1 tensor-parallel rank, or give a tensor-parallel plan");
  }
  parallel::ParallelPlan plan_for(int ranks) const {
    const parallel::ParallelPlan& given = archive_->options.tensor_plan;
    parallel::ParallelPlan plan = given.empty() ? find_plan(ranks).plan : given;
    return archive_->lora() == nullptr ? plan : adapted_plan(std::move(plan), *archive_->lora());
  }

  std::shared_ptr<const Archive> archive_;
  pipe::Pipe pipe_;
  std::vector<std::string> recomputed_;  // paths of modules
  std::set<StageId> built_;
};

class ArchivedModel : public Model {
 public:
  explicit ArchivedModel(Archive archive) : archive_(std::make_shared<Archive>(std::move(archive))) {}

  std::string summary() const override {
    const graph::Graph& original = archive_->file->graph();
    std::int64_t count = 0;
    for (const graph::Slot& slot : original.slots) {
      const auto& meta = original.value(slot.value).meta;
      if (slot.kind == graph::Slot::Kind::Parameter && meta) count += meta->numel();
    }
    return str_cat(options().file.filename().string(), ", ", original.nodes.size(), " operators, ", count,
                   " parameters", lora() == nullptr ? "" : "; " + to_string(*lora()));
  }

  ModelSplit split(int stages) const override {
    if (has_given_split()) return split_at_points(stages);
    if (stages == 1) return {};
    // Measured times differ between ranks. Estimated costs replace them where ranks do not communicate.
    const pipe::BalanceBy by =
        options().balance == pipe::BalanceBy::MeasuredTime ? pipe::BalanceBy::Flops : options().balance;
    return {archive_->pipe(pipe::Balanced{stages, by}).split_positions()};
  }

  bool has_given_split() const override { return !options().split.empty() || !options().positions.empty(); }

  std::optional<ModelSplit> measured_split(int stages, const Batch& microbatch) const override {
    if (options().balance != pipe::BalanceBy::MeasuredTime) return std::nullopt;
    const std::vector<c10::IValue> example = flatten_inputs(graph(), microbatch.args, microbatch.kwargs);
    return ModelSplit{
        archive_->pipe(pipe::Balanced{stages, pipe::BalanceBy::MeasuredTime}, example).split_positions()};
  }

  std::unique_ptr<StagedModel> split_at(const ModelSplit& split) const override {
    return std::make_unique<StagedArchive>(archive_, split);
  }

  runtime::LossFunction loss() const override {
    const std::size_t leaf = loss_leaf(graph(), options());
    if (options().computes_loss)
      return [leaf](const c10::IValue& output, const c10::IValue&, const value::Kwargs&) {
        return in_float32(value::flatten(output).leaves.at(leaf).toTensor());
      };
    return archive_loss(leaf, options().loss, options().loss_options);
  }

  // Labels of padding rows can be ignored, other rows cannot.
  bool needs_full_batches() const override { return options().computes_loss && !labels(); }

  const Lora* lora() const override { return archive_->lora(); }
  at::Tensor read_base(const std::string& name, std::optional<std::uint64_t> /*seed*/) const override {
    return archive_->file->load(name);
  }

  runtime::LossReduction reduction() const override {
    if (options().computes_loss && !labels()) return runtime::LossReduction::mean();
    if (options().computes_loss) return runtime::LossReduction::mean_over_valid_labels();
    return archive_reduction(options().loss, options().loss_options);
  }

  void check_rows(const std::vector<std::int64_t>& rows) const override {
    for (const graph::GraphInput& input : graph().inputs) {
      const graph::Value& value = graph().value(input.value);
      if (!value.meta || value.meta->sizes.empty() || !value.meta->sizes[0].expression.empty()) continue;
      const std::int64_t fixed = value.meta->sizes[0].size;
      for (const std::int64_t count : rows) {
        if (count == fixed) continue;
        throw UsageError(
            str_cat("the model was exported with a fixed batch of ", fixed, " (input ", quote(value.name),
                    "), but the run has microbatches of ", count, " examples"),
            {},
            str_cat("choose batch and microbatches so that each microbatch has exactly ", fixed,
                    " examples, or export with a dynamic batch dim"));
      }
    }
  }

  std::vector<checkpoint::Piece> state_metadata() const override {
    std::vector<checkpoint::Piece> pieces;
    for (const graph::Slot& slot : graph().slots) {
      if (!is_in_state(slot)) continue;
      const auto& meta = graph().value(slot.value).meta;
      if (!meta) return {};
      std::vector<std::int64_t> sizes;
      for (const graph::Dim& dim : meta->sizes) sizes.push_back(dim.size);
      const bool parameter = slot.kind == graph::Slot::Kind::Parameter;
      const at::Tensor tensor = at::empty(sizes, at::TensorOptions(meta->dtype).device(at::kMeta));
      pieces.push_back(full_piece(slot.names[0], tensor.set_requires_grad(parameter && slot.requires_grad),
                                  piece_kind(slot)));
      pieces.back().aliases = {slot.names.begin() + 1, slot.names.end()};
    }
    return pieces;
  }

 private:
  const ArchiveOptions& options() const { return archive_->options; }
  const graph::Graph& graph() const { return archive_->graph(); }
  const std::optional<LabelInput>& labels() const { return archive_->labels; }

  ModelSplit split_at_points(int stages) const {
    const auto given = pipe::SplitPolicy([&](const graph::Graph&) { return options().positions; });
    const pipe::SplitSpec spec = options().positions.empty() ? pipe::SplitSpec(options().split) : given;
    const ModelSplit split{archive_->pipe(spec).split_positions()};
    if (split.num_stages() == stages) return split;
    throw UsageError(
        str_cat("the split points make ", split.num_stages(), " stages, but the schedule needs ", stages), {},
        str_cat("give ", stages - 1, (stages == 2 ? " split point" : " split points"),
                ", or none to balance the stages automatically"));
  }

  std::shared_ptr<const Archive> archive_;
};

// The classes of an output, if the archive fixes their number. Throws UsageError if it has no such dim.
std::optional<std::int64_t> classes_of_output(const graph::Graph& graph, std::size_t leaf,
                                              std::optional<std::int64_t> class_dim) {
  const graph::ValueId* const id = graph.outputs.at(leaf).value();
  if (id == nullptr || !graph.value(*id).meta || graph.value(*id).meta->sizes.empty()) return std::nullopt;
  const std::vector<graph::Dim>& sizes = graph.value(*id).meta->sizes;
  const auto dims = static_cast<std::int64_t>(sizes.size());
  if (class_dim.value_or(0) >= dims)
    throw UsageError(str_cat("class_dim is ", *class_dim, ", but the output ",
                             quote(graph.output_paths()[leaf]), " has only ", counted(dims, "dim")),
                     {}, "count the dims from 0, which is that of the examples");
  const graph::Dim& dim = sizes[static_cast<std::size_t>(class_dim.value_or(dims - 1))];
  return dim.expression.empty() ? std::optional(dim.size) : std::nullopt;
}

// Only tensors at the top level of the arguments have names; tensors in trees do not.
void check_flat(const value::Structure& structure) {
  for (const value::Structure& child : structure.children) {
    if (child.num_leaves() != 1 || !child.children.empty())
      throw UsageError("the model takes trees of tensors as arguments, which a data file cannot contain", {},
                       "export a model whose arguments are tensors");
  }
}

void check_loss_output(const graph::Graph& graph, std::size_t leaf) {
  const graph::ValueId* const id = graph.outputs.at(leaf).value();
  const auto& meta = id ? graph.value(*id).meta : std::nullopt;
  if (meta && meta->sizes.empty() && at::isFloatingType(meta->dtype)) return;
  throw UsageError("the model computes its own loss, but the output " + quote(graph.output_paths()[leaf]) +
                       " is not a scalar",
                   {}, "name the output that is the loss, or store the labels as 'target'");
}

}  // namespace

ArchiveModel archive_model(const ArchiveOptions& options) {
  ArchiveModel result;
  result.archive = std::make_shared<const graph::Pt2Archive>(options.file.string());
  Archive shared{options, result.archive};
  shared.set_original();
  const graph::Graph& graph = *shared.original;
  std::size_t positional = graph.inputs.size();
  if (graph.input_structure.children.size() == 2) {
    check_flat(graph.input_structure.children[0]);
    check_flat(graph.input_structure.children[1]);
    positional = graph.input_structure.children[0].num_leaves();
  }
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const std::string& name = graph.value(graph.inputs[i].value).name;
    if (graph.inputs[i].constant) result.constants[name] = *graph.inputs[i].constant;
    if (const auto& meta = graph.value(graph.inputs[i].value).meta) result.dtypes[name] = meta->dtype;
    (i < positional ? result.positional : result.keywords).push_back(name);
  }
  const std::size_t leaf = loss_leaf(graph, options);
  if (options.computes_loss)
    check_loss_output(graph, leaf);
  else
    check_loss_options(options.loss, options.loss_options,
                       classes_of_output(graph, leaf, options.loss_options.class_dim));
  result.loss_output = graph.output_paths()[leaf];
  result.computes_loss = options.computes_loss;
  if (options.computes_loss) {
    const OwnLoss own = resolve_own_loss(graph, options.loss_mean, options.labels);
    result.loss_mean = own.mean;
    result.labels = shared.labels = own.labels;
  }
  if (options.lora) shared.adapted = std::make_shared<const AdaptedGraph>(add_adapters(graph, *options.lora));
  result.graph = options.lora ? std::shared_ptr<const graph::Graph>(shared.adapted, &shared.adapted->graph)
                              : shared.original;
  result.model = std::make_unique<ArchivedModel>(std::move(shared));
  return result;
}

}  // namespace penstock::train
