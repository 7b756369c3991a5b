// A small JSON writer: appends to a string, checks nesting, writes numbers so that they read back equal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

//! Writes one JSON value. Commas and quoting are its business; the nesting is the caller's.
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
  JsonWriter& value(double number);  //!< infinities and NaN, which JSON lacks, become null
  JsonWriter& value(std::int64_t number);
  JsonWriter& value(std::uint64_t number);
  JsonWriter& value(int number) { return value(static_cast<std::int64_t>(number)); }
  JsonWriter& value(bool truth);
  JsonWriter& null();

  //! `key` and `value` in one.
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

//! The text as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace penstock
