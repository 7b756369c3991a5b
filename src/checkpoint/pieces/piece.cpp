// Constructors and names of pieces.
#include "base/text.h"
#include "checkpoint/pieces/regions.h"

#include <penstock/checkpoint/checkpoint.h>

#include <c10/core/ScalarType.h>

namespace penstock::checkpoint {

std::string_view to_string(PieceKind kind) {
  switch (kind) {
    case PieceKind::Parameter:
      return "parameter";
    case PieceKind::Buffer:
      return "buffer";
    case PieceKind::Optimizer:
      return "optimizer";
    case PieceKind::Extra:
      return "extra";
  }
  return {};
}

Piece full_piece(std::string name, at::Tensor tensor, PieceKind kind) {
  Piece piece{.name = std::move(name), .shape = tensor.sizes().vec(), .kind = kind};
  piece.local = std::move(tensor);
  return piece;
}

std::string tensor_title(const std::string& name, const std::string& state) {
  return state.empty() ? name : state + " of " + name;
}

std::uint64_t StoredTensor::nbytes() const {
  return static_cast<std::uint64_t>(numel_of(shape)) * c10::elementSize(dtype);
}

std::string checkpoint_name(std::int64_t step) {
  return formatted("step-%08lld", static_cast<long long>(step));
}

}  // namespace penstock::checkpoint
