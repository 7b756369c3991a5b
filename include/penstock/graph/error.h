// The error of an operator in a graph.
#pragma once

#include <penstock/base/error.h>

namespace penstock::graph {

//! An operator of a graph or an exported module failed in libtorch. The message contains libtorch's message;
//! `context().op` names the operator and its module.
class OperatorError : public Error {
  using Error::Error;
};

}  // namespace penstock::graph
