// Reads and writes entire files and the standard streams.
#include "base/io/regular_file.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/paths.h"

#include <penstock/base/error.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace penstock::tool {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

int leave_open(std::FILE*) {
  return 0;
}

//! What to do if a file cannot be opened for writing.
std::string hint_for(const std::string& path, int code) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (code == EISDIR) return "name a file in this directory";
  if (code == ENOENT && !parent.empty()) return "create the directory " + quote(parent, 200) + " first";
  return "check the permissions of the file and its directory, or choose another file";
}

File open_file(const std::string& path, std::FILE* standard, const char* mode) {
  if (path.empty() || path == "-") return {standard, leave_open};
  File file(std::fopen(path.c_str(), mode), std::fclose);
  if (file) return file;
  const int code = errno;
  throw UsageError("cannot open " + quote(path, 200) + ": " + std::strerror(code), {}, hint_for(path, code));
}

File open_regular(const std::string& path) {
  const RegularFile opened = open_regular_file(path);
  if (opened.error != 0)
    throw UsageError("cannot open " + quote(path, 200) + ": " + opened.problem, {},
                     "name a regular file, or - to read standard input");
  File file(fdopen(opened.descriptor, "rb"), std::fclose);
  if (!file)
    throw UsageError("cannot open " + quote(path, 200) + ": " + std::strerror(errno), {},
                     "check the file and the limits of this process");
  return file;
}

}  // namespace

void write_output(const std::string& path, const std::string& text) {
  const File file = open_file(path, stdout, "wb");
  const bool complete = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (!complete || std::fflush(file.get()) != 0) {
    const int code = errno;
    throw StorageError("cannot write to " + (path.empty() ? "standard output" : quote(path, 200)) + ": " +
                           std::strerror(code),
                       code);
  }
}

void print(const std::string& text) {
  write_output("", text);
}

std::string read_input(const std::string& path) {
  // Standard input and pipes opened by the shell (`<(command)`) have a writer. Anything else must be a
  // regular file, because opening a FIFO without a writer would block.
  const bool is_open = path.empty() || path == "-" || path == "/dev/stdin" || path.starts_with("/dev/fd/");
  if (!is_open) check_input_file(path);
  const File file = is_open ? open_file(path, stdin, "rb") : open_regular(path);
  std::string text;
  std::array<char, 1 << 14> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0;)
    text.append(buffer.data(), n);
  if (std::ferror(file.get()) != 0)
    throw UsageError("cannot read " + quote(path, 200) + ": " + std::strerror(errno), {},
                     "check the file and its disk");
  return text;
}

}  // namespace penstock::tool
