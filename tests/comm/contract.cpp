// The cases of the contract. Expected values are formulas of rank and size. Tensors are on the device of the
// rank.
#include "comm/contract.h"

#include "support/check.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/flight_record.h>

#include <ATen/ATen.h>

#include <thread>

namespace penstock::test {
namespace {

thread_local c10::Device device = c10::kCPU;

at::TensorOptions options(at::ScalarType type) {
  return at::TensorOptions(type).device(device);
}
at::Tensor device_empty(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, options(type));
}
at::Tensor device_zeros(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::zeros(sizes, options(type));
}
at::Tensor device_ones(at::IntArrayRef sizes) {
  return at::ones(sizes, options(at::kFloat));
}
at::Tensor device_full(at::IntArrayRef sizes, const at::Scalar& value, at::ScalarType type) {
  return at::full(sizes, value, options(type));
}
at::Tensor device_arange(std::int64_t elements, at::ScalarType type) {
  return at::arange(elements, options(type));
}

//! Sends to one rank and receives from another. With ordered sends, both ranks of a pair must issue the
//! transfers of the pair in the same order.
void exchange(const comm::Group& group, const at::Tensor& sent, int to, const at::Tensor& got, int from,
              int tag) {
  const bool send_first = group.send_mode() == schedule::SendMode::Ordered && group.rank() == 0;
  comm::Work send = send_first ? group.isend(sent, to, tag) : comm::Work();
  comm::Work receive = group.irecv(got, from, tag);
  if (!send_first) send = group.isend(sent, to, tag);
  receive.wait();
  send.wait();
}

at::Tensor marked(int rank, std::int64_t elements, at::ScalarType type = at::kFloat) {
  return device_arange(elements, at::kFloat).add_(1000.0 * rank).to(type);
}

//! Checks that `call` throws an Exception whose message contains `text`. Not a GoogleTest assertion, because
//! ranks may be processes.
template <class Exception, class Call>
void check_throws(const Call& call, const std::string& text) {
  const std::string message = test::error_message<Exception>(call);
  if (message.find(text) == std::string::npos)
    check_failed(__FILE__, __LINE__, "expected an error with \"" + text + "\", not: " + message);
}

void ranks_and_sizes(comm::World& world) {
  const comm::Group& group = world.group();
  CHECK_SAME(group.rank(), world.rank().value);
  CHECK_SAME(group.size(), world.size());
  CHECK_SAME(group.name(), std::string("world"));
  CHECK_SAME(group.global_rank(group.size() - 1).value, world.size() - 1);
}

void ring_of_sends(comm::World& world) {
  const comm::Group& group = world.group();
  const int n = group.size();
  const int next = (group.rank() + 1) % n, previous = (group.rank() + n - 1) % n;
  const at::Tensor mine = marked(group.rank(), 100);
  const at::Tensor got = device_empty(100);
  exchange(group, mine, next, got, previous, 3);
  CHECK_TENSORS(got, marked(previous, 100));
}

void tags_keep_messages_apart(comm::World& world) {
  const comm::Group& group = world.group();
  if (group.size() < 2 || group.send_mode() == schedule::SendMode::Ordered) return;
  if (group.rank() == 0) {
    comm::Work a = group.isend(marked(1, 8), 1, 10);
    comm::Work b = group.isend(marked(2, 8), 1, 20);
    a.wait();
    b.wait();
  } else if (group.rank() == 1) {
    const at::Tensor late = device_empty(8), early = device_empty(8);
    group.recv(late, 0, 20);  // in reverse order of the sends
    group.recv(early, 0, 10);
    CHECK_TENSORS(early, marked(1, 8));
    CHECK_TENSORS(late, marked(2, 8));
  }
}

void messages_of_one_tag_keep_their_order(comm::World& world) {
  const comm::Group& group = world.group();
  if (group.size() < 2 || group.rank() > 1) return;
  constexpr int count = 20;
  std::vector<comm::Work> works;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(group.rank() == 0 ? marked(i, 5) : device_empty(5));
    works.push_back(group.rank() == 0 ? group.isend(tensors.back(), 1, 7)
                                      : group.irecv(tensors.back(), 0, 7));
  }
  for (int i = count - 1; i >= 0; --i) works[static_cast<std::size_t>(i)].wait();
  for (int i = 0; i < count; ++i) CHECK_TENSORS(tensors[static_cast<std::size_t>(i)], marked(i, 5));
}

