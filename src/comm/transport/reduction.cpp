// Reduces tensors with libtorch's operators, which are vectorized for every dtype.
#include "comm/transport/reduction.h"

#include <penstock/base/error.h>

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace penstock::comm {

void reduce_into(const at::Tensor& sum, const at::Tensor& next, const c10d::ReduceOp& op) {
  at::Tensor into = sum;  // the same tensor: operators with an output take a reference that is not const
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      sum.add_(next);
      return;
    case c10d::ReduceOp::PRODUCT:
      sum.mul_(next);
      return;
    case c10d::ReduceOp::MIN:
      at::minimum_out(into, sum, next);
      return;
    case c10d::ReduceOp::MAX:
      at::maximum_out(into, sum, next);
      return;
    case c10d::ReduceOp::BAND:
      sum.bitwise_and_(next);
      return;
    case c10d::ReduceOp::BOR:
      sum.bitwise_or_(next);
      return;
    case c10d::ReduceOp::BXOR:
      sum.bitwise_xor_(next);
      return;
    case c10d::ReduceOp::PREMUL_SUM:
    case c10d::ReduceOp::UNUSED:
      break;
  }
  throw UsageError("this transport does not support this reduction");
}

}  // namespace penstock::comm
