// The `penstock` command: parses the command line and hands over to one command's file.
#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app{"Pipeline, tensor and data parallel training for libtorch.", "penstock"};
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
