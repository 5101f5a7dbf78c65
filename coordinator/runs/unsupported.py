"""What GNU Parallel has and `muster run` has not, with what to do instead. Decides nothing else."""

from __future__ import annotations

_GROUPED = "an item's output is printed whole when it ends; leave the option out"
_MACHINES = "machines join by themselves: `agent join` on each; --workdir or files as items bring the work there"
_LENDS = "the agent says what a machine lends: `agent set cpus=…`, `agent join --memory …`"
_BLOCKS = "cut the file first: `split -n l/100 FILE part.`, then `muster run … ::: part.*`"
_PACKED = "one item is one command; let the command take several: `xargs -n 10 | muster run`"
_READ = "values are never read by a shell here, so nothing need be quoted"
_ALONE = "items run by themselves and have no terminal"
_STORED = "the farm keeps its own store: `muster status`"
_PREPARED = "prepare the list of items before it comes here"

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("-u", "--ungroup", "--lb", "--line-buffer", "--linebuffer", "--group", "--files"), _GROUPED),
    **dict.fromkeys(("-S", "--sshlogin", "--slf", "--sshloginfile", "--onall", "--nonall", "--ssh"), _MACHINES),
    **dict.fromkeys(("--nice", "--memfree", "--memsuspend", "--load", "--noswap"), _LENDS),
    **dict.fromkeys(("--pipe", "--pipepart", "--pipe-part", "--spreadstdin", "--block", "--recstart"), _BLOCKS),
    **dict.fromkeys(("-X", "-m", "--xargs", "-n", "-N", "-L", "-l", "--max-args", "--max-lines"), _PACKED),
    **dict.fromkeys(("-q", "--quote", "--shellquote"), _READ),
    **dict.fromkeys(
        ("--tf", "--transferfile", "--transfer", "--trc", "--cleanup", "--bf", "--basefile"),
        "items that name files below the current folder travel by themselves; `--return NAME` brings {out} back",
    ),
    **dict.fromkeys(("-d", "--delimiter"), "records end with a line; `tr` makes lines of others, -0 takes NUL"),
    **dict.fromkeys(("--link", "--xapply"), "write `:::+` or `::::+` for a source that goes along with the last"),
    **dict.fromkeys(("--resume-failed",), "--resume runs what has not ended with 0, and so what failed too"),
    **dict.fromkeys(("--eta", "--progress"), "--bar, or `muster watch JOB` in another window"),
    **dict.fromkeys(("-v", "-t", "--verbose"), "--dry-run prints the commands, --joblog keeps them"),
    **dict.fromkeys(("-r", "--no-run-if-empty"), "take empty lines out first: `grep . | muster run …`"),
    **dict.fromkeys(("-I", "-i", "--replace", "--rpl"), "the placeholder is {}; `muster run --help` has all"),
    **dict.fromkeys(("--tagstring",), "--tag begins each line with the item's values"),
    **dict.fromkeys(("--shuf",), "`shuf FILE | muster run …`"),
    **dict.fromkeys(("--delay",), "-j says how many run at once"),
    **dict.fromkeys(("--tmux", "--fg", "--bg", "--semaphore", "--sem", "--tty", "-p", "--interactive"), _ALONE),
    **dict.fromkeys(("--sqlmaster", "--sqlworker", "--sql", "--sqlandworker"), _STORED),
    **dict.fromkeys(("--will-cite", "--bibtex", "--citation"), "leave it out"),
    **dict.fromkeys(("--trim", "--plus", "--arg-sep", "--arg-file-sep", "-E", "--fifo", "--cat"), _PREPARED),
}  # fmt: skip


def instead(option: str) -> str | None:
    """What to do in place of an option that GNU Parallel has; None for one that it has not either."""
    return INSTEAD.get(option)
