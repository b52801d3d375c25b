"""`calque completion`: a script that lets a shell complete commands and options; everything else are file names."""

from __future__ import annotations

import argparse


def _words(top: argparse.ArgumentParser) -> dict[str, tuple[str, list[str]]]:
    """Command -> (help, options)."""
    (commands,) = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    return {
        name: (helps.get(name, ""), [option for action in sub._actions for option in action.option_strings if option.startswith("--")])
        for name, sub in commands.choices.items()
    }  # fmt: skip


def completion(top: argparse.ArgumentParser, shell: str) -> int:
    """Print the script for a shell."""
    words = _words(top)
    if shell == "fish":
        quiet = "__fish_use_subcommand"
        for name, (about, options) in words.items():
            text = about.replace("\\", "\\\\").replace("'", "\\'")
            print(f"complete -c calque -n {quiet} -a {name} -d '{text}'")
            print("\n".join(f"complete -c calque -n '__fish_seen_subcommand_from {name}' -l {option[2:]}" for option in options))
        return 0
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    cases = "\n".join(f'        {name}) words="{" ".join(options)}" ;;' for name, (_, options) in words.items())
    print(f"""_calque() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join([*words, "--version", "--help"])}" -- "$current"))
        return
    fi
    case "$current" in -*) ;; *) COMPREPLY=($(compgen -f -- "$current")); return ;; esac
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o filenames -F _calque calque""")
    return 0
