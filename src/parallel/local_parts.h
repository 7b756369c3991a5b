// Distributed parameters as data parallelism sees them: by this rank's parts, which its replicas have too.
#pragma once

#include <penstock/tensor/flatten.h>

#include <ATen/core/Tensor.h>

#include <optional>

namespace penstock {

//! This rank's part of a parameter's gradient, where `form`, the parameter's, says (it is moved if it is
//! elsewhere). A plain parameter's gradient is given as it is; undefined if there is none.
at::Tensor local_gradient(const at::Tensor& parameter, const std::optional<DTensorForm>& form);

//! A part with its form: the distributed tensor, which shares its memory. Without a form the part itself.
at::Tensor with_form(const at::Tensor& part, const std::optional<DTensorForm>& form);

//! A tensor without elements of the same kind, which a parameter can take the place of.
at::Tensor empty_of(const at::TensorOptions& options, const std::optional<DTensorForm>& form);

}  // namespace penstock
