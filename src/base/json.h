// A small JSON writer that appends to a string. Numbers round-trip exactly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! Writes one JSON value. The writer inserts commas and quotes; the caller must balance begin and end calls.
//!   JsonWriter json; json.begin_object().key("rank").value(3).end_object(); json.text();
class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(double number);  //!< writes infinities and NaN as null
  JsonWriter& value(std::int64_t number);
  JsonWriter& value(std::uint64_t number);
  JsonWriter& value(int number) { return value(static_cast<std::int64_t>(number)); }
  JsonWriter& value(bool truth);
  JsonWriter& null();
  //! Inserts a value that is JSON text already.
  JsonWriter& raw(std::string_view json);

  //! Calls `key`, then `value`.
  template <class T>
  JsonWriter& field(std::string_view name, const T& content) {
    return key(name).value(content);
  }

  const std::string& text() const { return text_; }

 private:
  void before_value();
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);

  std::string text_;
  std::vector<bool> has_items_;
  bool after_key_ = false;
};

//! Returns the text as a quoted JSON string. Bytes that are not valid UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace penstock
