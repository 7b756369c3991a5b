// Pieces of libtorch modules and optimizers, whose tensors are whole or distributed; a pattern for others.
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

namespace penstock {

//! Parameters and buffers of a module, whole or this rank's part where they are distributed, each named
//! `prefix` and its path. A tensor that stands under several names is one piece with aliases.
std::vector<Piece> module_pieces(const torch::nn::Module& module, const std::string& prefix = {});

//! The states that an optimizer (AdamW, Adam, SGD) has for these parameters, cut as the parameters are;
//! numbers become tensors without dims. A parameter's `local` must be the tensor that the optimizer has.
//! Parameters that it never stepped have none.
std::vector<Piece> optimizer_pieces(const std::vector<Piece>& parameters,
                                    const torch::optim::Optimizer& optimizer);

//! The way back. Makes the states that the checkpoint has for these parameters, as pieces to be loaded; call
//! `adopt` when they are, so that the optimizer takes them.
struct OptimizerLoad {
  std::vector<Piece> pieces;
  std::function<void()> adopt;
};
OptimizerLoad optimizer_load(const Checkpoint& checkpoint, const std::vector<Piece>& parameters,
                             torch::optim::Optimizer& optimizer);

}  // namespace penstock
