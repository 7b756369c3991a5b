// Tensors saved in any partition load in any other, bitwise equal, and only the requested bytes are read.
#include "checkpoint/pieces/regions.h"
#include "support/check.h"
#include "support/counted_tensors.h"
#include "support/program.h"
#include "support/random_partitions.h"
#include "support/same_bits.h"

#include <penstock/checkpoint/checkpoint.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/thread_ranks.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

namespace penstock::checkpoint {
namespace {

using namespace test;
using ::testing::HasSubstr;

TEST(CheckpointBoxes, ChunksOfRangeAreItsElementsInOrder) {
  Random random(7);
  for (int round = 0; round < 400; ++round) {
    std::vector<std::int64_t> shape;
    for (std::int64_t d = pick(random, 0, 4); d > 0; --d) shape.push_back(pick(random, 1, 4));
    const std::int64_t numel = numel_of(shape);
    const auto at = random_boundaries(random, numel, 2);
    const FlatRange range{at[0], at[1]};
    // Oracle: number the elements, select the range, and concatenate the chunks.
    const at::Tensor numbers = at::arange(numel).reshape(shape);
    std::vector<at::Tensor> taken = {at::empty({0}, at::kLong)};
    const auto chunks = chunks_of(range, shape);
    for (const Chunk& chunk : chunks) taken.push_back(take(numbers, chunk.box).flatten());
    EXPECT_TRUE(at::equal(at::cat(taken), at::arange(range.begin, range.end)));
    EXPECT_LE(chunks.size(), shape.empty() ? 1 : 2 * shape.size() - 1);
  }
}

TEST(CheckpointBoxes, SubtractionLeavesRemainingElements) {
  Random random(8);
  for (int round = 0; round < 400; ++round) {
    std::vector<std::int64_t> shape;
    for (std::int64_t d = pick(random, 1, 3); d > 0; --d) shape.push_back(pick(random, 1, 5));
    const auto box = [&] {
      Box made;
      for (const std::int64_t size : shape) {
        const auto at = random_boundaries(random, size, 3);
        made.offsets.push_back(at[1]);
        made.lengths.push_back(at[2] - at[1]);
      }
      return made;
    };
    const Box from = box(), removed = box();
    // Oracle: a mask over the elements.
    at::Tensor marks = at::zeros(shape, at::kInt), expected = at::zeros(shape, at::kInt);
    const auto mark = [](const at::Tensor& on, const Box& b, int value, bool add) {
      at::Tensor part = on;
      for (std::size_t d = 0; d < b.offsets.size(); ++d)
        part = part.narrow(static_cast<std::int64_t>(d), b.offsets[d], b.lengths[d]);
      if (add)
        part.add_(value);
      else
        part.fill_(value);
    };
    mark(expected, from, 1, false);
    mark(expected, removed, 0, false);
    std::vector<Box> rest;
    subtract(from, removed, rest);
    for (const Box& b : rest) mark(marks, b, 1, true);
    EXPECT_TRUE(at::equal(marks, expected));
  }
}

//! Random tensors by name.
std::map<std::string, at::Tensor> random_model(Random& random) {
  const std::vector<at::ScalarType> dtypes = {at::kFloat,  at::kBFloat16, at::kLong, at::kBool,
                                              at::kDouble, at::kHalf,     at::kByte};
  std::map<std::string, at::Tensor> model;
  for (std::int64_t n = pick(random, 1, 5); n > 0; --n) {
    std::vector<std::int64_t> shape;
    for (std::int64_t d = pick(random, 0, 3); d > 0; --d)
      shape.push_back(pick(random, pick(random, 0, 6) == 0 ? 0 : 1, 17));
    const at::ScalarType dtype = dtypes[static_cast<std::size_t>(pick(random, 0, 6))];
    at::Tensor tensor = counted(shape, dtype);
    auto* bytes = static_cast<std::uint8_t*>(tensor.data_ptr());
    for (std::size_t i = 0; i < tensor.nbytes(); ++i)
      bytes[i] = static_cast<std::uint8_t>(random() % (dtype == at::kBool ? 2 : 256));
    model.emplace("layer." + std::to_string(n), tensor);
  }
  return model;
}

using Distribution = std::map<std::string, std::vector<std::vector<Region>>>;

Distribution distribute_randomly(Random& random, const std::map<std::string, at::Tensor>& model, int ranks) {
  Distribution all;
  for (const auto& [name, tensor] : model) all.emplace(name, partition(random, tensor.sizes().vec(), ranks));
  return all;
}

std::vector<Piece> pieces_of_rank(const std::map<std::string, at::Tensor>& model, const Distribution& how,
                                  int rank, bool zero) {
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : model) {
    for (Piece& piece : pieces_of(name, tensor, how.at(name)[static_cast<std::size_t>(rank)], zero))
      pieces.push_back(std::move(piece));
  }
  return pieces;
}

TEST(CheckpointTopology, LoadsInPartitionOtherThanSaved) {
  const unsigned seed = 20261116;
  std::printf("seed %u\n", seed);
  Random random(seed);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const TempDir dir;
    const auto model = random_model(random);
    const int from = static_cast<int>(pick(random, 1, 4)), to = static_cast<int>(pick(random, 1, 4));
    const Distribution a = distribute_randomly(random, model, from),
                       b = distribute_randomly(random, model, to);
    const bool background = pick(random, 0, 1) == 0;
    comm::run_thread_ranks(from, [&](comm::World& world) {
      CheckpointWriter writer(dir.path(), world.group(), {.asynchronous = background});
      writer.save(5, pieces_of_rank(model, a, world.rank().value, false), {{"config", "x = 1"}});
      writer.wait();
    });
    const std::string path = dir / checkpoint_name(5);
    const Checkpoint loaded(path);
    EXPECT_EQ(to_string(loaded.verify()), "");
    EXPECT_EQ(loaded.note("config"), "x = 1");
    for (const auto& [name, tensor] : model) EXPECT_TRUE(same_bits(loaded.read(name), tensor)) << name;
    comm::run_thread_ranks(to, [&](comm::World& world) {
      const std::vector<Piece> wanted = pieces_of_rank(model, b, world.rank().value, true);
      const LoadReport report = Checkpoint(path).load(wanted, world.group());
      std::uint64_t bytes = 0;
      for (const Piece& piece : wanted) {
        CHECK_THAT(same_bits(piece.local, take(model.at(piece.name), piece.region)));
        bytes += piece.local.nbytes();
      }
      CHECK_SAME(report.bytes_used, bytes);
    });
  }
}

