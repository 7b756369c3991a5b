// Applies Prepare styles to single tensors, and checks shared by modules and graphs.
#pragma once

#include <penstock/parallel/tensor_parallel.h>

#include <string>
#include <vector>

namespace penstock::parallel {

//! Redistributes argument number `index` as the style requests.
at::Tensor prepared_argument(const at::Tensor& tensor, std::size_t index, const tensor::DeviceMesh& mesh,
                             const PrepareModuleInput& style);

//! Redistributes tensor number `index` of a result as the style requests.
at::Tensor prepared_result(const at::Tensor& tensor, std::size_t index, const tensor::DeviceMesh& mesh,
                           const PrepareModuleOutput& style);

//! Throws UsageError if a list of the style does not match the number of arguments or result tensors.
//! `module` is the path of the module.
void check_arguments(const PrepareModuleInput& style, std::size_t count, const std::string& module);
void check_results(const PrepareModuleOutput& style, std::size_t count, const std::string& module);

void check_one_axis(const tensor::DeviceMesh& mesh);

//! Reports a pattern that matches no module, with the closest path.
[[noreturn]] void refuse_path(const std::string& pattern, const std::vector<std::string>& paths);

}  // namespace penstock::parallel
