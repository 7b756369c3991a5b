// The message of an exception, without libtorch's stack trace.
#pragma once

#include <exception>
#include <string>

namespace penstock::comm {

std::string exception_text(const std::exception& error);

//! The message of the exception that is being handled. Call it in a catch block.
std::string current_exception_text();

}  // namespace penstock::comm
