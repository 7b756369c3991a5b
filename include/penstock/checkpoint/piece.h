// Pieces: the parts of named tensors of the model that a rank saves or loads. The pieces alone describe how
// the model is distributed over ranks, so a checkpoint saved in one topology can be loaded in any other.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace penstock::checkpoint {

//! The full tensor.
struct FullTensor {
  friend auto operator<=>(const FullTensor&, const FullTensor&) = default;
};

//! A slice of each dim: a tensor-parallel shard.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> lengths;

  friend auto operator<=>(const Box&, const Box&) = default;
};

//! Elements `begin` to `end` of the flattened tensor: an FSDP shard.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend auto operator<=>(const FlatRange&, const FlatRange&) = default;
};

//! Elements `begin` to `end` of a flattened box: a shard of sharded data parallelism within a shard of tensor
//! parallelism. It is stored as the few boxes that it consists of.
struct BoxRange {
  Box box;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend auto operator<=>(const BoxRange&, const BoxRange&) = default;
};

using Region = std::variant<FullTensor, Box, FlatRange, BoxRange>;

//! The role of a tensor in the model.
enum class PieceKind : std::uint8_t {
  Parameter,
  Buffer,
  Optimizer,  //!< an optimizer state: `name` names the parameter, `state` the state
  Extra,      //!< anything else, such as the state of a random generator; may be missing or unrequested
};

std::string_view to_string(PieceKind kind);

//! The part of one tensor that this rank saves or loads.
struct Piece {
  std::string name;                 //!< in the model: `blocks.3.attention.query.weight`
  std::vector<std::int64_t> shape;  //!< of the full tensor
  //! The elements of this rank; source of a save and target of a load. Has the shape of the region; for a
  //! range it must be contiguous, with any shape.
  at::Tensor local;
  Region region{};
  PieceKind kind = PieceKind::Parameter;
  std::string state{};                 //!< for PieceKind::Optimizer: `exp_avg`, `step`, …
  std::vector<std::string> aliases{};  //!< other names of the same tensor (tied weights)
};

//! Makes a piece of a tensor that this rank holds in full.
Piece full_piece(std::string name, at::Tensor tensor, PieceKind kind = PieceKind::Parameter);

//! Returns the name of a tensor for messages: `blocks.0.weight` or `exp_avg of blocks.0.weight`.
std::string tensor_title(const std::string& name, const std::string& state);

}  // namespace penstock::checkpoint
