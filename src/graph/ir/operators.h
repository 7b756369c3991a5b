// Operator handles that live until process exit.
#pragma once

namespace c10 {
class OperatorHandle;
}

namespace penstock::graph {

//! Returns a copy of the handle that lives until process exit.
const c10::OperatorHandle* intern_operator(const c10::OperatorHandle& op);

}  // namespace penstock::graph