TEST(CheckpointTopology, ReadsOnlyBytesOfLocalPieces) {
  const TempDir dir;
  const at::Tensor weight = at::randn({512, 4096}), flat = at::randn({100000});
  comm::run_thread_ranks(2, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group());
    const int rank = world.rank().value;
    const Box half{{0, 2048 * rank}, {512, 2048}};
    writer.save(1, {{.name = "weight", .shape = {512, 4096}, .local = take(weight, half), .region = half},
                    {.name = "flat", .shape = {100000}, .local = flat}});
    writer.wait();
  });
  const Checkpoint checkpoint(dir / checkpoint_name(1));
  EXPECT_EQ(checkpoint.files().size(), 2U);
  // Rows 100 to 116 are in both files, far apart: every byte that is read is used.
  const Box rows{{100, 0}, {16, 4096}};
  const FlatRange range{1000, 3000};
  const std::vector<Piece> wanted = {
      {.name = "weight", .shape = {512, 4096}, .local = at::zeros({16, 4096}), .region = rows},
      {.name = "flat", .shape = {100000}, .local = at::zeros({2000}), .region = range}};
  const LoadReport report = checkpoint.load(wanted);
  EXPECT_EQ(report.bytes_used, (16 * 4096 + 2000) * sizeof(float));
  EXPECT_EQ(report.bytes_read, report.bytes_used);
  EXPECT_TRUE(same_bits(wanted[0].local, take(weight, rows)));
  EXPECT_TRUE(same_bits(wanted[1].local, take(flat, range)));
}

TEST(CheckpointTopology, LoadsIntoStridedTensorsAndConvertsOnRequest) {
  const TempDir dir;
  const at::Tensor weight = at::randn({6, 8});
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter(dir.path(), world.group()).save(1, {full_piece("weight", weight)});
    const Checkpoint checkpoint(dir / checkpoint_name(1));
    at::Tensor transposed = at::zeros({8, 6}).t();
    checkpoint.load({full_piece("weight", transposed)});
    CHECK_TENSORS(transposed, weight);
    at::Tensor parameter = at::zeros({6, 8}, at::kDouble).requires_grad_();
    bool refused = false;
    try {
      checkpoint.load({full_piece("weight", parameter)});
    } catch (const CheckpointError& error) {
      refused =
          std::string(error.what()).find("weight: float32 stored, float64 requested") != std::string::npos;
    }
    CHECK_THAT(refused);
    checkpoint.load({full_piece("weight", parameter)}, LoadOptions{.convert_dtypes = true});
    CHECK_TENSORS(parameter.detach(), weight.to(at::kDouble));
    CHECK_THAT(parameter.requires_grad() && parameter.is_leaf());
  });
}

