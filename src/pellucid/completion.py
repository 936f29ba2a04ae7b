"""Completion scripts for shells, made from the command line's own parser."""

from __future__ import annotations

__all__ = ["script"]

BASH = """_pellucid() {
  local words here="${COMP_WORDS[COMP_CWORD]}"
  case "${COMP_WORDS[1]}" in
CASES
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "COMMANDS" -- "$here"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$here") $(compgen -f -- "$here"))
  fi
}
complete -o filenames -F _pellucid pellucid"""


def script(shell: str, options: dict[str, list[str]]) -> str:
    """What a shell must be told: the commands, and the options of each."""
    if shell == "fish":
        lines = [f"complete -c pellucid -n __fish_use_subcommand -f -a '{' '.join(options)}'"]
        for command, words in options.items():
            for word in words:
                kind = "-l" if word.startswith("--") else "-s"
                lines.append(f"complete -c pellucid -n '__fish_seen_subcommand_from {command}' {kind} {word.lstrip('-')}")
        return "\n".join(lines)
    cases = "\n".join(f'    {command}) words="{" ".join(words)}" ;;' for command, words in options.items())
    text = BASH.replace("CASES", cases).replace("COMMANDS", " ".join(options))
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text
