// Value trees: the inputs and outputs of a stage are c10::IValues of tensors, numbers, strings, None and
// nested lists, tuples and dicts. This header flattens a tree into leaves and a structure, and rebuilds it.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace penstock::value {

//! A parameter or buffer with its fully qualified name.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

//! The element type of a list or value type of a dict, as far as trees preserve it.
enum class ElementKind : std::uint8_t { Any, Tensor, Int, Double, Bool, String };

using DictKey = std::variant<std::int64_t, std::string>;

//! The structure of a tree without its leaves: comparable and printable. Every
//! value that is not a list, tuple or dict is a leaf, including None. Dicts keep the insertion order of their
//! keys.
struct Structure {
  enum class Kind : std::uint8_t { Leaf, List, Tuple, Dict };

  Kind kind = Kind::Leaf;
  ElementKind element = ElementKind::Any;  //!< of lists and dicts
  std::vector<DictKey> keys;               //!< of dicts, one per child
  std::vector<Structure> children;

  //! The number of leaves of the complete tree.
  std::size_t num_leaves() const;

  //! The path of every leaf, in leaf order: for example `args[0].mask` for the root `args`.
  std::vector<std::string> paths(const std::string& root) const;

  friend bool operator==(const Structure&, const Structure&) = default;
};

//! For example `([*, *], {mask: *})`.
std::string to_string(const Structure& structure);

//! The leaves and the structure of a tree.
struct FlatTree {
  std::vector<c10::IValue> leaves;
  Structure structure;
};

//! Flattens a tree; leaves are in depth-first order. Throws UsageError if a key is not an integer or string.
FlatTree flatten(const c10::IValue& tree);

//! The inverse of `flatten`. Throws UsageError if the number of leaves does not match the structure. A list
//! whose leaves no longer match its element type becomes a list of type Any.
c10::IValue unflatten(const std::vector<c10::IValue>& leaves, const Structure& structure);

//! Returns the tree with every leaf replaced by `function(leaf)`.
c10::IValue map_leaves(const c10::IValue& tree,
                       const std::function<c10::IValue(const c10::IValue&)>& function);

//! Returns the tree with every defined tensor replaced by `function(tensor)`.
c10::IValue map_tensors(const c10::IValue& tree,
                        const std::function<at::Tensor(const at::Tensor&)>& function);

//! The defined tensors of the tree, in leaf order.
std::vector<at::Tensor> tensors_of(const c10::IValue& tree);

//! Whether two leaves are equal: tensors in metadata and elements, other values in type and value.
bool leaves_equal(const c10::IValue& a, const c10::IValue& b);

//! The leaves of a tree of arguments.
std::vector<c10::IValue> flatten_args(const c10::IValue& args);

//! Arguments that are detached from the autograd graph.
struct DetachedArgs {
  c10::IValue args;                 //!< the tree with detached tensors
  std::vector<c10::IValue> leaves;  //!< the same detached tensors (not copies) and the other leaves
};

//! Detaches the arguments from the autograd graph; detached tensors keep their `requires_grad`.
DetachedArgs flatten_args_detach(const c10::IValue& args);

}  // namespace penstock::value
