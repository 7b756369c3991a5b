// Splits the output of a rank into lines, in bounded memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace penstock {

class LineReader {
 public:
  //! A longer line is given in pieces of this size, each as a line of its own.
  static constexpr std::size_t kLongest = std::size_t{1} << 20U;

  //! Gets each line without its newline. A progress bar's line, which ends in a carriage return instead, is
  //! given at once, with the carriage return at its end.
  using OnLine = std::function<void(std::string_view line)>;

  //! Reads what is there; false at the end of the stream (a last line without newline is given too).
  bool read(int fd, const OnLine& on_line);

 private:
  void take(std::string_view bytes, const OnLine& on_line);
  void give(std::string_view rest, const OnLine& on_line);

  std::string partial_;  // of a line, without any line end in it but perhaps a last '\r'
};

}  // namespace penstock
