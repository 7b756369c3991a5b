// Every rank runs its list until a value is missing; the rank that delivers the value wakes it. A link serves
// its transfers in the order of the sender's list (in the ordered mode, of both lists). The times therefore
// do not depend on the order in which ranks are simulated, and no event queue is needed.
#include "plan/memory_model.h"
#include "schedule/dependencies.h"

#include <penstock/base/error.h>
#include <penstock/plan/simulate.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace penstock::plan {
namespace {

constexpr double kUnknownTime = -1;
constexpr std::int32_t kNoEntry = -1;

//! One direction of an edge: sender, receiver, link and duration.
struct Route {
  int from_rank = 0;
  int to_rank = 0;
  int link = 0;     //!< of the ordered pair of ranks
  int channel = 0;  //!< of the unordered pair
  double transfer = 0;
  double occupies = 0;  //!< time until the link can start the next message
};

//! A transfer that one side has posted.
struct Post {
  double time = kUnknownTime;
  std::int32_t entry = kNoEntry;
};

struct Engine {
  Engine(const schedule::Program& p, const Costs& c)
      : program(p), costs(c), context(schedule::context_of(p.draft())), facts(p.wiring(), p.microbatches()) {
    const auto ranks = static_cast<std::size_t>(p.ranks());
    offset.resize(ranks + 1, 0);
    for (std::size_t r = 0; r < ranks; ++r) offset[r + 1] = offset[r] + p.draft().ranks[r].size();
    timed.resize(offset.back());
    bound_by.assign(offset.back(), kNoEntry);
    step.assign(ranks, 0);
    clock.assign(ranks, 0);
    clock_entry.assign(ranks, kNoEntry);
    collective_free.assign(ranks, 0);
    collective_entry.assign(ranks, kNoEntry);
    waits_for.assign(ranks, facts.size());
    unsharded.assign(static_cast<std::size_t>(p.num_stages()), {0, kNoEntry});
    known.assign(facts.size(), kUnknownTime);
    known_entry.assign(facts.size(), kNoEntry);
    posts.assign(2 * facts.size(), {});
    make_routes();
  }

  void make_routes() {
    std::unordered_map<std::int64_t, int> links, channels;
    const auto number = [](std::unordered_map<std::int64_t, int>& all, int a, int b) {
      return all.try_emplace((static_cast<std::int64_t>(a) << 32) | b, static_cast<int>(all.size()))
          .first->second;
    };
    for (int backward = 0; backward < 2; ++backward) {
      for (int e = 0; e < program.wiring().edges(); ++e) {
        const schedule::StageEdge& edge = program.wiring().edge(e);
        Rank from = program.placement().rank_of(edge.from), to = program.placement().rank_of(edge.to);
        if (backward) std::swap(from, to);
        const Link& link = costs.link_between(from, to);
        const std::uint64_t bytes = costs.message_bytes(edge.from, edge.to);
        Route route{from.value, to.value, number(links, from.value, to.value),
                    number(channels, std::min(from.value, to.value), std::max(from.value, to.value))};
        route.transfer = link.time(bytes);
        route.occupies = route.transfer - link.latency;
        routes.push_back(route);
      }
    }
    link_free.assign(links.size(), {0, kNoEntry});
    channel_free.assign(channels.size(), {0, kNoEntry});
    channel_queue.resize(channels.size());
  }

  void run() {
    for (int r = program.ranks() - 1; r >= 0; --r) ready.push_back(r);
    while (!ready.empty()) {
      const int rank = ready.back();
      ready.pop_back();
      advance(static_cast<std::size_t>(rank));
    }
    for (std::size_t r = 0; r < step.size(); ++r) {
      if (offset[r] + step[r] == offset[r + 1]) continue;
      // Programs are validated, so this is a bug in Penstock.
      throw ScheduleError("the simulation cannot make progress",
                          {.rank = Rank(static_cast<int>(r)), .action = to_string(action_at(r))});
    }
  }

  const schedule::Action& action_at(std::size_t rank) const {
    return program.draft().ranks[rank][step[rank]];
  }

  void advance(std::size_t rank) {
    waits_for[rank] = facts.size();
    const std::size_t count = offset[rank + 1] - offset[rank];
    while (step[rank] < count) {
      const schedule::Action& action = action_at(rank);
      const auto entry = static_cast<std::int32_t>(offset[rank] + step[rank]);
      if (!perform(rank, action, entry)) return;
      ++step[rank];
    }
  }

