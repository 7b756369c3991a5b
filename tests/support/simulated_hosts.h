// Simulated hosts: network namespaces on one bridge. One of them, or any pair, can be disconnected. Creating
// them needs root; `problem` says why they could not be created.
#pragma once

#include "support/program.h"

#include <string>
#include <vector>

namespace penstock::test {

class SimulatedHosts {
 public:
  explicit SimulatedHosts(int hosts) : hosts_(hosts) {
    static int made_before = 0;
    bridge_ = "psh" + std::to_string(getpid()) + "-" + std::to_string(made_before++);
    std::string script = "set -e; ip netns add " + bridge_ + "; ip -n " + bridge_ +
                         " link add br0 type bridge; ip -n " + bridge_ + " link set br0 up;";
    for (int host = 0; host < hosts; ++host) {
      const std::string port = "p" + std::to_string(host), space = this->space(host);
      script += "ip netns add " + space + "; ip link add veth0 netns " + space + " type veth peer name " +
                port + " netns " + bridge_ + "; ip -n " + bridge_ + " link set " + port +
                " master br0 up; ip -n " + space + " addr add " + address(host) + "/24 dev veth0; ip -n " +
                space + " link set veth0 up; ip -n " + space + " link set lo up;";
    }
    const Outcome made = shell(script);
    if (made.code != 0) problem_ = "this machine does not let us make network namespaces: " + made.err;
  }
  ~SimulatedHosts() {
    shell("ip netns del " + bridge_);
    for (int host = 0; host < hosts_; ++host) shell("ip netns del " + space(host));
  }
  SimulatedHosts(const SimulatedHosts&) = delete;
  SimulatedHosts& operator=(const SimulatedHosts&) = delete;

  //! Why the hosts could not be created; empty if they exist.
  const std::string& problem() const { return problem_; }
  static std::string address(int host) { return "10.78.0." + std::to_string(host + 1); }
  //! A command line that runs on that host.
  std::vector<std::string> on(int host, const std::vector<std::string>& words) const {
    std::vector<std::string> all{"ip", "netns", "exec", space(host)};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  //! Takes the link of the host down: packets are lost silently.
  void disconnect(int host) const { shell("ip -n " + space(host) + " link set veth0 down"); }
  //! Drops packets between the two hosts silently.
  void disconnect(int one, int other) const {
    const auto lose = [this](int from, int to) {
      shell("ip -n " + space(from) + " neigh replace " + address(to) +
            " lladdr 02:00:00:00:00:99 nud permanent dev veth0");
    };
    lose(one, other);
    lose(other, one);
  }

 private:
  static Outcome shell(const std::string& command) { return run_program({"sh", "-c", command}); }
  std::string space(int host) const { return bridge_ + "h" + std::to_string(host); }

  std::string bridge_;
  int hosts_;
  std::string problem_;
};

}  // namespace penstock::test
