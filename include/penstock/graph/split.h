// Splits a graph into stage graphs. The result also lists the values that cross stage boundaries and the
// source of every stage input.
#pragma once

#include <penstock/graph/ir.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace penstock::graph {

//! A stage input that the user passes: a leaf of the inputs of the unsplit graph.
struct FromUser {
  int input = 0;  //!< index of the leaf
  friend bool operator==(const FromUser&, const FromUser&) = default;
};

//! A stage input that another stage produces.
struct FromStage {
  StageId stage;
  int output = 0;  //!< index among the outputs of that stage
  friend bool operator==(const FromStage&, const FromStage&) = default;
};

using InputSource = std::variant<FromUser, FromStage>;

//! The graph of one stage.
struct StageGraph {
  Graph graph;  //!< with flat inputs and outputs; the last stage has the outputs of the unsplit graph
  std::vector<InputSource> sources;  //!< one per input of `graph`
  std::vector<int> slots;            //!< for each slot of `graph`, its index in the unsplit graph
};

//! A tensor that several stages hold a copy of. If it is a parameter, its gradients must be summed over these
//! stages.
struct SharedSlot {
  std::vector<std::string> names;
  std::vector<StageId> stages;
  bool is_parameter = true;
};

//! The graphs of all stages, and the tensors that several stages hold.
struct SplitGraph {
  std::vector<StageGraph> stages;
  std::vector<SharedSlot> shared;

  const StageGraph& stage(StageId id) const { return stages.at(id.index()); }
};

//! A table of the stage inputs and their sources, and of the tensors that several stages hold.
std::string to_string(const SplitGraph& split);

//! How to treat a parameter that several stages read. Transmit: the first of them sends it with every
//! microbatch and receives its gradient. Replicate: each holds a copy and the runtime sums the gradients.
enum class MultiUseParameterConfig { Transmit, Replicate };

//! How to treat each parameter that several stages read.
struct MultiUseParameterSpec {
  MultiUseParameterConfig default_config = MultiUseParameterConfig::Replicate;
  //! Exceptions, by any name of the parameter.
  std::map<std::string, MultiUseParameterConfig> by_name{};
};

//! The node indices at which stages 1, 2, … start, ascending. Stage 0 starts at node 0. No stage is empty.
using SplitPositions = std::vector<std::size_t>;

//! Splits the graph before each node in `positions`. Earlier stages send outputs of the graph to the
//! last stage. Sizes and `recomputed_values` are recomputed by the stages that need them instead of being
//! sent. Throws UsageError, naming operator and module, if a stage writes memory that an earlier stage
//! produced or that another stage reads.
SplitGraph split_graph(const Graph& graph, const SplitPositions& positions,
                       const MultiUseParameterSpec& multi_use = {});

//! For each value, whether the stages that read it recompute it instead of receiving it. True for values that
//! depend only on constants (positions, masks) and for views of weights, which would send the weight itself.
std::vector<bool> recomputed_values(const Graph& graph);

//! Returns why the graph cannot be split before this node; nullopt if it can.
std::optional<std::string> why_not_splittable(const Graph& graph, std::size_t node);

//! Returns the nodes before which the graph can be split with work on both sides, ascending.
SplitPositions legal_split_positions(const Graph& graph);

//! Whether a stage starts before or after a module.
enum class SplitPoint { Beginning, End };

//! Split positions at the marks of `pipe_split()`. Ignores marks with nothing before or after them.
SplitPositions split_at_marks(const Graph& graph);

//! Split positions before the first or after the last node of each call of these modules; `block@1` selects
//! only the second call. Calls are distinguished if the model was imported or has `ModuleScope` guards;
//! otherwise a module has one beginning and one end. Throws UsageError if no node ran in a named module.
SplitPositions split_at_modules(const Graph& graph, const std::map<std::string, SplitPoint>& points);

//! Inserts `pipe_split` marks at these points, in addition to existing marks. Does not duplicate a mark.
Graph annotate_split_points(const Graph& graph, const std::map<std::string, SplitPoint>& points);

//! The paths of all modules that ran, with their parents, in order of first appearance.
std::vector<std::string> module_paths(const Graph& graph);

}  // namespace penstock::graph
