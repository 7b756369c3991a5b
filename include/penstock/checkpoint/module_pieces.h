// Pieces of libtorch modules and optimizers, with plain or distributed tensors.
#pragma once

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/piece.h>

#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace penstock::checkpoint {

//! Returns the parameters and buffers of a module, named `prefix` + path. A distributed tensor gives the
//! piece of its local shard. A tensor with several names gives one piece with aliases.
std::vector<Piece> module_pieces(const torch::nn::Module& module, const std::string& prefix = {});

//! Returns the states of an optimizer (AdamW, Adam, SGD, Adagrad, RMSprop) for these parameters, with the
//! regions of the parameters; numbers become 0-dim tensors. The `local` of each parameter must be the tensor
//! that the optimizer holds. Parameters that were never updated have no states.
std::vector<Piece> optimizer_pieces(const std::vector<Piece>& parameters,
                                    const torch::optim::Optimizer& optimizer);

//! Allocates the optimizer states that the checkpoint contains for these parameters. Load `pieces`, then call
//! `adopt` to move the states into the optimizer.
struct OptimizerLoad {
  std::vector<Piece> pieces;
  std::function<void()> adopt;
};
OptimizerLoad optimizer_load(const Checkpoint& checkpoint, const std::vector<Piece>& parameters,
                             torch::optim::Optimizer& optimizer);

}  // namespace penstock::checkpoint
