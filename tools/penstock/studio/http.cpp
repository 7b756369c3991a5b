// Parses requests and writes responses.
#include "studio/http.h"

#include "base/text.h"

#include <array>
#include <optional>

namespace penstock::tool {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

struct RequestHead {
  std::string_view method;
  std::string_view target;
  std::optional<std::string_view> host;
};

std::string response(std::string_view status, std::string_view type, std::string_view body,
                     bool with_body = true) {
  std::string text = "HTTP/1.1 ";
  text += status;
  text += "\r\nContent-Type: ";
  text += type;
  text += str_cat("; charset=utf-8\r\nContent-Length: ", body.size());
  text +=
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\nConnection: "
      "close\r\n\r\n";
  if (with_body) text += body;
  return text;
}

std::string refusal(std::string_view status) {
  return response(status, "text/plain", std::string(status) + "\n");
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

//! Splits off the text before `separator`; nullopt if there is none.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view separator) {
  const auto at = text.find(separator);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at + separator.size());
  return part;
}

//! nullopt if the text is not a request of HTTP/1, or has several Host headers.
std::optional<RequestHead> parse_head(std::string_view text) {
  auto line = take_until(text, kLineEnd);
  if (!line) return std::nullopt;
  RequestHead head;
  const auto method = take_until(*line, " "), target = take_until(*line, " ");
  if (!method || !target || method->empty() || target->empty() || !line->starts_with("HTTP/1."))
    return std::nullopt;
  head.method = *method;
  head.target = *target;
  while ((line = take_until(text, kLineEnd)) && !line->empty()) {
    const auto name = take_until(*line, ":");
    if (!name || name->empty() || name->find_first_of(" \t") != std::string_view::npos) return std::nullopt;
    if (to_lower(*name) != "host") continue;
    if (head.host) return std::nullopt;
    head.host = trimmed(*line);
  }
  return head;
}

//! Whether the host is this machine's loopback address with our port.
bool is_own_host(std::string_view host, int port) {
  const std::string lower = to_lower(host), suffix = str_cat(":", port);
  for (const std::string_view name : std::array<std::string_view, 2>{"127.0.0.1", "localhost"}) {
    if (lower == std::string(name) + suffix || (port == 80 && lower == name)) return true;
  }
  return false;
}

}  // namespace

bool is_complete(std::string_view received) {
  return received.find("\r\n\r\n") != std::string_view::npos;
}

std::string_view path_of(std::string_view target) {
  return target.substr(0, target.find('?'));
}

std::string respond(std::string_view request, const FindContent& find, int port) {
  const std::optional<RequestHead> head = parse_head(request);
  if (!head) return refusal("400 Bad Request");
  if (!head->host || !is_own_host(*head->host, port)) return refusal("403 Forbidden");
  if (head->method != "GET" && head->method != "HEAD") return refusal("405 Method Not Allowed");
  const std::optional<Content> content = find(head->target);
  if (!content) return refusal("404 Not Found");
  return response("200 OK", content->type, content->body, head->method == "GET");
}

std::string refuse_large_request() {
  return refusal("431 Request Header Fields Too Large");
}

}  // namespace penstock::tool
