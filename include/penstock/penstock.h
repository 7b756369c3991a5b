// Everything that a program which trains with Penstock needs.
#pragma once

#include <penstock/base/error.h>
#include <penstock/base/ids.h>
#include <penstock/checkpoint/module.h>
#include <penstock/checkpoint/writer.h>
#include <penstock/comm/group.h>
#include <penstock/comm/launcher.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>
#include <penstock/parallel/ddp.h>
#include <penstock/parallel/pipeline_data_parallel.h>
#include <penstock/parallel/replicate.h>
#include <penstock/parallel/sharded.h>
#include <penstock/pipe/pipe.h>
#include <penstock/runtime/error.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/runtime/profile.h>
#include <penstock/runtime/random.h>
#include <penstock/runtime/schedules.h>
#include <penstock/runtime/stage.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/value/call.h>
#include <penstock/value/loss_reduction.h>
#include <penstock/value/microbatch.h>
#include <penstock/version.h>
