// The entry function of each command. Each is defined in its own file in this folder.
#pragma once

namespace penstock::tool {

class Arguments;

int checkpoint_command(Arguments& arguments);
int costs_command(Arguments& arguments);
int doctor_command(Arguments& arguments);
int eval_command(Arguments& arguments);
int inspect_command(Arguments& arguments);
int plan_command(Arguments& arguments);
int run_command(Arguments& arguments);
int schedule_command(Arguments& arguments);
int simulate_command(Arguments& arguments);
int train_command(Arguments& arguments);
int validate_command(Arguments& arguments);
int version_command(Arguments& arguments);

}  // namespace penstock::tool
