// Value trees: what a stage takes and gives is a c10::IValue of tensors, numbers, text, None and nested
// lists, tuples and dicts. Here a tree is taken apart into leaves and a structure, and put together again.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace penstock {

//! What libtorch calls the element type of a list or the value type of a dict, as far as trees keep it.
enum class ElementKind : std::uint8_t { Any, Tensor, Int, Double, Bool, String };

using DictKey = std::variant<std::int64_t, std::string>;

//! The shape of a tree without its leaves: comparable, printable, and serialisable (serialize.h). Everything
//! that is no list, tuple or dict is a leaf, None too. Dicts keep the order in which their keys were
//! inserted.
struct Structure {
  enum class Kind : std::uint8_t { Leaf, List, Tuple, Dict };

  Kind kind = Kind::Leaf;
  ElementKind element = ElementKind::Any;  //!< of lists and dicts
  std::vector<DictKey> keys;               //!< of dicts, one for each child
  std::vector<Structure> children;

  std::size_t num_leaves() const;

  //! For example `([*, *], {mask: *})`.
  std::string text() const;

  //! The place of every leaf, in the order of the leaves: `args[0].mask` for the root `args`.
  std::vector<std::string> paths(const std::string& root) const;

  friend bool operator==(const Structure&, const Structure&) = default;
};

struct FlatTree {
  std::vector<c10::IValue> leaves;
  Structure structure;
};

//! Takes a tree apart, leaves in depth-first order. Dict keys must be integers or strings (UsageError).
FlatTree flatten(const c10::IValue& tree);

//! The inverse; UsageError unless there are as many leaves as the structure has. Lists whose leaves no longer
//! fit their element type become lists of anything.
c10::IValue unflatten(const std::vector<c10::IValue>& leaves, const Structure& structure);

//! The tree with every leaf replaced by `function(leaf)`.
c10::IValue map_leaves(const c10::IValue& tree,
                       const std::function<c10::IValue(const c10::IValue&)>& function);

//! The tree with every defined tensor replaced by `function(tensor)`.
c10::IValue map_tensors(const c10::IValue& tree,
                        const std::function<at::Tensor(const at::Tensor&)>& function);

//! The defined tensors of the tree, in the order of the leaves.
std::vector<at::Tensor> tensors_of(const c10::IValue& tree);

//! Whether two leaves are the same value: tensors of equal metadata and elements, other values of equal type
//! and value.
bool leaves_equal(const c10::IValue& a, const c10::IValue& b);

//! What kind of value this is, for messages: `tensor`, `int`, `None`, `dict`, …
std::string kind_text(const c10::IValue& value);

//! The leaves of a tree of arguments.
std::vector<c10::IValue> flatten_args(const c10::IValue& args);

struct DetachedArgs {
  c10::IValue args;                 //!< the tree, its tensors detached
  std::vector<c10::IValue> leaves;  //!< the same detached tensors (not copies), and the other leaves
};

//! Cuts the arguments off the graph that made them; detached tensors keep their `requires_grad`.
DetachedArgs flatten_args_detach(const c10::IValue& args);

}  // namespace penstock
