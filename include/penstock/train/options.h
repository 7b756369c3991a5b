// Options of a training run. Plain data: the tool reads them from the command line and from TOML; programs
// set them directly.
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
//! What to do if a loss or gradient is not finite.
enum class NanPolicy {
  Stop,  //!< stop the run; the error names the microbatch and stage where it first appeared
  Skip,  //!< skip the update of the step and continue
  Ignore,
};
//! What to do if a checkpoint cannot be written.
enum class StoragePolicy { Stop, Warn };

//! How the model is distributed over ranks. In the order of world ranks, the tensor-parallel rank varies
//! fastest, then the replica, then the pipeline rank.
struct ParallelOptions {
  int pp = 1;
  int tp = 1;
  int dp = 1;
  Sharding sharding = Sharding::None;
  std::string schedule = "1F1B";  //!< a name, or `auto`: planned from measured costs
  int stages_per_rank = 0;        //!< 0: the default of the schedule
  int microbatches = 4;
  bool recompute = false;  //!< keep only the stage inputs of each microbatch and recompute activations

  int ranks() const { return pp * tp * dp; }
};

struct RateOptions {
  RateKind kind = RateKind::Constant;
  double rate = 3e-3;
  std::int64_t warmup = 0;  //!< steps of linear warmup from 0
  double least = 0.1;       //!< final value of the cosine, as a fraction of `rate`
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::AdamW;
  double weight_decay = 0;
  double momentum = 0;  //!< SGD only
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
};

struct CheckpointOptions {
  std::string directory;   //!< empty: no checkpoints
  std::int64_t every = 0;  //!< interval in steps; 0: at the end only
  int keep = 3;            //!< number of complete checkpoints to keep
  bool resume = false;
  bool partly = false;  //!< resume even if tensors are missing, extra or have another shape
  StoragePolicy on_error = StoragePolicy::Stop;
};

struct RunOptions {
  ParallelOptions parallel{};
  RateOptions rate{};
  OptimizerOptions optimizer{};
  CheckpointOptions checkpoint{};
  std::int64_t steps = 100;
  std::int64_t batch = 16;      //!< examples per step, over all replicas
  std::int64_t accumulate = 1;  //!< parts of a batch that run through the pipeline one after the other
  double grad_clip = 0;         //!< maximum gradient norm; 0: no clipping
  Precision precision = Precision::Float32;
  std::uint64_t seed = 1;
  std::int64_t eval_every = 0;    //!< 0: never
  std::int64_t eval_batches = 0;  //!< maximum number of batches of `batch` rows; 0: all validation rows
  NanPolicy on_nan = NanPolicy::Stop;
  // Output files; empty: none. Their directories must exist.
  std::string log_json;  //!< JSON Lines, one object per step
  std::string timeline;  //!< HTML page
  std::string trace;
  std::string profile;  //!< cost file for `penstock plan`

  std::string config;  //!< the resolved configuration as text, stored in checkpoints
};

//! Throws UsageError if the options are invalid or inconsistent.
void check(const RunOptions& options);

}  // namespace penstock::train
