// Splits bytes into lines, in linear time.
#include "comm/launch/line_reader.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace penstock::comm {

bool LineReader::read(int fd, const OnLine& on_line) {
  std::array<char, 65536> buffer{};
  const auto count = ::read(fd, buffer.data(), buffer.size());
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  if (count > 0) {
    take({buffer.data(), static_cast<std::size_t>(count)}, on_line);
    return true;
  }
  if (!partial_.empty()) give({}, on_line);
  return false;
}

void LineReader::take(std::string_view bytes, const OnLine& on_line) {
  if (passed_on_) {
    // A newline completes the line that was passed on as a progress bar. This also happens to an ordinary
    // "\r\n" that was split between two reads.
    if (bytes.front() == '\n') {
      on_line(*passed_on_);
      bytes.remove_prefix(1);
    }
    passed_on_.reset();
  }
  while (!bytes.empty()) {
    // The byte after a carriage return shows whether it belongs to a "\r\n".
    if (!partial_.empty() && partial_.back() == '\r' && bytes.front() != '\n') give({}, on_line);
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::size_t room = kMaxLineBytes - partial_.size();
    if (std::min(end, bytes.size()) > room) {
      give(bytes.substr(0, room), on_line);
      bytes.remove_prefix(room);
    } else if (end == std::string_view::npos) {
      partial_ += bytes;
      return;
    } else if (bytes[end] == '\n') {
      if (end == 0 && !partial_.empty() && partial_.back() == '\r') partial_.pop_back();
      give(bytes.substr(0, end), on_line);
      bytes.remove_prefix(end + 1);
    } else {
      partial_ += bytes.substr(0, end + 1);
      bytes.remove_prefix(end + 1);
    }
  }
  // Pass a progress bar line on immediately, without waiting for the next one.
  if (partial_.empty() || partial_.back() != '\r') return;
  passed_on_.emplace(partial_, 0, partial_.size() - 1);
  give({}, on_line);
}

void LineReader::give(std::string_view rest, const OnLine& on_line) {
  if (partial_.empty()) {
    on_line(rest);
    return;
  }
  partial_ += rest;
  on_line(partial_);
  partial_.clear();
}

}  // namespace penstock::comm
