// The everyday names of a training program, in namespace `penstock`. The other names of each module are in
// its own namespace and header: `penstock::tensor::redistribute` in penstock/tensor/dtensor.h.
#pragma once

#include <penstock/base/error.h>
#include <penstock/base/ids.h>
#include <penstock/checkpoint/module_pieces.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/group.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>
#include <penstock/parallel/ddp.h>
#include <penstock/parallel/find_parallel_plan.h>
#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/parallel/replicate.h>
#include <penstock/parallel/sharded.h>
#include <penstock/parallel/tensor_parallel.h>
#include <penstock/pipe/pipe.h>
#include <penstock/pipe/wrappers.h>
#include <penstock/runtime/loss_reduction.h>
#include <penstock/runtime/module_call.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/runtime/schedules.h>
#include <penstock/runtime/stage.h>
#include <penstock/tensor/dtensor.h>
#include <penstock/tensor/mesh.h>
#include <penstock/torch_version.h>
#include <penstock/version.h>

namespace penstock {

// The ranks of a job.
using comm::Group;
using comm::init;
using comm::InitOptions;
using comm::ReduceOp;
using comm::run_thread_ranks;
using comm::World;

// From a model to stages.
using graph::pipe_split;
using pipe::AtMarks;
using pipe::Balanced;
using pipe::load_pt2;
using pipe::Pipe;
using pipe::pipeline;
using pipe::PipeOptions;
using pipe::SplitPoints;

// Pipelines of stages. Each schedule has a class: Schedule1F1B, ScheduleZB1P, …
using runtime::call;
using runtime::LossReduction;
using runtime::make_stage_module;
using runtime::Microbatches;
using runtime::PipelineOptions;
using runtime::PipelineSchedule;
using runtime::PipelineStage;
using runtime::StageOptions;
using runtime::StageResult;
using runtime::StepOptions;
using runtime::StepResult;
using runtime::tensor_loss;
using value::Args;
using value::Kwargs;

#define PENSTOCK_SCHEDULE(kind, class_name, ...) using runtime::class_name;
#include <penstock/schedule/schedules.def>

// Data parallelism, replicated and sharded.
using parallel::DdpOptions;
using parallel::DistributedDataParallel;
using parallel::fully_shard;
using parallel::Replica;
using parallel::replicate;
using parallel::ReplicatedStages;
using parallel::Sharded;
using parallel::ShardedStages;
using parallel::ShardOptions;

// Tensor parallelism.
using parallel::ColwiseParallel;
using parallel::find_parallel_plan;
using parallel::parallelize_module;
using parallel::ParallelPlan;
using parallel::RowwiseParallel;
using parallel::SequenceParallel;
using tensor::DeviceMesh;

// Checkpoints.
using checkpoint::Checkpoint;
using checkpoint::CheckpointWriter;
using checkpoint::find_resume_point;
using checkpoint::module_pieces;
using checkpoint::optimizer_load;
using checkpoint::optimizer_pieces;

}  // namespace penstock