void strided_and_typed_sends(comm::World& world) {
  const comm::Group& group = world.group();
  if (group.size() < 2 || group.rank() > 1) return;
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kBool, at::kHalf}) {
    const at::Tensor matrix = marked(0, 12).view({3, 4}).to(type);
    if (group.rank() == 0) {
      group.send(matrix.t(), 1);  // not contiguous
    } else {
      const at::Tensor got = device_empty({4, 3}, type);
      group.recv(got, 0);
      CHECK_TENSORS(got, matrix.t().contiguous());
    }
  }
}

// The storage contains values other than those of the tensor.
void lazy_conjugates_and_negatives(comm::World& world) {
  const comm::Group& group = world.group();
  const auto values = [](int rank) { return at::complex(marked(rank, 6), marked(rank + 1, 6)); };
  const auto real = [](int rank) { return marked(rank, 6); };
  const at::Tensor mine = values(group.rank()), negative = at::_neg_view(real(group.rank()));
  CHECK_THAT(mine.conj().is_conj() && negative.is_neg() && at::imag(mine.conj()).is_neg());
  const std::vector<at::Tensor> conjugates = group.all_gather(mine.conj());
  const std::vector<at::Tensor> negatives = group.all_gather(negative);
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    CHECK_TENSORS(conjugates[at], at::complex(marked(rank, 6), -marked(rank + 1, 6)));
    CHECK_TENSORS(negatives[at], -real(rank));
  }
  const int n = group.size(), next = (group.rank() + 1) % n, previous = (group.rank() + n - 1) % n;
  const auto exchanged = [&](const at::Tensor& tensor) {
    const at::Tensor got = at::zeros(tensor.sizes(), tensor.options());
    exchange(group, tensor, next, got, previous, 4);
    return got;
  };
  CHECK_TENSORS(exchanged(mine.conj()), at::complex(marked(previous, 6), -marked(previous + 1, 6)));
  CHECK_TENSORS(exchanged(mine.view({2, 3}).mH()),
                at::complex(marked(previous, 6), -marked(previous + 1, 6)).view({2, 3}).t().contiguous());
  CHECK_TENSORS(exchanged(negative), -real(previous));
  CHECK_TENSORS(exchanged(at::imag(mine.conj())), -marked(previous + 1, 6));
}

void complex_collectives(comm::World& world) {
  const comm::Group& group = world.group();
  const int n = group.size();
  const auto values = [](int rank) { return at::complex(marked(rank, 6), marked(rank + 1, 6)); };
  at::Tensor sum = device_zeros(6, at::kComplexFloat);
  for (int rank = 0; rank < n; ++rank) sum += values(rank);
  const at::Tensor all = values(group.rank()), mean = values(group.rank()), from = values(group.rank());
  group.all_reduce(all);
  CHECK_TENSORS(all, sum);
  group.all_reduce(mean, comm::ReduceOp::Avg);
  CHECK_THAT(at::allclose(mean, sum / n));
  group.broadcast(from, n - 1);
  CHECK_TENSORS(from, values(n - 1));
  const at::Tensor part = device_empty(6, at::kComplexFloat);
  group.reduce_scatter_into(part, values(group.rank()).repeat({n}));
  CHECK_TENSORS(part, sum);
  const at::Tensor rows = device_empty({n, 6}, at::kComplexFloat);
  group.all_to_all(rows, values(group.rank()).repeat({n, 1}));
  for (int rank = 0; rank < n; ++rank) CHECK_TENSORS(rows[rank], values(rank));
  check_throws<UsageError>([&] { group.all_reduce(all, comm::ReduceOp::Max); }, "supports only Sum and Avg");
}

// Every small length, including messages that end with the bytes by which arrival is detected
// (src/comm/transport/arrival.h).
void any_bytes_arrive(comm::World& world) {
  const comm::Group& group = world.group();
  if (group.size() < 2 || group.rank() > 1) return;
  const at::Tensor end = at::tensor({0x93, 0xd5, 0xa6, 0x7f}, at::kByte).to(device);
  for (std::int64_t bytes = 1; bytes <= 24; ++bytes) {
    const at::Tensor message = end.repeat({6}).slice(0, 24 - bytes).clone();
    const at::Tensor got = device_zeros({bytes}, at::kByte);
    if (group.rank() == 0) {
      group.send(message, 1, 5);
    } else {
      group.recv(got, 0, 5);
      CHECK_TENSORS(got, message);
    }
  }
}

