// The precompiled header of the torch side: tensors and autograd. It only saves time: every file still
// includes what it uses. (An empty file costs 2.4 s with it, 10 s without; with all of torch/torch.h
// precompiled it would cost 5 s.)
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>
