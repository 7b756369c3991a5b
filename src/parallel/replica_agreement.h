// Checks and sets up replicas: they must have the same parameters with the same values.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/runtime/stage_module.h>

#include <vector>

namespace penstock::parallel {

//! A module's `named_parameters()` or `named_buffers()` as a list.
template <typename Dict>
std::vector<value::NamedTensor> listed(const Dict& tensors) {
  std::vector<value::NamedTensor> all;
  for (const auto& item : tensors) all.push_back({item.key(), item.value()});
  return all;
}

//! Returns each tensor once, under its first name if it is tied. Undefined tensors are skipped.
std::vector<value::NamedTensor> each_once(const std::vector<value::NamedTensor>& tensors);

//! Throws UsageError on every rank of the group if names, shapes, types or requires_grad differ between
//! ranks, or if ranks share a device (`require_own_device`).
void check_agreement(const comm::Group& group, const std::vector<value::NamedTensor>& parameters,
                     const std::vector<value::NamedTensor>& buffers);

//! Throws UsageError on every rank of the group if two of them are threads of one process on the same device
//! other than the CPU. Autograd runs all backward passes of a device on one thread, where one rank would wait
//! for a collective that the other can only start after it. Collective if the device is not the CPU.
void require_own_device(const comm::Group& group, c10::Device device);

//! Broadcasts the values of the group's first rank, many tensors at a time.
void broadcast_values(const comm::Group& group, const std::vector<at::Tensor>& tensors);

}  // namespace penstock::parallel
