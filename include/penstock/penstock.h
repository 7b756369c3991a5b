// The commonly used names of Penstock: what a training program needs.
#pragma once

#include <penstock/base/error.h>
#include <penstock/base/ids.h>
#include <penstock/checkpoint/module_pieces.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/flight_record.h>
#include <penstock/comm/group.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>
#include <penstock/parallel/ddp.h>
#include <penstock/parallel/find_parallel_plan.h>
#include <penstock/parallel/input_reshard.h>
#include <penstock/parallel/loss_parallel.h>
#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/parallel/replicate.h>
#include <penstock/parallel/sharded.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/pipe/pipe.h>
#include <penstock/pipe/wrappers.h>
#include <penstock/plan.h>
#include <penstock/runtime/error.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/runtime/module_call.h>
#include <penstock/runtime/overlap.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/runtime/random.h>
#include <penstock/runtime/schedules.h>
#include <penstock/runtime/stage.h>
#include <penstock/runtime/stage_profile.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/tensor/dtensor.h>
#include <penstock/tensor/flatten.h>
#include <penstock/tensor/grad_norm.h>
#include <penstock/torch_version.h>
#include <penstock/value/microbatch.h>

namespace penstock {

using value::Args;
using value::ChunkSpec;
using value::Kwargs;
using value::NamedTensor;
using value::Replicate;
using value::TensorChunkSpec;
using value::TensorMeta;

using comm::BackendKind;
using comm::FlightRecord;
using comm::Group;
using comm::init;
using comm::InitOptions;
using comm::ReduceOp;
using comm::run_thread_ranks;
using comm::Work;
using comm::World;

using tensor::clip_grad_norm;
using tensor::DeviceMesh;
using tensor::distribute_tensor;
using tensor::from_local;
using tensor::full_tensor;
using tensor::Partial;
using tensor::Placements;
using tensor::redistribute;
using tensor::Shard;
using tensor::to_local;

using checkpoint::Checkpoint;
using checkpoint::CheckpointError;
using checkpoint::CheckpointWriter;
using checkpoint::find_resume_point;
using checkpoint::module_pieces;
using checkpoint::optimizer_load;
using checkpoint::optimizer_pieces;
using checkpoint::Piece;
using checkpoint::PieceKind;
using checkpoint::WriterOptions;

using graph::MetaDeviceScope;
using graph::ModuleScope;
using graph::pipe_split;
using graph::SplitPoint;
using graph::SplitPositions;

using runtime::call;
using runtime::LossFunction;
using runtime::LossReduction;
using runtime::make_stage_module;
using runtime::Microbatches;
using runtime::overlap_on_threads;
using runtime::PipelineOptions;
using runtime::PipelineSchedule;
using runtime::PipelineStage;
using runtime::profile_stages;
using runtime::StageError;
using runtime::StageModule;
using runtime::StageOptions;
using runtime::StageResult;
using runtime::StepInput;
using runtime::StepResult;
using runtime::tensor_loss;

using pipe::AtMarks;
using pipe::Balanced;
using pipe::load_pt2;
using pipe::Pipe;
using pipe::pipeline;
using pipe::PipeOptions;
using pipe::SplitPoints;
using pipe::SplitPolicy;

using parallel::ColwiseParallel;
using parallel::DistributedDataParallel;
using parallel::DistributeParameters;
using parallel::find_parallel_plan;
using parallel::fully_shard;
using parallel::LossParallel;
using parallel::parallelize_module;
using parallel::ParallelPlan;
using parallel::PrepareModuleInput;
using parallel::PrepareModuleInputOutput;
using parallel::PrepareModuleOutput;
using parallel::Replica;
using parallel::replicate;
using parallel::ReplicatedStages;
using parallel::ReplicateOptions;
using parallel::RowwiseParallel;
using parallel::SequenceParallel;
using parallel::Sharded;
using parallel::ShardedStages;
using parallel::ShardOptions;
using parallel::UnknownPath;

#define PENSTOCK_SCHEDULE(kind, class_name, ...) using runtime::class_name;
#include <penstock/schedule/schedules.def>

}  // namespace penstock
