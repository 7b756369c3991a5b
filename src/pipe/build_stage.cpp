// Adapts stage graphs to the runtime's StageModule interface and derives the pipeline options of a split.
#include "base/text.h"
#include "pipe/recomputed_graph.h"

#include <penstock/base/error.h>
#include <penstock/pipe/pipe.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::pipe {
namespace {

using c10::IValue;

//! A leaf of the model's arguments: of the positional arguments, or of one keyword argument.
struct UserLeaf {
  std::string keyword;  //!< empty for positional arguments
  std::size_t leaf = 0;
};

//! The source of a stage input when the runtime calls the stage.
struct Received {
  std::size_t position = 0;
};
struct Skipped {
  std::string name;
};
using Feed = std::variant<UserLeaf, Received, Skipped>;

//! A value that a stage passes on: one of its outputs, or a positional argument of the model that a later
//! stage reads.
struct Passed {
  std::optional<int> output;
  std::size_t user_leaf = 0;
};

std::vector<UserLeaf> user_leaves(const graph::Graph& graph) {
  std::vector<UserLeaf> leaves;
  if (graph.input_structure.children.size() != 2) return leaves;
  const value::Structure& args = graph.input_structure.children[0];
  const value::Structure& kwargs = graph.input_structure.children[1];
  for (std::size_t i = 0; i < args.num_leaves(); ++i) leaves.push_back({"", i});
  for (std::size_t k = 0; k < kwargs.children.size(); ++k) {
    const auto* name = std::get_if<std::string>(&kwargs.keys[k]);
    for (std::size_t i = 0; i < kwargs.children[k].num_leaves(); ++i)
      leaves.push_back({name ? *name : "", i});
  }
  return leaves;
}

//! All keyword arguments of the model, including those that no node reads.
std::set<std::string> model_keywords(const graph::Graph& graph) {
  std::set<std::string> names;
  if (graph.input_structure.children.size() != 2) return names;
  for (const auto& key : graph.input_structure.children[1].keys)
    if (const auto* name = std::get_if<std::string>(&key)) names.insert(*name);
  return names;
}

std::string skip_name(const graph::FromStage& from) {
  return str_cat("skip_", from.stage.value, "_", from.output);
}

//! How the stages of a split are connected.
struct StageLinks {
  std::vector<std::vector<Feed>> feeds;   //!< per stage: the sources of its inputs
  std::vector<std::vector<Passed>> next;  //!< per stage: values for the next stage
  std::vector<std::vector<std::pair<std::string, Passed>>> sideways;  //!< per stage: skip values by name
  std::vector<runtime::SkipValue> skips;

  StageLinks(const graph::Graph& graph, const graph::SplitGraph& split)
      : feeds(split.stages.size()), next(split.stages.size()), sideways(split.stages.size()) {
    const std::vector<UserLeaf> leaves = user_leaves(graph);
    for (std::size_t s = 0; s < split.stages.size(); ++s) {
      for (const graph::InputSource& source : split.stages[s].sources) {
        if (const auto* user = std::get_if<graph::FromUser>(&source)) {
          const UserLeaf& leaf = leaves.at(static_cast<std::size_t>(user->input));
          if (s == 0 || !leaf.keyword.empty()) {
            feeds[s].emplace_back(leaf);
          } else {
            pass(0, s, str_cat("input_", leaf.leaf), {std::nullopt, leaf.leaf});
          }
        } else {
          const auto& from = std::get<graph::FromStage>(source);
          pass(from.stage.index(), s, skip_name(from), {from.output, 0});
        }
      }
    }
  }

 private:
  void pass(std::size_t from, std::size_t to, const std::string& name, const Passed& what) {
    if (from + 1 == to) {
      feeds[to].emplace_back(Received{next[from].size()});
      next[from].push_back(what);
      return;
    }
    feeds[to].emplace_back(Skipped{name});
    skips.push_back({name, StageId(static_cast<std::int64_t>(from)), StageId(static_cast<std::int64_t>(to))});
    auto& given = sideways[from];
    const bool known =
        std::any_of(given.begin(), given.end(), [&](const auto& item) { return item.first == name; });
    if (!known) given.emplace_back(name, what);
  }
};

//! Stacks a scalar output of all microbatches into one tensor.
c10::IValue stacked(const std::vector<IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const IValue& value : values) tensors.push_back(value.toTensor());
  return at::stack(tensors);
}

bool is_one_number(const graph::Graph& graph, const graph::Arg& leaf) {
  const graph::ValueId* id = leaf.value();
  const graph::Value* value = id ? &graph.value(*id) : nullptr;
  return value && value->type == graph::ValueType::Tensor && value->meta && value->meta->sizes.empty();
}

