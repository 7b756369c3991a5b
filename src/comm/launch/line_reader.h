// Splits the output of a rank into lines, in bounded memory.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::comm {

class LineReader {
 public:
  //! Longer lines are split into lines of this size.
  static constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20U;

  //! Called with each line, without its newline. A progress bar line, which ends with a carriage return
  //! instead, is passed on immediately and keeps the carriage return. If a newline follows later, the line is
  //! passed on again, without the carriage return.
  using OnLine = std::function<void(std::string_view line)>;

  //! Reads the available bytes. Returns false at the end of the stream, after a last line without newline.
  bool read(int fd, const OnLine& on_line);

 private:
  void take(std::string_view bytes, const OnLine& on_line);
  void give(std::string_view rest, const OnLine& on_line);

  std::string partial_;                   // an incomplete line; its only line end may be a final '\r'
  std::optional<std::string> passed_on_;  // the progress bar line that ended the last read, without its '\r'
};

}  // namespace penstock::comm
