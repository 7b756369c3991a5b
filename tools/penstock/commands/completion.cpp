// `penstock completion`: prints a script that completes commands, options and their values in a shell. The
// script asks `penstock __complete WORDS…`, so it never becomes outdated.
#include "cli/arguments.h"
#include "commands/commands.h"

#include <string>

namespace penstock::tool {
namespace {

enum class Shell { Bash, Zsh, Fish };

constexpr const char* bash_script =
    R"(# Completion of penstock for bash. Load it with: source <(penstock completion bash)
_penstock() {
  local IFS=$'\n'
  COMPREPLY=($("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _penstock penstock
)";

constexpr const char* zsh_script = R"(#compdef penstock
# Completion of penstock for zsh. Load it with: source <(penstock completion zsh)
_penstock() {
  local -a found
  found=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[*]}" ]]; then compadd -a found; else _files; fi
}
compdef _penstock penstock
)";

constexpr const char* fish_script =
    R"(# Completion of penstock for fish. Load it with: penstock completion fish | source
function __penstock_complete
  set -l words (commandline --tokenize --current-process --cut-at-cursor)
  $words[1] __complete $words[2..-1] (commandline --current-token --cut-at-cursor) 2>/dev/null
end
complete --command penstock --arguments '(__penstock_complete)'
)";

}  // namespace

int completion_command(Arguments& arguments) {
  Shell shell = Shell::Bash;
  arguments.choice<Shell>("SHELL", shell, {{"bash", Shell::Bash}, {"zsh", Shell::Zsh}, {"fish", Shell::Fish}},
                          "bash, zsh or fish", Arguments::Need::Required);
  arguments.parse();
  switch (shell) {
    case Shell::Bash:
      print(bash_script);
      break;
    case Shell::Zsh:
      print(zsh_script);
      break;
    case Shell::Fish:
      print(fish_script);
      break;
  }
  return 0;
}

}  // namespace penstock::tool
