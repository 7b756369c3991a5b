// Looks for parameters with a reduced dtype.
#include "train/model/master_weights.h"

#include <penstock/value/tensor_meta.h>

#include <algorithm>
#include <set>

namespace penstock::train {
namespace {

bool is_reduced(const at::Tensor& parameter) {
  return at::isReducedFloatingType(parameter.scalar_type());
}

}  // namespace

bool trains_reduced_parameters(const runtime::StageModule& module) {
  const std::vector<value::NamedTensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const value::NamedTensor& item) {
    return item.tensor.requires_grad() && is_reduced(item.tensor);
  });
}

std::vector<std::string> reduced_parameter_dtypes(const Model& model, const ParameterGroups& groups) {
  std::set<std::string> names;
  for (const checkpoint::Piece& piece : model.state_metadata())
    if (piece.kind == checkpoint::PieceKind::Parameter && piece.local.requires_grad() &&
        is_reduced(piece.local) && !groups.of(piece.name).frozen)
      names.insert(value::dtype_name(piece.local.scalar_type()));
  return {names.begin(), names.end()};
}

bool has_float16_parameters(const Model& model) {
  const std::vector<checkpoint::Piece> pieces = model.state_metadata();
  return std::any_of(pieces.begin(), pieces.end(), [](const checkpoint::Piece& piece) {
    return piece.kind == checkpoint::PieceKind::Parameter && piece.local.scalar_type() == at::kHalf;
  });
}

}  // namespace penstock::train
