// The text of `penstock doctor --report`.
#include "base/text.h"
#include "commands/doctor_findings.h"

#include <penstock/version.h>

#include <ATen/Version.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

extern char** environ;

namespace penstock::tool {
namespace {

// Variables that change how ranks start, communicate and use devices.
constexpr std::array<std::string_view, 12> kPrefixes{"PENSTOCK_", "NCCL_",   "TORCH_", "PYTORCH_",
                                                     "CUDA_",     "GLOO_",   "SLURM_", "OMPI_",
                                                     "OMP_",      "MASTER_", "RANK",   "WORLD_SIZE"};
constexpr std::array<std::string_view, 4> kSecret{"SECRET", "TOKEN", "PASSWORD", "KEY"};

bool is_reported(std::string_view name) {
  const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return name == "LOCAL_RANK" || name == "LD_LIBRARY_PATH" || name == "LD_PRELOAD" ||
         std::any_of(kPrefixes.begin(), kPrefixes.end(), starts);
}

bool is_secret(std::string_view name) {
  return std::any_of(kSecret.begin(), kSecret.end(),
                     [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

std::vector<std::string> reported_variables() {
  std::vector<std::string> lines;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!is_reported(name)) continue;
    lines.push_back(is_secret(name) ? std::string(name) + "=(not shown)" : std::string(text));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

std::string to_string(const Finding& finding) {
  std::array<char, 32> head{};
  std::snprintf(head.data(), head.size(), "%-5s %-14s ", verdict_name(finding.verdict), finding.what.c_str());
  return head.data() + finding.text;
}

std::string doctor_report(const std::vector<Finding>& findings) {
  std::string text = "penstock " + version() + "\n\nFindings\n";
  for (const Finding& finding : findings) text += to_string(finding) + "\n";
  utsname system{};
  uname(&system);
  text +=
      str_cat("\nSystem\n", system.sysname, " ", system.release, " ", system.machine, "\n\nEnvironment\n");
  for (const std::string& line : reported_variables()) text += line + "\n";
  return text + "\nlibtorch\n" + at::show_config();
}

}  // namespace penstock::tool