  //! Returns false if the rank must wait; it is called again for the same action later.
  bool perform(std::size_t rank, const schedule::Action& action, std::int32_t entry) {
    switch (action.kind()) {
      case schedule::ActionKind::Idle:
        at(entry) = {action, clock[rank], clock[rank]};
        return true;
      case schedule::ActionKind::Forward:
      case schedule::ActionKind::Backward:
      case schedule::ActionKind::BackwardInput:
      case schedule::ActionKind::BackwardWeight:
      case schedule::ActionKind::Overlap:
        return compute(rank, action, entry);
      case schedule::ActionKind::SendForward:
      case schedule::ActionKind::SendBackward:
        return send(rank, action, entry);
      case schedule::ActionKind::RecvForward:
      case schedule::ActionKind::RecvBackward:
        receive(rank, action, entry);
        return true;
      case schedule::ActionKind::Unshard:
      case schedule::ActionKind::ReduceGrad:
        collective(rank, action, entry);
        return true;
      case schedule::ActionKind::Reshard: {
        occupy(rank, action, entry, clock[rank], duration_of(action, costs), clock_entry[rank]);
        return true;
      }
    }
    return true;
  }

  void occupy(std::size_t rank, const schedule::Action& action, std::int32_t entry, double start,
              double length, std::int32_t reason) {
    at(entry) = {action, start, start + length};
    bound_by[static_cast<std::size_t>(entry)] = reason;
    clock[rank] = start + length;
    clock_entry[rank] = entry;
  }

  bool compute(std::size_t rank, const schedule::Action& action, std::int32_t entry) {
    double start = clock[rank];
    std::int32_t reason = clock_entry[rank];
    std::size_t missing = facts.size();
    for_each_need(action, context, [&](const schedule::Fact& fact) {
      const std::size_t index = facts(fact);
      if (known[index] == kUnknownTime) {
        missing = index;
      } else if (known[index] > start) {
        start = known[index];
        reason = known_entry[index];
      }
    });
    if (missing != facts.size()) {
      waits_for[rank] = missing;
      return false;
    }
    for_each_part(action, [&](const schedule::Action& part) {
      const auto& [time, by] = unsharded[part.stage().index()];
      if (time > start) start = time, reason = by;
    });
    occupy(rank, action, entry, start, duration_of(action, costs), reason);
    for_each_yield(action, context,
                   [&](const schedule::Fact& fact) { learn(facts(fact), clock[rank], entry); });
    return true;
  }

  void learn(std::size_t fact, double time, std::int32_t entry) {
    known[fact] = time;
    known_entry[fact] = entry;
  }

  //! UNSHARD and REDUCE_GRAD run one after the other, concurrently with computations.
  void collective(std::size_t rank, const schedule::Action& action, std::int32_t entry) {
    const bool queued = collective_free[rank] > clock[rank];
    const double start = queued ? collective_free[rank] : clock[rank];
    at(entry) = {action, start, start + duration_of(action, costs)};
    bound_by[static_cast<std::size_t>(entry)] = queued ? collective_entry[rank] : clock_entry[rank];
    collective_free[rank] = at(entry).end;
    collective_entry[rank] = entry;
    if (action.kind() == schedule::ActionKind::Unshard)
      unsharded[action.stage().index()] = {at(entry).end, entry};
  }

  // Transfers. A message is identified by the fact that its arrival makes true.
  struct Message {
    std::size_t fact;
    const Route& route;
  };
  Message message_of(const schedule::Action& action) const {
    const bool backward = action.kind() == schedule::ActionKind::SendBackward ||
                          action.kind() == schedule::ActionKind::RecvBackward;
    const bool ascending = action.is_send() != backward;
    const int edge = *(ascending ? context.wiring.find(action.stage(), action.peer())
                                 : context.wiring.find(action.peer(), action.stage()));
    const schedule::FactKind kind =
        backward ? schedule::FactKind::BackwardReceived : schedule::FactKind::ForwardReceived;
    const int route = edge + (backward ? context.wiring.edges() : 0);
    return {facts({kind, edge, action.microbatch()}), routes[static_cast<std::size_t>(route)]};
  }
  Post& sent(std::size_t fact) { return posts[2 * fact]; }
  Post& awaited(std::size_t fact) { return posts[2 * fact + 1]; }

  bool send(std::size_t rank, const schedule::Action& action, std::int32_t entry) {
    const Message message = message_of(action);
    sent(message.fact) = {clock[rank], entry};
    at(entry) = {action, clock[rank], clock[rank]};
    bound_by[static_cast<std::size_t>(entry)] = clock_entry[rank];
    switch (program.send_mode()) {
      case schedule::SendMode::Buffered: {
        auto& [free, last] = link_free[static_cast<std::size_t>(message.route.link)];
        start_transfer(message, clock[rank], clock_entry[rank], free, last);
        free = at(entry).start + message.route.occupies;
        last = entry;
        return true;
      }
      case schedule::SendMode::Ordered:
        post_in_order(message);
        return true;
      case schedule::SendMode::Blocking:
        if (awaited(message.fact).entry == kNoEntry) return false;
        meet(message);
        return true;
    }
    return true;
  }

