// The part of HTTP/1.1 that serves one page to a browser on the same machine.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::tool {

//! The maximum size of a request line with its headers. Requests have no body.
inline constexpr std::size_t kMaxRequestBytes = 16 * 1024;

//! Whether the text contains a complete request, that is, an empty line.
bool is_complete(std::string_view received);

//! Returns the response to a request. Only GET and HEAD of `/` and `/index.html` get the page. A Host header
//! that names another machine is refused: with DNS rebinding, a foreign site could read from this server.
std::string respond(std::string_view request, std::string_view page, int port);

//! The response to a request that is larger than `kMaxRequestBytes`.
std::string refuse_large_request();

}  // namespace penstock::tool