TEST(CheckpointTopology, ReportsEveryDifferenceOnAnyRankInOneError) {
  const TempDir dir;
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group());
    writer.save(1, {full_piece("same", at::ones({2})), full_piece("wide", at::ones({2, 3})),
                    full_piece("left.over", at::ones({1})),
                    full_piece("also.left.over", at::ones({1}), PieceKind::Buffer)});
    writer.wait();
  });
  const auto wanted = [](int rank) -> std::vector<Piece> {
    if (rank == 0) return {full_piece("same", at::zeros({2})), full_piece("absent", at::zeros({1}))};
    return {full_piece("wide", at::zeros({3, 2})), full_piece("missing.too", at::zeros({1}))};
  };
  const auto errors = comm::try_thread_ranks(2, [&](comm::World& world) {
    const std::vector<Piece> pieces = wanted(world.rank().value);
    try {
      Checkpoint(dir / checkpoint_name(1)).load(pieces, world.group());
      CHECK_THAT(false);
    } catch (const CheckpointError& error) {
      const std::string text = error.what();
      for (const char* part :
           {"missing in the checkpoint (2):\n    absent\n    missing.too",
            "not in the model (2):\n    also.left.over\n    left.over",
            "wide: [2, 3] stored, [3, 2] requested", "allow_missing, allow_extra, allow_reshaped"}) {
        if (text.find(part) == std::string::npos)
          throw std::logic_error(std::string("no ") + part + " in " + text);
      }
    }
    CHECK_THAT(pieces[0].local.sum().item<double>() == 0);  // nothing was loaded
    const LoadReport report = Checkpoint(dir / checkpoint_name(1))
                                  .load(pieces, world.group(),
                                        {.allow_missing = true, .allow_extra = true, .allow_reshaped = true});
    CHECK_SAME(report.missing.size(), 2U);
    CHECK_SAME(report.extra.size(), 2U);
    CHECK_SAME(report.reshaped.size(), 1U);
    CHECK_SAME(pieces[0].local.sum().item<double>(), world.rank().value == 0 ? 2.0 : 0.0);
  });
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

TEST(CheckpointTopology, RejectsIncompleteTensors) {
  const TempDir dir;
  const auto errors = comm::try_thread_ranks(2, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group());
    const int rank = world.rank().value;
    const std::vector<Piece> pieces = {
        {.name = "holes", .shape = {8}, .local = at::zeros({3}), .region = FlatRange{rank * 4, rank * 4 + 3}},
        full_piece("differs", at::zeros({2 + rank})),
        {.name = "outside", .shape = {4}, .local = at::zeros({3}), .region = FlatRange{2, 5}},
        {.name = "size", .shape = {4}, .local = at::zeros({3})}};
    try {
      writer.save(1, pieces);
      CHECK_THAT(false);
    } catch (const UsageError& error) {
      const std::string text = error.what();
      for (const char* part : {"holes: no rank has 2 of its 8 elements", "differs: ranks 0 and 1 differ",
                               "outside (rank 1): the region [flat 2:5] is outside the tensor",
                               "size (rank 0): the tensor does not have the size of its region"}) {
        if (text.find(part) == std::string::npos)
          throw std::logic_error(std::string("no ") + part + " in " + text);
      }
    }
  });
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

TEST(CheckpointTopology, AliasesAreTheSameTensor) {
  const TempDir dir;
  const at::Tensor token = at::randn({5, 3});
  comm::run_thread_ranks(1, [&](comm::World& world) {
    CheckpointWriter writer(dir.path(), world.group());
    Piece tied = full_piece("token.weight", token);
    tied.aliases = {"head.weight"};
    writer.save(1, {tied});
    writer.wait();
    const Checkpoint checkpoint(dir / checkpoint_name(1));
    const Piece head = full_piece("head.weight", at::zeros({5, 3}));
    checkpoint.load({head});
    CHECK_TENSORS(head.local, token);
    // The reverse: the last stage of a pipeline uses the other name and stores both, and a tied model loads
    // one of them.
    writer.save(2, {full_piece("token.weight", token), full_piece("head.weight", token)});
    writer.wait();
    Piece both = full_piece("token.weight", at::zeros({5, 3}));
    both.aliases = {"head.weight"};
    Checkpoint(dir / checkpoint_name(2)).load({both});
    CHECK_TENSORS(both.local, token);
  });
}

}  // namespace
}  // namespace penstock::checkpoint
