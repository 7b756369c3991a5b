// Several documents in one sequence: positions restart with each document, and attention does not cross from
// one to another.
#pragma once

#include <ATen/core/Tensor.h>

namespace penstock::models {

//! Returns which tokens each token attends to: a bool tensor [batch, time, time], in which element [b, i, j]
//! says that token i attends to token j, which is in the same document and not after it. `positions` [batch,
//! time] holds the position of each token in its document, from 0.
at::Tensor document_mask(const at::Tensor& positions);

//! The documents in a batch of sequences.
struct PackedDocuments {
  at::Tensor positions;  //!< [batch, time]
  at::Tensor mask;       //!< [batch, 1, time, time], for all heads
};

}  // namespace penstock::models
