// Fuzz targets for the code without libtorch: schedules, costs, settings, requests and lists of nodes.
#include "api/request.h"
#include "base/text.h"
#include "cli/toml_text.h"
#include "comm/rendezvous/node_list.h"
#include "config/cost_file.h"
#include "config/settings.h"
#include "fuzz/targets.h"
#include "studio/http.h"

#include <penstock/base/error.h>
#include <penstock/plan/costs.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::fuzz {
namespace {

// Accepted costs give a simulation with finite times.
const char* check_costs(std::string_view bytes) {
  const tool::CostFile file = tool::read_cost_text(std::string(bytes), "fuzz");
  if (file.layers.size() > 64 || file.stages.size() > 64) return nullptr;
  const int stages = file.stages.empty() ? 3 : static_cast<int>(file.stages.size());
  const schedule::Program program =
      make_program(schedule::make_schedule("1F1B", {stages, 1, 2}), schedule::SendMode::Buffered);
  const plan::Simulation result =
      simulate(program, tool::costs_for(file, program.placement().stage_to_rank()));
  if (!std::isfinite(result.step_time) || result.step_time < 0) return "a step takes no finite time";
  return nullptr;
}

const char* check_config(std::string_view bytes) {
  for (const tool::ConfigValue& value : tool::read_config_text(std::string(bytes), "fuzz"))
    if (value.where.empty()) return "a setting without a place";
  return nullptr;
}

// The hosts, written as a plain list, expand to themselves.
const char* check_node_list(std::string_view bytes) {
  const std::vector<std::string> hosts = comm::expand_node_list(bytes);
  if (hosts.empty() || hosts.size() > 65536) return "the number of hosts is out of range";
  for (const std::string& host : hosts)
    if (host.empty() || host.find_first_of("[],") != std::string::npos) return "a host has no plain name";
  if (comm::expand_node_list(join(hosts, ",")) != hosts) return "a plain list gives other hosts";
  return nullptr;
}

// Every response is complete. Only a request that names this server gets the page.
const char* check_http(std::string_view bytes) {
  const std::string page = "<p>the page</p>";
  const auto find = [&](std::string_view target) {
    const bool is_root = tool::path_of(target) == "/";
    return is_root ? std::optional(tool::Content{"text/html", page}) : std::nullopt;
  };
  const std::string response = tool::respond(bytes, find, 4711);
  const std::size_t end = response.find("\r\n\r\n");
  if (!response.starts_with("HTTP/1.1 ") || end == std::string::npos) return "a response is incomplete";
  const std::string body = response.substr(end + 4);
  const bool is_page = response.starts_with("HTTP/1.1 200 OK\r\n");
  if (body.empty() ? !bytes.starts_with("HEAD ")
                   : response.find("\r\nContent-Length: " + std::to_string(body.size()) + "\r\n") > end)
    return "the length of a response is wrong";
  if (!is_page) return body.find(page) == std::string::npos ? nullptr : "a refused request gets the page";
  if (!body.empty() && body != page) return "the page is changed";
  const std::string lower = to_lower(bytes);
  const bool names_server =
      lower.find("127.0.0.1:4711") != std::string::npos || lower.find("localhost:4711") != std::string::npos;
  return names_server ? nullptr : "a request for another host gets the page";
}

// Accepted numbers are in their ranges.
const char* check_request(std::string_view bytes) {
  const playground::Request request = playground::read_request(bytes);
  if (request.ranks < 1 || request.microbatches < 1 || request.source.stages_per_rank < 1)
    return "a count is not positive";
  const auto is_time = [](double number) { return std::isfinite(number) && number >= 0; };
  const playground::Model& model = request.model;
  for (const playground::Quantity* quantity : {&model.forward, &model.input, &model.weight}) {
    if (!is_time(quantity->per_rank)) return "a time is not finite";
    if (!std::all_of(quantity->list.begin(), quantity->list.end(), is_time)) return "a time is not finite";
  }
  return is_time(model.link.latency) && is_time(model.overlap) ? nullptr : "a time is not finite";
}

// toml++ builds the exception of a syntax error in a noexcept constructor that allocates. If memory runs out
// there, the process terminates, which our code cannot prevent. Therefore allocations fail only for documents
// that toml++ accepts.
bool is_toml(std::string_view bytes) {
  try {
    tool::parse_toml(std::string(bytes));
  } catch (const toml::parse_error&) {
    return false;
  } catch (const ParseError&) {
  }
  return true;
}

std::vector<std::string> cost_seeds() {
  return {file_content(std::string(PENSTOCK_SOURCE_DIR) + "/examples/costs.toml")};
}

std::vector<std::string> node_list_seeds() {
  return {"node[01-03,7],gpu1", "head", "n[098-101]", "rack[0-1]n[1-4]", "n[1-2].cluster", "a-1,[4-5]", "n["};
}

std::vector<std::string> http_seeds() {
  const std::string host = "Host: 127.0.0.1:4711\r\n";
  return {"GET / HTTP/1.1\r\n" + host + "Accept: text/html\r\n\r\n",
          "HEAD /index.html?x=1 HTTP/1.0\r\nhost:\tLocalHost:4711 \r\n\r\n",
          "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nx=1",
          "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
          "GET /etc/passwd HTTP/1.1\r\n" + host + "\r\n",
          "GET / HTTP/1.1\r\n" + host + host + "\r\n",
          "GET /"};
}

std::vector<std::string> request_seeds() {
  return {R"({"operation":"simulate","ranks":2,"microbatches":3,"send_mode":"ordered","memory_cap":1e9,
              "source":{"schedule":"Interleaved1F1B","stages_per_rank":2,"recompute":true},
              "costs":{"forward":2,"input":[4,1],"weight":6,"activation_bytes":100,"output_bytes":8,
                       "latency":0.25,"bandwidth":1e9,"overlap":0.5}})",
          R"({"operation":"export","format":"csv","source":{"schedule":"x.csv","csv":"0F0,0B0\n"}})",
          R"({"operation":"plan","ranks":4,"microbatches":8,"stages_per_rank":[1,2],"recomputation":false,
              "source":{"first_layer":[0,4,8]}})"};
}