void large_messages(comm::World& world) {
  const comm::Group& group = world.group();
  if (group.size() < 2 || group.rank() > 1) return;
  constexpr std::int64_t elements = 3'000'001;
  const int other = 1 - group.rank();
  const at::Tensor got = device_empty(elements);
  exchange(group, marked(group.rank(), elements), other, got, other, 1);
  CHECK_TENSORS(got, marked(other, elements));
}

void dropped_works_go_on(comm::World& world) {
  const comm::Group& group = world.group();
  if (group.size() < 2 || group.rank() > 1) return;
  if (group.rank() == 0) {
    for (int i = 0; i < 10; ++i) group.isend(marked(i, 1000), 1, 2);  // nobody waits
  } else {
    for (int i = 0; i < 10; ++i) {
      const at::Tensor got = device_empty(1000);
      group.recv(got, 0, 2);
      CHECK_TENSORS(got, marked(i, 1000));
    }
  }
}

void done_becomes_true(comm::World& world) {
  const comm::Group& group = world.group();
  if (group.size() < 2 || group.rank() > 1) return;
  const at::Tensor tensor = group.rank() == 0 ? marked(4, 16) : device_empty(16);
  comm::Work work = group.rank() == 0 ? group.isend(tensor, 1, 4) : group.irecv(tensor, 0, 4);
  while (!work.done()) std::this_thread::yield();
  work.wait();
  CHECK_TENSORS(tensor, marked(4, 16));
}

void broadcasts(comm::World& world) {
  const comm::Group& group = world.group();
  for (int root = 0; root < group.size(); ++root) {
    const at::Tensor tensor = marked(group.rank(), 33);
    group.broadcast(tensor, root);
    CHECK_TENSORS(tensor, marked(root, 33));
  }
}

void all_reduces(comm::World& world) {
  const comm::Group& group = world.group();
  const int n = group.size();
  const auto filled = [&] { return device_full({17}, group.rank() + 1, at::kDouble); };
  double product = 1;
  for (int rank = 1; rank <= n; ++rank) product *= rank;
  const std::vector<std::pair<comm::ReduceOp, double>> cases{{comm::ReduceOp::Sum, n * (n + 1) / 2.0},
                                                             {comm::ReduceOp::Avg, (n + 1) / 2.0},
                                                             {comm::ReduceOp::Product, product},
                                                             {comm::ReduceOp::Min, 1.0},
                                                             {comm::ReduceOp::Max, static_cast<double>(n)}};
  for (const auto& [op, expected] : cases) {
    const at::Tensor tensor = filled();
    group.all_reduce(tensor, op);
    CHECK_TENSORS(tensor, device_full({17}, expected, at::kDouble));
  }
}

void all_gathers(comm::World& world) {
  const comm::Group& group = world.group();
  const auto all = group.all_gather(marked(group.rank(), 6).view({2, 3}));
  CHECK_SAME(static_cast<int>(all.size()), group.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    CHECK_TENSORS(all[static_cast<std::size_t>(rank)], marked(rank, 6).view({2, 3}));
  }
}

void reduce_scatters(comm::World& world) {
  const comm::Group& group = world.group();
  const int n = group.size();
  const at::Tensor input = device_arange(n * 4, at::kDouble) + group.rank();
  const at::Tensor output = device_empty(4, at::kDouble);
  group.reduce_scatter_into(output, input);
  const at::Tensor expected = (device_arange(4, at::kDouble) + group.rank() * 4) * n + n * (n - 1) / 2.0;
  CHECK_TENSORS(output, expected);
}

void all_to_alls(comm::World& world) {
  const comm::Group& group = world.group();
  const int n = group.size(), me = group.rank();
  const at::Tensor even = device_empty({n, 2}, at::kLong);
  group.all_to_all(even, device_arange(n * 2, at::kLong).view({n, 2}) + 100 * me);
  for (int from = 0; from < n; ++from)
    CHECK_TENSORS(even[from], device_arange(2, at::kLong) + 2 * me + 100 * from);
  // Uneven: rank r sends r + t + 1 rows to rank t.
  std::vector<std::int64_t> give, take;
  for (int other = 0; other < n; ++other) {
    give.push_back(me + other + 1);
    take.push_back(me + other + 1);
  }
  const std::int64_t rows = at::tensor(give).sum().item<std::int64_t>();
  const at::Tensor input = device_full({rows, 1}, me, at::kLong);
  const at::Tensor output = device_empty({rows, 1}, at::kLong);
  group.all_to_all(output, input, take, give);
  std::int64_t row = 0;
  for (int from = 0; from < n; ++from) {
    CHECK_TENSORS(output.narrow(0, row, me + from + 1), device_full({me + from + 1, 1}, from, at::kLong));
    row += me + from + 1;
  }
}

