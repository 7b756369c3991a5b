// The norm of gradients with any placements: replicated, sharded over some axes, or partial. Each element is
// counted once.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/tensor/dtensor.h>

#include <vector>

namespace penstock::tensor {

//! The groups over which a tensor with these placements is sharded: their ranks hold different elements of
//! it.
std::vector<comm::Group> sharding_groups(const DeviceMesh& mesh, const Placements& placements);

//! Accumulates the norm of gradients per set of sharding groups, so that each set needs one reduction. All
//! ranks of a group must add the same parameters in the same order.
class GradNorm {
 public:
  //! `norm_type` is the order of the vector norm: above 0; infinity selects the largest element. Throws
  //! UsageError otherwise.
  explicit GradNorm(double norm_type);

  //! Adds the gradient of a parameter. A plain gradient must be equal on every rank. A distributed gradient
  //! is redistributed to the placements of its parameter if they differ.
  void add(const at::Tensor& parameter);
  //! Adds a plain gradient that is sharded over each of the groups; undefined if this rank holds none of its
  //! elements.
  void add(const at::Tensor& grad, const std::vector<comm::Group>& groups);

  //! The sum of powers (or the largest element) of all added gradients, on every rank. Collective. Waits once
  //! for gradients on a device.
  double reduce() const;
  //! How partial results of several ranks combine: Sum, or Max for the infinity norm.
  comm::ReduceOp reduce_op() const;
  //! The norm for a given sum of powers.
  double norm_of(double sum) const;

 private:
  bool is_max() const;

  struct GroupSum {
    std::vector<comm::Group> groups;
    double sum = 0;                      //!< of gradients on the CPU
    std::vector<at::Tensor> on_devices;  //!< gradients on devices; `reduce` adds them
  };
  std::vector<double> local_sums() const;
  double combined(double a, double b) const;

  double norm_type_;
  std::vector<GroupSum> sums_;
};

//! The factor that scales gradients of this norm to at most `max_norm`; 1 if no clipping is needed.
double clip_scale(double norm, double max_norm);

//! Multiplies the gradients of these parameters, with few kernels on a device.
void scale_gradients(const std::vector<at::Tensor>& gradients, double scale);

}  // namespace penstock::tensor
