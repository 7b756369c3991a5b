// Reads the message of an exception.
#include "comm/failure/exception_text.h"

#include <c10/util/Exception.h>

namespace penstock::comm {

std::string exception_text(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

std::string current_exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return exception_text(error);
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace penstock::comm