  void receive(std::size_t rank, const schedule::Action& action, std::int32_t entry) {
    const Message message = message_of(action);
    awaited(message.fact) = {clock[rank], entry};
    at(entry) = {action, clock[rank], clock[rank]};
    bound_by[static_cast<std::size_t>(entry)] = clock_entry[rank];
    switch (program.send_mode()) {
      case schedule::SendMode::Buffered:
        if (known[message.fact] != kUnknownTime) show_arrival(message);
        return;
      case schedule::SendMode::Ordered:
        post_in_order(message);
        return;
      case schedule::SendMode::Blocking:
        if (sent(message.fact).entry == kNoEntry) return;
        meet(message);  // the sender is already waiting
        ++step[static_cast<std::size_t>(message.route.from_rank)];
        ready.push_back(message.route.from_rank);
        return;
    }
  }

  //! Starts the transfer at `when`, or as soon as the link is free.
  void start_transfer(const Message& message, double when, std::int32_t reason, double free,
                      std::int32_t last) {
    const std::int32_t entry = sent(message.fact).entry;
    if (free > when) when = free, reason = last;
    at(entry).start = when;
    at(entry).end = when + message.route.transfer;
    bound_by[static_cast<std::size_t>(entry)] = reason;
    learn(message.fact, at(entry).end, entry);
    if (awaited(message.fact).entry != kNoEntry) show_arrival(message);
    const auto receiver = static_cast<std::size_t>(message.route.to_rank);
    if (waits_for[receiver] == message.fact) {
      waits_for[receiver] = facts.size();
      ready.push_back(message.route.to_rank);
    }
  }

  void show_arrival(const Message& message) {
    const Post& post = awaited(message.fact);
    const schedule::TimedAction& source = at(sent(message.fact).entry);
    at(post.entry).start = std::max(post.time, source.start);
    at(post.entry).end = std::max(post.time, source.end);
    if (source.end > post.time) bound_by[static_cast<std::size_t>(post.entry)] = sent(message.fact).entry;
  }

  //! Blocking mode: the transfer starts when both sides have posted it; the sender waits until it ends.
  void meet(const Message& message) {
    const Post& from = sent(message.fact);
    const Post& to = awaited(message.fact);
    const std::int32_t reason =
        bound_by[static_cast<std::size_t>(to.time > from.time ? to.entry : from.entry)];
    start_transfer(message, std::max(from.time, to.time), reason, 0, kNoEntry);
    const auto sender = static_cast<std::size_t>(message.route.from_rank);
    clock[sender] = at(from.entry).end;
    clock_entry[sender] = from.entry;
  }

  //! Ordered mode: the n-th transfer of one side of a pair matches the n-th of the other.
  void post_in_order(const Message& message) {
    auto& queue = channel_queue[static_cast<std::size_t>(message.route.channel)];
    // The validator guarantees the same order on both sides. It is therefore enough to queue messages in the
    // order of their first post and to serve the head once both sides have posted it.
    if (sent(message.fact).entry == kNoEntry || awaited(message.fact).entry == kNoEntry)
      queue.messages.push_back(message);
    auto& [free, last] = channel_free[static_cast<std::size_t>(message.route.channel)];
    while (queue.head < queue.messages.size()) {
      const Message& head = queue.messages[queue.head];
      const Post& from = sent(head.fact);
      const Post& to = awaited(head.fact);
      if (from.entry == kNoEntry || to.entry == kNoEntry) break;
      ++queue.head;
      const std::int32_t reason =
          bound_by[static_cast<std::size_t>(to.time > from.time ? to.entry : from.entry)];
      start_transfer(head, std::max(from.time, to.time), reason, free, last);
      free = at(from.entry).end;
      last = from.entry;
    }
  }

  schedule::TimedAction& at(std::int32_t entry) { return timed[static_cast<std::size_t>(entry)]; }

  struct Queue {
    std::vector<Message> messages;
    std::size_t head = 0;
  };

  const schedule::Program& program;
  const Costs& costs;
  const schedule::ActionContext context;
  const schedule::FactIndex facts;

