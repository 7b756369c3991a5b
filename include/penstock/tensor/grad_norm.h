// The norm of gradients that lie on many ranks in many ways: replicated, cut over some axes, partial sums.
// Each element is counted once.
#pragma once

#include <penstock/comm/group.h>
#include <penstock/tensor/dtensor.h>

#include <vector>

namespace penstock {

//! The groups over which a tensor with these placements is cut: their ranks hold other elements of it.
std::vector<Group> spread_over(const DeviceMesh& mesh, const Placements& placements);

//! Adds up gradients, sorted by the groups that they are spread over, so that each set of groups costs one
//! exchange. All ranks of a group must add the same parameters in the same order.
class GradNorm {
 public:
  //! `order` as of vector norms: above 0, infinity for the largest element. UsageError otherwise.
  explicit GradNorm(double order);

  //! The gradient of a parameter. A plain one is the same on every rank; one that is distributed in other
  //! places than its parameter is moved there for it.
  void add(const at::Tensor& parameter);
  //! A plain gradient of which the ranks of each group hold other elements; undefined where this rank has
  //! none of them.
  void add(const at::Tensor& grad, const std::vector<Group>& groups);

  //! The sum of powers (the largest element) of all that was added, on every rank. Collective.
  double reduce() const;
  bool largest() const;
  //! The norm that a sum of powers makes.
  double norm_of(double sum) const;

 private:
  struct Part {
    std::vector<Group> groups;
    double sum = 0;
  };
  double order_;
  std::vector<Part> parts_;
};

//! What gradients of this norm are multiplied by to have at most `max_norm`; 1 where they are not touched.
double clip_scale(double norm, double max_norm);

//! Scales the gradients of plain and distributed parameters so that the norm of all is at most `max_norm`;
//! the norm before. A plain parameter counts once, as one that every rank has. For all ranks of the meshes.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double order = 2.0);

}  // namespace penstock
