// `penstock completion`: prints a script that completes commands, options and their values in a shell. The
// script asks `penstock __complete WORDS…`, so it never becomes outdated.
#include "base/json.h"
#include "cli/arguments.h"
#include "commands/commands.h"

#include <string>

namespace penstock::tool {
namespace {

enum class Shell { Bash, Zsh, Fish };

constexpr const char* kBashScript =
    R"(# Completion of penstock for bash. Load it with: source <(penstock completion bash)
_penstock() {
  local IFS=$'\n'
  COMPREPLY=($("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _penstock penstock
)";

constexpr const char* kZshScript = R"(#compdef penstock
# Completion of penstock for zsh. Load it with: source <(penstock completion zsh)
_penstock() {
  local -a found
  found=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[*]}" ]]; then compadd -a found; else _files; fi
}
# As a file _penstock in $fpath, zsh runs this text at the first completion.
if [[ "${funcstack[1]}" == _penstock ]]; then _penstock "$@"; else compdef _penstock penstock; fi
)";

constexpr const char* kFishScript =
    R"(# Completion of penstock for fish. Load it with: penstock completion fish | source
function __penstock_complete
  set -l words (commandline --tokenize --current-process --cut-at-cursor)
  set -l word (commandline --current-token --cut-at-cursor)
  set -l found ($words[1] __complete $words[2..-1] "$word" 2>/dev/null)
  if set -q found[1]
    printf '%s\n' $found
  else
    __fish_complete_path "$word"
  end
end
complete --command penstock --no-files --arguments '(__penstock_complete)'
)";

std::string script_of(Shell shell) {
  switch (shell) {
    case Shell::Bash:
      return kBashScript;
    case Shell::Zsh:
      return kZshScript;
    case Shell::Fish:
      return kFishScript;
  }
  return "";
}

}  // namespace

int completion_command(Arguments& arguments) {
  Shell shell = Shell::Bash;
  arguments.choice<Shell>("SHELL", shell, {{"bash", Shell::Bash}, {"zsh", Shell::Zsh}, {"fish", Shell::Fish}},
                          "bash, zsh or fish", Arguments::Need::Required);
  arguments.parse();
  const std::string script = script_of(shell);
  if (!arguments.json()) {
    print(script);
    return 0;
  }
  JsonWriter json;
  print(json.begin_object().field("script", script).end_object().text() + "\n");
  return 0;
}

}  // namespace penstock::tool
