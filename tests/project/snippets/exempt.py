"""What the test of the documentation's snippets does not run, and why. Everything else is run, compiled or parsed."""

# Commands that prepare the directory in which the commands run.
SETUP = ["penstock schedule 1F1B --ranks 4 --microbatches 8 > my_schedule.csv"]

# Commands of `penstock` that load libtorch and mostly need a model: `snippets.py check` compares their options with the help.
# tests/project/snippet_commands.py runs them, and tests/tools/train/readme_example.sh those of the README.
TORCH_COMMANDS = {"checkpoint", "costs", "doctor", "eval", "generate", "inspect", "run", "train", "version"}
# Those that are not run, by a pattern.
NOT_RUN = {
    r"\bcuda\b": "needs GPUs",
    r"--nodes 2 ": "needs a second machine; tools_train_two_hosts_test runs such nodes",
    r"-- \./my_program": "a program of the user",
}

# Other commands, by a pattern for their beginning. (The test compares those of `./dev` with its help.)
COMMANDS = {
    r"penstock studio\b": "serves until it is stopped, and needs ./dev playground; tools_studio_test runs it",
    r"penstock completion fish \| source": "for fish; tools_shells_test loads the completion of each shell",
    r"ninja -C build/release ": "builds; the build directory is in use",
    r"(\./)?build/release/(tests|examples)/": "a program of the build; ctest runs them all",
    r"source <\(penstock completion ": "tools_shells_test loads the completion of each shell",
    r"cd build/packages$": "the folder of the packages, for the next line",
    r"(sudo )?(apt|apt-get|dnf) ": "installs packages of the system; the slow test `packages` installs ours",
    r"python3 -m venv \.venv ": "the slow test `clean_clone` runs it",
    r"pip install ": "installs packages; the slow tests `wheel` and `clean_clone` build and install ours",
    r"export PENSTOCK_FAULT=": "tools_train_fault_test sets such faults",
}

# Blocks, by page and the beginning of one of their lines. Shell blocks listed here must still pass `bash -n`.
BLOCKS = {
    ("docs/architecture.md", "base <- schedule"): "ProjectSources reads it",
    ("docs/checkpoint.md", "runs/gpt/"): "a listing of files",
    ("docs/clusters.md", "launcher: Slurm job"): "needs Slurm; ToolSlurm checks the line",
    ("docs/clusters.md", "#!/bin/bash"): "needs Slurm; ToolSlurm runs such scripts",
    ("docs/clusters.md", "FROM debian:12"): "builds an image; the slow test `packages` installs the packages and a libtorch in the same way",
    ("docs/clusters.md", "export PENSTOCK_JOB_SECRET"): "needs several machines; tools_mpirun_test runs mpirun",
    ("docs/clusters.md", "for i in 0 1; do"): "needs several machines; tools_train_two_hosts_test runs such nodes",
    ("docs/gpus.md", "# on both machines"): "needs two machines; tools_train_two_hosts_test runs such nodes",
    ("docs/graph.md", "torch::nn model --capture"): "a diagram",
    ("docs/graph.md", "graph {"): "illustrates the text format; GraphText parses such graphs",
    ("docs/install.md", "sudo python3 -m venv /opt/torch"): "changes the system; the slow test `packages` does the same",
    ("docs/install.md", "cmake --preset release"): "configures and compiles everything",
    ("docs/install.md", "cmake --install build/release"): "consumer.readme runs it",
    ("docs/install.md", "cmake_minimum_required"): "consumer.readme builds it",
    ("docs/install.md", "cd ~/mine"): "consumer.readme runs it",
    ("docs/tool.md", "stage 0  %tokens"): "needs an exported model; tools_model_commands_test checks such lines",
    ("docs/training.md", "dry run: no ranks"): "names the machine; tools_train_dry_run_test checks the parts",
    ("docs/training.md", "penstock: error: rank 1 failed"): "depends on the moment of the failure; ToolTrainFault checks it",
    ("docs/training.md", "the data's 'input' contains nan"): "needs data with a NaN; ToolTrainFault checks it",
}
