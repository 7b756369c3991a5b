// What the Prepare styles do with one tensor, and what every way of applying a plan checks.
#pragma once

#include <penstock/parallel/tensor_parallel.h>

#include <string>
#include <vector>

namespace penstock {

//! The `index`-th argument, moved to where the style wants it.
at::Tensor prepared_argument(const at::Tensor& tensor, std::size_t index, const DeviceMesh& mesh,
                             const PrepareModuleInput& style);

//! The `index`-th tensor of a result.
at::Tensor prepared_result(const at::Tensor& tensor, std::size_t index, const DeviceMesh& mesh,
                           const PrepareModuleOutput& style);

//! UsageError where a style's lists are for another number of arguments, or of tensors of the result.
//! `module` is its path.
void check_arguments(const PrepareModuleInput& style, std::size_t count, const std::string& module);
void check_results(const PrepareModuleOutput& style, std::size_t count, const std::string& module);

void check_one_axis(const DeviceMesh& mesh);

//! No module has such a path; the nearest one is named.
[[noreturn]] void refuse_path(const std::string& pattern, const std::vector<std::string>& paths);

}  // namespace penstock