//! The number of rows of the graph: dim 0 of its first tensor input.
const graph::Dim* batch_of(const graph::Graph& graph) {
  for (const graph::GraphInput& input : graph.inputs) {
    const auto& meta = graph.value(input.value).meta;
    if (!input.constant && meta && !meta->sizes.empty()) return &meta->sizes[0];
  }
  return nullptr;
}

//! The dim along which an output is concatenated: the first one that grows with the batch, usually 0. Returns
//! nullopt if the output is the same for every microbatch.
std::optional<std::int64_t> batch_dim(const graph::Graph& graph, const graph::ValueMeta& meta) {
  const graph::Dim* batch = batch_of(graph);
  if (!batch) return 0;
  const auto grows = [&](const graph::Dim& dim) {
    if (batch->expression.empty()) return dim.size == batch->size;
    return dim.expression.find(batch->expression) != std::string::npos;
  };
  const auto found = std::find_if(meta.sizes.begin(), meta.sizes.end(), grows);
  if (found != meta.sizes.end()) return found - meta.sizes.begin();
  return batch->expression.empty() ? std::optional<std::int64_t>(0) : std::nullopt;
}

value::ChunkSpec spec_of(const graph::Graph& graph, const value::Structure& structure, std::size_t& leaf) {
  switch (structure.kind) {
    case value::Structure::Kind::Leaf: {
      const graph::Arg& output = graph.outputs[leaf++];
      if (is_one_number(graph, output)) return value::Reducer{stacked};
      const graph::ValueId* id = output.value();
      if (!id || graph.value(*id).type != graph::ValueType::Tensor) return value::Replicate{};
      const auto& meta = graph.value(*id).meta;
      const auto dim = meta ? batch_dim(graph, *meta) : std::optional<std::int64_t>(0);
      return dim ? value::ChunkSpec(value::TensorChunkSpec{*dim}) : value::ChunkSpec(value::Replicate{});
    }
    case value::Structure::Kind::List:
    case value::Structure::Kind::Tuple: {
      value::ChunkSpec::Items items;
      for (const value::Structure& child : structure.children) items.push_back(spec_of(graph, child, leaf));
      return items;
    }
    case value::Structure::Kind::Dict: {
      value::ChunkSpec::Entries entries;
      for (std::size_t i = 0; i < structure.children.size(); ++i) {
        value::ChunkSpec spec = spec_of(graph, structure.children[i], leaf);
        // Chunk specs support only string keys; dicts with integer keys are concatenated along dim 0.
        const auto* name = std::get_if<std::string>(&structure.keys[i]);
        if (!name) return value::TensorChunkSpec{};
        entries.emplace(*name, std::move(spec));
      }
      return entries;
    }
  }
  return value::Replicate{};
}

//! How the outputs of microbatches are merged.
value::ChunkSpec output_spec(const graph::Graph& graph) {
  std::size_t leaf = 0;
  return spec_of(graph, graph.output_structure, leaf);
}

class PipeStage : public runtime::StageModule {
 public:
  PipeStage(std::shared_ptr<graph::GraphModule> module, const StageLinks& links, std::size_t stage,
            value::Structure args, std::set<std::string> keywords, std::string size_hint,
            const std::vector<std::string>& recomputed)
      : module_(std::move(module)),
        recomputed_(module_, recomputed),
        size_hint_(std::move(size_hint)),
        feeds_(links.feeds[stage]),
        next_(links.next[stage]),
        sideways_(links.sideways[stage]),
        args_(std::move(args)),
        first_(stage == 0),
        last_(stage + 1 == links.feeds.size()) {
    // The first stage accepts all keyword arguments of the model, including those that no stage reads.
    if (first_) keywords_ = std::move(keywords);
    for (const Feed& feed : feeds_) {
      if (const auto* user = std::get_if<UserLeaf>(&feed); user && !user->keyword.empty())
        keywords_.insert(user->keyword);
      if (const auto* skip = std::get_if<Skipped>(&feed)) keywords_.insert(skip->name);
    }
  }

  runtime::StageResult forward(const value::Args& args, const value::Kwargs& kwargs) override {
    std::vector<IValue> user;
    if (first_) {
      value::FlatTree flat = value::flatten(c10::ivalue::Tuple::create(args));
      if (to_string(flat.structure) != to_string(args_)) {
        throw UsageError("the arguments are " + to_string(flat.structure) + ", but the model takes " +
                         to_string(args_));
      }
      user = std::move(flat.leaves);
    }
    std::vector<IValue> inputs;
    for (const Feed& feed : feeds_) inputs.push_back(input(feed, user, args, kwargs));
    check_inputs(module_->graph(), inputs, size_hint_, float_dtypes_);
    const bool recomputes = recomputed_.any() && module_->is_training() && at::GradMode::is_enabled();
    std::vector<IValue> outputs = recomputes ? recomputed_.run(inputs) : module_->run(std::move(inputs));
    runtime::StageResult result;
    const auto passed = [&](const Passed& what) {
      return what.output ? outputs[static_cast<std::size_t>(*what.output)] : user.at(what.user_leaf);
    };
    for (const auto& [name, what] : sideways_) result.skips.emplace(name, passed(what));
    if (last_) {
      result.output = unflatten(outputs, module_->graph().output_structure);
      return result;
    }
    std::vector<IValue> next;
    for (const Passed& what : next_) next.push_back(passed(what));
    result.output = c10::ivalue::Tuple::create(std::move(next));
    return result;
  }

