// Reports that the operating system refused an operation on a file.
#pragma once

#include <penstock/base/error.h>

#include <string>

namespace penstock {

//! Throws `cannot ACTION 'PATH': REASON`, where `code` is an errno and the reason its text.
[[noreturn]] void throw_storage_error(const std::string& action, const std::string& path, int code);
//! The same with another reason.
[[noreturn]] void throw_storage_error(const std::string& action, const std::string& path, int code,
                                      const std::string& reason);

}  // namespace penstock
