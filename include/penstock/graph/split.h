// Cuts a graph into stage graphs: a pure function. Which values cross a cut, and where each stage input comes
// from, is part of the answer.
#pragma once

#include <penstock/graph/ir.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

namespace penstock {

//! A stage input that the user passes: a leaf of the whole graph's inputs.
struct FromUser {
  int input = 0;
  friend bool operator==(const FromUser&, const FromUser&) = default;
};

//! A stage input that another stage makes.
struct FromStage {
  int stage = 0;
  int output = 0;  //!< of that stage
  friend bool operator==(const FromStage&, const FromStage&) = default;
};

using InputSource = std::variant<FromUser, FromStage>;

struct StageGraph {
  Graph graph;  //!< inputs are flat; so are outputs, but the last stage's are the whole's
  std::vector<InputSource> sources;  //!< of `graph.inputs`
  std::vector<int> slots;            //!< of `graph.slots`: their places in the whole's
};

//! A tensor that several stages hold a copy of. Gradients of parameters are to be summed over them.
struct SharedSlot {
  std::vector<std::string> names;
  std::vector<int> stages;
  bool is_parameter = true;
};

struct SplitGraph {
  std::vector<StageGraph> stages;
  std::vector<SharedSlot> shared;

  //! The table of stage inputs: which stage takes what from whom.
  std::string table() const;
};

//! What becomes of a parameter that several stages read: the first of them sends it along with every
//! microbatch and gets its gradient back, or each holds a copy and the runtime sums the gradients.
enum class MultiUseParameterConfig { Transmit, Replicate };

struct MultiUseParamSpec {
  MultiUseParameterConfig usual = MultiUseParameterConfig::Replicate;
  std::map<std::string, MultiUseParameterConfig> by_name{};  //!< by any of a parameter's names
};

//! Where stages begin: node indices, ascending; a stage may not be empty. Stage 0 begins at node 0.
using Cuts = std::vector<std::size_t>;

//! Outputs of the whole that earlier stages make are sent to the last one. Sizes and
//! `recomputed_values` are computed again where they are needed rather than sent. Splits before each of the
//! nodes `cuts`. UsageError names operator and module where a later stage writes memory that an
//! earlier one made, or that another stage reads.
SplitGraph split_graph(const Graph& graph, const Cuts& cuts, const MultiUseParamSpec& multi_use = {});

//! For each value, whether the stages that read it compute it again instead of getting it sent: what depends
//! on constants only (positions, masks), and views of weights, so that no weight crosses a cut in disguise.
std::vector<bool> recomputed_values(const Graph& graph);

//! Why the graph cannot be cut before this node; empty if it can.
std::string why_not_cut(const Graph& graph, std::size_t node);

//! The nodes before which the graph can be cut and that have work on both sides, ascending.
Cuts legal_cuts(const Graph& graph);

enum class SplitPoint { Beginning, End };

//! At the marks of `pipe_split()`; marks with nothing before or after them do not count.
Cuts cuts_at_marks(const Graph& graph);

//! Before the first or after the last node of each call of these modules; `block@1` names the second call
//! only. Calls are known where the model was imported or has `ModuleScope` guards; else a module has one
//! beginning and one end. UsageError if a path names no module that ran.
Cuts cuts_at_modules(const Graph& graph, const std::map<std::string, SplitPoint>& points);

//! The graph with `pipe_split` marks at these points, so that `cuts_at_marks` finds them beside those that it
//! had. A point that has its mark already gets no second one.
Graph annotate_split_points(const Graph& graph, const std::map<std::string, SplitPoint>& points);

//! The module paths that ran, in order of first appearance, parents included.
std::vector<std::string> module_paths(const Graph& graph);

}  // namespace penstock
