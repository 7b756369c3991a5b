// What `penstock doctor` finds out about devices, and the text of its report.
#pragma once

#include <string>
#include <vector>

namespace penstock::tool {

enum class CheckVerdict { Fine, Note, Bad };

struct Finding {
  std::string what;
  CheckVerdict verdict;
  std::string text;
};

const char* verdict_name(CheckVerdict verdict);
std::string to_string(const Finding& finding);

//! The loaded libtorch and the supported versions.
Finding look_at_libtorch();
//! The driver, the devices, their memory and peer access, the devices of local ranks, the versions of CUDA
//! and NCCL, and the backend that `auto` means.
std::vector<Finding> look_at_devices();
//! The number of CUDA devices that libtorch can use.
int usable_devices();

//! A text for bug reports: the findings, the system, the environment without secrets, and libtorch's build.
std::string doctor_report(const std::vector<Finding>& findings);

}  // namespace penstock::tool