constexpr std::array kTargets = {
    Target{"csv", check_csv, nullptr,
           "0F0 1B0 0I0 0W0 SEND_F RECV_B ( ) ; OVERLAP_F_B , \n UNSHARD RESHARD REDUCE_GRAD \xff 2"},
    Target{"costs", check_costs, cost_seeds,
           "[ ] [[ ]] = . { } , \" ' # \n each stages layers links skips forward backward bandwidth count "
           "from to 1e308 "
           "-1 inf nan 0.5 true activation_bytes 16GiB 99999999999999999999 1979-05-27T07:32:00Z \"\"\" "
           "\\u0000",
           is_toml},
    Target{"config", check_config, nullptr,
           "[ ] [[ ]] = . { } , \" ' # \n lr steps split model 1e-320 -0 inf nan true 0x7f 1979-05-27 \"\"\" "
           "''' \\U0010ffff",
           is_toml},
    Target{"nodelist", check_node_list, node_list_seeds, "[ ] , - 0 01 65535 999999999 n node [0-9] [0- ]n["},
    Target{"http", check_http, http_seeds,
           "GET HEAD POST / /index.html ? HTTP/1.1 HTTP/1. \r\n \r\n\r\n Host: host : \t 127.0.0.1:4711 "
           "localhost:4711 127.0.0.1 \xff"},
    Target{"request", check_request, request_seeds,
           "{ } [ ] : , \" null true -1 1e308 1e15 1024 100001 9223372036854775807 \"operation\" \"ranks\" "
           "\"microbatches\" \"send_mode\" \"memory_cap\" \"costs\" \"source\" \"schedule\" \"csv\" "
           "\"first_layer\" \"stages_per_rank\" \"forward\" \"latency\" [[[[[[[["},
};

}  // namespace

std::span<const Target> targets() {
  return kTargets;
}

}  // namespace penstock::fuzz