void several_collectives_at_once(comm::World& world) {
  const comm::Group& group = world.group();
  const at::Tensor a = device_ones(1000), b = device_ones(10), c = device_full({5}, group.rank(), at::kFloat);
  comm::Work wa = group.iall_reduce(a), wb = group.iall_reduce(b), wc = group.ibroadcast(c, 0);
  wc.wait();
  wb.wait();
  wa.wait();
  CHECK_TENSORS(a, device_full({1000}, group.size(), at::kFloat));
  CHECK_TENSORS(b, device_full({10}, group.size(), at::kFloat));
  CHECK_TENSORS(c, device_zeros(5));
}

// In each round, one rank enters the barrier last: after every other rank has told it that it is about to
// enter. None of them may leave the barrier before that. The polls only give a wrong barrier time to be
// noticed.
void barriers(comm::World& world) {
  constexpr int entering = 1, left = 2, polls = 2000;
  const comm::Group& group = world.group();
  for (int last = 0; last < group.size(); ++last) {
    if (group.rank() != last) {
      group.send(at::ones(1), last, entering);
      group.barrier();
      group.send(at::ones(1), last, left);
      continue;
    }
    std::vector<comm::Work> departures;
    for (int rank = 0; rank < group.size(); ++rank)
      if (rank != last) departures.push_back(group.irecv(at::empty(1), rank, left));
    for (int rank = 0; rank < group.size(); ++rank)
      if (rank != last) group.recv(at::empty(1), rank, entering);
    for (int poll = 0; poll < polls; ++poll) {
      for (comm::Work& departure : departures) CHECK_THAT(!departure.done());
      std::this_thread::yield();
    }
    group.barrier();
    for (comm::Work& departure : departures) departure.wait();
  }
}

void splits(comm::World& world) {
  const comm::Group& group = world.group();
  const int me = group.rank();
  const auto half = group.split(me % 2, -me);  // the keys reverse the order
  CHECK_THAT(half.has_value());
  int larger = 0;
  for (int rank = me + 2; rank < group.size(); rank += 2) ++larger;
  CHECK_SAME(half->rank(), larger);
  const at::Tensor sum = device_full({1}, me, at::kLong);
  half->all_reduce(sum);
  std::int64_t expected = 0;
  for (int rank = me % 2; rank < group.size(); rank += 2) expected += rank;
  CHECK_SAME(sum.item<std::int64_t>(), expected);
  CHECK_SAME(half->global_rank(half->rank()).value, me);

  const auto last = group.subgroup({group.size() - 1});
  CHECK_SAME(last.has_value(), me == group.size() - 1);
  const auto nobody = group.split(std::nullopt);
  CHECK_THAT(!nobody.has_value());
}

void objects(comm::World& world) {
  const comm::Group& group = world.group();
  const int me = group.rank(), n = group.size();
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("rank", static_cast<std::int64_t>(me));
  dict.insert("tensor", marked(me, 3 + me).cpu());
  dict.insert("text", std::string(static_cast<std::size_t>(me), 'x'));
  const auto all = group.all_gather_object(dict);
  for (int rank = 0; rank < n; ++rank) {
    const auto got = all[static_cast<std::size_t>(rank)].toGenericDict();
    CHECK_SAME(got.at("rank").toInt(), rank);
    CHECK_TENSORS(got.at("tensor").toTensor(), marked(rank, 3 + rank).cpu());
    CHECK_SAME(got.at("text").toStringRef(), std::string(static_cast<std::size_t>(rank), 'x'));
  }
  const auto from_last =
      group.broadcast_object(me == n - 1 ? c10::IValue(std::string("hello")) : c10::IValue(), n - 1);
  CHECK_SAME(from_last.toStringRef(), std::string("hello"));
  if (n < 2 || me > 1) return;
  if (me == 0) {
    group.send_object(c10::IValue(), 1, 5);
    group.send_object(3.5, 1, 5);
  } else {
    CHECK_THAT(group.recv_object(0, 5).isNone());
    CHECK_SAME(group.recv_object(0, 5).toDouble(), 3.5);
  }
}

