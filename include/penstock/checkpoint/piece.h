// What a rank hands to a checkpoint, and what it asks one for: pieces of named tensors of the whole model.
// How the model is spread over ranks is told by the pieces alone, so that any way of spreading it can be
// saved, and loaded as any other.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock {

//! All of a tensor.
struct Whole {
  friend auto operator<=>(const Whole&, const Whole&) = default;
};

//! A slice of each dim: what tensor parallelism cuts.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> lengths;

  friend auto operator<=>(const Box&, const Box&) = default;
};

//! Elements `begin` to `end` of the tensor as one row: what sharded data parallelism cuts.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend auto operator<=>(const FlatRange&, const FlatRange&) = default;
};

//! Elements `begin` to `end` of a box as one row: what sharded data parallelism cuts of a tensor that tensor
//! parallelism has cut before. It is stored as the few boxes that it consists of.
struct BoxRange {
  Box box;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend auto operator<=>(const BoxRange&, const BoxRange&) = default;
};

using Part = std::variant<Whole, Box, FlatRange, BoxRange>;

//! What a tensor is to the model.
enum class PieceKind : std::uint8_t {
  Parameter,
  Buffer,
  Optimizer,  //!< a state of a parameter's optimizer: `name` is the parameter's, `state` its own
  Extra,      //!< anything else, for example the state of a random generator; never missed and never too many
};

std::string_view piece_kind_name(PieceKind kind);

struct Piece {
  std::string name;                 //!< in the whole model: `blocks.3.attention.query.weight`
  std::vector<std::int64_t> shape;  //!< of the whole tensor
  //! This rank's part. Of the part's sizes; that of a range is contiguous, of any sizes. Saved from, and
  //! loaded into.
  at::Tensor local;
  Part part{};
  PieceKind kind = PieceKind::Parameter;
  std::string state{};                 //!< of PieceKind::Optimizer: `exp_avg`, `step`, …
  std::vector<std::string> aliases{};  //!< further names of the same tensor (tied weights)
};

//! A tensor that this rank has all of.
Piece whole_piece(std::string name, at::Tensor tensor, PieceKind kind = PieceKind::Parameter);

//! How messages call a tensor: `blocks.0.weight`, or `exp_avg of blocks.0.weight`.
std::string tensor_title(const std::string& name, const std::string& state);

}  // namespace penstock