  std::vector<value::NamedTensor> parameters() const override { return module_->named_parameters(); }
  std::vector<value::NamedTensor> buffers() const override { return module_->named_buffers(); }

  void to(at::Device device) override { module_->to(device); }
  void train(bool on) override { module_->train(on); }
  bool is_training() const override { return module_->is_training(); }

  std::optional<std::set<std::string>> keywords() const override { return keywords_; }
  bool accumulates_repeatedly() const override { return recomputed_.shares_parameters(); }
  void allow_other_float_dtypes() override { float_dtypes_ = graph::FloatDtypes::Any; }

 private:
  static const IValue& keyword(const value::Kwargs& kwargs, const std::string& name) {
    const auto it = kwargs.find(name);
    if (it == kwargs.end()) throw UsageError("the keyword argument " + quote(name) + " is missing");
    return it->second;
  }

  static IValue input(const Feed& feed, const std::vector<IValue>& user, const value::Args& args,
                      const value::Kwargs& kwargs) {
    if (const auto* received = std::get_if<Received>(&feed)) return args.at(received->position);
    if (const auto* skipped = std::get_if<Skipped>(&feed)) return keyword(kwargs, skipped->name);
    const auto& leaf = std::get<UserLeaf>(feed);
    if (leaf.keyword.empty()) return user.at(leaf.leaf);
    const std::vector<IValue> leaves = value::flatten(keyword(kwargs, leaf.keyword)).leaves;
    if (leaf.leaf >= leaves.size())
      throw UsageError("the keyword argument " + quote(leaf.keyword) +
                       " has fewer values than when the model was captured or exported");
    return leaves[leaf.leaf];
  }

  std::shared_ptr<graph::GraphModule> module_;  // shared with the Pipe
  RecomputedGraph recomputed_;
  std::string size_hint_;
  std::vector<Feed> feeds_;
  std::vector<Passed> next_;
  std::vector<std::pair<std::string, Passed>> sideways_;
  value::Structure args_;
  std::set<std::string> keywords_;
  bool first_, last_;
  graph::FloatDtypes float_dtypes_ = graph::FloatDtypes::AsRecorded;
};

}  // namespace

std::shared_ptr<runtime::StageModule> Pipe::make_stage_module(StageId stage,
                                                              const std::vector<std::string>& recomputed) {
  const value::Structure args = graph_.input_structure.children.empty()
                                    ? value::Structure{.kind = value::Structure::Kind::Tuple}
                                    : graph_.input_structure.children[0];
  return std::make_shared<PipeStage>(stage_module(stage), StageLinks(graph_, split_), stage.index(), args,
                                     model_keywords(graph_), size_hint_, recomputed);
}

runtime::PipelineStage Pipe::build_stage(StageId stage, at::Device device, const comm::Group& group,
                                         runtime::StageOptions options) {
  return {make_stage_module(stage), stage, num_stages(), device, group, std::move(options)};
}

std::vector<runtime::SkipValue> Pipe::skips() const {
  return StageLinks(graph_, split_).skips;
}

std::vector<runtime::SharedParameter> Pipe::shared() const {
  std::vector<runtime::SharedParameter> shared;
  for (const graph::SharedSlot& slot : split_.shared) {
    if (!slot.is_parameter) continue;
    runtime::SharedParameter locations;
    for (const StageId stage : slot.stages) locations.push_back({stage, slot.names[0]});
    shared.push_back(std::move(locations));
  }
  return shared;
}

runtime::PipelineOptions Pipe::pipeline_options(runtime::PipelineOptions options) const {
  options.skips = skips();
  options.shared = shared();
  if (!options.output_spec) options.output_spec = output_spec(graph_);
  if (!options_.loss_output || options.loss) return options;
  const std::vector<std::string> paths = graph_.output_paths();
  const auto index = std::find(paths.begin(), paths.end(), *options_.loss_output) - paths.begin();
  options.loss_needs_target = false;
  options.loss = [index](const IValue& output, const IValue&, const value::Kwargs&) {
    return value::flatten(output).leaves[static_cast<std::size_t>(index)].toTensor();
  };
  return options;
}

}  // namespace penstock::pipe
