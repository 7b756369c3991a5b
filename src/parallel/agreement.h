// What replicas must have in common before they train: the same parameters, with the same values.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/runtime/stage_module.h>

#include <vector>

namespace penstock {

//! A module's `named_parameters()` or `named_buffers()` as a list.
template <typename Dict>
std::vector<NamedTensor> listed(const Dict& tensors) {
  std::vector<NamedTensor> all;
  for (const auto& item : tensors) all.push_back({item.key(), item.value()});
  return all;
}

//! Each tensor once: tied parameters have several names, the first counts. Undefined ones are left out.
std::vector<NamedTensor> each_once(const std::vector<NamedTensor>& tensors);

//! UsageError on every rank of the group if names, shapes, types or the need of gradients differ anywhere.
void check_agreement(const Group& group, const std::vector<NamedTensor>& parameters,
                     const std::vector<NamedTensor>& buffers);

//! All take the values of the group's first rank, many tensors at a time.
void broadcast_values(const Group& group, const std::vector<at::Tensor>& tensors);

}  // namespace penstock
