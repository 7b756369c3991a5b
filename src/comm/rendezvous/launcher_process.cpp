// Walks up the tree of processes in /proc.
#include "comm/rendezvous/launcher_process.h"

#include "base/text.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace penstock::comm {
namespace {

std::string proc_file(std::int64_t process, const char* name) {
  std::ifstream file(str_cat("/proc/", process, "/", name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Field 4 of `stat`. The name of the program, field 2, may contain spaces and parentheses.
std::int64_t parent_of(std::int64_t process) {
  const std::string text = proc_file(process, "stat");
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > text.size()) return 0;
  return std::strtoll(text.c_str() + name_end + 4, nullptr, 10);
}

}  // namespace

std::int64_t ancestor_without(const char* variable, std::int64_t process) {
  const std::string assignment = std::string(variable) + "=";
  while (process > 1) {
    const std::string environment = '\0' + proc_file(process, "environ");
    if (environment.find('\0' + assignment) == std::string::npos) break;
    process = parent_of(process);
  }
  return process;
}

}  // namespace penstock::comm
