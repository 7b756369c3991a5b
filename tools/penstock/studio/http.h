// The part of HTTP/1.1 that serves pages to a browser on the same machine.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::tool {

//! The maximum size of a request line with its headers. Requests have no body.
inline constexpr std::size_t kMaxRequestBytes = 16 * 1024;

//! Whether the text contains a complete request, that is, an empty line.
bool is_complete(std::string_view received);

//! What a server has at a path.
struct Content {
  std::string_view type;  //!< `text/html`
  std::string body;
};
//! Finds the content of a target: a path with an optional query. nullopt: not found.
using FindContent = std::function<std::optional<Content>(std::string_view target)>;

//! The path of a target, without its query.
std::string_view path_of(std::string_view target);

//! Returns the response to a request. Only GET and HEAD are answered. A Host header that names another
//! machine is refused: with DNS rebinding, a foreign site could read from this server.
std::string respond(std::string_view request, const FindContent& find, int port);

//! The response to a request that is larger than `kMaxRequestBytes`.
std::string refuse_large_request();

}  // namespace penstock::tool
