// Formats the errors of file operations.
#include "base/io/storage_error.h"

#include "base/text.h"

#include <cstring>

namespace penstock {

void throw_storage_error(const std::string& action, const std::string& path, int code) {
  throw_storage_error(action, path, code, std::strerror(code));
}

void throw_storage_error(const std::string& action, const std::string& path, int code,
                         const std::string& reason) {
  throw StorageError("cannot " + action + " " + quote(path, 200) + ": " + reason, code);
}

}  // namespace penstock
