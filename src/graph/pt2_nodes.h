// Turns the nodes of an archive's graphs into nodes of ours; regions with a mode of their own are inlined.
#pragma once

#include "base/io/json_reader.h"

#include <penstock/graph/ir.h>

#include <map>
#include <set>
#include <string>

namespace penstock {

class Pt2Nodes {
 public:
  explicit Pt2Nodes(Graph& graph) : graph_(graph) {}

  //! The names of one graph, each with what it stands for in ours.
  struct Scope {
    const JsonValue* graph = nullptr;
    std::map<std::string, Arg> names;
    NodeMode mode;
    int depth = 0;
  };

  //! A new value of this name in the scope, with what the archive tells of it.
  ValueId define(Scope& scope, const std::string& name, ValueType type, const std::string& where);
  void bind(Scope& scope, const std::string& name, Arg arg, const std::string& where);
  void read_nodes(Scope& scope, const std::string& where);

  //! An argument that is a constant, a name or a list of names.
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

}  // namespace penstock
