// What a training run is asked to do. Plain data: the tool reads it from the command line and from TOML,
// programs fill it in themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

enum class OptimizerKind { Sgd, AdamW };
enum class LossKind { CrossEntropy, Mse };
enum class RateKind { Constant, Cosine };
enum class Sharding { None, Full };
enum class Precision { Float32, Bfloat16 };
enum class BalanceKind { Parameters, Time };
//! What to do about a loss or gradient that is not finite.
enum class NanPolicy {
  Stop,  //!< end the run, naming the microbatch and stage where it first appeared
  Skip,  //!< leave the step's update out and go on
  Ignore,
};
//! What to do when a checkpoint cannot be written.
enum class StoragePolicy { Stop, Warn };

//! How the model is spread over ranks. World ranks count tensor-parallel ranks first, then replicas, then
//! pipeline ranks.
struct ParallelOptions {
  int pp = 1;
  int tp = 1;
  int dp = 1;
  Sharding sharding = Sharding::None;
  std::string schedule = "1F1B";  //!< a name, or `auto`: made for measured costs
  int stages_per_rank = 0;        //!< 0: what the schedule usually has
  int microbatches = 4;
  bool recompute = false;  //!< keep only the inputs of each stage and microbatch

  int ranks() const { return pp * tp * dp; }
};

struct RateOptions {
  RateKind kind = RateKind::Constant;
  double rate = 3e-3;
  std::int64_t warmup = 0;  //!< steps of a straight rise from 0
  double least = 0.1;       //!< the share of `rate` that a cosine ends at
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::AdamW;
  double weight_decay = 0;
  double momentum = 0;  //!< of SGD
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
};

struct CheckpointOptions {
  std::string directory;   //!< empty: none
  std::int64_t every = 0;  //!< steps; 0: at the end only
  int keep = 3;            //!< complete ones that are kept
  bool resume = false;
  bool partly = false;  //!< go on although the checkpoint lacks tensors, has others or some of another shape
  StoragePolicy on_error = StoragePolicy::Stop;
};

struct RunOptions {
  ParallelOptions parallel{};
  RateOptions rate{};
  OptimizerOptions optimizer{};
  CheckpointOptions checkpoint{};
  std::int64_t steps = 100;
  std::int64_t batch = 16;      //!< examples of a step, over all replicas
  std::int64_t accumulate = 1;  //!< parts of a batch that go through the pipeline one after the other
  double grad_clip = 0;         //!< 0: none
  Precision precision = Precision::Float32;
  std::uint64_t seed = 1;
  std::int64_t eval_every = 0;    //!< 0: never
  std::int64_t eval_batches = 0;  //!< of `batch` rows, at most; 0: all validation rows
  NanPolicy on_nan = NanPolicy::Stop;
  std::string log_json;  //!< a file, whose directory must exist, as for those below; empty: none
  std::string timeline;  //!< an HTML page
  std::string trace;
  std::string profile;  //!< a cost file for `penstock plan`
  std::string config;   //!< the settled configuration as text, stored with checkpoints
};

//! Refuses, with a UsageError, counts that fit no run.
void check(const RunOptions& options);

}  // namespace penstock::train