  std::vector<std::size_t> offset;           // the first entry of each rank
  std::vector<schedule::TimedAction> timed;  // the entries of all ranks, in program order
  std::vector<std::int32_t> bound_by;        // per entry: the entry that kept it from starting earlier
  std::vector<std::size_t> step;             // the next action of each rank
  std::vector<double> clock;                 // when each rank is free
  std::vector<std::int32_t> clock_entry, collective_entry;
  std::vector<double> collective_free;
  std::vector<std::size_t> waits_for;  // the fact that each rank waits for
  std::vector<std::pair<double, std::int32_t>> unsharded;
  std::vector<double> known;
  std::vector<std::int32_t> known_entry;
  std::vector<Post> posts;
  std::vector<Route> routes;
  std::vector<std::pair<double, std::int32_t>> link_free, channel_free;
  std::vector<Queue> channel_queue;
  std::vector<int> ready;
};

std::vector<CriticalAction> critical_path(Engine& engine) {
  std::int32_t last = kNoEntry;
  for (std::size_t i = 0; i < engine.timed.size(); ++i) {
    if (last == kNoEntry || engine.timed[i].end > engine.at(last).end) last = static_cast<std::int32_t>(i);
  }
  std::vector<CriticalAction> path;
  for (std::int32_t i = last; i != kNoEntry; i = engine.bound_by[static_cast<std::size_t>(i)]) {
    const auto after =
        std::upper_bound(engine.offset.begin(), engine.offset.end(), static_cast<std::size_t>(i));
    const auto rank = Rank(after - engine.offset.begin() - 1);
    path.push_back({rank, engine.at(i)});
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace

double duration_of(const schedule::Action& action, const Costs& costs) {
  const StageCosts& stage = costs.stages[action.stage().index()];
  const double recompute_time = stage.recompute ? stage.forward : 0;
  switch (action.kind()) {
    case schedule::ActionKind::Forward:
      return stage.forward;
    case schedule::ActionKind::Backward:
      return recompute_time + stage.full_backward();
    case schedule::ActionKind::BackwardInput:
      return recompute_time + stage.input;
    case schedule::ActionKind::BackwardWeight:
      return stage.weight;
    case schedule::ActionKind::Overlap: {
      const double forward = duration_of(action.forward_part(), costs);
      const double backward = duration_of(action.backward_part(), costs);
      return forward + backward - costs.overlap * std::min(forward, backward);
    }
    case schedule::ActionKind::Unshard:
      return stage.unshard;
    case schedule::ActionKind::Reshard:
      return stage.reshard;
    case schedule::ActionKind::ReduceGrad:
      return stage.reduce_grad;
    case schedule::ActionKind::Idle:
    case schedule::ActionKind::SendForward:
    case schedule::ActionKind::RecvForward:
    case schedule::ActionKind::SendBackward:
    case schedule::ActionKind::RecvBackward:
      return 0;
  }
  return 0;
}

Simulation simulate(const schedule::Program& program, const Costs& costs, const SimulateOptions& options) {
  check_costs(costs, program.num_stages(), program.microbatches());
  Engine engine(program, costs);
  engine.run();

  Simulation result;
  schedule::Timeline& timeline = result.timeline;
  timeline.name = program.name();
  timeline.placement = program.placement();
  timeline.microbatches = program.microbatches();
  if (options.critical_path) result.critical_path = critical_path(engine);
  for (std::size_t r = 0; r < static_cast<std::size_t>(program.ranks()); ++r) {
    timeline.ranks.emplace_back(engine.timed.begin() + static_cast<std::ptrdiff_t>(engine.offset[r]),
                                engine.timed.begin() + static_cast<std::ptrdiff_t>(engine.offset[r + 1]));
    timeline.memory.push_back(memory_over_time(timeline.ranks.back(),
                                               program.placement().stages_of(Rank(static_cast<int>(r))),
                                               costs, program.has_backward()));
    const auto by_start = [](const schedule::TimedAction& a, const schedule::TimedAction& b) {
      return a.start < b.start;
    };
    if (!std::is_sorted(timeline.ranks.back().begin(), timeline.ranks.back().end(), by_start)) {
      std::stable_sort(timeline.ranks.back().begin(), timeline.ranks.back().end(), by_start);
    }
  }
  result.step_time = timeline.makespan();
  result.ranks = report_ranks(timeline);
  for (const RankReport& rank : result.ranks) {
    result.bubble += rank.bubble / static_cast<double>(result.ranks.size());
    result.own_bubble += rank.own_bubble / static_cast<double>(result.ranks.size());
  }
  if (!options.memory_samples) timeline.memory.clear();
  return result;
}

}  // namespace penstock::plan
