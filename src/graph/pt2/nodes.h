// Converts the nodes of an archive's graphs to graph nodes. Inlines regions that have their own mode.
#pragma once

#include "base/io/json_reader.h"

#include <penstock/graph/ir.h>

#include <map>
#include <set>
#include <string>

namespace penstock::graph {

class Pt2Nodes {
 public:
  explicit Pt2Nodes(Graph& graph) : graph_(graph) {}

  //! The names of one archive graph, mapped to arguments of our graph.
  struct Scope {
    const JsonValue* graph = nullptr;
    std::map<std::string, Arg> names;
    NodeMode mode;
    int depth = 0;
  };

  //! Defines a new value in the scope, with its metadata from the archive.
  ValueId define(Scope& scope, const std::string& name, ValueType type, const std::string& where);
  void bind(Scope& scope, const std::string& name, Arg arg, const std::string& where);
  void read_nodes(Scope& scope, const std::string& where);

  //! Reads an argument: a constant, a name or a list of names.
  Arg read_arg(const Scope& scope, const JsonValue& arg, const std::string& where) const;
  const Arg& lookup(const Scope& scope, const std::string& name, const std::string& where) const;

 private:
  void read_node(Scope& scope, const JsonValue& node, const std::string& where);
  void read_operator(Scope& scope, const JsonValue& json, Node node, const std::string& where);
  void read_scalar(Scope& scope, const JsonValue& json, Node node, const std::string& where);
  void read_region(Scope& scope, const JsonValue& json, const std::string& target, const std::string& module,
                   const std::string& where);
  Result read_result(Scope& scope, const JsonValue& output, bool is_list, const std::string& where);

  Graph& graph_;
  std::set<std::string> used_names_;
  int next_region_ = 1;
};

}  // namespace penstock::graph