void empty_tensors(comm::World& world) {
  const comm::Group& group = world.group();
  const at::Tensor nothing = device_empty({0, 4});
  group.all_reduce(nothing);
  if (group.size() < 2 || group.rank() > 1) return;
  if (group.rank() == 0) group.send(nothing, 1, 9);
  if (group.rank() == 1) group.recv(nothing, 0, 9);
}

void bad_arguments_are_refused_here(comm::World& world) {
  const comm::Group& group = world.group();
  const at::Tensor tensor = device_ones({2, 2});
  check_throws<UsageError>([&] { group.send(tensor, group.size()); }, "has no position");
  check_throws<UsageError>([&] { group.recv(tensor, -1); }, "has no position -1");
  check_throws<UsageError>([&] { group.broadcast(tensor, 99); }, "has no position 99");
  check_throws<UsageError>([&] { group.recv(tensor.t().slice(0, 0, 1), 0); }, "requires a contiguous tensor");
  // Written in place, or read through its memory.
  for (const at::Tensor& lazy : {at::complex(tensor, tensor).conj(), at::_neg_view(tensor)}) {
    check_throws<UsageError>([&] { group.recv(lazy, 0); }, "recv requires a contiguous tensor");
    check_throws<UsageError>([&] { group.broadcast(lazy, 0); }, "broadcast requires a contiguous tensor");
    check_throws<UsageError>([&] { group.all_reduce(lazy); }, "all_reduce requires a contiguous tensor");
    check_throws<UsageError>(
        [&] {
          group.all_gather_into(at::empty({group.size(), 2, 2}, lazy.options()), lazy);
        },
        "all_gather requires a contiguous tensor");
  }
  check_throws<ShapeError>([&] { group.all_gather_into(device_empty(3 + 4 * group.size()), tensor); },
                           "all_gather: the full tensor has");
  check_throws<ShapeError>(
      [&] {
        group.all_to_all(tensor, device_ones({group.size(), 1}), {1, 2, 3, 4, 5, 6, 7});
      },
      "all_to_all");
  group.barrier();  // the other ranks started nothing, and the group still works
}

void operations_are_recorded(comm::World& world) {
  world.group().barrier();
  const auto records = world.flight_records();
  CHECK_THAT(!records.empty());
  CHECK_SAME(std::string(records.back().op), std::string("barrier"));
  CHECK_THAT(records.back().finished >= records.back().started);
  CHECK_THAT(!records.back().failed);
}

}  // namespace

void run(const ContractCase& contract, comm::World& world) {
  device = world.device();
  contract.run(world);
}

const std::vector<ContractCase>& contract_cases() {
  static const std::vector<ContractCase> cases{
      {"RanksAndSizes", ranks_and_sizes},
      {"RingOfSends", ring_of_sends},
      {"TagsKeepMessagesApart", tags_keep_messages_apart},
      {"MessagesOfOneTagKeepTheirOrder", messages_of_one_tag_keep_their_order},
      {"StridedAndTypedSends", strided_and_typed_sends},
      {"LazyConjugatesAndNegatives", lazy_conjugates_and_negatives},
      {"ComplexCollectives", complex_collectives},
      {"AnyBytesArrive", any_bytes_arrive},
      {"LargeMessages", large_messages},
      {"DroppedWorksGoOn", dropped_works_go_on},
      {"DoneBecomesTrue", done_becomes_true},
      {"Broadcasts", broadcasts},
      {"AllReduces", all_reduces},
      {"AllGathers", all_gathers},
      {"ReduceScatters", reduce_scatters},
      {"AllToAlls", all_to_alls},
      {"SeveralCollectivesAtOnce", several_collectives_at_once},
      {"Barriers", barriers},
      {"Splits", splits},
      {"Objects", objects},
      {"EmptyTensors", empty_tensors},
      {"BadArgumentsAreRefusedHere", bad_arguments_are_refused_here},
      {"OperationsAreRecorded", operations_are_recorded}};
  return cases;
}

}  // namespace penstock::test
