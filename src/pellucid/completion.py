"""Completion scripts for shells, made from the command line's own parser."""

from __future__ import annotations

from typing import Any

__all__ = ["script"]

BASH = r"""_pellucid() {
  local words here="${COMP_WORDS[COMP_CWORD]}"
  case "${COMP_WORDS[1]}" in
CASES
  esac
  case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in
VALUES
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "COMMANDS" -- "$here"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$here"))
    local IFS=$'\n'
    COMPREPLY+=($(compgen -f -- "$here"))
  fi
}
complete -o filenames -F _pellucid pellucid"""


def script(shell: str, options: dict[str, list[str]], values: dict[str, Any]) -> str:
    """What a shell must be told: the commands, the options (and other words) of each, and the values of ``"train --engine"``."""
    if shell == "fish":
        lines = [f"complete -c pellucid -n __fish_use_subcommand -f -a '{' '.join(options)}'"]
        for command, words in options.items():
            for word in words:
                kind = "-l" if word.startswith("--") else "-s" if word.startswith("-") else "-a"
                of = f" -x -a '{' '.join(values[f'{command} {word}'])}'" if f"{command} {word}" in values else ""
                lines.append(f"complete -c pellucid -n '__fish_seen_subcommand_from {command}' {kind} {word.lstrip('-')}{of}")
        return "\n".join(lines)
    cases = "\n".join(f'    {command}) words="{" ".join(words)}" ;;' for command, words in options.items())
    of = "\n".join(f'    "{at}") COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$here")); return ;;' for at, words in values.items())
    text = BASH.replace("CASES", cases).replace("VALUES", of).replace("COMMANDS", " ".join(options))
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text
