// The C interface of the WebAssembly module: the page writes a request into memory that it gets from malloc,
// calls penstock_answer, and reads text and boxes, which stay valid until the next call.
#include "api/answer.h"

#include <cstddef>

namespace {

penstock::playground::Answer& current() {
  static penstock::playground::Answer answer;
  return answer;
}

}  // namespace

extern "C" {

void penstock_answer(const char* request, std::size_t size) {
  current() = {};  // frees the previous answer first: memory never shrinks
  current() = penstock::playground::answer({request, size});
}
const char* penstock_text() {
  return current().text.data();
}
std::size_t penstock_text_size() {
  return current().text.size();
}
const double* penstock_boxes() {
  return current().boxes.data();
}
std::size_t penstock_boxes_size() {
  return current().boxes.size();
}

}  // extern "C"
