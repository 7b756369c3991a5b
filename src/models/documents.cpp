// The attention mask of packed documents.
#include <penstock/models/documents.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

namespace penstock::models {

at::Tensor document_mask(const at::Tensor& positions) {
  const at::Tensor index = at::arange(positions.size(1), positions.options());
  const at::Tensor starts = (index - positions).unsqueeze(2);  // of the document of token i
  return index.ge(starts).logical_and(index.le(index.unsqueeze(1)));
}

}  // namespace penstock::models
