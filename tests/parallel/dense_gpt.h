// The oracle of data parallelism: one process trains the small GPT over the whole batch.
#pragma once

#include "support/models/small_gpt.h"

#include <penstock/comm/world.h>
#include <penstock/runtime/stage_module.h>

#include <string>
#include <vector>

namespace penstock::test {

struct DenseGpt {
  std::vector<at::Tensor> losses;                //!< by step
  std::vector<runtime::NamedTensor> gradients;   //!< of the first step; undefined where there is none
  std::vector<runtime::NamedTensor> parameters;  //!< after the last step
};

constexpr int kGptSteps = 3, kGptRows = 8;

//! Steps of AdamW over batches of kGptRows rows, each cut into `parts` backwards.
DenseGpt run_dense_gpt(Variant variant, int parts = 1);

//! For an optimizer: tied ones must not be moved twice.
std::vector<at::Tensor> unique_parameters(const torch::nn::Module& module);
//! The module's parameters by name, each once; copies.
std::vector<runtime::NamedTensor> copies(const torch::nn::Module& module);
//! The same of the gradients.
std::vector<runtime::NamedTensor> gradient_copies(const torch::nn::Module& module);

//! Throws where they differ by more than `tolerance`, relative to the largest number if that is above 1.
void expect_near(const std::string& what, const at::Tensor& actual, const at::Tensor& expected,
                 double tolerance = 1e-5);
void expect_near(const std::string& what, const std::vector<runtime::NamedTensor>& actual,
                 const std::vector<runtime::NamedTensor>& expected, double tolerance = 1e-5);

//! What a rank has communicated since the mark was made.
class Traffic {
 public:
  explicit Traffic(const comm::World& world);
  struct Sum {
    int count = 0;
    std::uint64_t bytes = 0;
  };
  Sum of(const std::string& op) const;

 private:
  const comm::World& world_;
  std::uint64_t from_;
};

}  // namespace penstock::test
