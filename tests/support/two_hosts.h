// Two simulated hosts: network namespaces connected by a virtual link. Creating them needs root; `problem`
// says why they could not be created.
#pragma once

#include "support/program.h"

#include <string>
#include <vector>

namespace penstock::test {

class TwoHosts {
 public:
  TwoHosts() {
    static int made_before = 0;
    const std::string mine = std::to_string(getpid()) + "-" + std::to_string(made_before++);
    names_[0] = "psa" + mine;
    names_[1] = "psb" + mine;
    const std::string &a = names_[0], &b = names_[1];
    const Outcome made =
        shell("ip netns add " + a + " && ip netns add " + b + " && ip link add veth0 netns " + a +
              " type veth peer name veth0 netns " + b + " && ip -n " + a + " addr add " + address(0) +
              "/24 dev veth0 && ip -n " + b + " addr add " + address(1) + "/24 dev veth0 && ip -n " + a +
              " link set veth0 up && ip -n " + b + " link set veth0 up && ip -n " + a +
              " link set lo up && ip -n " + b + " link set lo up");
    if (made.code != 0) problem_ = "this machine does not let us make network namespaces: " + made.err;
  }
  ~TwoHosts() {
    for (const std::string& name : names_) shell("ip netns del " + name);
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  //! Empty if the hosts exist.
  const std::string& problem() const { return problem_; }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  //! A command line that runs on that host.
  std::vector<std::string> on(int host, const std::vector<std::string>& words) const {
    std::vector<std::string> all{"ip", "netns", "exec", names_[host]};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  //! Takes the link down: packets are lost silently.
  void disconnect() const { shell("ip -n " + names_[0] + " link set veth0 down"); }

 private:
  static Outcome shell(const std::string& command) { return run_program({"sh", "-c", command}); }

  std::string names_[2];
  std::string problem_;
};

}  // namespace penstock::test
